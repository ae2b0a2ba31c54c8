"""Capturing PyTorch models as CUDA graphs: tried before it is promised. Imported after torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.pytorch_capture import why_not_captured
from tinytorch.adapters.pytorch_compile import why_no_compiler
from tinytorch.adapters.pytorch_surgery import HOOKS
from tinytorch.errors import TinyTorchError
from tinytorch.perf.acceleration.argument_kinds_torch import (
    UnknownArgumentError,
    kind_of_arguments,
)
from tinytorch.perf.acceleration.boundary_torch import (
    IN_TRAINING,
    observe_call,
    refusal,
    why_unchangeable,
)
from tinytorch.perf.acceleration.capture_graph import NAME
from tinytorch.perf.acceleration.captured_model_torch import CapturedModel
from tinytorch.perf.acceleration.compile_model_torch import preparation_notes, rounding_of
from tinytorch.perf.acceleration.trial_torch import SEED, Trial, run_once, try_change
from tinytorch.workloads.plan import Plan, Skipped, Step
from tinytorch.workloads.preparation import Preparation, while_planning
from tinytorch.workloads.workload import Workload

if TYPE_CHECKING:
    from tinytorch.perf.acceleration.capture_graph import CaptureGraph

__all__ = ["apply_torch", "plan_torch"]

NOT_PREDICTED = {
    "speedup": "it saves the time between kernels, which depends on their number and size; "
    "compare() measures it",
    "shrinkage": "the same parameters are held",
}
WRITES_INPUTS = (
    "it writes to its inputs, and a graph would write to copies of them; let it write elsewhere"
)
DRAWS = "it draws random numbers, which other calls would draw in another order; call eval() on it"
HOOKED = "its hooks run while it is captured, and not when that is replayed"
OVERWRITTEN = "outputs are overwritten by the next call (copy_outputs=False)"


def plan_torch(workload: Workload, settings: CaptureGraph) -> Plan:
    """Look for what a graph cannot hold, then capture a copy and compare its outputs."""
    reason = _why_not(workload)
    if reason:
        return _nothing(settings, reason)
    prepared: list[Preparation] = []
    trial, is_compiled, notes = _tried(workload, settings, prepared)
    if not trial.works:
        return _nothing(settings, refusal(workload.model, trial))
    what = "compiled, then captured as a CUDA graph" if is_compiled else "captured as a CUDA graph"
    why = "all kernels of a call are started at once"
    spent = while_planning(prepared).to_dict()
    step = Step("", what, why, {"compile": is_compiled, "planning": spent})
    notes = [*preparation_notes(trial, prepared), *notes]
    if not settings.copy_outputs:
        notes.append(OVERWRITTEN)
    if _has_hooks(workload.model):
        notes.append(HOOKED)
    return Plan(NAME, asdict(settings), (step,), not_predicted=NOT_PREDICTED, notes=tuple(notes))


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: CaptureGraph
) -> CapturedModel:
    """Give a copy of the model that was captured for the workload's inputs."""
    tried = plan.steps[0].settings
    twin = _captured(model, workload, settings, tried["compile"])
    twin.preparations += (Preparation.from_dict(tried["planning"]),)
    return twin


def _captured(
    model: nn.Module, workload: Workload, settings: CaptureGraph, is_compiled: bool
) -> CapturedModel:
    twin = CapturedModel(
        model, compile=is_compiled, copy_outputs=settings.copy_outputs, most=settings.most
    )
    return twin.prepare(workload.inputs, workload.keywords)


def _nothing(settings: CaptureGraph, reason: str) -> Plan:
    return Plan(NAME, asdict(settings), (), (Skipped("", reason),))


def _tried(
    workload: Workload, settings: CaptureGraph, prepared: list[Preparation]
) -> tuple[Trial, bool, list[str]]:
    """Try it compiled if that is asked for, and else, or if that fails, as it is."""
    tolerance = rounding_of(workload) if settings.tolerance is None else settings.tolerance

    def tried(*, is_compiled: bool) -> Trial:
        def change(model: nn.Module) -> nn.Module:
            twin = _captured(model, workload, settings, is_compiled)
            prepared[:] = twin.preparations
            return twin

        return try_change(workload, change, tolerance=tolerance, limit_s=settings.limit_s)

    if not settings.compile:
        return tried(is_compiled=False), False, []
    reason = why_no_compiler(TorchAdapter().device(workload.model, workload.arguments))
    if not reason:
        trial = tried(is_compiled=True)
        if trial.works:
            return trial, True, []
        reason = trial.reason
    return tried(is_compiled=False), False, [f"captured without torch.compile: {reason}"]


# ---------------------------------------------------------------- what is known before


def _why_not(workload: Workload) -> str:
    reason = why_unchangeable(workload.model)
    if reason:
        return reason
    try:
        place = TorchAdapter().device(workload.model, workload.arguments)
        kind_of_arguments((workload.inputs, dict(workload.keywords)), [])
    except UnknownArgumentError as error:
        return f"{error}; a graph is for tensors, numbers and words"
    except TinyTorchError as error:
        return str(error)
    return next((each for each in _reasons(workload, place) if each), "")


def _reasons(workload: Workload, place: str) -> Iterator[str]:
    yield why_not_captured(place)
    if any(module.training for module in workload.model.modules()):
        yield IN_TRAINING
    seen = observe_call(workload)
    yield seen.error
    yield WRITES_INPUTS if seen.writes_inputs else ""
    yield DRAWS if _draws_numbers(workload, place) else ""


def _draws_numbers(workload: Workload, place: str) -> bool:
    """Tell whether a call moves a random generator on."""
    adapter = TorchAdapter()
    with adapter.preserving(workload.model):
        run_once(adapter, workload, adapter.clone(workload.model))
        after = _random_states(torch.device(place))
        torch.manual_seed(SEED)
        before = _random_states(torch.device(place))
    return any(not torch.equal(*states) for states in zip(before, after, strict=True))


def _has_hooks(model: nn.Module) -> bool:
    return any(getattr(module, name, None) for module in model.modules() for name in HOOKS)


def _random_states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return states + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
