"""Timer: how long a function or a block takes."""

from __future__ import annotations

import inspect
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any, Self

from tinytorch.core.files import ProgressLine
from tinytorch.errors import SettingError
from tinytorch.measure import timing
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import fitting_clock
from tinytorch.showing import profiling_reports

MS = 1e3
LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
TRACING_NOTE = "memory was being traced meanwhile, which makes Python code several times slower"


class Timer:
    """Time a function many times, or a block once.

    `measurements` has the raw seconds: of the last :meth:`measure`, or of every block since.

    >>> timer = Timer()
    >>> stats = timer.measure(sum, warmup=1, runs=5, args=(range(100),))
    >>> stats["runs"], stats["min_ms"] <= stats["p50_ms"] <= stats["max_ms"]
    (5, True)
    """

    def __init__(self) -> None:
        self.measurements: list[float] = []
        self._notes: tuple[str, ...] = ()
        self._begun: list[tuple[float, tuple[int, ...]]] = []  # when, and on which devices
        self._blocks: list[tuple[ExitStack, int]] = []  # and how many were begun before
        self._elapsed_s: float | None = None

    def measure(
        self,
        func: Callable[..., Any],
        warmup: int = 3,
        runs: int = 100,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Call `func` `warmup` times, then time `runs` calls one by one.

        Garbage collection is off meanwhile and restored afterwards, also when `func` raises. On
        CUDA each value runs until the device is done. The keys are those of :func:`timing_stats`.
        """
        call = bound_call(func, args, kwargs)
        check_count("runs", runs, at_least=1)
        check_count("warmup", warmup, at_least=0)
        progress = ProgressLine(runs)
        clock = _ShowingProgress(fitting_clock(), progress)
        try:
            samples = timing.measure_time(call, runs=runs, warmup=warmup, clock=clock)
        finally:
            progress.close()
        if tracemalloc.is_tracing():
            samples = samples.with_notes(TRACING_NOTE)
        self.measurements = list(samples.values)
        self._notes = samples.notes
        return timing_stats(samples)

    @property
    def samples(self) -> Samples:
        """The measurements with their statistics."""
        return Samples("", tuple(self.measurements), notes=self._notes)

    def print_report(self, name: str = "Timing") -> None:
        """Print what was measured, the median first."""
        reports = profiling_reports()
        if self.measurements:
            reports.show(reports.render_timing(self.samples, name))
        else:
            reports.show(reports.render_nothing(name))

    # ------------------------------------------------------------ blocks

    @property
    def elapsed(self) -> float:
        """Milliseconds of the block that ended last; inside a block, milliseconds so far."""
        if self._begun:
            return (perf_counter() - self._begun[-1][0]) * MS
        if self._elapsed_s is None:
            raise SettingError("nothing was timed yet; use `with timer:` or start() and stop()")
        return self._elapsed_s * MS

    def start(self) -> Self:
        """Begin a block; blocks may be nested."""
        devices = timing.used_devices()
        timing.wait_for_devices(devices)
        self._begun.append((perf_counter(), devices))
        return self

    def stop(self) -> float:
        """End the block that was begun last and give its milliseconds."""
        if not self._begun:
            raise SettingError("stop() without start(): no block is being timed")
        begun, devices = self._begun.pop()
        timing.wait_for_devices(devices or timing.used_devices())
        self._elapsed_s = perf_counter() - begun
        self.measurements.append(self._elapsed_s)
        return self._elapsed_s * MS

    def __enter__(self) -> Self:
        block = ExitStack()
        block.enter_context(timing.gc_paused())
        self._blocks.append((block, len(self._begun)))
        return self.start()

    def __exit__(self, *exception: object) -> None:
        block, begun_before = self._blocks.pop()
        with block:
            if len(self._begun) > begun_before:  # else stop() was called inside the block
                self.stop()


class _ShowingProgress:
    """A clock that tells a progress line about every value, outside of what is timed."""

    def __init__(self, clock: timing.Clock, progress: ProgressLine) -> None:
        self.name, self.resolution_s = clock.name, clock.resolution_s
        self.is_disturbed_by_host = clock.is_disturbed_by_host
        self._time, self._progress = clock.time, progress

    def time(self, function: timing.Function, loops: int) -> float:
        seconds = self._time(function, loops)
        self._progress.advance("timing")
        return seconds


def timing_stats(samples: Samples) -> dict[str, Any]:
    """Return the statistics of samples in seconds, in milliseconds.

    `p50_ms` is the median and `ci_low_ms` to `ci_high_ms` its interval, which covers
    `ci_confidence` (95% or, with few runs, as much as they allow). Percentiles interpolate
    linearly. `outliers` counts values beyond Tukey's inner fences, `outliers_severe` those beyond
    the outer ones; they are never dropped. `notes` say what speaks against the values.
    """
    interval, outliers, stability = samples.median_interval(), samples.outliers, samples.stability
    return {
        "p50_ms": samples.median * MS,
        "ci_low_ms": interval.low * MS,
        "ci_high_ms": interval.high * MS,
        "ci_confidence": interval.coverage,
        "mean_ms": samples.mean * MS,
        "std_ms": samples.std * MS,
        "min_ms": samples.minimum * MS,
        "max_ms": samples.maximum * MS,
        "p95_ms": samples.percentile(95) * MS,
        "p99_ms": samples.percentile(99) * MS,
        "runs": samples.count,
        "outliers": outliers.total,
        "outliers_severe": outliers.low_severe + outliers.high_severe,
        "is_stable": stability.is_stable,
        "stability": stability.note,
        "notes": samples.notes,
    }


def bound_call(
    func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> partial[Any]:
    """Bind `func` to its arguments; a model may have only `forward`."""
    if not isinstance(args, (tuple, list)):
        raise SettingError(
            f"args is a {type(args).__name__}; give a tuple of arguments, such as args=(x,)"
        )
    if not callable(func):
        func = getattr(func, "forward", func)
    if not callable(func):
        raise SettingError(f"func is a {type(func).__name__}, which cannot be called")
    refuse_lazy(func)
    return partial(func, *args, **(kwargs or {}))


def refuse_lazy(func: Any) -> None:
    """Raise SettingError for a lazy function: timing its call would time nothing.

    That is a generator or coroutine, or a model whose call or `forward` is one.
    """
    for each in (func, getattr(func, "forward", None), getattr(type(func), "__call__", None)):  # noqa: B004
        if any(is_lazy(each) for is_lazy in LAZY):
            raise SettingError(
                f"{readable_name(each)} is a coroutine or generator: calling it only makes an "
                "object; give a function that runs it to its end"
            )


def readable_name(func: Any) -> str:
    """Return the qualified name of a function, without enclosing functions."""
    name = getattr(func, "__qualname__", type(func).__name__)
    return str(name).rpartition("<locals>.")[2]


def check_count(name: str, value: Any, *, at_least: int) -> int:
    """Return `value` as an int; raise SettingError unless it is a whole number >= `at_least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise SettingError(f"{name}={value!r}; it must be a whole number")
    if value < at_least:
        raise SettingError(f"{name}={value}; it must be at least {at_least}")
    return int(value)
