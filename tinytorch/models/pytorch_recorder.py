"""Recording a PyTorch model at the dispatcher: every operator that runs, and every buffer.

The dispatcher sees below autograd and above the kernels. There is no way around it: functional
calls, fused attention and the backward pass all come by. What it does not see is the inside of an
operator, such as the scratch memory of a convolution."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.measure.ceilings_torch import convolves_in_tf32, multiplies_in_tf32
from tinytorch.models.adapter import entering_layers
from tinytorch.models.costs import COSTS, POINTWISE, VIEW, Rule, cost_of
from tinytorch.models.pytorch_tensors import (
    as_spec,
    flat_tensors,
    packed_weights,
    parts_of,
    storage_of,
)
from tinytorch.models.pytorch_trace import KernelTrace
from tinytorch.models.records import Argument, Call, Cost, Ledger, OpRecord, Recording, TensorSpec

# ---------------------------------------------------------------- which layer, and which phase of
# a training step, an operator of PyTorch belongs to


@dataclass
class _Marks:
    """Autograd's counter of nodes whenever the layer of a thread changed, and the layer from then.

    `task` is the backward pass inside of which the latest mark was made; -1 outside of any.
    """

    nodes: list[int] = field(default_factory=list)
    paths: list[str | None] = field(default_factory=list)
    task: int = -1

    def path_of(self, node: int) -> str | None:
        index = bisect_right(self.nodes, node) - 1
        return self.paths[index] if index >= 0 else None


class Places:
    """Follows which layer is running. `outside` is the path of what runs in no layer.

    In a backward pass a node of autograd belongs to the layer in which it was made. Layers that run
    inside of a backward pass (checkpointing) speak for themselves.
    """

    def __init__(self, outside: str | None = None) -> None:
        self._outside = outside
        self._stack: list[tuple[str, bool]] = []  # path, and whether a backward pass called it
        self._is_updating = False
        self._thread = get_ident()
        self._marks: dict[int, _Marks] = {}  # every thread counts nodes by itself
        self._mark()

    def enter_layer(self, path: str) -> None:
        self._stack.append((path, _running_node() is not None))
        self._mark()

    def leave_layer(self, path: str, error: BaseException | None, output: Any) -> None:
        self._stack.pop()
        self._mark()

    def begin_update(self, path: str) -> None:
        self._is_updating = True

    def end_update(self, path: str, error: BaseException | None, output: Any) -> None:
        self._is_updating = False

    def now(self) -> tuple[str | None, str]:
        """Return the layer and the phase of an operator that runs at this moment."""
        node = _running_node()
        if node is not None:
            path, is_called_by_backward = self._stack[-1] if self._stack else ("", False)
            return (path if is_called_by_backward else self._maker_of(node)), "backward"
        if self._stack:
            return self._stack[-1][0], "forward"
        return (None, "update") if self._is_updating else (self._outside, "forward")

    def _mark(self) -> None:
        marks = self._marks.setdefault(get_ident(), _Marks())
        marks.nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        marks.paths.append(self._stack[-1][0] if self._stack else self._outside)
        marks.task = torch._C._current_graph_task_id()

    def _maker_of(self, node: Any) -> str | None:
        number = node._sequence_nr()  # gradient sinks have a huge one: they came after everything
        own = self._marks.get(get_ident())
        # Nodes that were made in a backward pass run in another one, which that one starts.
        if own is not None and own.task != torch._C._current_graph_task_id():
            return own.path_of(number)
        return self._marks[self._thread].path_of(number)


def _running_node() -> Any:
    """Return the node that a backward pass is working on, or None outside of any."""
    return torch._C._current_autograd_node()


# ---------------------------------------------------------------- recording a PyTorch model at the
# dispatcher: every operator that runs, and every buffer

Resident = tuple[torch.Tensor, str, str | None]

# Tensors whose values, not only shapes, decide what an operator costs.
VALUES_NEEDED = {
    "aten._grouped_mm": ("offs",),
    "aten._scaled_grouped_mm": ("offs",),
    "aten._flash_attention_forward": ("cum_seq_q", "cum_seq_k"),
    "aten._flash_attention_backward": ("cum_seq_q", "cum_seq_k"),
    "aten._efficient_attention_forward": ("cu_seqlens_q", "cu_seqlens_k"),
    "aten._efficient_attention_backward": ("cu_seqlens_q", "cu_seqlens_k"),
}
# Backward operators that are not told which gradients are wanted: the tensors that may ask for one.
ASKING = {"aten.mkldnn_rnn_layer_backward": ("input", "hx_")}
FRESH = ("aten.lift", "aten.lift_fresh")
"""Operators that are handed what `torch.tensor` has just made."""
CYCLES_PER_S = 2e9
"""About the clock rate of a GPU; only used to stall it for some time."""
LONGEST_WAIT_S = 1.0


def record_step(
    step: Callable[[], object],
    *,
    modules: Mapping[str, Any],
    residents: Iterable[Resident],
    learned: Iterable[torch.Tensor],
    device: str,
    optimizer: Any = None,
    outside: str | None = None,
    trace: KernelTrace | None = None,
) -> Recording:
    """Run `step` once under the recorder. What runs in no layer has the path `outside`.

    With a `trace`, the time of an operator is that of its kernels in it.
    """
    places = Places(outside)
    recorder = _Recorder(device, places, trace)
    for tensor, category, path in residents:
        recorder.enter_buffer(tensor, category, path)
    on_cuda = device.startswith("cuda")
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        if trace is None:
            hold_back(device, LONGEST_WAIT_S)  # so that the time between events has no gaps
    with trace or nullcontext():
        begin = recorder.mark()
        with (
            running_eagerly(),
            entering_layers(modules, places.enter_layer, places.leave_layer),
            entering_layers(
                {"": optimizer}, places.begin_update, places.end_update, methods=("step",)
            ),
            recorder,
        ):
            start = recorder.begin()
            kept = step()  # what it returns is alive as long as a caller would hold it
            duration = perf_counter() - start
        end = recorder.mark()
    if on_cuda:  # on the time line of the device, which was held back at first
        torch.cuda.synchronize(device)
        duration = recorder.seconds(begin, end)
    for parameter in learned:
        if parameter.grad is not None:
            recorder.name_buffer(parameter.grad, "gradients")
    for tensor in optimizer_state(optimizer):
        recorder.name_buffer(tensor, "optimizer state")
    allocations = recorder.ledger.allocations()
    del kept
    peak = torch.cuda.max_memory_allocated(device) - before if on_cuda else None
    return Recording(recorder.finished(), allocations, duration, peak)


def optimizer_state(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors that an optimizer keeps from step to step."""
    return list(
        flat_tensors([dict(each) for each in optimizer.state.values()] if optimizer else [])
    )


