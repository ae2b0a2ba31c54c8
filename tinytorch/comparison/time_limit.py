"""Giving up on a function that does not return."""

from __future__ import annotations

import signal
import threading
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

from tinytorch.errors import MeasurementError

__all__ = ["can_limit_time", "time_limit"]

SOONEST_S = 1e-6
"""A timer that is set to zero would never ring."""
AGAIN_S = 0.5
"""It rings again after so long: who caught the first ring must not go on for ever."""


def can_limit_time() -> bool:
    """Say whether a function in this thread can be interrupted: Unix, main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return hasattr(signal, "setitimer") and is_main


class _TimeIsUpError(BaseException):
    """Ends a block from within. It is no Exception, because functions catch these and go on."""


class time_limit:
    """Raise a MeasurementError when the block takes longer than this; None is no limit.

    The block is interrupted between two steps of the interpreter, also where it catches every
    Exception; a call into a library that never comes back is not. For that, compare targets in
    processes of their own. A timer that was already running goes on afterwards.
    """

    def __init__(self, seconds: float | None, name: str) -> None:
        self._seconds, self._name = seconds, name
        self._is_set = self._has_rung = False

    def __enter__(self) -> None:
        if self._seconds is None or not can_limit_time():
            return
        self._started = monotonic()
        self._timer_before = signal.setitimer(signal.ITIMER_REAL, 0)
        self._previous: Any = signal.signal(signal.SIGALRM, self._ring)
        self._is_set = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_set:
            return
        self._put_back()
        # A block that caught the ring and returned, or raised something else, took too long too.
        is_ours = error is None or isinstance(error, Exception | _TimeIsUpError)
        if self._has_rung and is_ours:
            cause = error if isinstance(error, Exception) else None
            raise MeasurementError(
                f"{self._name} did not return within {self._seconds:g} s and was interrupted; "
                "allow more with a longer timeout"
            ) from cause

    def _put_back(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)
        left, interval = self._timer_before
        if left:  # Somebody around us has a limit too; one that has passed rings at once.
            left = max(SOONEST_S, left - (monotonic() - self._started))
            signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        # Entering and leaving this block must not be interrupted halfway; it rings again.
        while frame is not None:
            if frame.f_globals is globals() and frame.f_locals.get("self") is self:
                return
            frame = frame.f_back
        self._has_rung = True
        raise _TimeIsUpError
