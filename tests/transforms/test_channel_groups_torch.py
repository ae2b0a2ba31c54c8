import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("torch_pruning")

from channel_models_torch import MODELS
from torch_workloads import Residual, Tied, seeded

from tinytorch.errors import ModelError
from tinytorch.models.inputs import ModelCall
from tinytorch.transforms.remove_channels import ChannelGroup, layer_of
from tinytorch.transforms.remove_channels.groups import trace_groups
from tinytorch.transforms.support.channels import Place


def groups_of(model, *inputs):
    found = trace_groups(model.eval(), ModelCall(inputs, {}, "the inputs"))
    return {group.layers[0]: group for group in found}


def test_a_residual_sum_is_one_group():
    groups = groups_of(Residual(), torch.randn(2, 3, 12, 12))
    group = groups["stem"]
    assert group.layers == ("stem", "conv")
    assert group.size == 16
    assert Place("norm.running_mean", 0) in group.places
    assert group.consumers == {Place("conv.weight", 1), Place("head.weight", 1)}
    assert groups["head"].reason == "its outputs are outputs of the model"


def test_inputs_after_flattening_go_in_blocks():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 9, 5))
    group = groups_of(model, torch.randn(2, 1, 5, 5))["0"]
    assert group.places[Place("2.weight", 1)].tolist() == [
        list(range(9 * n, 9 * n + 9)) for n in range(4)
    ]


def test_a_concatenation_moves_indices():
    group = groups_of(*MODELS["concatenation"]())["right"]
    assert group.places[Place("after.weight", 1)][:, 0].tolist() == list(range(8, 14))


def test_groups_of_a_convolution_shrink_alike():
    groups = groups_of(*MODELS["grouped"]())
    places = groups["first"].places
    assert groups["first"].size == 4  # positions in each of two groups
    assert places[Place("first.weight", 0)].tolist() == [[n, n + 4] for n in range(4)]
    assert places[Place("second.weight", 1)].tolist() == [[n] for n in range(4)]


@pytest.mark.parametrize(
    ("model", "layer", "reason"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)), "0", "'1', a LayerNorm"),
        (
            nn.Sequential(nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 2))),
            "0",
            "computed anew before each call",
        ),
    ],
)
def test_channels_that_have_to_stay_have_a_reason(model, layer, reason):
    assert reason in groups_of(model, torch.randn(2, 8))[layer].reason


def test_shared_weights_stay():
    group = groups_of(seeded(Tied), torch.randint(0, 96, (2, 3)))["body"]
    assert group.reason == "'heads.0' shares its weight with 'table'"


def test_a_model_without_a_graph_is_an_error():
    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                return self.layer(x)

    with pytest.raises(ModelError, match="its outputs have no graph"):
        groups_of(Silent(), torch.randn(2, 4))


def group(size, width=1, kind="channels"):
    indices = torch.arange(size * width).reshape(size, width).numpy()
    return ChannelGroup(("a",), kind, {Place("a.weight", 0): indices}, sizes={"a": {"heads": 2}})


@pytest.mark.parametrize(
    ("size", "ratio", "round_to", "removed"),
    [(8, 0.5, 1, 4), (8, 0.99, 1, 7), (10, 0.3, 4, 2), (10, 0.5, 16, 0), (3, 0.3, 1, 0)],
)
def test_some_channels_stay_and_their_number_is_round(size, ratio, round_to, removed):
    assert group(size).removed_count(ratio, round_to) == removed


def test_heads_are_not_rounded():
    assert group(4, kind="heads").removed_count(0.5, 64) == 2


def test_wide_units_count_for_all_of_their_channels():
    assert group(8, width=2).removed_count(0.5, 8) == 4
    assert group(8, width=2).removed_count(0.4, 8) == 0


def test_a_removal_names_the_indices_of_its_units():
    each = group(3, width=2)
    assert each.removal([2, 0]) == {Place("a.weight", 0): (0, 1, 4, 5)}
    assert each.removal([]) == {}
    assert each.removal([0], consumers_only=True) == {}
    assert each.sizes_without(1) == {"a": {"heads": 4}}
    assert layer_of(Place("a.b.weight", 0)) == "a.b"
