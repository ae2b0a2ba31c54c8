"""MemoryProfiler and MemoryTracker: what a function or a block allocates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from tinytorch.errors import SettingError
from tinytorch.perf.profiling.block_memory import MB, BlockMemory, metering
from tinytorch.perf.profiling.leaks import LeakReport, detect_leak
from tinytorch.perf.profiling.timer import bound_call
from tinytorch.showing import profiling_reports

__all__ = ["MemoryProfiler", "MemoryTracker", "profile_memory"]


class MemoryTracker:
    """Measure the memory of a block, on the host.

    >>> with MemoryTracker() as tracker:
    ...     kept = bytearray(5 * 2**20)
    >>> round(tracker.peak_usage), round(tracker.current_usage)
    (5, 5)
    """

    def __init__(self) -> None:
        self._memory: BlockMemory | None = None
        self._open: list[tuple[ExitStack, BlockMemory]] = []

    @property
    def memory(self) -> BlockMemory:
        """The meters of the innermost open block, or of the one that ended last."""
        if self._open:
            return self._open[-1][1]
        if self._memory is None:
            raise SettingError("no block was measured yet; use `with` around what allocates")
        return self._memory

    @property
    def peak_usage(self) -> float:
        """The most MB that the block held at once, beyond what was there before it."""
        return self.memory.peak_above_baseline_bytes / MB

    @property
    def current_usage(self) -> float:
        """MB that the block allocated and has not freed."""
        return self.memory.allocated_bytes / MB

    def __enter__(self) -> Self:
        meters = ExitStack()
        memory = meters.enter_context(metering())
        self._open.append((meters, memory))
        return self

    def __exit__(self, *exception: object) -> None:
        meters, self._memory = self._open.pop()
        meters.close()


class MemoryProfiler(MemoryTracker):
    """Measure what a function allocates; as a context manager, what a block does.

    Safe to nest and to use again: a tracer that somebody else started keeps running.
    """

    @property
    def peak_memory(self) -> float:
        """The most MB held at once by the last function or block, beyond what was there before."""
        return self.peak_usage

    def profile(
        self,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Call `func` once and give its memory in MB, with its `result`.

        The keys are those of :meth:`BlockMemory.stats`. The result is alive when the final state
        is read, so a function that keeps nothing else allocates its result.
        """
        call = bound_call(func, args, kwargs)
        with metering() as memory:
            result = call()
        self._memory = memory
        return {**memory.stats(), "result": result}

    def print_report(self, stats: Mapping[str, Any], name: str = "Memory") -> None:
        """Print what :meth:`profile` gave."""
        reports = profiling_reports()
        reports.show(reports.render_memory(stats, name))

    def detect_leak(
        self,
        func: Callable[..., Any],
        calls: int = 20,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> LeakReport:
        """Call `func` again and again and say whether memory stays behind, and how it grows."""
        return detect_leak(bound_call(func, args, kwargs), calls=calls)


def profile_memory(func: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Call `func(*args, **kwargs)` once and give its memory, as :meth:`MemoryProfiler.profile`."""
    return MemoryProfiler().profile(func, args, kwargs)