def hold_back(device: str, seconds: float) -> Callable[[], bool]:
    """Stall a GPU while work is queued; the returned function tells whether it is still stalled."""
    torch.cuda._sleep(int(min(seconds, LONGEST_WAIT_S) * CYCLES_PER_S))
    over = torch.cuda.Event()
    over.record(torch.cuda.current_stream(device))
    return lambda: not over.query()


def running_eagerly() -> AbstractContextManager[Any]:
    """Run compiled models as they were written: compiled code hides its operators."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    return set_stance("force_eager") if set_stance else nullcontext()


class _Recorder(TorchDispatchMode):
    """Sees every operator of this thread and of the backward pass that it starts."""

    supports_higher_order_operators = True

    def __init__(self, device: str, places: Places, trace: KernelTrace | None = None) -> None:
        super().__init__()
        self._places, self._trace = places, trace
        self._began = 0.0
        self.ledger = Ledger(lambda: perf_counter() - self._began)
        self._on_cuda = device.startswith("cuda")
        self._stream = torch.cuda.current_stream(device) if self._on_cuda else None
        self._bonds: list[Any] = []  # weak references only fire while they are alive
        self._pending: list[tuple[OpRecord, Any, Any]] = []

    def begin(self) -> float:
        """Start the clock that the times of operators and buffers count from."""
        self._began = perf_counter()
        return self._began

    # ------------------------------------------------------------ operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(unfolds(kind) for kind in types):
            return NotImplemented  # let the subclass unfold; its inner operators come by again
        kind = operator_kind(func)
        rule = rule_of(func, kind)
        if rule is None and not any(tensor.is_nested for tensor in flat_tensors(args)):
            unfolded = decomposed(self, func, args, kwargs)
            if unfolded is not NotImplemented:
                return unfolded
        path, phase = self._places.now()
        inputs, settings, changed = _arguments(func, kind, args, kwargs)
        changed_ids = {id(tensor) for tensor in flat_tensors(changed)}
        is_view = rule is VIEW or _is_view(func)
        begin = None if is_view else self.mark()
        start = perf_counter() - self._began
        result = func(*args, **kwargs)
        duration = perf_counter() - self._began - start
        end = None if is_view else self.mark()
        outputs = tuple(
            as_spec(tensor, is_view=is_view or id(tensor) in changed_ids)
            for tensor in flat_tensors(result)
        )
        call = Call(kind, inputs, outputs, settings, tuple(changed))
        cost = _cost(call, rule)
        arithmetic = self._arithmetic(kind, outputs) if cost is not None and cost.macs else ""
        # No operator made what comes in and is not known: it was there before, as constants are.
        category = None if kind in FRESH else "buffers"
        for tensor in (*flat_tensors(args), *flat_tensors(kwargs)):
            self.enter_buffer(tensor, category, path, phase)
        reads = tuple(map(self._value_number, (*flat_tensors(args), *flat_tensors(kwargs))))
        for tensor in flat_tensors(changed):
            self.ledger.write(_buffer_key(tensor))
        for tensor in flat_tensors(result):
            self.enter_buffer(tensor, None, path, phase)
        record = OpRecord(
            kind, path, phase, inputs, outputs, cost, start, duration, arithmetic, reads
        )
        self._pending.append((record, begin, end))
        return result

    def _value_number(self, tensor: torch.Tensor) -> int:
        """Number what a tensor holds now: the same for the same part of the same buffer."""
        if tensor.layout != torch.strided or tensor.is_nested:
            return self.ledger.value_number(None, ())
        part = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        return self.ledger.value_number(_buffer_key(tensor), part)

    def _arithmetic(self, kind: str, outputs: tuple[TensorSpec, ...]) -> str:
        """Tell where a GPU multiplies float32 numbers with less precision than they have."""
        if not self._on_cuda or not outputs or outputs[0].dtype != "float32":
            return ""
        is_cudnn = "convolution" in kind or "cudnn" in kind
        is_tf32 = convolves_in_tf32() if is_cudnn else multiplies_in_tf32()
        return "tf32" if is_tf32 else ""

    def mark(self) -> Any:
        """Mark a moment on the time line of a GPU; None on a CPU."""
        if self._trace is not None:
            return self._trace.mark()
        if not self._on_cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time of a GPU between two marks."""
        if self._trace is not None:
            return self._trace.seconds(begin, end)
        return float(begin.elapsed_time(end)) / 1e3

    def finished(self) -> tuple[OpRecord, ...]:
        """Return the records; on a GPU with its own time for each operator: a view takes none."""
        if not self._on_cuda:
            return tuple(record for record, _, _ in self._pending)
        return tuple(
            replace(record, duration=0.0 if begin is None else self.seconds(begin, end))
            for record, begin, end in self._pending
        )

    # ------------------------------------------------------------ buffers

    def enter_buffer(
        self, tensor: torch.Tensor, category: str | None, path: str | None, phase: str = "forward"
    ) -> None:
        """Enter what a tensor holds; with a category it was there before anything ran."""
        for part in parts_of(tensor):
            storage = storage_of(part)
            if storage is None:
                continue
            key, nbytes = storage._cdata, storage.nbytes()
            if self.ledger.holds(key):
                self.ledger.resize(key, nbytes)
                continue
            if category is None:
                self.ledger.add(key, nbytes, path, phase)
            else:
                # an example input may be a slice of a whole data set; only the slice is used
                used = part.numel() * part.element_size() if category == "inputs" else nbytes
                self.ledger.add_resident(key, min(nbytes, used), category, path)
            self._bonds.append(weakref.ref(storage, partial(self._forget, key)))

    def _forget(self, key: int, _: Any) -> None:
        self.ledger.remove(key)

    def name_buffer(self, tensor: torch.Tensor, category: str) -> None:
        for part in parts_of(tensor):
            storage = storage_of(part)
            if storage is not None:
                self.ledger.name(storage._cdata, category)


