"""Watching PyTorch's operators inside a block: light, and in memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.adapters.pytorch_recorder import operator_kind, unfolds
from tinytorch.measure.device_clock import used_devices, wait_for_devices

__all__ = ["OperatorClock", "OperatorMode", "load_dispatcher"]

See = Callable[[str, float], None]


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hand every operator of this thread, and of the backward pass that it starts, to `watch`.

    Not seen: the insides of operators and of compiled code, and what other threads do. An operator
    that takes functions, such as flex attention, is one operator.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let code that is compiled run as such; what insists on compiling would fail otherwise."""
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
    """Let PyTorch import, once, what its modes need.

    That is 65 MB of modules, which belong neither to the time nor to the memory of any block.
    """
    with OperatorClock(lambda kind, seconds: None):
        torch.zeros(1, device="cpu").neg()
