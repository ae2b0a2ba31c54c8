import json

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from channel_models_torch import MODELS
from tiny_transformers import continued, continued_without_cache, tiny
from torch_workloads import Tied, bits_of, held, is_unchanged, outputs, seeded, workload

from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.low_rank import LowRank


def case_of(name):
    model, x = MODELS[name]()
    return Workload(name, model, (x,))


def factored(case, **settings):
    transform = LowRank(**settings)
    plan = transform.plan(case)
    return plan, transform.apply(case, plan)


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


def of_rank(layer, rank):
    """Give the weight of a layer so few directions."""
    with torch.no_grad():
        matrix = layer.weight.reshape(len(layer.weight), -1)
        u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
        matrix.copy_((u[:, :rank] * s[:rank]) @ v[:rank])
    return layer


@pytest.mark.parametrize("name", [*MODELS])
@pytest.mark.parametrize("energy", [0.5, 0.8])
def test_plans_are_carried_out_as_predicted(name, energy):
    case = case_of(name)
    before = bits_of(case.model)
    plan, model = factored(case, energy=energy)
    assert is_unchanged(case.model, before)
    assert outputs(model, case).shape == outputs(case.model, case).shape
    if plan.is_empty:
        assert held(model) == held(case.model)
    else:
        assert plan.shrinkage.value == held(case.model) / held(model) > 1
    holding = {
        path
        for path, module in case.model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }
    assert sorted([*plan.layers, *reasons(plan)]) == sorted(holding)
    assert json.loads(json.dumps(plan.to_dict()))["transform"] == "LowRank"


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(20, 12), (3, 20)),
        (lambda: nn.Linear(12, 20, bias=False), (3, 12)),
        (lambda: nn.Conv1d(6, 12, 3, padding=1), (2, 6, 8)),
        (lambda: nn.Conv2d(6, 12, 3, stride=2, padding=(1, 2), dilation=2), (2, 6, 9, 9)),
        (lambda: nn.Conv2d(6, 12, 3, padding="same", padding_mode="reflect"), (2, 6, 9, 9)),
        (lambda: nn.Conv3d(4, 12, 2), (1, 4, 3, 3, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_of_low_rank_is_factored_without_loss(layer, shape, dtype):
    model = nn.Sequential(of_rank(layer().to(dtype), 3))
    case = workload(model, *shape, dtype=dtype)
    plan, small = factored(case, energy=1.0 if dtype == torch.float64 else 0.999999)
    assert plan.steps[0].settings["rank"] == 3
    expected = outputs(case.model, case)
    # two roundings instead of one, of sums of at most a few hundred products
    bound = (1e-5 if dtype == torch.float32 else 1e-12) * abs(expected).max()
    assert abs(outputs(small, case) - expected).max() < bound


def test_it_is_the_best_approximation_of_its_rank():
    layer = nn.Linear(24, 16)
    case = workload(nn.Sequential(layer), 2, 24)
    plan, small = factored(case, energy=0.6)
    settings = plan.steps[0].settings
    product = (small[0][1].weight @ small[0][0].weight).detach()
    values = torch.linalg.svdvals(layer.weight.detach().double())
    lost = values[settings["rank"] :].square().sum() / values.square().sum()
    found = (product - layer.weight.detach()).double().square().sum() / values.square().sum()
    assert float(found) == pytest.approx(float(lost), rel=1e-4)
    assert settings["relative_error"] == pytest.approx(float(lost) ** 0.5)
    kept = values.square().cumsum(0) / values.square().sum()
    assert kept[settings["rank"] - 1] >= 0.6 > kept[settings["rank"] - 2]


def test_the_ranks_are_those_of_our_own_models(rng):
    weight = rng.standard_normal((24, 16)).astype(np.float32)
    theirs, ours = nn.Linear(24, 16), Linear(24, 16, rng=0)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(weight.T))
    ours.weight.data = weight
    x = rng.standard_normal((2, 24)).astype(np.float32)
    plans = [
        LowRank(energy=0.6).plan(Workload("one", model, (inputs,)))
        for model, inputs in ((theirs, torch.from_numpy(x)), (ours, Tensor(x)))
    ]
    one, other = (plan.steps[0] for plan in plans)
    assert (one.what, one.why) == (other.what, other.why)
    assert one.settings == pytest.approx(other.settings)
    assert plans[0].shrinkage.value == plans[1].shrinkage.value


def test_both_layers_hold_numbers_of_like_sizes():
    for shape in ((24, 16), (16, 24)):
        _, small = factored(workload(nn.Sequential(nn.Linear(*shape)), 2, shape[0]), energy=0.5)
        norms = [float(torch.linalg.norm(layer.weight.detach())) for layer in small[0]]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_factored_language_model_generates(name):
    case = tiny(name)
    plan, model = factored(case, energy=0.7)
    assert "its config cannot say the new sizes" in plan.notes[0]
    assert plan.shrinkage.value == held(case.model) / held(model)
    ids = case.inputs[0]
    assert torch.equal(continued(model, ids), continued_without_cache(model, ids))


def test_a_tied_head_is_left_alone():
    plan, model = factored(tiny("gpt2"), energy=0.7)
    assert reasons(plan)["lm_head"] == (
        "it shares its weight with 'transformer.wte', which is not changed"
    )
    assert model.lm_head.weight is model.transformer.wte.weight


def test_layers_with_one_weight_go_on_sharing_it():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    model[2].weight = model[0].weight
    case = workload(model, 2, 16)
    plan, small = factored(case, energy=0.5)
    assert plan.layers == ("0", "2")
    assert small[0][0].weight is small[2][0].weight
    assert small[0][1].bias is not small[2][1].bias
    assert plan.shrinkage.value == held(case.model) / held(small)
    plan = LowRank(energy=0.5, keep=("2",)).plan(case)
    assert reasons(plan)["0"] == "it shares its weight with '2', which is not changed"


def test_bytes_follow_the_dtype():
    case = workload(nn.Sequential(nn.Linear(32, 32)), 2, 32, dtype=torch.bfloat16)
    plan, small = factored(case, energy=0.5)
    assert plan.shrinkage.value == held(case.model) / held(small)
    assert {each.dtype for each in small.parameters()} == {torch.bfloat16}


def test_modes_and_frozen_weights_stay():
    model = nn.Sequential(nn.Linear(16, 16)).eval()
    model[0].weight.requires_grad_(False)
    _, small = factored(workload(model, 2, 16), energy=0.5)
    assert not small[0].training
    assert [each.requires_grad for each in small[0].parameters()] == [False, False, True]


class Reading(nn.Module):
    """A model that reads the weight of a layer itself, and one whose layer nobody calls."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(16, 16)
        self.free = nn.Linear(16, 16)
        self.idle = nn.Linear(16, 16)

    def forward(self, x):
        return self.free(self.read(x.to(self.read.weight.dtype)))


def test_layers_that_have_to_stay_have_a_reason():
    grouped = nn.Conv2d(4, 8, 3, groups=2)
    zero, lost = nn.Linear(16, 16), nn.Linear(16, 16)
    with torch.no_grad():
        zero.weight.zero_()
        lost.weight[0, 0] = torch.inf
    assert "in 2 groups" in reasons(LowRank().plan(workload(grouped, 1, 4, 5, 5)))[""]
    plan = LowRank(energy=0.5).plan(workload(nn.Sequential(zero, lost), 1, 16))
    assert reasons(plan) == {
        "0": "its weight is zero everywhere",
        "1": "its weight holds NaN or infinity",
    }
    plan = LowRank(energy=0.5).plan(workload(Reading(), 1, 16))
    assert plan.layers == ("free",)
    assert "'Sequential' object has no attribute 'weight'" in reasons(plan)["read"]
    assert reasons(plan)["idle"].startswith("it was not called")
    plan = LowRank(energy=0.99).plan(workload(nn.Sequential(nn.Linear(16, 16)), 1, 16))
    assert "weights instead of 256" in reasons(plan)["0"]


def test_other_kinds_of_layers_are_named():
    class Own(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    plan = LowRank().plan(workload(nn.Sequential(Own(4, 4), nn.LayerNorm(4)), 1, 4))
    assert reasons(plan) == {
        "0": "a Own is a Linear that may compute something else",
        "1": "LayerNorm is not a layer that can be factored; its 8 numbers stay",
    }
    assert (
        "only the layers of a Module"
        in reasons(
            LowRank().plan(Workload("f", lambda x: nn.Linear(2, 2)(x), (torch.ones(1, 2),)))
        )[""]
    )


def test_a_plan_is_carried_out_on_its_own_model_only():
    settings = LowRank(energy=0.5)
    plan = settings.plan(case_of("residual"))
    with pytest.raises(SettingError, match="make a plan for this model"):
        settings.apply(case_of("mlp"), plan)
    with pytest.raises(SettingError, match="this plan was made by"):
        LowRank(energy=0.6).apply(case_of("residual"), plan)


def test_a_tied_table_is_no_layer_to_factor():
    plan = LowRank(energy=0.5).plan(workload(seeded(Tied), 2, 5, vocabulary=96))
    assert plan.layers == ("body",)
    assert reasons(plan)["heads.0"].startswith("it shares its weight with 'table'")
