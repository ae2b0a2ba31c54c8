import warnings

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from fake_capture import pretend_to_capture
from torch_workloads import mlp, workload

from tinytorch.errors import ModelError
from tinytorch.models.workload import Workload
from tinytorch.transforms.capture_graph import CaptureGraph
from tinytorch.transforms.capture_graph import torch as captured_model_torch
from tinytorch.transforms.capture_graph.torch import CapturedModel

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Writing(nn.Module):
    """Writes to its input."""

    def forward(self, x):
        return x.add_(1)


class Drawing(nn.Module):
    """Draws random numbers in every mode."""

    def forward(self, x):
        return x + torch.rand_like(x)


class InPython(nn.Module):
    """Keeps its state where no device sees it."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Waiting(nn.Module):
    """Asks the device for a number."""

    def forward(self, x):
        return x * x.sum().item()


@pytest.fixture
def captures(monkeypatch):
    return pretend_to_capture(monkeypatch)


@pytest.fixture
def small():
    return workload(mlp().eval(), 2, 128)


def reason_of(model, *inputs, **settings):
    found = Workload("found", model, inputs or (torch.ones(2, 3),))
    plan = CaptureGraph(**settings).plan(found)
    assert plan.is_empty
    (skipped,) = plan.skipped
    return skipped.reason


def test_a_processor_has_no_graphs(small):
    plan = CaptureGraph().plan(small)
    assert plan.is_empty
    assert plan.skipped[0].reason == "CUDA graphs need a CUDA device, and this model is on cpu"
    assert type(CaptureGraph().apply(small, plan)) is type(small.model)


def test_a_plan_says_what_it_takes(captures, small):
    plan = CaptureGraph().plan(small)
    (step,) = plan.steps
    assert step.what == "captured as a CUDA graph"
    assert plan.notes[0] == "it is captured before its first call, which took 0.5 s"
    assert plan.notes[1].startswith("holds 0.0 MB more on the device")
    assert "bit for bit" in plan.notes[2]
    assert set(plan.not_predicted) == {"speedup", "shrinkage"}


def test_applying_gives_a_captured_copy(captures, small):
    transform = CaptureGraph(most=3)
    twin = transform.apply(small, transform.plan(small))
    assert isinstance(twin, CapturedModel)
    assert twin.model is not small.model
    assert [each.what for each in twin.preparations] == ["captured", "captured while planning"]
    with torch.no_grad():
        torch.testing.assert_close(twin(*small.inputs), small.run())


def test_training_is_refused(captures):
    assert "it is in training mode; call eval()" in reason_of(nn.Linear(3, 3))


def test_models_that_write_to_their_inputs_are_refused(captures):
    assert "it writes to its inputs" in reason_of(Writing().eval())


def test_random_numbers_are_refused(captures):
    assert "it draws random numbers" in reason_of(Drawing().eval())


def test_layers_that_draw_only_in_training_are_fine(captures):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    plan = CaptureGraph().plan(Workload("dropout", model, (torch.ones(2, 3),)))
    assert len(plan.steps) == 1


def test_unknown_arguments_are_refused(captures):
    assert "an argument is a object" in reason_of(Writing().eval(), object())


def test_models_that_raise_are_refused(captures):
    assert "shapes cannot be multiplied" in reason_of(nn.Linear(7, 3).eval())


def test_what_was_captured_already_is_refused(captures, small):
    transform = CaptureGraph()
    twin = transform.apply(small, transform.plan(small))
    assert "it was prepared already (captured)" in reason_of(twin, *small.inputs)


def test_functions_are_refused(captures, small):
    assert "it is a method" in reason_of(small.model.forward, *small.inputs)


def test_hooks_are_noted(captures, small):
    small.model[0].register_forward_hook(lambda *_: None)
    assert any("its hooks run while" in note for note in CaptureGraph().plan(small).notes)


def test_outputs_that_are_overwritten_are_noted(captures, small):
    notes = CaptureGraph(copy_outputs=False).plan(small).notes
    assert "outputs are overwritten by the next call (copy_outputs=False)" in notes


def test_what_cannot_be_captured_is_the_reason(captures, small, monkeypatch):
    def refuse(step, **settings):
        raise ModelError("it waits for the device")

    monkeypatch.setattr(captured_model_torch, "capture", refuse)
    assert reason_of(small.model, *small.inputs) == "ModelError: it waits for the device"


def test_kernels_are_compiled_first_on_request(captures, small, monkeypatch):
    monkeypatch.setattr(captured_model_torch, "BACKEND", "eager")
    transform = CaptureGraph(compile=True)
    plan = transform.plan(small)
    (step,) = plan.steps
    assert step.what == "compiled, then captured as a CUDA graph"
    twin = transform.apply(small, plan)
    with torch.no_grad():
        torch.testing.assert_close(twin(*small.inputs), small.run())


def test_without_a_compiler_it_is_captured_as_it_is(captures, small):
    from torch._inductor import config

    transform = CaptureGraph(compile=True)
    with config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        plan = transform.plan(small)
    assert plan.steps[0].what == "captured as a CUDA graph"
    assert any("captured without torch.compile: there is no C++" in note for note in plan.notes)
    assert isinstance(transform.apply(small, plan), CapturedModel)


def test_a_compiler_that_fails_is_noted(captures, small, monkeypatch):
    def failing(graph, examples):
        raise RuntimeError("no kernels today")

    monkeypatch.setattr(captured_model_torch, "BACKEND", failing)
    plan = CaptureGraph(compile=True).plan(small)
    assert plan.steps[0].settings["compile"] is False
    assert any("captured without torch.compile: " in note for note in plan.notes)


def test_warnings_of_a_compiler_about_itself_do_not_end_it(captures, small, monkeypatch):
    def warning(graph, examples):
        warnings.warn("cores for float32 are available but not enabled", UserWarning, stacklevel=1)
        return graph.forward

    monkeypatch.setattr(captured_model_torch, "BACKEND", warning)
    plan = CaptureGraph(compile=True).plan(small)
    assert plan.steps[0].settings["compile"] is True


@needs_cuda
def test_state_in_python_is_found_on_a_device():
    reason = reason_of(InPython().eval(), torch.ones(2, 3, device="cuda"))
    assert "its outputs would change" in reason


@needs_cuda
def test_waiting_for_the_device_is_named():
    reason = reason_of(Waiting().eval(), torch.ones(2, 3, device="cuda"))
    assert "it waits for the device" in reason
    assert "test_capture_graph_torch.py:" in reason


@needs_cuda
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "resnet"])
def test_transformers_are_captured_on_a_device(name, compile):
    from tiny_transformers import tiny

    found = tiny(name)
    model = found.model.eval().cuda()
    inputs = tuple(each.cuda() for each in found.inputs)
    there = Workload(name, model, inputs, keywords=found.keywords)
    transform = CaptureGraph(compile=compile)
    plan = transform.plan(there)
    assert len(plan.steps) == 1, plan.skipped
    twin = transform.apply(there, plan)
    with torch.no_grad():
        for _ in range(2):
            output, expected = twin(*inputs, **found.keywords), there.run()
            torch.testing.assert_close(output.logits, expected.logits, rtol=1e-3, atol=1e-3)
