"""ProfilerContext: timing, memory, FLOPs and insights of a function or a block, in one report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar, overload

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.measure import timing
from tinytorch.measure.ceilings import Ceilings, machine_ceilings
from tinytorch.measure.roofline import Bound, classify_bound
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import fitting_clock
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.records import Recording
from tinytorch.profiling.flops import FLOPCounter
from tinytorch.profiling.memory_profiler import MB, BlockMemory, MemoryProfiler, metering
from tinytorch.profiling.profile import MemoryTimeline, share_of_possible
from tinytorch.profiling.timer import (
    TRACING_NOTE,
    Timer,
    bound_call,
    check_count,
    readable_name,
    refuse_lazy,
    timing_stats,
)
from tinytorch.showing import profiling_reports

# ---------------------------------------------------------------- sentences about a measurement,
# each from something that was measured

MOST = 0.5
"""What makes up more than half of something is worth a sentence."""
NOTABLE_TAIL = 2.0
"""A slowest value this many times the median is not what a user usually sees."""


@dataclass(frozen=True)
class Work:
    """What a call computes and moves.

    `flops` are contractions, two per multiply-accumulate, `other_flops` everything else. Bytes are
    None where they are not known.
    """

    flops: int
    other_flops: int = 0
    bytes_moved: int | None = None
    working_set_bytes: int | None = None
    dtype: str = "float32"


def find_insights(
    samples: Samples | None = None,
    memory: Mapping[str, Any] | None = None,
    work: Work | None = None,
    *,
    ceilings: Ceilings | None = None,
) -> tuple[str, ...]:
    """Return insights about the roofline, the variance, and the pattern of allocation."""
    found: list[str] = []
    if samples is not None and work is not None:
        found += _about_speed(samples, work, ceilings)
    if samples is not None:
        found += _about_variance(samples)
    if memory is not None:
        found += _about_memory(memory)
    return tuple(found)


def work_bound(samples: Samples, work: Work, ceilings: Ceilings | None) -> Bound | None:
    """Place a call under the roofline; None where bytes or the machine's peak are not known."""
    peak = ceilings.peak_flops(work.dtype) if ceilings else None
    if ceilings is None or peak is None or not work.bytes_moved or samples.median <= 0:
        return None
    flops = work.flops + work.other_flops
    return classify_bound(
        achieved=flops / samples.median,
        peak=peak,
        bandwidth=ceilings.bandwidth(work.working_set_bytes),
        intensity=flops / work.bytes_moved,
    )


def _about_speed(samples: Samples, work: Work, ceilings: Ceilings | None) -> list[str]:
    bound = work_bound(samples, work, ceilings)
    if bound is not None and not bound.intensity:
        share = share_of_possible(bound, work.bytes_moved or 0, samples.median)
        return [str(bound), f"reaches {_percent(share or 0.0)} of this machine's bandwidth"]
    if bound is not None:
        limit = "moving bytes" if bound.is_memory_bound else "computing"
        side = "below" if bound.is_memory_bound else "above"
        return [
            f"{bound.bound}-bound: {bound.intensity:.2g} FLOP per byte is {side} this machine's "
            f"ridge of {bound.ridge:.2g}, so {limit} is the limit",
            f"reaches {_percent(bound.of_attainable)} of what the machine allows at this "
            f"intensity, {_percent(bound.efficiency)} of its peak",
        ]
    peak = ceilings.peak_flops(work.dtype) if ceilings else None
    if peak and samples.median > 0 and work.flops:
        reached = _percent(work.flops / samples.median / peak)
        return [
            f"reaches {reached} of this machine's {work.dtype} peak; the bound is unknown without "
            "the bytes moved"
        ]
    return []


def _percent(share: float) -> str:
    """Format a share of 1; a tiny share is not shown as 0."""
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def _about_variance(samples: Samples) -> list[str]:
    if samples.count == 1:
        return ["n=1: the variation of the time is unknown"]
    found = [samples.stability.note]
    tail = samples.maximum / samples.median if samples.median > 0 else 1.0
    if tail > NOTABLE_TAIL:
        outliers = samples.outliers.high_mild + samples.outliers.high_severe
        found.append(
            f"the slowest of {samples.count} runs took {tail:.1f} times the median "
            f"({outliers} slow outliers), so the mean of {samples.mean * 1e3:.3g} ms misleads"
        )
    return found


