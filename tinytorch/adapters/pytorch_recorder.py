"""Recording a PyTorch model at the dispatcher: every operator that runs, and every buffer.

The dispatcher sees below autograd and above the kernels. There is no way around it: functional
calls, fused attention and the backward pass all come by. What it does not see is the inside of an
operator, such as the scratch memory of a convolution.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.adapters.costs import COSTS, POINTWISE, VIEW, Rule, cost_of
from tinytorch.adapters.layer_watch import entering_layers
from tinytorch.adapters.ledger import Ledger
from tinytorch.adapters.records import Argument, Call, Cost, OpRecord, Recording, TensorSpec

__all__ = ["Resident", "hold_back", "record_step", "storage_of"]

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
CYCLES_PER_S = 2e9
"""About as many as a GPU makes; only used to let it wait for a while."""
LONGEST_WAIT_S = 1.0
NO_NODE = 2**63  # autograd gives nodes without a number, such as gradient sinks, huge ones


def record_step(
    step: Callable[[], object],
    *,
    modules: Mapping[str, Any],
    residents: Iterable[Resident],
    learned: Iterable[torch.Tensor],
    device: str,
) -> Recording:
    """Run `step` once under the recorder."""
    recorder = _Recorder(device)
    for tensor, category, path in residents:
        recorder.enter_buffer(tensor, category, path)
    on_cuda = device.startswith("cuda")
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        hold_back(device, LONGEST_WAIT_S)  # so that the time between events has no gaps
    with (
        _running_eagerly(),
        entering_layers(modules, recorder.enter_layer, recorder.leave_layer),
        recorder,
    ):
        start = perf_counter()
        kept = step()  # what it returns is alive as long as a caller would hold it
        if on_cuda:
            torch.cuda.synchronize(device)
        duration = perf_counter() - start
    for parameter in learned:
        if parameter.grad is not None:
            recorder.name_buffer(parameter.grad, "gradients")
    allocations = recorder.ledger.allocations()
    del kept
    peak = torch.cuda.max_memory_allocated(device) - before if on_cuda else None
    return Recording(recorder.finished(), allocations, duration, peak)


def hold_back(device: str, seconds: float) -> Callable[[], bool]:
    """Let a GPU wait while the program hands in work; gives whether it still waits."""
    torch.cuda._sleep(int(min(seconds, LONGEST_WAIT_S) * CYCLES_PER_S))
    over = torch.cuda.Event()
    over.record(torch.cuda.current_stream(device))
    return lambda: not over.query()


def _running_eagerly() -> AbstractContextManager[Any]:
    """Run compiled models as they were written: compiled code hides its operators."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    return set_stance("force_eager") if set_stance else nullcontext()


class _Recorder(TorchDispatchMode):
    """Sees every operator of this thread and of the backward pass that it starts."""

    supports_higher_order_operators = True

    def __init__(self, device: str) -> None:
        super().__init__()
        self._began = perf_counter()
        self.ledger = Ledger(lambda: perf_counter() - self._began)
        self._on_cuda = device.startswith("cuda")
        self._stream = torch.cuda.current_stream(device) if self._on_cuda else None
        self._cudnn_tf32 = self._on_cuda and torch.backends.cudnn.allow_tf32
        self._matmul_tf32 = self._on_cuda and torch.get_float32_matmul_precision() != "highest"
        self._bonds: list[Any] = []  # weak references fire only while somebody holds them
        self._stack: list[str] = []
        self._nodes: list[int] = []  # autograd's counter whenever the layer changed
        self._paths: list[str | None] = []  # and the layer from there on
        self._pending: list[tuple[OpRecord, Any, Any]] = []

    # ------------------------------------------------------------ layers

    def enter_layer(self, path: str) -> None:
        self._stack.append(path)
        self._mark_nodes()

    def leave_layer(self, path: str, error: BaseException | None, output: Any) -> None:
        self._stack.pop()
        self._mark_nodes()

    def _mark_nodes(self) -> None:
        if torch._C._current_autograd_node() is None:
            self._nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
            self._paths.append(self._stack[-1] if self._stack else None)

    def _place(self) -> tuple[str | None, str]:
        """Give the layer and the phase that an operator belongs to.

        An autograd node belongs to the layer in which it was made. Layers that run inside of the
        backward pass (checkpointing) speak for themselves.
        """
        node = torch._C._current_autograd_node()
        if node is None:
            return (self._stack[-1] if self._stack else None), "forward"
        if self._stack:
            return self._stack[-1], "backward"
        number = node._sequence_nr()
        index = bisect_right(self._nodes, number) - 1
        return (self._paths[index] if index >= 0 and number < NO_NODE else None), "backward"

    # ------------------------------------------------------------ operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(_is_wrapper(kind) for kind in types):
            return NotImplemented  # let the subclass unfold; its inner operators come by again
        kind = _kind(func)
        rule = _rule(func, kind)
        if rule is None and not any(tensor.is_nested for tensor in _flat_tensors(args)):
            unfolded = _decompose(self, func, args, kwargs)
            if unfolded is not NotImplemented:
                return unfolded
        path, phase = self._place()
        inputs, settings = _arguments(func, kind, args, kwargs)
        is_view = rule is VIEW or bool(getattr(func, "is_view", False))
        begin = None if is_view else self._mark()
        start = perf_counter() - self._began
        result = func(*args, **kwargs)
        duration = perf_counter() - self._began - start
        end = None if is_view else self._mark()
        outputs = tuple(_as_spec(tensor, is_view=is_view) for tensor in _flat_tensors(result))
        call = Call(kind, inputs, outputs, settings)
        cost = _cost(call, rule)
        arithmetic = self._arithmetic(kind, outputs) if cost is not None and cost.macs else ""
        record = OpRecord(kind, path, phase, inputs, outputs, cost, start, duration, arithmetic)
        self._pending.append((record, begin, end))
        for tensor in (*_flat_tensors(args), *_flat_tensors(kwargs), *_flat_tensors(result)):
            self.enter_buffer(tensor, None, path, phase)
        return result

    def _arithmetic(self, kind: str, outputs: tuple[TensorSpec, ...]) -> str:
        """Tell where a GPU multiplies float32 numbers with less precision than they have."""
        if not self._on_cuda or not outputs or outputs[0].dtype != "float32":
            return ""
        is_cudnn = "convolution" in kind or "cudnn" in kind
        return "tf32" if (self._cudnn_tf32 if is_cudnn else self._matmul_tf32) else ""

    def _mark(self) -> Any:
        if not self._on_cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def finished(self) -> tuple[OpRecord, ...]:
        """Give the records; on a GPU with the time between the events around each operator."""
        if not self._on_cuda:
            return tuple(record for record, _, _ in self._pending)
        return tuple(_with_device_time(*entry) for entry in self._pending)

    # ------------------------------------------------------------ buffers

    def enter_buffer(
        self, tensor: torch.Tensor, category: str | None, path: str | None, phase: str = "forward"
    ) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        if self.ledger.holds(key):
            return
        if category is not None:
            # an example input may be a slice of a whole data set; only the slice is used
            nbytes = min(storage.nbytes(), tensor.numel() * tensor.element_size())
            self.ledger.add_resident(key, nbytes, category, path)
        else:
            self.ledger.add(key, storage.nbytes(), path, phase)
        self._bonds.append(weakref.ref(storage, lambda _: self.ledger.remove(key)))

    def name_buffer(self, tensor: torch.Tensor, category: str) -> None:
        storage = storage_of(tensor)
        if storage is not None:
            self.ledger.name(storage._cdata, category)


