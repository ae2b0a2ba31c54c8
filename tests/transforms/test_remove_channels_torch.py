import copy
import json
import sys

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
require_part("torch_pruning")

from channel_models_torch import MODELS
from tiny_transformers import VOCABULARY, continued, continued_without_cache, tiny
from torch_workloads import Tied, bits_of, held, is_unchanged, outputs, seeded, workload

from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.support.channels import Place
from tinytorch.transforms.support.weights import count_macs
from tinytorch.transforms.support.weights_torch import zero_out

TRANSFORMERS = ["llama", "gpt2", "bert", "vit", "resnet"]


def case_of(name, **changes):
    if name in TRANSFORMERS:
        require_part("transformers")
        return tiny(name, **changes)
    model, x = MODELS[name]()
    return Workload(name, model, (x,), calibration=((x,), (x.flip(0),)))


def removed(case, **settings):
    transform = RemoveChannels(**settings)
    plan = transform.plan(case)
    return plan, transform.apply(case, plan)


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


def masked(case, plan, consumers):
    """Give the model with zeros instead of what would go, for the layers that take it in."""
    twin = copy.deepcopy(case.model)
    for step in plan.steps:
        for tensor, axes in step.settings["removed"].items():
            for axis, indices in axes.items():
                if Place(tensor, axis) in consumers:
                    zero_out(twin, {Place(tensor, axis): indices})
    return twin


def consumers_of(case, plan):
    """Weights that lose inputs: axis 1, but 0 for the linear layers of GPT-2 and turned ones."""
    found = set()
    for step in plan.steps:
        for tensor, axes in step.settings["removed"].items():
            layer = case.model.get_submodule(tensor.rpartition(".")[0])
            is_turned = type(layer).__name__ in ("Conv1D", "ConvTranspose2d")
            axis = 0 if is_turned else 1
            if axis in axes and tensor.endswith("weight") and layer.weight.dim() > 1:
                found.add(Place(tensor, axis))
    return found


EVERY_MODEL = [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMERS)]


@pytest.mark.parametrize(
    "importance", ["magnitude", pytest.param("activation", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", EVERY_MODEL)
def test_removing_is_the_same_as_zeroing(name, importance):
    case = case_of(name)
    before = bits_of(case.model)
    plan, model = removed(case, ratio=0.5, importance=importance)
    assert is_unchanged(case.model, before)
    assert not plan.is_empty
    assert plan.shrinkage.value == held(case.model) / held(model) > 1
    zeroed = outputs(masked(case, plan, consumers_of(case, plan)), case)
    found = outputs(model, case)
    assert found.shape == outputs(case.model, case).shape
    # the same sums with fewer terms of zero: float32 in another order, through a few layers
    assert abs(found - zeroed).max() <= 1e-5 * max(1.0, abs(zeroed).max())


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_every_layer_with_weights_is_in_the_plan(name):
    case = case_of(name)
    plan, _ = removed(case, ratio=0.5)
    changing = {layer for step in plan.steps for layer in step.settings["layers"]}
    holding = {
        path
        for path, module in case.model.named_modules()
        if any(each.dim() > 1 for each in module.parameters(recurse=False))
    }
    assert holding <= changing | reasons(plan).keys()
    assert not changing & reasons(plan).keys()
    written = json.loads(json.dumps(plan.to_dict()))
    assert len(written["steps"]) == len(plan.steps)


@pytest.mark.slow
@pytest.mark.parametrize("macs", [0.7, 0.5, 0.3])
@pytest.mark.parametrize("name", ["residual", "grouped", "resnet", "vit"])
def test_as_many_multiplications_remain_as_may(name, macs):
    case = case_of(name)
    plan, model = removed(case, macs=macs)
    share = count_macs(model, case) / count_macs(case.model, case)
    assert share <= macs
    assert f"({share:.1%} remain)" in plan.notes[0]


def test_no_more_goes_than_has_to():
    case = case_of("residual")
    whole = count_macs(case.model, case)
    plan, _ = removed(case, macs=0.5)
    gone = plan.steps[0].settings["gone"]
    _, larger = removed(case, ratio=(gone - 1) / 16)
    assert count_macs(larger, case) > 0.5 * whole


def test_what_cannot_be_reached_is_an_error():
    with pytest.raises(SettingError, match=r"macs=0.01 cannot be reached: .* remain"):
        removed(case_of("gated"), macs=0.01)


def test_outputs_and_kept_layers_stay():
    case = case_of("mlp")
    plan, model = removed(case, ratio=0.9, keep=("0", "nothing"))
    assert plan.is_empty
    assert reasons(plan) == {
        "0": "kept by keep='0'",
        "2": "its outputs are outputs of the model",
    }
    assert plan.notes == ("keep='nothing' matches no layer that can be made smaller",)
    assert held(model) == held(case.model)


def test_the_least_important_channels_go():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        model[0].weight[[1, 4]] *= 1e-3
        model[2].weight[:, [1, 4]] *= 1e-3
    plan, _ = removed(workload(model, 3, 4), ratio=1 / 3)
    assert plan.steps[0].settings["removed"]["0.weight"] == {0: (1, 4)}


def test_activations_tell_what_weights_do_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        model[0].bias[[0, 3]] = -100.0  # large weights, and yet always zero
        model[0].weight[[0, 3]] *= 5
    case = workload(model, 3, 4)
    plan, small = removed(case, ratio=1 / 3, importance="activation")
    assert plan.steps[0].settings["removed"]["0.weight"] == {0: (0, 3)}
    torch.testing.assert_close(small(*case.inputs), case.model(*case.inputs))


def test_activations_need_data():
    case = Workload("bare", nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), (torch.ones(1, 4),))
    with pytest.raises(SettingError, match="needs calibration data"):
        removed(case, ratio=0.5, importance="activation")


def test_round_numbers_of_channels_are_kept():
    case = case_of("residual")
    for round_to in (4, 8):
        _, model = removed(case, ratio=0.4, round_to=round_to)
        assert model.stem.out_channels % round_to == 0


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_smaller_language_model_generates(name):
    case = case_of(name)
    _, model = removed(case, ratio=0.5)
    ids = case.inputs[0]
    assert torch.equal(continued(model, ids), continued_without_cache(model, ids))


def test_a_tied_head_stays_tied():
    _, model = removed(case_of("gpt2"), ratio=0.5)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.shape == (VOCABULARY, 32)


@pytest.mark.parametrize("name", ["llama", "vit"])
def test_a_config_that_can_say_the_sizes_rebuilds_the_model(name, tmp_path):
    case = case_of(name)
    plan, model = removed(case, ratio=0.5)
    assert plan.notes[1].startswith("its config says the new sizes")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert (outputs(again, case) == outputs(model, case)).all()
    assert case.model.config.intermediate_size != model.config.intermediate_size


def test_a_config_that_cannot_is_noted():
    plan, model = removed(case_of("gpt2"), ratio=0.5)
    assert "its config cannot say the new sizes" in plan.notes[1]
    assert model.config.num_attention_heads == 4
    plan, model = removed(case_of("gpt2"), ratio=0.5, keep=("*.attn",))
    assert "n_inner=64" in plan.notes[1]
    assert model.config.n_inner == 64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_stay(dtype):
    plan, model = removed(case_of("llama", dtype=dtype), ratio=0.5)
    assert {each.dtype for each in model.parameters()} == {dtype}
    assert len(plan.steps) == 6


def test_frozen_parameters_stay_frozen():
    case = case_of("mlp")
    case.model[0].requires_grad_(False)
    _, model = removed(case, ratio=0.5)
    assert [each.requires_grad for each in model.parameters()] == [False, False, True, True]


def test_the_result_trains():
    case = case_of("residual")
    _, model = removed(case, ratio=0.5)
    model.train()(*case.inputs).square().sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters())


def test_shared_weights_are_left_alone():
    plan = RemoveChannels(ratio=0.5).plan(workload(seeded(Tied), 2, 5, vocabulary=96))
    assert plan.is_empty
    assert reasons(plan)["body"] == "'heads.0' shares its weight with 'table'"


def test_a_layer_in_two_places_shrinks_in_both():
    layer = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), layer, nn.ReLU(), layer, nn.Linear(8, 2))
    case = workload(model, 3, 4)
    plan, small = removed(case, ratio=0.5)
    assert small[2] is small[4]
    assert small[2].weight.shape == (4, 4)
    zeroed = outputs(masked(case, plan, {Place("2.weight", 1), Place("5.weight", 1)}), case)
    assert abs(outputs(small, case) - zeroed).max() < 1e-6


