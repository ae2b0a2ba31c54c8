"""SimpleProfiler, profile_function and @profile: one function, one dictionary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, overload

from tinytorch.errors import SettingError
from tinytorch.measure.clocks import CPU_TIME
from tinytorch.measure.device_clock import fitting_clock, used_devices, wait_for_devices
from tinytorch.measure.timing import measure_time
from tinytorch.perf.profiling.block_memory import MB, metering
from tinytorch.perf.profiling.timer import bound_call, readable_name, refuse_lazy
from tinytorch.showing import profiling_reports

__all__ = ["CallProfile", "SimpleProfiler", "profile", "profile_function", "size_in_bytes"]

WARMUP, RUNS = 3, 10

P = ParamSpec("P")
R = TypeVar("R")


class SimpleProfiler:
    """Profile a function in one call."""

    def __init__(self, track_memory: bool = True, track_cpu: bool = True) -> None:
        self.track_memory = track_memory
        self.track_cpu = track_cpu

    def profile(
        self,
        func: Callable[..., Any],
        *args: Any,
        name: str = "operation",
        warmup: bool = True,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Call `func(*args, **kwargs)` ten times on each clock, once for memory; give the facts.

        `wall_time` and `cpu_time` are medians in seconds of one call, `cpu_efficiency` is CPU time
        over wall time (above 1 with several threads). `memory_delta_mb` is what one call leaves
        behind with its result, `peak_memory_mb` the most that it holds, `result_size_mb` the bytes
        in its `result`. What is not tracked is None. `notes` say what speaks against the times.
        """
        call = bound_call(func, args, kwargs)
        first = WARMUP if warmup else 0
        wall = measure_time(call, name=name, runs=RUNS, warmup=first, clock=fitting_clock())
        cpu_s: float | None = None
        if self.track_cpu:  # in runs of its own: reading this clock is slow enough to disturb
            cpu_s = measure_time(call, name=name, runs=RUNS, warmup=0, clock=CPU_TIME).median
        if self.track_memory:
            with metering() as memory:
                result = call()
        else:
            result = call()
        return {
            "name": name,
            "wall_time": wall.median,
            "cpu_time": cpu_s,
            "cpu_efficiency": cpu_s / wall.median if cpu_s is not None and wall.median else None,
            "memory_delta_mb": memory.allocated_bytes / MB if self.track_memory else None,
            "peak_memory_mb": memory.peak_above_baseline_bytes / MB if self.track_memory else None,
            "result_size_mb": size_in_bytes(result) / MB if self.track_memory else None,
            "result": result,
            "runs": wall.count,
            "notes": wall.notes,
        }


def profile_function(func: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Profile `func` as :meth:`SimpleProfiler.profile` does; it takes the same arguments."""
    return SimpleProfiler().profile(func, *args, **kwargs)


# ---------------------------------------------------------------- the decorator


@dataclass(frozen=True)
class CallProfile:
    """One call of a decorated function, in seconds. `raised` names the exception, if any."""

    name: str
    wall_time: float
    cpu_time: float
    raised: str | None = None


@overload
def profile(func: Callable[P, R]) -> Callable[P, R]: ...
@overload
def profile(
    *, name: str | None = None, quiet: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def profile(
    func: Callable[..., Any] | None = None, *, name: str | None = None, quiet: bool = False
) -> Any:
    """Decorate a function so that each call is timed; it still returns its own result.

    Each call is reported, unless `quiet`; all are collected in `calls` of the function. Works with
    and without arguments: ``@profile`` and ``@profile(quiet=True)``.

    >>> @profile(quiet=True)
    ... def double(x):
    ...     return 2 * x
    >>> double(21), len(double.calls)
    (42, 1)
    """
    if func is None:
        return partial(_profiled, name=name, quiet=quiet)
    return _profiled(func, name=name, quiet=quiet)


def _profiled(func: Callable[..., Any], *, name: str | None, quiet: bool) -> Any:
    _check_function(func)
    title = name or readable_name(func)
    calls: list[CallProfile] = []

    @wraps(func)
    def timed(*args: Any, **kwargs: Any) -> Any:
        devices = used_devices()
        wait_for_devices(devices)
        wall, cpu = time.perf_counter(), time.process_time()
        raised: str | None = None
        try:
            return func(*args, **kwargs)
        except BaseException as error:
            raised = type(error).__name__
            raise
        finally:
            wait_for_devices(devices or used_devices())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            calls.append(CallProfile(title, wall, cpu, raised))
            if not quiet:
                _report(calls[-1])

    timed.calls = calls  # type: ignore[attr-defined]
    return timed


def _check_function(func: Any) -> None:
    if not callable(func) or isinstance(func, type):
        raise SettingError(f"@profile decorates functions, got {func!r}")
    refuse_lazy(func)


def _report(call: CallProfile) -> None:
    reports = profiling_reports()
    reports.show(reports.render_call(call))


# ---------------------------------------------------------------- sizes


def size_in_bytes(value: Any) -> int:
    """Give the bytes of the arrays and tensors in a result, each once; of other objects their own.

    Looks into tuples, lists, mappings and dataclasses.
    """
    return sum(_sizes(value, set()))


def _sizes(value: Any, seen: set[int]) -> Iterable[int]:
    if id(value) in seen:
        return
    seen.add(id(value))
    held = getattr(value, "data", None)  # of TinyTorch an array, of PyTorch a tensor
    nbytes = getattr(value, "nbytes", None)
    if nbytes is None:
        nbytes = getattr(held, "nbytes", None)
    if isinstance(nbytes, int):
        yield nbytes
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _sizes(item, seen)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _sizes(item, seen)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _sizes(getattr(value, part.name), seen)
    elif value is not None:
        yield sys.getsizeof(value)
