import numpy as np
import pytest
from small_models import workload

from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Workload
from tinytorch.transforms.remove_channels import input_energies, unit_importance
from tinytorch.transforms.remove_channels.core import group_of
from tinytorch.transforms.support.channels import trace_channels


def groups(work):
    return [group_of(family, {}) for family in trace_channels(work).families]


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_magnitude_is_the_norm_of_all_weights_that_go(name):
    work = workload(name)
    tensors = {name: each.data for name, each in named_tensors(work.model).items()}
    for family in trace_channels(work).families:
        found = unit_importance(group_of(family, {}), tensors)
        for unit, importance in zip(family.units, found, strict=True):
            parts = [  # the slow and obvious way
                np.take(tensors[place.tensor], index, axis=place.axis).ravel()
                for place, indices in unit.items()
                for index in indices
                if tensors[place.tensor].ndim > 1
            ]
            assert importance == pytest.approx(np.linalg.norm(np.concatenate(parts)), rel=1e-6)


def test_energies_are_sums_of_squares_over_all_batches():
    work = workload("cnn")
    images = np.concatenate([x.data for (x,) in work.calibration]).astype(np.float64)
    energies = input_energies(work, groups(work))
    assert {name: len(each) for name, each in energies.items()} == {
        "layers.3.weight": 8,
        "layers.7.weight": 144,
    }
    hidden = work.model.layers[0](Tensor(images.astype(np.float32)))
    for layer in work.model.layers[1:3]:
        hidden = layer(hidden)
    expected = (hidden.data.astype(np.float64) ** 2).sum(axis=(0, 2, 3))
    assert energies["layers.3.weight"] == pytest.approx(expected, rel=1e-5)


def test_activation_importance_is_what_a_neuron_adds_to_the_next_layer():
    work = workload("mlp")
    tensors = {name: each.data for name, each in named_tensors(work.model).items()}
    group = groups(work)[0]
    found = unit_importance(group, tensors, input_energies(work, [group]))
    x = np.concatenate([x.data for (x,) in work.calibration])
    hidden = np.maximum(work.model.layers[0](Tensor(x)).data, 0).astype(np.float64)
    weight = work.model.layers[2].weight.data
    added = [np.linalg.norm(np.outer(hidden[:, index], weight[index])) for index in range(48)]
    assert found == pytest.approx(added, rel=1e-5)


def test_no_data_and_bad_data_are_errors():
    work = workload("mlp")
    bare = Workload("bare", work.model, work.inputs)
    with pytest.raises(SettingError, match="needs calibration data"):
        input_energies(bare, groups(work))
    broken = Workload("nan", work.model, work.inputs, ((Tensor(np.full((1, 64), np.nan)),),))
    with pytest.raises(SettingError, match=r"batch 0, input of layer 'layers.2': .*NaN"):
        input_energies(broken, groups(work))
    wrong = Workload("wrong", work.model, work.inputs, ((Tensor(np.ones((1, 63))),),))
    with pytest.raises(SettingError, match="batch 0 does not fit the model"):
        input_energies(wrong, groups(work))
