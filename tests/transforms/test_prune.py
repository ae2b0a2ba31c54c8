import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import workload

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.prune import Masks, Prune

NAMES = ["mlp", "cnn", "gpt", "branches", "shared"]


def pruned(case, *args, **settings):
    transform = Prune(*args, **settings)
    plan = transform.plan(case)
    return plan, transform.apply(case, plan)


def bits_of(model):
    return {name: array.tobytes() for name, array in model.state_dict().items()}


def case_of(model, shape, *, batches=2):
    rng = np.random.default_rng(0)
    made = [(Tensor(rng.standard_normal(shape).astype(np.float32)),) for _ in range(batches)]
    return Workload("model", model, made[0], calibration=tuple(made))


@settings(max_examples=40)
@given(
    name=st.sampled_from(["mlp", "cnn", "shared"]),
    sparsity=st.floats(0, 0.999),
    scope=st.sampled_from(["model", "layer"]),
    score=st.sampled_from(["magnitude", "activation"]),
)
def test_the_number_of_zeros_is_exact(name, sparsity, scope, score):
    case = workload(name)
    _, model = pruned(case, sparsity, scope=scope, score=score)
    kept = Masks.of(model).kept
    size = sum(each.size for each in kept.values())
    zeros = {key: int((~each).sum()) for key, each in kept.items()}
    if scope == "model":
        assert sum(zeros.values()) == min(round(sparsity * size), size - len(kept))
    else:
        for key, each in kept.items():
            assert zeros[key] == min(round(sparsity * each.size), each.size - 1)
    assert all(each.any() for each in kept.values())  # no layer is cut


@pytest.mark.parametrize("score", ["magnitude", "activation"])
@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("name", NAMES)
def test_apply_does_what_the_plan_says_and_the_model_stays(name, scope, score):
    case = workload(name)
    before = bits_of(case.model)
    plan, model = pruned(case, 0.7, scope=scope, score=score, prune_embeddings=True)
    assert bits_of(case.model) == before
    after, old = model.state_dict(), case.model.state_dict()
    planned = {step.settings["weight"]: step.settings["zeros"] for step in plan.steps}
    for key, array in after.items():
        if key in planned:
            assert (array == 0).sum() == planned[key]
            np.testing.assert_array_equal(array[array != 0], old[key][array != 0])
        else:
            np.testing.assert_array_equal(array, old[key])
    held = [sum(p.nbytes for p in adapter_for(m).parameters(m)) for m in (case.model, model)]
    assert held[0] == held[1]  # zeros take as many bytes, and shared weights stay shared
    json.dumps(plan.to_dict())
    assert isinstance(Prune(), Transform)


def test_global_magnitude_takes_the_smallest_of_all():
    case = workload("cnn")
    _, model = pruned(case, 0.8)
    weights = {key: array for key, array in case.model.state_dict().items() if array.ndim > 1}
    together = np.concatenate([np.abs(each).reshape(-1) for each in weights.values()])
    limit = np.sort(together)[round(0.8 * together.size) - 1]
    for key, array in weights.items():
        np.testing.assert_array_equal(
            model.state_dict()[key], np.where(np.abs(array) > limit, array, 0)
        )


def test_equal_weights_are_taken_by_position():
    layer = Linear(4, 3, rng=0)
    layer.weight.data[...] = 0.5
    _, model = pruned(case_of(layer, (2, 4)), 0.5)
    np.testing.assert_array_equal(model.weight.data.reshape(-1), [0] * 6 + [0.5] * 6)


def test_pruning_twice_to_the_same_share_changes_nothing_and_further_keeps_the_zeros():
    case = workload("mlp")
    _, half = pruned(case, 0.5)
    again = replace(case, model=half)
    plan, same = pruned(again, 0.5)
    assert plan.is_empty
    assert "zero already" in plan.notes[0]
    assert bits_of(same) == bits_of(half)
    _, more = pruned(again, 0.8, score="activation")
    for name, kept in Masks.of(half).kept.items():
        assert not more.state_dict()[name][~kept].any()


# ---------------------------------------------------------------- activation scores


def slow_scores(weight, inputs):
    """|w| times the norm of what this weight is multiplied with, one by one."""
    scores = np.zeros(weight.shape)
    for i in range(weight.shape[0]):
        norm = np.sqrt(sum(float(x) ** 2 for x in inputs[:, i]))
        for j in range(weight.shape[1]):
            scores[i, j] = abs(float(weight[i, j])) * norm
    return scores


def test_activation_scores_of_a_layer_compare_within_each_output():
    layer = Linear(6, 5, rng=0)
    case = case_of(layer, (7, 6))
    _, model = pruned(case, 0.5, scope="layer", score="activation")
    inputs = np.concatenate([batch[0].data for batch in case.calibration])
    scores = slow_scores(layer.weight.data, inputs)
    for output in range(5):
        gone = np.flatnonzero(model.weight.data[:, output] == 0)
        np.testing.assert_array_equal(gone, np.sort(np.argsort(scores[:, output])[:3]))


def test_activation_scores_of_a_model_are_shares_of_what_a_layer_gives():
    """A layer that is ten times as large, followed by one a tenth as large, changes nothing."""
    model = Sequential(Linear(6, 8, rng=0), ReLU(), Linear(8, 4, rng=1))
    scaled = Sequential(Linear(6, 8, rng=0), ReLU(), Linear(8, 4, rng=1))
    for tensor in scaled.layers[0].parameters():
        tensor.data *= 16
    scaled.layers[2].weight.data /= 16
    found = []
    for each in (model, scaled):
        plan, result = pruned(case_of(each, (9, 6)), 0.6, score="activation")
        found.append(Masks.of(result).kept)
        assert len(plan.steps) == 2
    for name, kept in found[0].items():
        np.testing.assert_array_equal(kept, found[1][name])


