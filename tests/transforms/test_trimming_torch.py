import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.errors import SettingError
from tinytorch.transforms.support.channels import Place
from tinytorch.transforms.support.trimming import joined
from tinytorch.transforms.support.weights_torch import (
    is_depthwise,
    set_sizes,
    trim,
    zero_out,
)


def conv1d():
    return require_part("transformers.pytorch_utils").Conv1D(4, 6)


@pytest.mark.parametrize(
    ("make", "removal", "sizes"),
    [
        (lambda: nn.Linear(6, 4), {("weight", 0): (1,), ("bias", 0): (1,)}, {"out_features": 3}),
        (lambda: nn.Linear(6, 4), {("weight", 1): (0, 5)}, {"in_features": 4}),
        (conv1d, {("weight", 1): (2,), ("bias", 0): (2,)}, {"nf": 3, "nx": 6}),
        (conv1d, {("weight", 0): (2,)}, {"nf": 4, "nx": 5}),
        (lambda: nn.Conv2d(6, 4, 3), {("weight", 1): (0,)}, {"in_channels": 5, "out_channels": 4}),
        (
            lambda: nn.Conv2d(6, 4, 3, groups=2),
            {("weight", 1): (1,)},
            {"in_channels": 4, "out_channels": 4, "groups": 2},
        ),
        (
            lambda: nn.Conv2d(6, 6, 3, groups=6),
            {("weight", 0): (1, 2), ("bias", 0): (1, 2)},
            {"in_channels": 4, "out_channels": 4, "groups": 4},
        ),
        (
            lambda: nn.ConvTranspose2d(6, 4, 3),
            {("weight", 1): (3,), ("bias", 0): (3,)},
            {"in_channels": 6, "out_channels": 3},
        ),
        (lambda: nn.PReLU(4), {("weight", 0): (0,)}, {"num_parameters": 3}),
        (
            lambda: nn.BatchNorm2d(4, affine=False),
            {("running_mean", 0): (0,), ("running_var", 0): (0,)},
            {"num_features": 3},
        ),
    ],
)
def test_layers_know_their_new_sizes(make, removal, sizes):
    layer = make()
    old = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    trim(layer, {Place(*place): indices for place, indices in removal.items()})
    assert {name: getattr(layer, name) for name in sizes} == sizes
    for (name, axis), indices in removal.items():
        left = [i for i in range(old[name].shape[axis]) if i not in indices]
        expected = old[name].index_select(axis, torch.tensor(left))
        assert torch.equal(layer.state_dict()[name], expected)


def test_frozen_parameters_stay_frozen_and_keep_their_dtype():
    layer = nn.Linear(3, 3, dtype=torch.bfloat16)
    layer.weight.requires_grad_(False)
    trim(layer, {Place("weight", 0): (0,), Place("bias", 0): (0,)})
    assert not layer.weight.requires_grad
    assert layer.bias.requires_grad
    assert layer.weight.dtype == torch.bfloat16


def test_zeros_take_the_place_of_what_would_go():
    layer = nn.Linear(3, 2)
    zero_out(layer, {Place("weight", 1): (1,)})
    assert (layer.weight[:, 1] == 0).all()
    assert (layer.weight[:, [0, 2]] != 0).all()


def test_removals_are_joined():
    one, other = Place("a", 0), Place("b", 1)
    assert joined([{one: (3, 1)}, {one: (2, 1), other: (0,)}]) == {one: (1, 2, 3), other: (0,)}


def test_numbers_beside_tensors_are_set():
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    set_sizes(model, {"0": {"num_heads": 1}})
    assert model[0].num_heads == 1


def test_only_convolutions_of_single_channels_are_depthwise():
    assert is_depthwise(nn.Conv2d(4, 4, 3, groups=4))
    assert not is_depthwise(nn.Conv2d(4, 8, 3, groups=4))
    assert not is_depthwise(nn.Conv2d(1, 1, 3))


@pytest.mark.parametrize("place", [Place("1.weight", 0), Place("0.lost", 0), Place("0.weight", 0)])
def test_tensors_that_are_not_there_are_errors(place):
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(SettingError, match="make a plan for this model"):
        trim(model, {place: (7,)})
