import pytest

from tinytorch.errors import SettingError
from tinytorch.transforms.tensor_float32 import TOLERANCE, TensorFloat32


@pytest.mark.parametrize("tolerance", [-1.0, float("inf"), float("nan"), True])
def test_a_tolerance_must_be_a_share(tolerance):
    with pytest.raises(SettingError, match="how far outputs may move"):
        TensorFloat32(tolerance=tolerance)


def test_the_tolerance_has_a_default():
    assert TensorFloat32().allowed_error == TOLERANCE
    assert TensorFloat32(tolerance=1e-2).allowed_error == 1e-2