def _buffer_key(tensor: torch.Tensor) -> int | None:
    storage = storage_of(parts_of(tensor)[-1])
    return None if storage is None else storage._cdata


def operator_kind(func: Any) -> str:
    """Name an operator without its overload and the underscore of in-place variants."""
    if not isinstance(func, torch._ops.OpOverload):
        return str(func.name() if callable(getattr(func, "name", None)) else func)
    namespace, _, name = func._schema.name.partition("::")
    in_place = name.endswith("_") and not name.endswith("__")
    return f"{namespace}.{name[:-1] if in_place else name}"


def rule_of(func: Any, kind: str) -> Rule | None:
    """Return the cost rule of an operator: its row in the table, or by PyTorch's tags."""
    rule = COSTS.get(kind)
    if rule is not None:
        return rule
    if _is_view(func):
        return VIEW
    if torch.Tag.pointwise in getattr(func, "tags", ()):
        return POINTWISE
    return None


def _is_view(func: Any) -> bool:
    """Return whether an operator only makes a view."""
    in_place = torch.Tag.inplace_view in getattr(func, "tags", ())
    return in_place or bool(getattr(func, "is_view", False))


def _cost(call: Call, rule: Rule | None) -> Cost | None:
    if rule is None:
        return None
    try:
        return cost_of(call, rule)
    except (AssertionError, IndexError, ValueError):
        if any(spec.parts for spec in (*call.tensors, *call.outputs)):
            return None  # a formula for whole tensors, and a ragged one: not counted
        raise