def storage_of(tensor: torch.Tensor) -> Any:
    """Give the storage of a tensor, or None where there is none (sparse, packed, fake)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _with_device_time(record: OpRecord, begin: Any, end: Any) -> OpRecord:
    """Replace the time of the program by that of the device, where a view takes none."""
    return replace(record, duration=begin.elapsed_time(end) / 1e3 if begin else 0.0)


def _kind(func: Any) -> str:
    """Name an operator without its overload and the underscore of in-place variants."""
    if not isinstance(func, torch._ops.OpOverload):
        return str(func.name() if callable(getattr(func, "name", None)) else func)
    namespace, _, name = func._schema.name.partition("::")
    in_place = name.endswith("_") and not name.endswith("__")
    return f"{namespace}.{name[:-1] if in_place else name}"


def _rule(func: Any, kind: str) -> Rule | None:
    """Find how an operator is counted: by its row, or by what PyTorch says that it is."""
    rule = COSTS.get(kind)
    if rule is not None:
        return rule
    if getattr(func, "is_view", False):
        return VIEW
    if torch.Tag.pointwise in getattr(func, "tags", ()):
        return POINTWISE
    return None


def _cost(call: Call, rule: Rule | None) -> Cost | None:
    if rule is None:
        return None
    try:
        return cost_of(call, rule)
    except (AssertionError, IndexError, ValueError):
        if any(spec.parts for spec in (*call.tensors, *call.outputs)):
            return None  # a formula for whole tensors, and a ragged one: not counted
        raise


def _decompose(mode: Any, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Run an operator as the operators that it is made of, so that these are seen."""
    if not isinstance(func, torch._ops.OpOverload) or func is torch.ops.prim.device.default:
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)


def _arguments(
    func: Any, kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Argument, ...], dict[str, Any]]:
    """Split the arguments of an operator into tensors, by position, and settings, by name."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return tuple(_as_spec(tensor) for tensor in _flat_tensors(args)), dict(kwargs)
    inputs: list[Argument] = []
    settings: dict[str, Any] = {}
    wanted = VALUES_NEEDED.get(kind, ())
    for index, argument in enumerate(schema.arguments):
        name = argument.name
        value = args[index] if index < len(args) else kwargs.get(name, argument.default_value)
        if name in wanted:
            settings[name] = None if value is None else value.tolist()
        elif "Tensor" in str(argument.type):
            inputs.append(_as_argument(value))
        else:
            settings[name] = value
    return tuple(inputs), settings


def _as_argument(value: Any) -> Argument:
    if isinstance(value, (list, tuple)):
        return tuple(_as_spec(item) for item in value if isinstance(item, torch.Tensor))
    return _as_spec(value) if isinstance(value, torch.Tensor) else None


def _as_spec(tensor: torch.Tensor, *, is_view: bool = False) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        parts = tuple(tuple(row) for row in tensor._nested_tensor_size().tolist())
        spec = TensorSpec((), dtype, 0, is_view, parts)
        return TensorSpec((), dtype, spec.size * tensor.element_size(), is_view, parts)
    if tensor.layout != torch.strided:
        stored = tensor._nnz()
        nbytes = stored * tensor.element_size()  # without the indices
        return TensorSpec(tuple(tensor.shape), dtype, nbytes, is_view, stored=stored)
    nbytes = tensor.numel() * tensor.element_size()
    storage = storage_of(tensor)
    held = storage.nbytes() if storage is not None else nbytes
    return TensorSpec(tuple(tensor.shape), dtype, min(nbytes, held), is_view)


def _flat_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat_tensors(item)
    elif isinstance(value, dict):
        yield from _flat_tensors(list(value.values()))


def _is_wrapper(kind: type) -> bool:
    """Tell whether a tensor class unfolds into operators on plain tensors."""
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]
