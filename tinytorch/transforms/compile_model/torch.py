"""Compiling PyTorch models: tried on a copy before it is promised. Imported after torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.errors import ModelError, TinyTorchError, first_line
from tinytorch.measure.timing import time_limit
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_capture import taken_bytes
from tinytorch.models.pytorch_compile import (
    Graphs,
    compiled,
    graphs_of,
    quiet_compiler,
    refusals,
    uses_cuda_graphs,
    why_it_failed,
    why_no_compiler,
)
from tinytorch.models.pytorch_tensors import PreparedModel
from tinytorch.models.workload import Preparation, Workload, while_planning
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.support import torch as support

if TYPE_CHECKING:
    from tinytorch.transforms.compile_model import CompileModel


# ---------------------------------------------------------------- a PyTorch model that was
# compiled. Imported after torch

BACKEND = "inductor"
CALLS = 3
"""With CUDA graphs, the first call compiles, the second captures and the third replays."""


class CompiledModel(PreparedModel):
    """A model that `torch.compile` runs. A copy of it is compiled when it is first called.

    Outputs are the caller's own, also where a CUDA graph would overwrite them in the next call.
    Modes with CUDA graphs are for one thread: the one that called it first.

    Packed weights are packed again when those of the model change; only what is written through
    `.data` is not noticed. Arguments of more shapes or kinds than that way of compiling
    allows make it compile once more, without packing.
    """

    not_copied = ("preparations", "_function", "_weights")

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: str = "default",
        dynamic: bool | None = None,
        freeze: bool = False,
    ) -> None:
        super().__init__(model)
        self._settings: dict[str, Any] = {"mode": mode, "dynamic": dynamic, "freeze": freeze}
        self._why_not_packed = ""
        self._set_up()

    def _set_up(self) -> None:
        """Forget whatever was compiled."""
        self.preparations: tuple[Preparation, ...] = ()
        is_frozen = self._settings["freeze"]
        self._function = compiled(
            self.model, backend=BACKEND, fullgraph=is_frozen, **self._settings
        )
        self._weights = support.SameWeights(self.model, also_numbers=True) if is_frozen else None
        # Tells other transforms that the layers inside must not be changed.
        self._compiled_call_impl = self._call_impl

    def prepare(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> CompiledModel:
        """Compile for such arguments, and return the model itself; its state is unchanged."""
        adapter = TorchAdapter()
        place = adapter.device(self.model, (*inputs, *keywords.values()))
        before = taken_bytes(place)
        self._why_not_packed = ""
        started = perf_counter()
        try:
            with (
                adapter.preserving(self.model),
                adapter.without_gradients(),
                quiet_compiler(),
            ):
                for _ in range(CALLS if uses_cuda_graphs(self._settings["mode"]) else 1):
                    given = adapter.copy_inputs(inputs)
                    named = adapter.copy_inputs(tuple(keywords.values()))
                    self(*given, **dict(zip(keywords, named, strict=True)))
                adapter.synchronize(place)
        except Exception as error:  # a compiler may raise anything
            raise ModelError(f"torch.compile failed: {why_it_failed(error)}") from error
        if self._why_not_packed:
            raise ModelError(f"the weights cannot be packed: {self._why_not_packed}")
        seconds, after = perf_counter() - started, taken_bytes(place)
        nbytes = None if before is None or after is None else max(0, after - before)
        self.preparations = (Preparation("compiled", seconds, nbytes),)
        return self

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the compiled model."""
        if self._weights is not None and not self._weights.still_hold():
            self._set_up()
        try:
            if not self.preparations:
                return self._first_call(inputs, keywords)
            return self._call_compiled(inputs, keywords)
        except refusals() as error:  # before anything is computed
            if not self._settings["freeze"]:
                raise
            self._why_not_packed = why_it_failed(error)
        told = f"it is compiled without packed weights from now on: {self._why_not_packed}"
        warnings.warn(told, RuntimeWarning, stacklevel=1)  # torch's own code calls this
        self._settings["freeze"] = False
        self._set_up()
        return self._first_call(inputs, keywords)

    def _first_call(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        started = perf_counter()
        output = self._call_compiled(inputs, keywords)
        self.preparations = (Preparation("compiled", perf_counter() - started),)
        if self._weights is not None:
            self._weights.ignore_what_changed()
        return output

    def _call_compiled(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not uses_cuda_graphs(self._settings["mode"]):
            return self._function(*inputs, **keywords)
        has_device: Any = torch.cuda.is_initialized
        # With gradients, graphs of earlier calls may still be needed.
        if has_device() and not torch.is_grad_enabled():
            mark_step: Any = torch.compiler.cudagraph_mark_step_begin
            mark_step()
        return support.owned(self._function(*inputs, **keywords))

    def _forget(self) -> None:
        """Pack the weights again; compiled code reads them itself."""
        if self._weights is not None:
            self._set_up()


# ---------------------------------------------------------------- compiling PyTorch models: tried
# on a copy before it is promised. Imported after torch

ROUNDINGS = 4
"""Outputs of fused kernels differ by a few roundings of the dtype that a model computes in."""
NOT_PREDICTED = {
    "speedup": "what fused kernels save depends on the sizes and the device; compare() measures it",
    "shrinkage": "the same parameters are held",
}
PACKED = (
    "packed weights are held beside those of the model; weights that change are packed again, "
    "at the next call, unless they were written through .data, which is not noticed"
)
SHOWN_BREAKS = 10


def plan_torch(workload: Workload, settings: CompileModel) -> Plan:
    """Plan the compilation: check for obstacles, compile a copy and compare its outputs."""
    reason = why_not_compiled(workload)
    if reason:
        return settings.skipping(reason)
    try:
        graphs = _graphs(workload, settings)
    except Exception as error:  # the model or torch may raise anything
        return settings.skipping(f"torch.compile cannot follow it: {first_line(error)}")
    if not graphs.count:
        why = f": {graphs.breaks[0]}" if graphs.breaks else ""
        return settings.skipping(f"torch.compile finds nothing to compile in it{why}")
    if settings.freeze and graphs.breaks:
        where = graphs.breaks[0]
        return settings.skipping(f"weights are packed where it is a single graph, but at {where}")
    tolerance = rounding_of(workload) if settings.tolerance is None else settings.tolerance

    prepared: list[Preparation] = []

    def change(model: nn.Module) -> nn.Module:
        twin = _compiled(model, workload, settings)
        prepared.extend(twin.preparations)
        return twin

    trial = support.try_change(workload, change, tolerance=tolerance, limit_s=settings.limit_s)
    if not trial.works:
        return settings.skipping(support.refusal(workload.model, trial))
    what = f"compiled, mode {settings.mode!r}{', weights packed' if settings.freeze else ''}"
    spent = {"planning": while_planning(prepared).to_dict()}
    step = Step("", what, "fuses operations, and calls of kernels take less time", spent)
    notes = [*_notes(trial, prepared, graphs), *([PACKED] if settings.freeze else [])]
    if not graphs.breaks:  # torch would remember the sizes, with the model's own functions
        notes += _variants(workload, settings)
    return settings.planned((step,), not_predicted=NOT_PREDICTED, notes=tuple(notes))


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: CompileModel
) -> CompiledModel:
    """Return a copy of the model that was compiled, and called once so that it stays so."""
    twin = _compiled(model, workload, settings)
    planning = Preparation.from_dict(plan.steps[0].settings["planning"])
    twin.preparations = (*twin.preparations, planning)
    return twin


def _compiled(model: nn.Module, workload: Workload, settings: CompileModel) -> CompiledModel:
    twin = CompiledModel(
        model, mode=settings.mode, dynamic=settings.dynamic, freeze=settings.freeze
    )
    return twin.prepare(workload.inputs, workload.keywords)


# ---------------------------------------------------------------- what is known before


def why_not_compiled(workload: Workload) -> str:
    """Return why a model cannot be compiled, as far as can be told without trying, or ""."""
    reason = support.why_unchangeable(workload.model)
    if reason:
        return reason
    try:
        place = workload.device
    except TinyTorchError as error:
        return str(error)
    return why_no_compiler(place)


def rounding_of(workload: Workload) -> float:
    """Return how far outputs may move, from the coarsest numbers that a call computes with."""
    adapter = TorchAdapter()
    seen = _SeenDtypes()
    try:
        with adapter.preserving(workload.model), seen:
            support.run_once(adapter, workload, adapter.clone(workload.model))
    except Exception:  # some tensors cannot be watched; the parameters tell almost as much
        seen.dtypes |= {each.dtype for each in workload.model.parameters()}
    place = torch.device(workload.device)
    coarsest = max((_last_place(each, place) for each in seen.dtypes if _is_float(each)), default=0)
    return max(support.ROUNDING, ROUNDINGS * coarsest)


def _last_place(dtype: torch.dtype, place: torch.device) -> float:
    is_tf32 = dtype == torch.float32 and place.type == "cuda"  # by default in convolutions
    return support.TF32 if is_tf32 else torch.finfo(dtype).eps


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
        arguments = support.copied_arguments(adapter, workload)
        return graphs_of(model, *arguments, dynamic=settings.dynamic)


def _variants(workload: Workload, settings: CompileModel) -> Iterator[str]:
    """Yield what happens when another batch comes, if the model takes one."""
    sizes = {each.shape[0] for each in tensors_in(workload.arguments) if each.dim()}
    if len(sizes) != 1 or settings.dynamic is True:
        return
    adapter = TorchAdapter()
    model = adapter.clone(workload.model)
    as_given = support.copied_arguments(adapter, workload)
    larger = [_grown(support.copied_arguments(adapter, workload), by) for by in (1, 2)]
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
    return support.changed_tensors(inputs, longer), support.changed_tensors(dict(keywords), longer)


# ---------------------------------------------------------------- in words


def _notes(trial: support.Trial, prepared: list[Preparation], graphs: Graphs) -> Iterator[str]:
    yield from preparation_notes(trial, prepared)
    places = len(graphs.breaks)
    if places:
        count = f"{graphs.count} {_plural('graph', graphs.count)}"
        yield f"{count}, and Python in between at {places} {_plural('place', places)}"
    for each in graphs.breaks[:SHOWN_BREAKS]:
        yield f"graph break at {each}"
    if places > SHOWN_BREAKS:
        yield f"and {places - SHOWN_BREAKS} more graph breaks"


def preparation_notes(trial: support.Trial, prepared: list[Preparation]) -> Iterator[str]:
    """Yield how long it took before the first call, what stays taken, how far outputs moved."""
    for each in prepared:
        yield f"it is {each.what} before its first call, which took {each.seconds:.2g} s"
        if each.nbytes:
            yield f"holds {each.nbytes / 2**20:.1f} MB more on the device"
    yield support.trial_note(trial)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