def decomposed(mode: Any, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Run an operator by its decomposition, so that its parts are recorded."""
    if not isinstance(func, torch._ops.OpOverload) or func is torch.ops.prim.device.default:
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)


def _arguments(
    func: Any, kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Argument, ...], dict[str, Any], dict[int, Any]]:
    """Split the arguments of an operator into tensors, by position, and settings, by name.

    The third are the tensors among them that it changes in place, by position. Where tensors are
    indices of axes, the axes are a setting: indices that are absent leave no gap in a tuple.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return tuple(as_spec(tensor) for tensor in flat_tensors(args)), dict(kwargs), {}
    inputs: list[Argument] = []
    settings: dict[str, Any] = {}
    changed: dict[int, Any] = {}
    wanted, may_ask = VALUES_NEEDED.get(kind, ()), ASKING.get(kind, ())
    if may_ask:
        settings["asking"] = []
    for index, argument in enumerate(schema.arguments):
        if argument.is_out:
            continue  # written, not read
        name = argument.name
        value = args[index] if index < len(args) else kwargs.get(name, argument.default_value)
        if name in wanted:
            settings[name] = None if value is None else value.tolist()
        elif "Tensor" in str(argument.type):
            if name in may_ask and value.requires_grad:
                settings["asking"].append(name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                changed[len(inputs)] = value
            if str(argument.type) == "List[Optional[Tensor]]":
                settings[name] = [axis for axis, item in enumerate(value) if item is not None]
            inputs.append(_as_argument(value))
        else:
            settings[name] = value
    return tuple(inputs), settings, changed


def _as_argument(value: Any) -> Argument:
    if isinstance(value, (list, tuple)):
        return tuple(as_spec(item) for item in value if isinstance(item, torch.Tensor))
    return as_spec(value) if isinstance(value, torch.Tensor) else None


def unfolds(kind: type) -> bool:
    """Return whether a tensor class unfolds into operators on plain tensors."""
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the most bytes that are alive at
# once while PyTorch runs, without books on every operator
#
# The recorder gives the same number and much more, and takes twenty times as long as a call that is
# made of many small operators, such as a generated text; this takes about five times as long.


def peak_of_live_bytes(
    step: Callable[[], object], *, modules: Mapping[str, Any], inputs: Iterable[torch.Tensor]
) -> int | None:
    """Run `step` once, and return the most bytes that were alive at once; None where nothing ran.

    Parameters, buffers and inputs are part of it, the scratch memory inside of operators is not.
    Packed weights that cannot be unpacked are not either. Compiled models run as they were written.
    """
    books = _LiveBytes()
    for module in modules.values():
        books.total += _packed_bytes(module)
        if isinstance(module, torch.nn.Module):
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                books.enter(tensor, was_there=True)
    for tensor in inputs:
        books.enter(tensor, was_there=True, is_input=True)
    books.peak = books.total
    with running_eagerly(), books:
        kept = step()  # what it returns is alive as long as a caller would hold it
    del kept
    return books.peak if books.operations else None


def _packed_bytes(module: Any) -> int:
    """Return the bytes of packed weights that no tensor shows; 0 where they cannot be unpacked."""
    try:
        return sum(nbytes for _, _, nbytes in packed_weights(module))
    except (RuntimeError, TypeError):
        return 0


class _LiveBytes(TorchDispatchMode):
    """Adds up the buffers that operators make, and takes off those that die."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = self.peak = self.operations = 0
        self._made: dict[int, int] = {}
        self._bonds: dict[int, Any] = {}  # weak references only fire while they are alive

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(unfolds(kind) for kind in types):
            return NotImplemented  # let the subclass unfold; its inner operators come by again
        if not _is_counted(func) and not any(each.is_nested for each in flat_tensors(args)):
            unfolded = decomposed(self, func, args, kwargs)
            if unfolded is not NotImplemented:
                return unfolded
        result = func(*args, **kwargs)
        self.operations += 1
        # No operator made what comes in and is not known: it was there before, as constants are.
        was_there = not _is_fresh(func)
        for tensor in flat_tensors((args, kwargs)):
            self.enter(tensor, was_there=was_there)
        for tensor in flat_tensors(result):
            self.enter(tensor)
        return result

    def enter(
        self, tensor: torch.Tensor, *, was_there: bool = False, is_input: bool = False
    ) -> None:
        """Count what a tensor holds, unless it is known."""
        for part in parts_of(tensor):
            storage = storage_of(part)
            if storage is None:
                continue
            key, nbytes = storage._cdata, storage.nbytes()
            if key in self._bonds:
                self._resize(key, nbytes)
                continue
            if is_input:  # it may be a slice of a whole data set; only the slice is used
                nbytes = min(nbytes, part.numel() * part.element_size())
            if was_there:
                self.peak += nbytes  # at every moment before, too
            else:
                self._made[key] = nbytes
            self._add(nbytes)
            self._bonds[key] = weakref.ref(storage, partial(self._forget, key, nbytes))

    def _add(self, nbytes: int) -> None:
        self.total += nbytes
        self.peak = max(self.peak, self.total)

    def _resize(self, key: int, nbytes: int) -> None:
        """Count a buffer that an operator made by the size that it has now."""
        before = self._made.get(key, nbytes)
        if before != nbytes:
            self._made[key] = nbytes
            self._add(nbytes - before)

    def _forget(self, key: int, nbytes: int, _: Any) -> None:
        del self._bonds[key]
        self.total -= self._made.pop(key, nbytes)


@lru_cache(maxsize=1024)
def _is_counted(func: Any) -> bool:
    """Return whether the recorder records an operator itself, and not its decomposition."""
    return rule_of(func, operator_kind(func)) is not None


@lru_cache(maxsize=1024)
def _is_fresh(func: Any) -> bool:
    return operator_kind(func) in FRESH
