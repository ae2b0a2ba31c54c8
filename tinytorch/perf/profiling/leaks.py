"""Does memory stay behind when a function is called again and again?"""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from tinytorch.measure.memory import traced_memory
from tinytorch.perf.profiling.timer import check_count

__all__ = ["LeakReport", "detect_leak"]

FEWEST_CALLS = 8
"""The second half is judged, in two parts of at least two calls each."""
FASTER = 1.5
"""Growth that grows by this factor over the second half is not linear."""


@dataclass(frozen=True)
class LeakReport:
    """What was still allocated after each call, in bytes beyond the state before the first one.

    `noise_bytes` is the largest change that a function which does nothing showed in the same loop.
    Judged is the second half of the calls; the first half may fill caches.
    """

    readings: tuple[int, ...]
    noise_bytes: int

    @property
    def growth(self) -> tuple[int, ...]:
        """Bytes that each call left behind; negative where it freed something older."""
        return tuple(after - before for before, after in pairwise((0, *self.readings)))

    @property
    def _later(self) -> tuple[int, ...]:
        return self.growth[len(self.readings) // 2 :]

    @property
    def growth_per_call_bytes(self) -> float:
        """Average growth in the second half of the calls."""
        return sum(self._later) / len(self._later)

    @property
    def pattern(self) -> str:
        """How memory grows: constant, settles, linear, accelerating or in steps."""
        later = self._later
        growing = [step > self.noise_bytes for step in later]
        if not any(growing):
            earlier = self.growth[: len(self.readings) // 2]
            return "settles" if any(step > self.noise_bytes for step in earlier) else "constant"
        if not all(growing):
            return "in steps"
        third = max(1, len(later) // 3)
        is_faster = sum(later[-third:]) > FASTER * sum(later[:third])
        return "accelerating" if is_faster else "linear"

    @property
    def is_leaking(self) -> bool:
        """Whether both parts of the second half grew: a single step may be a cache or a table."""
        later = self._later
        middle = len(later) // 2
        return all(sum(part) > self.noise_bytes for part in (later[:middle], later[middle:]))

    def __str__(self) -> str:
        calls, kept = len(self.readings), self.growth_per_call_bytes
        if self.is_leaking:
            return (
                f"memory grows ({self.pattern}) by {kept:,.0f} bytes per call "
                f"in the second half of {calls} calls"
            )
        return f"no leak in {calls} calls ({self.pattern})"


def detect_leak(function: Callable[[], object], *, calls: int = 20) -> LeakReport:
    """Call `function` and look after each call at what is still allocated.

    Its results are dropped and garbage is collected before each look. Where torch is imported it
    is called twice as often: watching tensors makes Python objects of its own, so Python's memory
    and that of tensors are looked at in turn, not together.
    """
    check_count("calls", calls, at_least=FEWEST_CALLS)
    with _older_objects_set_aside():
        idle = _python_bytes(_nothing, calls)
        noise = max(abs(after - before) for before, after in pairwise((0, *idle)))
        readings = _python_bytes(function, calls)
        if "torch" in sys.modules:
            tensors = _tensor_bytes(function, calls)
            readings = [python + torch for python, torch in zip(readings, tensors, strict=True)]
    return LeakReport(tuple(readings), noise)


@contextmanager
def _older_objects_set_aside() -> Iterator[None]:
    """Let the collector look at new objects only, or each look takes as long as all that there is.

    Somebody who has set objects aside himself finds them so.
    """
    gc.collect()
    is_ours = gc.get_freeze_count() == 0
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


def _python_bytes(function: Callable[[], object], calls: int) -> Sequence[int]:
    with traced_memory() as memory:
        return _readings(function, calls, lambda: memory.current_bytes)


def _tensor_bytes(function: Callable[[], object], calls: int) -> Sequence[int]:
    """Look at tensors on the host, and on devices if there are any in use."""
    from tinytorch.perf.profiling.tensor_memory_torch import metering_device, metering_tensors

    with metering_device() as device, metering_tensors() as host:
        return _readings(function, calls, lambda: host.current_bytes + device.current_bytes)


def _readings(
    function: Callable[[], object], calls: int, live_bytes: Callable[[], int]
) -> Sequence[int]:
    readings = array("q", bytes(8 * calls))  # made before, so that keeping them allocates nothing
    start = live_bytes()
    for call in range(calls):
        function()
        gc.collect()
        readings[call] = live_bytes() - start
    return readings


def _nothing() -> None:
    pass
