import time

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import Branching, mlp, workload

from tinytorch.errors import ModelError
from tinytorch.models.workload import Workload
from tinytorch.transforms.compile_model import CompileModel
from tinytorch.transforms.compile_model import torch as compiled_model_torch
from tinytorch.transforms.compile_model.torch import CompiledModel, rounding_of

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Looping(nn.Module):
    """Gives up in a loop, where nothing can be compiled."""

    def forward(self, x):
        for _ in range(2):
            x = x + 1
            if x.sum() > 1e9:
                x = x - 1
        return x


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(compiled_model_torch, "BACKEND", "eager")


@pytest.fixture
def small():
    return workload(mlp().eval(), 2, 128)


def reason_of(plan):
    assert plan.is_empty
    (skipped,) = plan.skipped
    assert skipped.layer == ""
    return skipped.reason


def test_a_plan_says_what_it_took_and_what_it_gives(quick, small):
    before = [each.clone() for each in small.model.parameters()]
    plan = CompileModel().plan(small)
    (step,) = plan.steps
    assert step.what == "compiled, mode 'default'"
    assert plan.notes[0].startswith("it is compiled before its first call, which took ")
    assert "the outputs stay the same, bit for bit" in plan.notes[1]
    assert plan.notes[2] == "another batch size compiles 1 more graph, and none for a third"
    assert set(plan.not_predicted) == {"speedup", "shrinkage"}
    assert all(map(torch.equal, before, small.model.parameters()))


def test_open_sizes_compile_once(quick, small):
    plan = CompileModel(dynamic=True).plan(small)
    assert len(plan.steps) == 1
    assert not any("another batch" in note for note in plan.notes)


def test_graph_breaks_are_named(quick):
    plan = CompileModel().plan(workload(Branching().eval(), 2, 3, 8, 8))
    assert len(plan.steps) == 1
    assert "2 graphs, and Python in between at 1 place" in plan.notes
    (note,) = [note for note in plan.notes if note.startswith("graph break at ")]
    assert "torch_workloads.py:" in note
    assert "`x = self.conv(x) if x.sum() < 1e9 else x`" in note


def test_weights_are_packed_only_in_one_graph(quick):
    plan = CompileModel(freeze=True).plan(workload(Branching().eval(), 2, 3, 8, 8))
    assert "weights are packed where it is a single graph, but at torch_work" in reason_of(plan)


def test_packed_weights_are_noted(quick, small):
    plan = CompileModel(freeze=True).plan(small)
    assert plan.steps[0].what == "compiled, mode 'default', weights packed"
    assert any("held beside those of the model" in note for note in plan.notes)


def test_a_model_without_a_graph_is_left_alone(quick):
    plan = CompileModel().plan(workload(Looping(), 2, 3))
    assert "finds nothing to compile in it: test_compile_model_torch.py:" in reason_of(plan)


def test_what_was_compiled_already_is_left_alone(quick, small):
    twin = CompileModel().apply(small, CompileModel().plan(small))
    again = Workload("again", twin, small.inputs)
    assert "it was prepared already (compiled)" in reason_of(CompileModel().plan(again))
    third = Workload("third", torch.compile(mlp(), backend="eager"), small.inputs)
    assert "it is compiled" in reason_of(CompileModel().plan(third))


def test_a_function_is_left_alone(small):
    found = Workload("function", small.model.forward, small.inputs)
    assert "it is a method" in reason_of(CompileModel().plan(found))


def test_a_missing_compiler_is_the_reason(small):
    from torch._inductor import config

    with config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        assert "no C++ compiler" in reason_of(CompileModel().plan(small))


def test_a_model_that_raises_is_left_alone(quick):
    broken = Workload("broken", mlp(), (torch.ones(2, 3),))
    assert "torch.compile cannot follow it: " in reason_of(CompileModel().plan(broken))


def test_a_compiler_that_fails_is_the_reason(small, monkeypatch):
    def failing(graph, examples):
        raise RuntimeError("no kernels today")

    monkeypatch.setattr(compiled_model_torch, "BACKEND", failing)
    reason = reason_of(CompileModel().plan(small))
    assert "torch.compile failed" in reason
    assert "no kernels today" in reason


