import numpy as np
import pytest

from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.channels_last import ChannelsLast
from tinytorch.transforms.fold_batch_norm import FoldBatchNorm
from tinytorch.transforms.inference_mode import InferenceMode
from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.plan import Transform

ALL = [InferenceMode(), ChannelsLast(), LowerPrecision(), FoldBatchNorm()]


def own():
    return Workload("own", Linear(3, 2, rng=0), (Tensor(np.ones((1, 3))),))


@pytest.mark.parametrize("transform", ALL)
def test_models_of_tinytorch_are_given_as_copies(transform):
    case = own()
    plan = transform.plan(case)
    assert isinstance(transform, Transform)
    assert plan.is_empty
    assert plan.skipped[0].reason.startswith("it is a model of core, and ")
    assert plan.skipped[0].reason.endswith(" is for models of pytorch")
    model = transform.apply(case, plan)
    assert model is not case.model
    assert np.array_equal(model.weight.data, case.model.weight.data)


@pytest.mark.parametrize("transform", ALL)
def test_a_plan_of_another_transform_is_refused(transform):
    other = next(each for each in ALL if each is not transform)
    with pytest.raises(SettingError, match="make one with its own plan"):
        transform.apply(own(), other.plan(own()))


@pytest.mark.parametrize("transform", ALL)
def test_anything_but_a_workload_is_an_error(transform):
    with pytest.raises(SettingError, match="made for a Workload, got int"):
        transform.plan(3)
    with pytest.raises(SettingError, match="made for a Workload, got int"):
        transform.apply(3, transform.plan(own()))
