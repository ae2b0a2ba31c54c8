import numpy as np
import pytest

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import as_batches


@pytest.mark.parametrize("form", ["tensor", "array", "list", "tuple", "loader", "dataset"])
def test_calibration_data_comes_in_many_forms(rng, form):
    x = rng.standard_normal((6, 4)).astype(np.float32)
    dataset = TensorDataset(Tensor(x), np.arange(6))
    forms = {
        "tensor": Tensor(x),
        "array": x,
        "list": [Tensor(x[:3]), x[3:]],
        "tuple": ((Tensor(x[:3]), "label"), (Tensor(x[3:]), "label")),
        "loader": DataLoader(dataset, batch_size=3),
        "dataset": dataset,
    }
    found = as_batches(forms[form])
    assert all(isinstance(arguments[0], Tensor) for arguments in found)
    np.testing.assert_array_equal(np.concatenate([a[0].data for a in found]), x)


def test_something_that_is_no_data_says_so():
    for wrong in (3, "abc", {"x": 1}, [[1.0, 2.0]], ["abc"]):
        with pytest.raises(SettingError, match="calibration data is a tensor or batches of them"):
            as_batches(wrong)
    assert as_batches(None) == ()
