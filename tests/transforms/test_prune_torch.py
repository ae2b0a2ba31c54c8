import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
from torch import nn
from torch.nn.utils import prune as torch_prune
from torch_workloads import Residual, Tied, bits_of, held, is_unchanged, mlp, seeded, workload

from tinytorch.errors import SettingError
from tinytorch.transforms.prune import Prune

CASES = {
    "mlp": lambda: workload(seeded(mlp, 32), 4, 32),
    "residual": lambda: workload(seeded(Residual), 2, 3, 12, 12),
    "tied": lambda: workload(seeded(Tied), 2, 5, vocabulary=96),
    "half": lambda: workload(seeded(mlp, 32), 4, 32, dtype=torch.bfloat16),
}


def pruned(case, *args, **settings):
    transform = Prune(*args, **settings)
    plan = transform.plan(case)
    return plan, transform.apply(case, plan)


@pytest.mark.parametrize("score", ["magnitude", "activation"])
@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("name", CASES)
def test_apply_does_what_the_plan_says_and_the_model_stays(name, scope, score):
    case = CASES[name]()
    before = bits_of(case.model)
    plan, model = pruned(case, 0.7, scope=scope, score=score, prune_embeddings=True)
    assert is_unchanged(case.model, before)
    planned = {step.settings["weight"]: step.settings["zeros"] for step in plan.steps}
    size = 0
    for key, value in model.named_parameters():
        if key in planned:
            size += value.numel()
            assert int((value == 0).sum()) == planned[key]
            kept = value != 0
            assert torch.equal(value[kept], before[key][kept])
        else:
            assert torch.equal(value, before[key])
    if scope == "model":
        assert sum(planned.values()) == round(0.7 * size)
    assert held(model) == held(case.model)
    json.dumps(plan.to_dict())


def test_global_magnitude_is_that_of_torch():
    case = CASES["residual"]()
    _, model = pruned(case, 0.8)
    other = copy.deepcopy(case.model)
    targets = [(other.get_submodule(path), "weight") for path in ("stem", "conv", "head")]
    torch_prune.global_unstructured(targets, torch_prune.L1Unstructured, amount=0.8)
    for path in ("stem", "conv", "head"):
        expected = other.get_submodule(path).weight
        assert torch.equal(model.get_submodule(path).weight, expected)


def test_activation_scores_are_weights_times_norms_of_their_inputs():
    model = seeded(nn.Linear, 6, 5)
    case = workload(model, 7, 6)
    plan, result = pruned(case, 0.5, scope="layer", score="activation")
    inputs = torch.cat([batch for (batch,) in case.calibration]).double()
    norms = inputs.square().sum(dim=0).sqrt()
    np.testing.assert_allclose(plan.steps[0].settings["input_norms"], norms, rtol=1e-12)
    scores = model.weight.detach().abs() * norms
    for output in range(5):
        gone = (result.weight[output] == 0).nonzero().reshape(-1)
        assert gone.tolist() == sorted(scores[output].argsort()[:3].tolist())


def test_inputs_of_a_grouped_convolution_meet_the_kernels_of_their_group():
    model = seeded(nn.Conv2d, 4, 6, 3, groups=2)
    case = workload(model, 2, 4, 5, 5)
    for (batch,) in case.calibration:
        batch[:, 1] = 0
    _, result = pruned(case, 0.25, score="activation")
    expected = torch.zeros(6, 2, 3, 3, dtype=torch.bool)
    expected[:3, 1] = True
    assert torch.equal(result.weight == 0, expected)


def test_tied_weights_are_pruned_once_and_stay_tied():
    plan, model = pruned(CASES["tied"](), 0.5, prune_embeddings=True)
    assert model.heads[0].weight is model.table.weight
    tied = next(step for step in plan.steps if step.layer == "table")
    assert tied.settings["layers"] == ("table", "heads.0")


def test_transformers_are_pruned_in_their_own_layout():
    transformers = require_part("transformers")
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16, use_cache=False
    )
    model = seeded(transformers.GPT2LMHeadModel, config)
    case = workload(model, 2, 8, vocabulary=64)
    plan, result = pruned(case, 0.6, scope="layer", score="activation")
    assert len(plan.steps) == 4  # two of the attention, two of the perceptron
    norms = {step.layer: len(step.settings["input_norms"]) for step in plan.steps}
    assert norms["transformer.h.0.mlp.c_proj"] == 128
    weight = result.transformer.h[0].mlp.c_proj.weight  # (inputs, outputs)
    counts = (weight == 0).sum(dim=0)
    assert counts.max() - counts.min() <= 1
    assert result.lm_head.weight is result.transformer.wte.weight


def test_layers_on_a_fast_path_are_seen():
    layer = seeded(nn.TransformerEncoderLayer, 16, 2, 32, batch_first=True)
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    plan = Prune(score="activation").plan(workload(layer, 2, 4, 16))
    assert {"linear1", "linear2"} <= set(plan.layers)
    assert torch.backends.mha.get_fastpath_enabled() == was_enabled
    reasons = {each.layer: each.reason for each in plan.skipped}
    assert "MultiheadAttention is not a layer that is pruned" in reasons["self_attn"]
    assert reasons["self_attn.out_proj"] == "the calibration data never reached it"


def test_bad_calibration_is_named():
    case = CASES["mlp"]()
    wrong = replace(case, calibration=((torch.zeros(2, 3),),))
    with pytest.raises(SettingError, match="calibration batch 0 does not fit the model"):
        Prune(score="activation").plan(wrong)
    nan = replace(case, calibration=((torch.full((2, 32), float("nan")),),))
    with pytest.raises(SettingError, match="batch 0, input of layer '0': it holds NaN"):
        Prune(score="activation").plan(nan)


def test_a_plan_for_another_model_is_refused():
    plan = Prune(0.5).plan(CASES["mlp"]())
    with pytest.raises(SettingError, match="make a plan for this model"):
        Prune(0.5).apply(CASES["residual"](), plan)