def test_a_compiler_that_never_ends_is_interrupted(small, monkeypatch):
    def endless(graph, examples):
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(compiled_model_torch, "BACKEND", endless)
    assert "did not return within" in reason_of(CompileModel(limit_s=1.0).plan(small))


def test_wrong_outputs_are_the_reason(small, monkeypatch):
    def wrong(graph, examples):
        return lambda *inputs: [each * 1.01 for each in graph.forward(*inputs)]

    monkeypatch.setattr(compiled_model_torch, "BACKEND", wrong)
    assert "its outputs would change by 0.01" in reason_of(CompileModel().plan(small))
    assert len(CompileModel(tolerance=0.1).plan(small).steps) == 1


def test_random_layers_in_training_mode_are_the_reason(small, monkeypatch):
    monkeypatch.setattr(compiled_model_torch, "BACKEND", wrong_when_random)
    model = nn.Sequential(nn.Linear(128, 8), nn.Dropout(0.5))
    plan = CompileModel().plan(Workload("random", model, small.inputs))
    assert "call eval() on it first" in reason_of(plan)


def wrong_when_random(graph, examples):
    def run(*inputs):
        torch.rand(3)  # kernels draw in another order
        return graph.forward(*inputs)

    return run


def test_applying_gives_a_prepared_copy(quick, small):
    transform = CompileModel()
    twin = transform.apply(small, transform.plan(small))
    assert isinstance(twin, CompiledModel)
    assert [each.what for each in twin.preparations] == ["compiled", "compiled while planning"]
    assert twin.model is not small.model
    with torch.no_grad():
        torch.testing.assert_close(twin(*small.inputs), small.run())


def test_an_empty_plan_gives_a_plain_copy(small, monkeypatch):
    monkeypatch.setattr(compiled_model_torch, "BACKEND", "no-such-backend")
    transform = CompileModel()
    plan = transform.plan(small)
    reason_of(plan)
    assert type(transform.apply(small, plan)) is type(small.model)


def test_a_plan_that_does_not_hold_any_more_raises(quick, small, monkeypatch):
    transform = CompileModel()
    plan = transform.plan(small)

    def failing(graph, examples):
        raise RuntimeError("no kernels today")

    monkeypatch.setattr(compiled_model_torch, "BACKEND", failing)
    with pytest.raises(ModelError, match="no kernels today"):
        transform.apply(small, plan)


def test_rounding_depends_on_what_a_model_computes_in(small):
    assert rounding_of(small) == 1e-4
    half = Workload("half", mlp().eval().bfloat16(), (small.inputs[0].bfloat16(),))
    assert rounding_of(half) == 4 * torch.finfo(torch.bfloat16).eps
    assert rounding_of(Workload("inside", Casting(), small.inputs)) == rounding_of(half)


class Casting(nn.Module):
    """Holds no numbers, and computes in bfloat16 between floats."""

    def forward(self, x):
        return (x.bfloat16() * 2).float()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"freeze": True}, {"dynamic": True}])
def test_inductor_keeps_the_outputs_of_transformers(settings):
    from tiny_transformers import tiny

    found, transform = tiny("bert", num_hidden_layers=1), CompileModel(**settings)
    found.model.eval()
    plan = transform.plan(found)
    assert len(plan.steps) == 1, plan.skipped
    twin = transform.apply(found, plan)
    with torch.no_grad():
        torch.testing.assert_close(
            twin(*found.inputs, **found.keywords).logits, found.run().logits, rtol=1e-4, atol=1e-4
        )


@needs_cuda
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_on_a_device_are_compiled(mode, dtype):
    kind = getattr(torch, dtype)
    model = mlp().eval().to("cuda", kind)
    found = Workload("device", model, (torch.randn(4, 128, device="cuda", dtype=kind),))
    transform = CompileModel(mode=mode)
    plan = transform.plan(found)
    assert len(plan.steps) == 1, plan.skipped
    twin = transform.apply(found, plan)
    with torch.no_grad():
        torch.testing.assert_close(twin(*found.inputs), found.run(), rtol=0.05, atol=0.05)
