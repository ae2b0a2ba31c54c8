import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tiny_transformers import continued, tiny
from torch_workloads import (
    Branching,
    Residual,
    Tied,
    bits_of,
    held,
    is_unchanged,
    outputs,
    relative_error,
    seeded,
    workload,
)

from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.lower_precision import torch as lower_precision_torch
from tinytorch.transforms.lower_precision.torch import LowerPrecisionModel

SLOW = pytest.mark.slow
WAYS = ["convert", "layers"]


def made(case, **changes):
    transform = LowerPrecision(**changes)
    plan = transform.plan(case)
    return plan, transform.apply(case, plan)


def reason(case, **changes):
    plan, model = made(case, **changes)
    assert plan.is_empty
    assert not isinstance(model, LowerPrecisionModel)
    return plan.skipped[0].reason


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    "name",
    ["llama", "gpt2", "resnet", *(pytest.param(name, marks=SLOW) for name in ("bert", "vit"))],
)
def test_models_of_transformers_keep_their_outputs(name, how):
    case = tiny(name)
    before = bits_of(case.model)
    plan, model = made(case, how=how)
    assert not plan.is_empty, plan.skipped
    assert relative_error(case, model) < 3e-2
    with torch.no_grad():
        assert model(*case.inputs).logits.dtype == torch.float32
    assert is_unchanged(case.model, before)
    assert "outputs change by" in plan.notes[0]
    assert plan.shrinkage.value == held(case.model) / held(model) > 1.3
    assert json.loads(json.dumps(plan.to_dict()))["transform"] == "LowerPrecision"


def test_layers_round_less_than_a_whole_model():
    def make():
        blocks = [(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(6)]
        return nn.Sequential(*(layer for block in blocks for layer in block))

    case = workload(seeded(make), 16, 64)
    errors = [relative_error(case, made(case, how=how)[1]) for how in ("convert", "layers")]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("how", WAYS)
def test_float16_works_where_torch_can(how):
    case = workload(seeded(Residual), 2, 3, 16, 16)
    plan, model = made(case, dtype="float16", how=how)
    if not plan.is_empty:
        assert relative_error(case, model) < 3e-3


@pytest.mark.parametrize("how", WAYS)
def test_numbers_beyond_float16_are_refused(how):
    model = nn.Sequential(nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.fill_(40_000.0)
    case = Workload("case", model.eval(), (torch.ones(1, 4),))
    assert "not finite" in reason(case, dtype="float16", how=how)
    assert not made(case, how=how)[0].is_empty


class Cancelling(nn.Module):
    """A small difference of large numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) + 1000.0 - 1000.0


def test_outputs_beyond_the_tolerance_are_refused():
    case = workload(seeded(Cancelling), 2, 4)
    assert "of the largest one, more than the 0.05 that are allowed" in reason(case)
    assert "more than the 1e-09" in reason(case, how="layers", tolerance=1e-9)
    assert not made(case, tolerance=10.0)[0].is_empty


def test_constants_of_the_model_keep_their_digits():
    plan, model = made(tiny("llama"))
    assert plan.steps[0].what.endswith("but for 2 of the constants that it made itself")
    assert model.model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert model.model.lm_head.weight.dtype == torch.bfloat16


class Rotating(nn.Module):
    """Constants that the code cannot mix with another dtype."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.eye(4), persistent=False)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x @ self.turn)


def test_constants_are_converted_where_code_needs_one_dtype():
    case = workload(seeded(Rotating), 2, 4)
    plan, model = made(case)
    assert plan.steps[0].settings["constants"] == []
    assert model.model.turn.dtype == torch.bfloat16
    assert relative_error(case, model) < 3e-2


def test_kept_layers_stay_and_get_what_they_need():
    case = tiny("gpt2")
    plan, model = made(case, keep=("lm_head", "transformer.h.1", "typo"))
    inner = model.model
    assert inner.lm_head.weight is inner.transformer.wte.weight
    assert inner.lm_head.weight.dtype == torch.float32
    assert inner.transformer.h[1].mlp.c_fc.weight.dtype == torch.float32
    assert inner.transformer.h[0].mlp.c_fc.weight.dtype == torch.bfloat16
    assert "keep='typo' matches no layer that can be converted" in plan.notes
    assert relative_error(case, model) < 3e-2
    layered, _ = made(case, how="layers", keep=("transformer.h.1",))
    assert not any(path.startswith("transformer.h.1") for path in layered.layers)


@pytest.mark.parametrize("how", WAYS)
def test_tied_weights_stay_tied(how):
    case = workload(seeded(Tied, 2), 2, 5, vocabulary=96)
    plan, model = made(case, how=how)
    inner = model if how == "layers" else model.model
    assert inner.heads[0].weight is inner.heads[1].weight is inner.table.weight
    assert relative_error(case, model) < 3e-2
    assert plan.shrinkage.value == held(case.model) / held(model)


@pytest.mark.parametrize("how", ["convert", "layers"])
def test_language_models_go_on_generating(how):
    case = tiny("llama")
    _, model = made(case, how=how)
    ids = continued(model, case.inputs[0])
    assert ids.shape == (2, 12)


@pytest.mark.parametrize("how", WAYS)
def test_other_shapes_than_the_example_work(how):
    case = workload(seeded(Residual), 2, 3, 16, 16)
    _, model = made(case, how=how)
    other = Workload("other", case.model, (torch.rand(5, 3, 9, 12),))
    assert relative_error(other, model) < 3e-2


@given(st.integers(1, 5), st.integers(1, 24), st.integers(1, 24), st.sampled_from(WAYS))
@settings(max_examples=15)
def test_any_linear_model_moves_by_a_few_roundings(batch, inputs, width, how):
    def make():
        return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 3))

    case = workload(seeded(make), batch, inputs)
    _, lower = made(case, how=how, tolerance=1.0)
    expected = outputs(case.model, case)
    # inputs, weights and results are rounded, in two layers, relative to what is summed up
    size = max(1.0, float(abs(case.inputs[0]).max())) * (1 + width)
    assert abs(outputs(lower, case) - expected).max() < 16 * 2.0**-9 * size


