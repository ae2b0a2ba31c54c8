"""Watching PyTorch's operators inside a block: light, and in memory that does not grow."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from tinytorch.measure.timing import used_devices, wait_for_devices
from tinytorch.models.pytorch_recorder import operator_kind, unfolds
from tinytorch.models.pytorch_tensors import flat_tensors, parts_of, storage_of

See = Callable[[str, float], None]


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hand every operator of this thread, and of the backward pass that it starts, to `watch`.

    Not seen: the insides of operators and of compiled code, and what other threads do. An operator
    that takes functions, such as flex attention, is one operator.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Run compiled code compiled; code that requires compilation would fail otherwise."""
        return True

    def watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operator and give its result."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(unfolds(kind) for kind in types):
            return NotImplemented  # let the subclass unfold; its inner operators come by again
        return self.watch(func, args, kwargs or {})


class OperatorClock(OperatorMode):  # type: ignore[no-untyped-call]
    """Call `see(kind, seconds)` for every operator, for example with ``aten.mm``.

    On CUDA each operator is waited for, so that its time is its own; the block takes longer.
    """

    def __init__(self, see: See) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see

    def watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = perf_counter()
        result = func(*args, **kwargs)
        wait_for_devices(used_devices())
        self._see(operator_kind(func), perf_counter() - start)
        return result


@cache
def load_dispatcher() -> None:
    """Import what PyTorch's dispatch modes need, once.

    That is 65 MB of modules, which belong neither to the time nor to the memory of any block.
    """
    with OperatorClock(lambda kind, seconds: None):
        torch.zeros(1, device="cpu").neg()


# ---------------------------------------------------------------- what PyTorch allocates inside a
# block: on the host by storages, on devices by its allocator
#
# No meter of the operating system or of Python sees this: PyTorch has its own allocators.

_lock = threading.RLock()
_open: list[DeviceMemory] = []


class HostTensors(OperatorMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages on the host that operators made inside the block, each once.

    What was there before does not count. Scratch memory inside of an operator, tensors of other
    threads and the insides of compiled code are not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current_bytes = 0
        self.peak_bytes = 0
        self._known: dict[int, _Known] = {}

    @property
    def is_innermost(self) -> bool:
        """Whether no other mode was entered since: PyTorch ends modes in order, whoever ends."""
        return _get_current_dispatch_mode() is self

    def watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in flat_tensors((args, kwargs)):
            self._enter(tensor, is_new=False)
        result = func(*args, **kwargs)
        for tensor in flat_tensors(result):  # also what was written to: a storage may have grown
            self._enter(tensor, is_new=True)
        return result

    def _enter(self, tensor: torch.Tensor, *, is_new: bool) -> None:
        for part in parts_of(tensor) if tensor.device.type == "cpu" else ():
            storage = storage_of(part)
            if storage is None:
                continue
            key, nbytes = storage._cdata, storage.nbytes()
            if key not in self._known:
                bond = weakref.ref(storage, partial(self._forget, key))
                self._known[key] = _Known(bond, 0 if is_new else nbytes)
            self._count(self._known[key], nbytes)

    def _count(self, known: _Known, nbytes: int) -> None:
        """Count what a storage holds now beyond what it held before the block."""
        counted = max(0, nbytes - known.before_bytes)
        self.current_bytes += counted - known.counted_bytes
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        known.counted_bytes = counted

    def _forget(self, key: int, _: object) -> None:
        self.current_bytes -= self._known.pop(key).counted_bytes


@dataclass
class _Known:
    """A storage that was seen; the weak reference fires only while it is referenced."""

    bond: Any
    before_bytes: int
    counted_bytes: int = 0


@contextmanager
def metering_tensors() -> Iterator[HostTensors]:
    """Count host tensors inside the block; afterwards the numbers stay as they were at its end."""
    load_dispatcher()
    meter = HostTensors()
    try:
        with meter:
            yield meter
    finally:
        meter._known.clear()  # what dies later is not ours to count


class DeviceMemory:
    """Bytes that CUDA devices held for tensors beyond what they held when the block began."""

    def __init__(self, baseline_bytes: int) -> None:
        self.baseline_bytes = baseline_bytes
        self._peak = baseline_bytes
        self._last: int | None = None

    @property
    def current_bytes(self) -> int:
        return (_allocated() if self._last is None else self._last) - self.baseline_bytes

    @property
    def peak_bytes(self) -> int:
        seen = self._peak if self._last is not None else max(self._peak, _peak_since_reset())
        return seen - self.baseline_bytes


@contextmanager
def metering_device() -> Iterator[DeviceMemory]:
    """Measure the devices in use. Blocks may be nested; PyTorch's own peak is reset by them."""
    with _lock:
        _share_peak()
        meter = DeviceMemory(_allocated())
        _open.append(meter)
    try:
        yield meter
    finally:
        with _lock:
            _share_peak()
            _open.remove(meter)
            meter._last = _allocated()


def _allocated() -> int:
    return sum(torch.cuda.memory_allocated(device) for device in used_devices())


def _peak_since_reset() -> int:
    """Add up the peaks of the devices, which is at least the peak of their sum."""
    return sum(torch.cuda.max_memory_allocated(device) for device in used_devices())


def _share_peak() -> None:
    """Propagate the peak since the last reset to all open blocks, then reset it."""
    peak = _peak_since_reset()
    for meter in _open:
        meter._peak = max(meter._peak, peak)
    for device in used_devices():
        torch.cuda.reset_peak_memory_stats(device)
