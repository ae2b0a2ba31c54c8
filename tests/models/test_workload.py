import dataclasses

import pytest

from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload, check_workload


class OnlyForward:
    def forward(self, x):
        return x + 1


def test_running_calls_the_model_on_its_inputs():
    workload = Workload("sum", lambda a, b: a + b, (1, 2))
    assert workload.run() == 3


def test_a_model_may_have_forward_only():
    assert Workload("plus one", OnlyForward(), (1,)).run() == 2


def test_a_layer_is_a_model():
    layer = Linear(3, 2, rng=0)
    assert Workload("linear", layer, (Tensor([[1.0, 2.0, 3.0]]),)).run().shape == (1, 2)


def test_something_that_cannot_be_called_is_no_model():
    with pytest.raises(SettingError, match="'x' is a int, which cannot be called"):
        Workload("x", 3, ())


def test_a_workload_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Workload("x", len, ("abc",)).name = "y"


def test_evaluate_is_a_function():
    with pytest.raises(SettingError, match="evaluate of workload 'x' must be a function"):
        Workload("x", len, ("abc",), evaluate=3)


def test_calibration_data_is_kept_as_a_tuple_of_arguments():
    x = Tensor([1.0])
    work = Workload("model", Linear(1, 1), (x,), calibration=((x,) for _ in range(2)))
    assert work.calibration == ((x,), (x,))


def test_plans_and_reports_are_made_for_workloads():
    assert check_workload(Workload("layer", Linear(2, 2), (Tensor([[1.0, 2.0]]),))) is None
    with pytest.raises(SettingError, match=r"a plan is made for a Workload, got int; load_work"):
        check_workload(3)
    with pytest.raises(SettingError, match="a report is made for a Workload, got Linear"):
        check_workload(Linear(2, 2), "a report")
