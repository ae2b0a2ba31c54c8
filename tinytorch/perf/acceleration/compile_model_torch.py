"""Compiling PyTorch models: tried on a copy before it is promised. Imported after torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.adapters.pytorch import TorchAdapter, tensors_in
from tinytorch.adapters.pytorch_compile import why_no_compiler
from tinytorch.adapters.pytorch_graph_breaks import Graphs, graphs_of
from tinytorch.comparison.time_limit import time_limit
from tinytorch.errors import TinyTorchError, first_line
from tinytorch.perf.acceleration.boundary_torch import (
    TF32,
    changed_tensors,
    refusal,
    trial_note,
    why_unchangeable,
)
from tinytorch.perf.acceleration.compile_model import NAME
from tinytorch.perf.acceleration.compiled_model_torch import CompiledModel
from tinytorch.perf.acceleration.trial_torch import (
    ROUNDING,
    Trial,
    copied_arguments,
    run_once,
    try_change,
)
from tinytorch.workloads.plan import Plan, Skipped, Step
from tinytorch.workloads.preparation import Preparation, while_planning
from tinytorch.workloads.workload import Workload

if TYPE_CHECKING:
    from tinytorch.perf.acceleration.compile_model import CompileModel

__all__ = ["apply_torch", "plan_torch", "preparation_notes", "rounding_of"]

ROUNDINGS = 4
"""Outputs of fused kernels differ by a few roundings of the dtype that a model computes in."""
NOT_PREDICTED = {
    "speedup": "what fused kernels save depends on the sizes and the device; compare() measures it",
    "shrinkage": "the same parameters are held",
}
PACKED = (
    "packed weights are held beside those of the model; weights that change are packed again, "
    "at the next call, unless they were written through .data, which nobody sees"
)
SHOWN_BREAKS = 10


def plan_torch(workload: Workload, settings: CompileModel) -> Plan:
    """Look for what stands in the way, then compile a copy and compare its outputs."""
    reason = why_not_compiled(workload)
    if reason:
        return _nothing(settings, reason)
    try:
        graphs = _graphs(workload, settings)
    except Exception as error:  # the model or torch may raise anything
        return _nothing(settings, f"torch.compile cannot follow it: {first_line(error)}")
    if not graphs.count:
        why = f": {graphs.breaks[0]}" if graphs.breaks else ""
        return _nothing(settings, f"torch.compile finds nothing to compile in it{why}")
    if settings.freeze and graphs.breaks:
        where = graphs.breaks[0]
        return _nothing(settings, f"weights are packed where it is a single graph, but at {where}")
    tolerance = rounding_of(workload) if settings.tolerance is None else settings.tolerance

    prepared: list[Preparation] = []

    def change(model: nn.Module) -> nn.Module:
        twin = _compiled(model, workload, settings)
        prepared.extend(twin.preparations)
        return twin

    trial = try_change(workload, change, tolerance=tolerance, limit_s=settings.limit_s)
    if not trial.works:
        return _nothing(settings, refusal(workload.model, trial))
    what = f"compiled, mode {settings.mode!r}{', weights packed' if settings.freeze else ''}"
    spent = {"planning": while_planning(prepared).to_dict()}
    step = Step("", what, "fuses operations, and calls of kernels take less time", spent)
    notes = [*_notes(trial, prepared, graphs), *([PACKED] if settings.freeze else [])]
    if not graphs.breaks:  # torch would remember the sizes, with the model's own functions
        notes += _variants(workload, settings)
    return Plan(NAME, asdict(settings), (step,), not_predicted=NOT_PREDICTED, notes=tuple(notes))


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: CompileModel
) -> CompiledModel:
    """Give a copy of the model that was compiled, and called once so that it stays so."""
    twin = _compiled(model, workload, settings)
    planning = Preparation.from_dict(plan.steps[0].settings["planning"])
    twin.preparations = (*twin.preparations, planning)
    return twin


def _compiled(model: nn.Module, workload: Workload, settings: CompileModel) -> CompiledModel:
    twin = CompiledModel(
        model, mode=settings.mode, dynamic=settings.dynamic, freeze=settings.freeze
    )
    return twin.prepare(workload.inputs, workload.keywords)


def _nothing(settings: CompileModel, reason: str) -> Plan:
    return Plan(NAME, asdict(settings), (), (Skipped("", reason),))


# ---------------------------------------------------------------- what is known before


def why_not_compiled(workload: Workload) -> str:
    """Say why a model cannot be compiled, as far as can be told without trying, or nothing."""
    reason = why_unchangeable(workload.model)
    if reason:
        return reason
    try:
        place = TorchAdapter().device(workload.model, workload.arguments)
    except TinyTorchError as error:
        return str(error)
    return why_no_compiler(place)


def rounding_of(workload: Workload) -> float:
    """Give how far outputs may move, from the coarsest numbers that a call computes with."""
    adapter = TorchAdapter()
    seen = _SeenDtypes()
    try:
        with adapter.preserving(workload.model), seen:
            run_once(adapter, workload, adapter.clone(workload.model))
    except Exception:  # some tensors cannot be watched; the parameters tell almost as much
        seen.dtypes |= {each.dtype for each in workload.model.parameters()}
    place = torch.device(adapter.device(workload.model, workload.arguments))
    coarsest = max((_last_place(each, place) for each in seen.dtypes if _is_float(each)), default=0)
    return max(ROUNDING, ROUNDINGS * coarsest)


def _last_place(dtype: torch.dtype, place: torch.device) -> float:
    is_tf32 = dtype == torch.float32 and place.type == "cuda"  # by default in convolutions
    return TF32 if is_tf32 else torch.finfo(dtype).eps


class _SeenDtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the dtypes of everything that is computed inside of the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.dtypes.update(each.dtype for each in tensors_in(output))
        return output


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1  # of eight bits are stored, not computed


# ---------------------------------------------------------------- graphs


def _graphs(workload: Workload, settings: CompileModel) -> Graphs:
    model, adapter = TorchAdapter().clone(workload.model), TorchAdapter()
    with (
        adapter.preserving(workload.model),
        adapter.without_gradients(),
        time_limit(settings.limit_s, workload.name),
    ):
        arguments = copied_arguments(adapter, workload)
        return graphs_of(model, *arguments, dynamic=settings.dynamic)


def _variants(workload: Workload, settings: CompileModel) -> Iterator[str]:
    """Yield what happens when another batch comes, if the model takes one."""
    sizes = {each.shape[0] for each in tensors_in(workload.arguments) if each.dim()}
    if len(sizes) != 1 or settings.dynamic is True:
        return
    adapter = TorchAdapter()
    model = adapter.clone(workload.model)
    as_given = copied_arguments(adapter, workload)
    larger = [_grown(copied_arguments(adapter, workload), by) for by in (1, 2)]
    try:
        with (
            adapter.preserving(workload.model),
            adapter.without_gradients(),
            time_limit(settings.limit_s, workload.name),
        ):
            found = graphs_of(model, *as_given, dynamic=settings.dynamic, then=larger)
    except Exception:  # the model takes no other batch
        return
    second, third = found.later
    if second:
        more = f"{third} for a third" if third else "none for a third"
        yield f"another batch size compiles {second} more {_plural('graph', second)}, and {more}"


def _grown(
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]], rows: int
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    def longer(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, *[tensor[:1]] * rows]) if tensor.dim() else tensor

    inputs, keywords = arguments
    return changed_tensors(inputs, longer), changed_tensors(dict(keywords), longer)


# ---------------------------------------------------------------- in words


def _notes(trial: Trial, prepared: list[Preparation], graphs: Graphs) -> Iterator[str]:
    yield from preparation_notes(trial, prepared)
    places = len(graphs.breaks)
    if places:
        count = f"{graphs.count} {_plural('graph', graphs.count)}"
        yield f"{count}, and Python in between at {places} {_plural('place', places)}"
    for each in graphs.breaks[:SHOWN_BREAKS]:
        yield f"graph break at {each}"
    if places > SHOWN_BREAKS:
        yield f"and {places - SHOWN_BREAKS} more graph breaks"


def preparation_notes(trial: Trial, prepared: list[Preparation]) -> Iterator[str]:
    """Yield how long it took before the first call, what stays taken, how far outputs moved."""
    for each in prepared:
        yield f"it is {each.what} before its first call, which took {each.seconds:.2g} s"
        if each.nbytes:
            yield f"holds {each.nbytes / 2**20:.1f} MB more on the device"
    yield trial_note(trial)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