def _about_memory(memory: Mapping[str, Any]) -> list[str]:
    peak = memory["peak_mb"] - memory["baseline_mb"]
    kept = memory["allocated_mb"]
    if kept < 0:
        return [f"frees {-kept:.2f} MB more than it allocates"]
    if peak <= 0:
        return ["allocates nothing on the host"]
    temporary = (peak - kept) / peak
    if temporary > MOST:
        return [
            f"{temporary:.0%} of the {peak:.2f} MB at the peak is freed again: temporaries decide "
            "the memory that it needs"
        ]
    return [f"keeps {kept:.2f} MB of the {peak:.2f} MB at its peak, the result included"]


# ---------------------------------------------------------------- ProfilerContext: timing, memory,
# FLOPs and insights of a function or a block, in one report


@dataclass(frozen=True)
class Measured:
    """What is known about one function, or about the block itself."""

    name: str
    samples: Samples
    memory: Mapping[str, Any] | None = None
    work: Work | None = None
    device: str = "cpu"
    notes: tuple[str, ...] = ()


class ProfilerContext:
    """Profile a function inside a block; on exit print what was found.

    Without :meth:`profile_function` the block itself is timed once. `timing_stats` and
    `memory_stats` are those of the last function, or of the block, and empty before.
    """

    def __init__(
        self,
        name: str = "Operation",
        timing_runs: int = 10,
        timing_warmup: int = 2,
        enable_memory: bool = True,
        enable_flops: bool = False,
    ) -> None:
        check_count("timing_runs", timing_runs, at_least=1)
        check_count("timing_warmup", timing_warmup, at_least=0)
        self.name = name
        self.timing_runs = timing_runs
        self.timing_warmup = timing_warmup
        self.enable_memory = enable_memory
        self.enable_flops = enable_flops
        self.measured: list[Measured] = []
        self.flop_counter = FLOPCounter(convention="flops")
        self.raised: BaseException | None = None
        self._given_by_hand = False
        self._blocks: list[_Block] = []

    @property
    def timing_stats(self) -> dict[str, Any]:
        return timing_stats(self.measured[-1].samples) if self.measured else {}

    @property
    def memory_stats(self) -> dict[str, Any]:
        memory = self.measured[-1].memory if self.measured else None
        return dict(memory or {})

    @property
    def flop_count(self) -> int | None:
        """FLOPs of one call: given by hand, or counted; None when there are neither."""
        counted = self._given_by_hand or (self.measured and self.measured[-1].work)
        return self.flop_counter.operation_counts["total_flops"] if counted else None

    # ------------------------------------------------------------ measuring

    def profile_function(
        self,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Time `func`, measure its memory, count its FLOPs if asked, and return its result.

        It is called `timing_warmup` and `timing_runs` times, then once for memory and the result,
        and once more for FLOPs.
        """
        call = bound_call(func, args, kwargs)
        for block in reversed(self._blocks):
            block.drop()  # its memory meter would slow down what is timed now
        timer = Timer()
        timer.measure(call, warmup=self.timing_warmup, runs=self.timing_runs)
        memory: dict[str, Any] | None = None
        if self.enable_memory:
            memory = MemoryProfiler().profile(call)
            result = memory.pop("result")
        else:
            result = call()
        found = Measured(readable_name(func), timer.samples, memory, notes=timer.samples.notes)
        self.measured.append(self._with_work(found, func, call) if self.enable_flops else found)
        return result

    def _with_work(self, found: Measured, func: Callable[..., Any], call: partial[Any]) -> Measured:
        """Add what the call computes, if the function is a model or a method of one."""
        model = _model_behind(func)
        if model is None:
            note = f"FLOPs not counted: {found.name} is no model and no method of one"
            return replace(found, notes=(*found.notes, note))
        adapter = adapter_for(model, (*call.args, *call.keywords.values()))
        device = adapter.device(model, ())
        recording = _record(adapter, model, call, device)
        if not self._given_by_hand:
            self.flop_counter.reset()
            self.flop_counter.add_operations(
                recording.operations, name=type(model).__name__, with_biases=False
            )
        return replace(found, work=_work_of(recording), device=device)

    def add_flop_count(self, flops: int, breakdown: Mapping[str, int] | None = None) -> None:
        """Set the FLOPs of a call; several numbers add up and replace what was counted."""
        if not self._given_by_hand:
            self.flop_counter.reset()
        self.flop_counter.add_total(flops, dict(breakdown or {}))
        self._given_by_hand = True

    # ------------------------------------------------------------ reporting

    @property
    def insights(self) -> tuple[str, ...]:
        """Sentences about the last function or the block, from what was measured.

        With FLOPs the first call on a machine measures its ceilings, which takes some seconds.
        """
        if not self.measured:
            return ()
        last = self.measured[-1]
        work = last.work
        if self._given_by_hand:
            flops = self.flop_counter.operation_counts["total_flops"]
            work = replace(work, flops=flops, other_flops=0) if work else Work(flops)
        ceilings = _known_ceilings(last.device) if work is not None else None
        return find_insights(last.samples, last.memory, work, ceilings=ceilings)

    def generate_report(self) -> str:
        """Print the report and return it as text."""
        reports = profiling_reports()
        report = reports.render_context(self)
        reports.show(report)
        text: str = reports.as_text(report)
        return text

    # ------------------------------------------------------------ the block

    def __enter__(self) -> Self:
        if not self._blocks:
            self.measured, self.raised, self._given_by_hand = [], None, False
            self.flop_counter.reset()
        self._blocks.append(_Block(self.enable_memory))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.raised = error
        found = self._blocks.pop().finish()
        if found is not None and not self.measured:
            self.measured.append(found)
        try:
            self.generate_report()
        except Exception:
            if error is None:  # else the user's own exception matters more
                raise


class _Block:
    """A block that is timed once, and its memory meter."""

    def __init__(self, with_memory: bool) -> None:
        self._meters = ExitStack()
        self._memory: BlockMemory | None = None
        if with_memory:
            self._memory = self._meters.enter_context(metering())
        self._timer = Timer().start()
        self._is_dropped = False

    def drop(self) -> None:
        """Stop measuring the block: something in it is measured on its own.

        Where that is not possible yet the meters run on, and the times say that they were traced.
        """
        self._is_dropped = True
        if self._memory is None or self._memory.can_end:
            self._meters.close()

    def finish(self) -> Measured | None:
        """End the block and give what was measured of it, if that is still wanted."""
        self._timer.stop()
        self._meters.close()
        if self._is_dropped:
            return None
        memory = self._memory.stats() if self._memory else None
        notes = (TRACING_NOTE,) if self._memory else ()
        return Measured("the block", self._timer.samples, memory, notes=notes)


def _known_ceilings(device: str) -> Ceilings | None:
    """Return the ceilings of a device, or None for one of a kind that cannot be measured."""
    try:
        return machine_ceilings(device)
    except TinyTorchError:
        return None


def _model_behind(func: Any) -> Any:
    """Return the model that a function is, or whose method it is; None when there is none."""
    for candidate in (func, getattr(func, "__self__", None)):
        if hasattr(candidate, "forward") and not isinstance(candidate, type):
            return candidate
    return None


def _record(adapter: Adapter, model: Any, call: Callable[[], Any], device: str) -> Recording:
    with adapter.preserving(model), adapter.naming_failures(model):
        return adapter.record(model, call, device=device)


def _work_of(recording: Recording) -> Work:
    """Add up what was computed and moved; the dtype is that of most products, else float32."""
    operations = recording.operations
    weights: dict[str, int] = {}
    for record in operations:
        weights[record.dtype] = weights.get(record.dtype, 0) + record.macs
    return Work(
        flops=sum(record.flops for record in operations),
        other_flops=sum(record.cost.other_flops for record in operations if record.cost),
        bytes_moved=sum(record.bytes_moved for record in operations),
        working_set_bytes=MemoryTimeline(recording.allocations).peak_bytes,
        dtype=max(weights, key=lambda name: weights[name]) if any(weights.values()) else "float32",
    )


# ---------------------------------------------------------------- SimpleProfiler, profile_function
# and @profile: one function, one dictionary

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
        wall = timing.measure_time(call, name=name, runs=RUNS, warmup=first, clock=fitting_clock())
        cpu_s: float | None = None
        if self.track_cpu:  # in separate runs: reading this clock is slow enough to disturb
            cpu_s = timing.measure_time(
                call, name=name, runs=RUNS, warmup=0, clock=timing.CPU_TIME
            ).median
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
        devices = timing.used_devices()
        timing.wait_for_devices(devices)
        wall, cpu = time.perf_counter(), time.process_time()
        raised: str | None = None
        try:
            return func(*args, **kwargs)
        except BaseException as error:
            raised = type(error).__name__
            raise
        finally:
            timing.wait_for_devices(devices or timing.used_devices())
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
    """Return the bytes of arrays and tensors in a result, each once; of other objects their own.

    Tuples, lists, mappings and dataclasses are searched.
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