def test_inputs_of_a_grouped_convolution_meet_the_kernels_of_their_group():
    layer = Conv2d(4, 6, 3, groups=2, rng=0)
    case = case_of(layer, (2, 4, 5, 5))
    for (x,) in case.calibration:
        x.data[:, 1] = 0  # the second input of the first group
    plan, model = pruned(case, 0.25, score="activation")
    assert plan.steps[0].settings["zeros"] == 27
    gone = model.weight.data == 0
    expected = np.zeros_like(gone)
    expected[:3, 1] = True
    np.testing.assert_array_equal(gone, expected)
    norms = plan.steps[0].settings["input_norms"]
    inputs = np.concatenate([batch[0].data for batch in case.calibration]).astype(float)
    np.testing.assert_allclose(norms, np.sqrt((inputs**2).sum(axis=(0, 2, 3))), rtol=1e-12)


def test_a_layer_that_is_called_twice_sees_both_inputs():
    case = workload("shared")
    plan = Prune(score="activation").plan(case)
    assert plan.layers == ("first",)
    assert plan.steps[0].settings["layers"] == ("first", "twin")
    x = case.calibration
    total = sum((batch[0].data.astype(float) ** 2).sum(axis=0) for batch in x)
    assert (np.array(plan.steps[0].settings["input_norms"]) ** 2 >= total).all()


def test_a_layer_that_no_data_reaches_is_skipped():
    class Half(Module):
        def __init__(self):
            self.used, self.idle = Linear(4, 4, rng=0), Linear(4, 4, rng=1)

        def forward(self, x):
            return self.used(x)

    plan = Prune(score="activation").plan(case_of(Half(), (2, 4)))
    assert plan.layers == ("used",)
    assert plan.skipped[0].reason == "the calibration data never reached it"
    assert Prune().plan(case_of(Half(), (2, 4))).layers == ("used", "idle")


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1}, "sparsity=1 would set every weight to zero"),
        ({"sparsity": -0.1}, "at least 0 and below 1, got -0.1"),
        ({"sparsity": 85}, "got 85; 85% is 0.85"),
        ({"sparsity": float("nan")}, "at least 0 and below 1, got nan"),
        ({"sparsity": "half"}, "a share between 0 and 1, got 'half'"),
        ({"scope": "row"}, "unknown scope 'row'; there are model, layer"),
        ({"score": "hessian"}, "unknown score 'hessian'; there are magnitude, activation"),
        ({"keep": "head"}, "keep is a tuple of patterns"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Prune(**settings)


def test_what_is_missing_is_named():
    case = workload("mlp")
    with pytest.raises(SettingError, match="a plan is made for a Workload, got Sequential"):
        Prune().plan(case.model)
    with pytest.raises(SettingError, match="needs calibration data"):
        Prune(score="activation").plan(replace(case, calibration=()))
    wrong = replace(case, calibration=((Tensor(np.zeros((2, 3), np.float32)),),))
    with pytest.raises(SettingError, match="calibration batch 0 does not fit the model"):
        Prune(score="activation").plan(wrong)
    nan = replace(case, calibration=((Tensor(np.full((2, 64), np.nan, np.float32)),),))
    with pytest.raises(SettingError, match=r"batch 0, input of layer 'layers\.0'.*NaN"):
        Prune(score="activation").plan(nan)


def test_a_plan_of_other_settings_or_another_model_is_refused():
    case = workload("mlp")
    plan = Prune(0.5).plan(case)
    with pytest.raises(SettingError, match="this plan was made by"):
        Prune(0.6).apply(case, plan)
    with pytest.raises(SettingError, match="make a plan for this model"):
        Prune(0.5).apply(workload("cnn"), plan)


def test_numbers_of_numpy_are_numbers():
    assert Prune(np.float32(0.5)) == Prune(0.5)
    assert type(Prune(np.float32(0.5)).sparsity) is float


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_weights_that_are_empty_are_left_alone(scope):
    model = Sequential(Linear(4, 4, rng=0), Linear(4, 4, rng=1))
    model.layers[1].weight.data = np.empty((4, 0), np.float32)
    plan = Prune(0.5, scope=scope).plan(Workload("empty", model, ()))
    assert plan.layers == ("layers.0",)
    assert [each.reason for each in plan.skipped] == ["its weight is empty"]


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_weights_that_are_no_numbers_are_named(scope):
    case = workload("mlp")
    case.model.layers[2].weight.data[0, 0] = np.inf
    with pytest.raises(SettingError, match=r"layer 'layers\.2' holds NaN or infinity"):
        Prune(0.5, scope=scope).plan(case)
    assert "layers.2" not in Prune(0.5, scope=scope, keep=("layers.2",)).plan(case).layers


def test_layers_that_are_kept_do_not_count():
    case = workload("mlp")
    plan, model = pruned(case, 0.5, keep=("layers.0", "none"))
    assert "layers.0" not in plan.layers
    assert model.layers[0].weight.data.all()
    assert sum(step.settings["zeros"] for step in plan.steps) == round(0.5 * (48 * 32 + 320))
    assert "keep='none' matches no layer that can be pruned" in plan.notes
