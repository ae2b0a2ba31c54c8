"""Making the layers of a pruned model sparse, where it pays."""

import numpy as np
import pytest
from parts import require_part
from small_models import workload

from tinytorch import profile_model
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.embeddings import Embedding
from tinytorch.core.kernels import NUMPY
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import BackendError, SettingError
from tinytorch.measure.environment import Observation
from tinytorch.measure.estimate import Estimate
from tinytorch.models.core import CoreAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms import sparse_layers as module
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.sparse_layers import (
    SparseLayers,
    SparseLinear,
    SparseTime,
    time_sparse,
)


@pytest.fixture
def asked(monkeypatch):
    """Answer instead of measuring, and list what was asked for: at 92.5% both take as long."""
    sizes = []

    def answer(weight, rows, **_):
        sizes.append((*weight.shape, rows))
        ratio = 40 / 3 * np.count_nonzero(weight) / weight.size
        return SparseTime(Estimate(ratio, ratio / 1.2, ratio * 1.2), "here")

    monkeypatch.setattr(module, "time_sparse", answer)
    return sizes


def prune(model, sparsity):
    rng = np.random.default_rng(0)
    for each in model.modules():
        if isinstance(each, Linear):
            each.weight.data[rng.random(each.weight.shape) < sparsity] = 0
    return model


def pruned(name, sparsity):
    work = workload(name)
    prune(work.model, sparsity)
    return work


def held(model):
    return sum(spec.nbytes for spec in CoreAdapter().parameters(model))


def test_it_is_a_transform():
    assert isinstance(SparseLayers(), Transform)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches"])
@pytest.mark.parametrize("goal", ["latency", "memory"])
def test_the_result_is_the_same_model_without_zeros(name, goal, asked):
    work, transform = pruned(name, 0.97), SparseLayers(goal)
    before = {path: array.tobytes() for path, array in work.model.state_dict().items()}
    learned = [each.requires_grad for each in work.model.parameters()]
    plan = transform.plan(work)
    assert not plan.is_empty
    model = transform.apply(work, plan)
    modules = dict(model.named_modules())
    for path, layer in work.model.named_modules():
        if path in plan.layers:
            assert type(layer) is Linear
            assert type(modules[path]) is SparseLinear
            np.testing.assert_array_equal(modules[path].weight.data, layer.weight.data)
        else:
            assert type(modules[path]) is type(layer)
    with no_grad():
        expected = work.run().data
    # called without no_grad: nothing in it asks for gradients
    ours = model(*work.inputs).data
    scale = np.abs(expected).max()
    assert np.abs(ours - expected).max() <= 1e-5 * scale  # sums of 600 terms at most
    after = {path: array.tobytes() for path, array in work.model.state_dict().items()}
    assert after == before
    assert [each.requires_grad for each in work.model.parameters()] == learned
    assert plan.shrinkage.value == held(work.model) / held(model)
    assert plan.shrinkage.low == plan.shrinkage.high == plan.shrinkage.value


