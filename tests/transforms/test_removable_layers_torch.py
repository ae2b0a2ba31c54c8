import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import bits_of, is_unchanged, seeded, workload

from tinytorch.errors import SettingError
from tinytorch.transforms.remove_layers import OutputChange, survey_layers
from tinytorch.transforms.remove_layers.torch import TorchLists


class Block(nn.Module):
    def __init__(self, width=8, size=1.0):
        super().__init__()
        self.layer = nn.Linear(width, width)
        with torch.no_grad():
            self.layer.weight.mul_(size)
            self.layer.bias.zero_()

    def forward(self, x):
        return x + self.layer(x)


class Stack(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8, size) for size in sizes)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def stack(*sizes):
    return workload(seeded(Stack, *sizes), 4, 8)


def test_blocks_of_a_list_are_candidates():
    survey = survey_layers(stack(1, 1), ())
    assert survey.candidates == ("blocks.0", "blocks.1")
    assert [(each.layer, each.reason) for each in survey.skipped] == [
        ("head", "it is no item of a list of layers")
    ]


def test_the_last_one_in_a_list_stays():
    survey = survey_layers(stack(1, 1), ())
    assert survey.removable_beside(("blocks.0",)) == []
    assert survey.removable_beside(()) == ["blocks.0", "blocks.1"]


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        (
            lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 4)),
            {"1": "it makes (4, 4) of (4, 8), so others need it", "2": "it makes the outputs"},
        ),
        (lambda: nn.ModuleDict({"a": nn.Sequential(nn.Linear(8, 8))}), {}),
    ],
)
def test_others_have_a_reason(model, reasons):
    model = model()
    if isinstance(model, nn.ModuleDict):
        model.forward = lambda x: x
        reasons = {"a.0": "it was not called"}
    found = survey_layers(workload(model, 4, 8), ()).reasons
    assert found.keys() == reasons.keys()
    assert all(found[path].startswith(reason) for path, reason in reasons.items())


def test_a_layer_in_two_places_stays():
    block = Block()
    model = nn.Sequential(block, Block(), block, nn.Linear(8, 2))
    assert survey_layers(workload(model, 4, 8), ()).reasons["0"] == "it stands in 2 places"


def test_kept_parts_keep_their_whole():
    reasons = survey_layers(stack(1, 1), ("blocks.1.layer",)).reasons
    assert reasons["blocks.1"] == "'blocks.1.layer' in it is kept by keep='blocks.1.layer'"


def test_the_change_is_that_of_the_outputs():
    case = stack(1, 0, 1)
    before = bits_of(case.model)
    judge = OutputChange(case)
    assert judge.without(("blocks.1",)) == (0.0, "")  # it adds zero
    change, reason = judge.without(("blocks.0",))
    assert reason == ""
    with torch.no_grad():
        one, other = [], []
        for (x,) in case.calibration:
            whole = case.model(x)
            y = case.model.blocks[2](case.model.blocks[1](x))
            one.append(whole)
            other.append(whole - case.model.head(y))
    expected = torch.cat(other).norm() / torch.cat(one).norm()
    assert change == pytest.approx(float(expected), rel=1e-5)
    assert is_unchanged(case.model, before)


class Numbered(Stack):
    """A model that names its layers."""

    def forward(self, x):
        return self.head(self.blocks[1](self.blocks[0](x)))


class Parallel(Stack):
    """A model whose layers stand side by side."""

    def forward(self, x):
        return self.head(sum(block(x) for block in self.blocks))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Numbered, "the model fails without it"), (Parallel, "does not simply go over its list")],
)
def test_a_model_that_does_not_go_over_its_list_keeps_it(kind, reason):
    case = workload(seeded(kind, 1, 1), 4, 8)
    judge = OutputChange(case)
    assert reason in judge.without(("blocks.0",))[1]
    assert len(case.model.blocks) == 2


def test_numbers_move_up_and_names_stay():
    numbered = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    for place, layer in enumerate(numbered):
        layer.layer_idx = place
    last = numbered[2]
    put_back = TorchLists(numbered).shorten(["1"])
    assert list(numbered._modules) == ["0", "1"]
    assert numbered[1] is last
    assert last.layer_idx == 1
    put_back()
    assert [last.layer_idx, *numbered._modules] == [2, "0", "1", "2"]
    named = nn.Sequential()
    for name in ("first", "second"):
        named.add_module(name, nn.Linear(2, 2))
    TorchLists(named).remove(["first"])
    assert list(named._modules) == ["second"]


def test_outputs_without_floats_tell_nothing():
    class Rounded(Stack):
        def forward(self, x):
            return super().forward(x).argmax(-1)

    case = workload(Rounded(1, 1), 4, 8)
    with pytest.raises(SettingError, match="no floating-point numbers"):
        OutputChange(case)