# ---------------------------------------------------------------- what is refused


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        self.total += 1
        return self.layer(x) + self.total


def test_state_with_fractions_is_not_converted():
    case = workload(seeded(Counting), 1, 2)
    assert reason(case).startswith("a call changes its buffer 'total'")
    plan, model = made(case, how="layers")
    assert plan.layers == ("layer",)
    assert model.total.dtype == torch.float32


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        x += 1
        return self.layer(x)


def test_a_model_that_writes_into_its_inputs_is_not_converted():
    case = workload(seeded(Writing), 1, 2)
    assert reason(case).startswith("it writes into its inputs")
    _, model = made(case, how="layers")
    x = torch.zeros(1, 2)
    with torch.no_grad():
        model(x)
    assert torch.equal(x, torch.ones(1, 2))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        y = self.layer(x)
        return y, y.double()


def test_outputs_of_several_dtypes_are_refused():
    assert "several dtypes (float32, float64)" in reason(workload(Two(), 1, 2))


def test_models_in_that_dtype_are_done_already():
    case = workload(nn.Sequential(nn.Linear(4, 2)), 1, 4, dtype=torch.bfloat16)
    assert reason(case) == "all of its floats are bfloat16 already"
    assert reason(case, how="layers") == "all of its floats are bfloat16 already"


def test_a_model_without_floats_has_nothing_to_lower():
    assert reason(Workload("case", nn.ReLU(), (torch.ones(2),))) == "it holds no floats"


def test_a_model_without_linear_layers_has_no_layer_to_lower():
    plan, _ = made(workload(nn.Sequential(nn.LayerNorm(4)), 2, 4), how="layers")
    assert plan.skipped[0].reason.startswith("no linear layer or convolution is left")


def test_choices_that_flip_are_refused():
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return self.layer(x).argsort(-1)

    assert "whole numbers in its outputs" in reason(workload(seeded(Choosing), 32, 64))


def test_code_that_names_a_dtype_is_refused_with_the_error():
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x.float())

    case = workload(Strict(), 1, 4)
    assert reason(case).startswith("RuntimeError: ")
    assert made(case, how="layers")[0].layers == ("layer",)


def test_data_dependent_code_goes_on_deciding():
    case = workload(seeded(Branching), 2, 3, 8, 8)
    plan, model = made(case)
    assert not plan.is_empty
    assert relative_error(case, model) < 3e-2


def test_encoder_layers_on_their_fast_path_are_not_taken_apart():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    case = workload(nn.Sequential(layer, nn.Linear(8, 4)), 2, 5, 8)
    plan, model = made(case, how="layers")
    assert plan.layers == ("1",)
    assert relative_error(case, model) < 3e-2


def test_hooks_go_on_seeing_calls():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    seen = []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    case = workload(model, 1, 4)
    _, lower = made(case, how="layers")
    seen.clear()
    outputs(lower, case)
    assert seen == [torch.float32]


def test_a_plan_for_another_model_is_an_error():
    case, other = tiny("gpt2"), workload(nn.Sequential(nn.Linear(4, 2)), 1, 4)
    for changes in ({"how": "layers"}, {"keep": ("lm_head",)}):
        transform = LowerPrecision(**changes)
        with pytest.raises(SettingError, match="make a plan for this model"):
            transform.apply(other, transform.plan(case))


def test_a_slow_processor_is_noted(monkeypatch):
    monkeypatch.setattr(lower_precision_torch, "why_slow_on_processor", lambda dtype: "slow here")
    assert "slow here" in made(workload(nn.Sequential(nn.Linear(4, 2)), 1, 4))[0].notes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("how", WAYS)
def test_it_works_on_a_device(how, dtype):
    model = seeded(Residual).cuda().eval()
    case = Workload("case", model, (torch.rand(2, 3, 16, 16, device="cuda"),))
    plan, lower = made(case, how=how, dtype=dtype)
    assert not plan.is_empty, plan.skipped
    assert relative_error(case, lower) < 3e-2
