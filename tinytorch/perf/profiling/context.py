"""ProfilerContext: timing, memory, FLOPs and insights of a function or a block, in one report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from tinytorch.adapters.adapter import Adapter, adapter_for
from tinytorch.adapters.records import Recording
from tinytorch.errors import TinyTorchError
from tinytorch.measure.ceilings import Ceilings, machine_ceilings
from tinytorch.measure.samples import Samples
from tinytorch.perf.profiling.block_memory import BlockMemory, metering
from tinytorch.perf.profiling.flop_counter import FLOPCounter
from tinytorch.perf.profiling.insights import Work, find_insights
from tinytorch.perf.profiling.memory_profiler import MemoryProfiler
from tinytorch.perf.profiling.timer import (
    TRACING_NOTE,
    Timer,
    bound_call,
    check_count,
    readable_name,
    timing_stats,
)
from tinytorch.showing import profiling_reports
from tinytorch.workloads.memory_timeline import MemoryTimeline

__all__ = ["Measured", "ProfilerContext"]


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
        """Say how many FLOPs a call has; several numbers add up and replace what was counted."""
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
    """Give the ceilings of a device, or None for one of a kind that cannot be measured."""
    try:
        return machine_ceilings(device)
    except TinyTorchError:
        return None


def _model_behind(func: Any) -> Any:
    """Give the model that a function is, or whose method it is; None when there is none."""
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