def test_each_layer_is_judged_by_its_sparsity_and_rows(asked):
    work = pruned("mlp", 0.0)
    first, second, third = (work.model.layers[place] for place in (0, 2, 4))
    first.weight.data[:] = 0
    first.weight.data[0] = 1  # 63 of 64 are zero
    second.weight.data[: 48 * 92 // 100] = 0  # inside of the interval
    third.weight.data[:16] = 0
    plan = SparseLayers().plan(work)
    assert asked == [(64, 48, 2), (48, 32, 2), (32, 10, 2)]
    (step,) = plan.steps
    assert step.layer == "layers.0"
    assert step.what == "sparse: 48 of 3,072 weights"
    assert step.settings["rows"] == 2
    assert step.settings["sparsity"] == pytest.approx(63 / 64)
    assert step.settings["speedup"] == pytest.approx(64 * 3 / 40)
    assert step.why == "4.8 times as fast at 98.4% sparsity here"
    reasons = {each.layer: each.reason for each in plan.skipped}
    assert reasons["layers.4"] == "dense is 6.7 times as fast at 50.0% sparsity here"
    assert reasons["layers.2"].startswith("inconclusive at 91.7% sparsity here: sparse takes 0.93x")


def test_memory_is_judged_by_bytes(asked):
    work = pruned("mlp", 0.5)
    plan = SparseLayers("memory").plan(work)
    assert asked == []
    assert plan.layers == ("layers.0", "layers.2", "layers.4")
    assert "bytes instead of 12,288" in plan.steps[0].why
    prune(work.model, 0.0)
    dense = SparseLayers("memory").plan(pruned("mlp", 0.1))
    assert dense.is_empty
    assert "a weight that is not zero takes its index, too" in dense.skipped[0].reason


def test_what_stays_has_its_reason(asked):
    reasons = {e.layer: e.reason for e in SparseLayers().plan(pruned("branches", 0.97)).skipped}
    assert "no sparse kernel for convolutions" in reasons["stem"]
    assert "BatchNorm2d is not a layer that can be sparse" in reasons["norm"]
    untouched = {e.layer: e.reason for e in SparseLayers().plan(workload("mlp")).skipped}
    assert untouched["layers.0"] == "its weight has no zeros; Prune makes some"
    tables = SparseLayers().plan(pruned("gpt", 0.97)).skipped
    assert any("Embedding is not a layer that can be sparse" in each.reason for each in tables)


def test_layers_with_a_weight_in_common_stay(asked):
    plan = SparseLayers("memory").plan(pruned("shared", 0.97))
    assert plan.is_empty
    assert "shares its weight or bias with 'twin'" in plan.skipped[0].reason
    assert {each.layer for each in plan.skipped} == {"first", "twin"}


def test_kept_layers_stay(asked):
    plan = SparseLayers(keep=("layers.0", "nothing")).plan(pruned("mlp", 0.97))
    assert "layers.0" not in plan.layers
    assert reason_of(plan, "layers.0") == "kept by keep='layers.0'"
    assert plan.notes == ("keep='nothing' matches no layer that can be sparse",)


def reason_of(plan, layer):
    return next(each.reason for each in plan.skipped if each.layer == layer)


def test_subclasses_other_types_and_idle_layers_stay(asked):
    class Other(Linear):
        pass

    model = prune(Sequential(Other(20, 20, rng=0), Linear(20, 20, rng=1)), 0.97)
    model.idle = prune(Sequential(Linear(20, 20, rng=2)), 0.97)
    model.layers[1].weight.data = model.layers[1].weight.data.astype(np.float64)
    work = Workload("odd", model.eval(), (Tensor(np.ones((2, 20), np.float32)),))
    plan = SparseLayers().plan(work)
    assert plan.is_empty
    assert "a Other is a Linear that may compute" in reason_of(plan, "layers.0")
    assert "holds float64" in reason_of(plan, "layers.1")
    assert "not called" in reason_of(plan, "idle.layers.0")


def test_a_model_that_is_sparse_stays_as_it_is(asked):
    work, transform = pruned("mlp", 0.97), SparseLayers()
    model = transform.apply(work, transform.plan(work))
    again = Workload("again", model, work.inputs)
    plan = transform.plan(again)
    assert plan.is_empty
    assert {each.reason for each in plan.skipped} == {"it is sparse already"}
    assert plan.not_predicted == {"speedup": "nothing changes", "shrinkage": "nothing changes"}


def test_without_inputs_only_bytes_can_be_judged(asked):
    model = pruned("mlp", 0.97).model
    work = Workload("bare", model, ())
    assert SparseLayers().plan(work).is_empty
    assert "needs example inputs" in SparseLayers().plan(work).skipped[0].reason
    assert len(SparseLayers("memory").plan(work).steps) == 3


def test_all_rows_of_an_input_count(asked):
    model = prune(Linear(20, 20, rng=0), 0.97)
    work = Workload("rows", model.eval(), (Tensor(np.ones((3, 4, 20), np.float32)),))
    transform = SparseLayers()
    plan = transform.plan(work)
    assert asked == [(20, 20, 12)]
    assert type(transform.apply(work, plan)) is SparseLinear


@pytest.mark.slow
def test_the_speedup_of_the_model_follows_from_a_profile(asked):
    work = pruned("mlp", 0.97)
    assert "profile" in SparseLayers().plan(work).not_predicted["speedup"]
    profile = profile_model(work.model, *work.inputs, budget_s=0.05)
    plan = SparseLayers().plan(work, profile)
    left = 1 - sum(
        profile.share(profile.layer(step.layer)) * (1 - 1 / step.settings["speedup"])
        for step in plan.steps
    )
    assert plan.speedup.value == pytest.approx(1 / left)
    assert plan.speedup.low < plan.speedup.value < plan.speedup.high
    assert "Amdahl" in plan.speedup.basis
    of_bytes = SparseLayers("memory").plan(work, profile)
    assert "only bytes were counted" in of_bytes.not_predicted["speedup"]
    other = profile_model(workload("cnn").model, *workload("cnn").inputs, budget_s=0.05)
    assert "another model" in SparseLayers().plan(work, other).not_predicted["speedup"]


def test_it_is_really_measured_and_what_comes_out_holds_together():
    model = prune(Sequential(Linear(30, 40, rng=0)), 0.9)
    work = Workload("real", model.eval(), (Tensor(np.ones((1, 30), np.float32)),))
    transform = SparseLayers()
    plan = transform.plan(work)
    assert len(plan.steps) + len(plan.skipped) == 1
    (text,) = [step.why for step in plan.steps] + [each.reason for each in plan.skipped]
    assert "for 30 x 40 with 1 row on this machine (numpy" in text
    result = transform.apply(work, plan)
    assert type(result.layers[0]) is (SparseLinear if plan.steps else Linear)


def test_models_of_pytorch_are_left_to_pytorch():
    torch = require_part("torch")
    model = torch.nn.Linear(3, 4)
    transform = SparseLayers()
    work = Workload("torch", model, (torch.ones(1, 3),))
    plan = transform.plan(work)
    assert plan.is_empty
    assert "its own sparse tensors" in plan.skipped[0].reason
    assert isinstance(transform.apply(work, plan), torch.nn.Linear)


def test_a_plan_of_other_settings_or_another_model_is_refused(asked):
    plan = SparseLayers().plan(pruned("mlp", 0.97))
    with pytest.raises(SettingError, match="was made by SparseLayers"):
        SparseLayers("memory").apply(workload("mlp"), plan)
    with pytest.raises(SettingError, match="make a plan for this model"):
        SparseLayers().apply(workload("gpt"), plan)


def test_a_plan_for_other_zeros_is_refused(asked):
    work = pruned("mlp", 0.97)
    plan = SparseLayers().plan(work)
    work.model.layers[0].weight.data[:] = 0
    with pytest.raises(SettingError, match="has 0 weights that are not zero, and had"):
        SparseLayers().apply(work, plan)


@pytest.fixture
def _nothing_is_known(monkeypatch):
    monkeypatch.setattr(module, "_known", {})


@pytest.mark.usefixtures("_nothing_is_known")
def test_what_speaks_against_the_times_is_in_the_plan(monkeypatch):
    busy = ("the machine was busy",)
    monkeypatch.setattr(Observation, "doubts_since", lambda self, earlier, **_: busy)
    work = pruned("mlp", 0.97)
    assert SparseLayers().plan(work).notes == busy
    assert SparseLayers().plan(work).notes == ()  # nothing was timed


@pytest.mark.usefixtures("_nothing_is_known")
def test_a_size_with_as_many_zeros_is_timed_once():
    weight = prune(Linear(30, 40, rng=0), 0.9).weight.data
    first = time_sparse(weight, 1, budget_s=0.01)
    assert time_sparse(weight[::-1].copy(), 1) is first
    others = [time_sparse(weight, 2, budget_s=0.01)]
    with use_backend("reference"):
        others.append(time_sparse(weight, 1, budget_s=0.01))
    assert all(each is not first for each in others)


@pytest.mark.usefixtures("_nothing_is_known")
def test_a_wrong_kernel_is_not_timed():
    wrong = NUMPY.extended(
        "wrong", {"sparse_linear": lambda x, *rest, **_: np.zeros((len(x), 30), np.float32)}
    )
    with use_backend(wrong), pytest.raises(BackendError, match="nothing was timed"):
        time_sparse(np.ones((40, 30), np.float32), 1)


@pytest.mark.slow
def test_compiled_kernels_are_timed_with_their_threads():
    require_part("numba")
    from tinytorch.core.kernels.numba.compile import THREADS

    with use_backend("numba"):
        found = time_sparse(np.ones((40, 30), np.float32), 1, budget_s=0.01)
    assert f"(numba, {THREADS} thread" in found.where


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"goal": "speed"}, "unknown goal 'speed'"), ({"keep": "head"}, "tuple of patterns")],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        SparseLayers(**settings)


def test_a_plan_needs_a_workload():
    with pytest.raises(SettingError, match="made for a Workload"):
        SparseLayers().plan(Embedding(3, 4))