class Unknown(nn.Module):
    """A layer with a weight of its own that nobody knows."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(4, 6)
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.after = nn.Linear(6, 2)

    def forward(self, x):
        return self.after(torch.relu(self.before(x)) @ self.weight)


def test_layers_that_nobody_knows_are_left_alone_with_what_feeds_them():
    plan = RemoveChannels(ratio=0.5).plan(workload(Unknown(), 3, 4))
    assert plan.is_empty
    assert set(reasons(plan)) == {"", "before", "after"}
    assert reasons(plan)[""] == "Unknown is not a layer whose channels can be removed"


class Choosing(nn.Module):
    """A model that calls one layer or another, by the numbers that it gets."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.positive = nn.Linear(8, 2)
        self.negative = nn.Linear(8, 2)

    def forward(self, x):
        head = self.positive if x.sum() > 0 else self.negative
        return head(self.first(x))


def test_layers_that_depend_on_the_numbers_cannot_be_followed():
    x = torch.ones(2, 4)
    plan = RemoveChannels(ratio=0.5).plan(Workload("both", Choosing(), (x,), ((x,), (-x,))))
    assert plan.is_empty
    reason = reasons(plan)[""]
    assert "calibration batch 1 calls other layers than the inputs do ('negative')" in reason
    plan = RemoveChannels(ratio=0.5).plan(Workload("one", Choosing(), (x,)))
    assert reasons(plan)["negative"] == "it was not called on the inputs"
    assert plan.notes[-1].startswith("negative keep their sizes because the inputs never")


def test_without_torch_pruning_there_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    plan = RemoveChannels(ratio=0.5).plan(case_of("mlp"))
    assert "pip install torch-pruning" in reasons(plan)[""]


def test_what_is_no_module_has_a_reason():
    layer = nn.Linear(2, 2)
    plan = RemoveChannels(ratio=0.5).plan(Workload("f", lambda x: layer(x), (torch.ones(1, 2),)))
    assert plan.is_empty
    assert "only the layers of a Module" in reasons(plan)[""]


def test_weights_that_are_no_numbers_are_an_error():
    case = case_of("mlp")
    with torch.no_grad():
        case.model[0].weight[0, 0] = torch.nan
    with pytest.raises(SettingError, match=r"'0\.weight' holds NaN"):
        removed(case, ratio=0.5)


def test_a_plan_is_carried_out_on_its_own_model_only():
    settings = RemoveChannels(ratio=0.5)
    plan = settings.plan(case_of("residual"))
    with pytest.raises(SettingError, match="make a plan for this model"):
        settings.apply(case_of("mlp"), plan)
    with pytest.raises(SettingError, match="this plan was made by"):
        RemoveChannels(ratio=0.4).apply(case_of("residual"), plan)
