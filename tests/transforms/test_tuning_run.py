import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, Workload, use_backend
from tinytorch.core.kernels import NUMPY
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.errors import SettingError
from tinytorch.transforms.kernel_choice import (
    model_backend,
    operations_of,
    prepared,
    recorded_calls,
    set_model_backend,
)

X = Tensor(np.ones((4, 3), np.float32))


def net():
    return Sequential(Linear(3, 5, rng=0), ReLU(), Linear(5, 5, rng=1), ReLU())


def test_each_operation_and_size_class_comes_once():
    with prepared(net(), X) as workload:
        assert operations_of(workload) == [
            ("linear", "float32 2d,2d,1d of 2^3,2^3,2^2 in rows of 2^1"),
            ("relu", "float32 2d of 2^4 in rows of 2^2"),
            ("linear", "float32 2d,2d,1d of 2^4,2^4,2^2 in rows of 2^2"),
        ]


def test_a_workload_its_name_or_a_model_with_inputs_will_do():
    with prepared("mlp") as workload:
        assert workload.name == "mlp"
    own = Workload("own", net(), (X,))
    with prepared(own) as workload:
        assert workload is own
    with prepared(net(), (X,)) as workload:
        assert [call.kind for call in recorded_calls(workload)] == ["linear", "relu"] * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((net(),), "what is Sequential to be called with"),
        ((Workload("own", net(), (X,)), X), "a workload has its own inputs"),
    ],
)
def test_what_is_missing_or_too_much_is_said(given, message):
    with pytest.raises(SettingError, match=message), prepared(*given):
        pass


def test_models_of_torch_are_not_for_these_kernels():
    torch = require_part("torch")
    with (
        pytest.raises(SettingError, match="compute models of TinyTorch"),
        prepared(torch.nn.Linear(2, 2), torch.ones(1, 2)),
    ):
        pass


def test_the_model_stays_as_it_was():
    model = Sequential(Linear(3, 4, rng=0), Dropout(0.5, rng=0))
    set_model_backend(model, NUMPY.extended("own", {}))
    before = model.layers[1].rng.bit_generator.state
    with prepared(model, X) as workload, use_backend("reference"):
        assert {call.backend for call in recorded_calls(workload)} == {"reference"}
        assert not workload.run().requires_grad
    assert model.layers[1].rng.bit_generator.state == before
    assert model_backend(model).name == "own"
