"""How time, FLOPs and memory of a model grow with the size of its inputs, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Protocol

from tinytorch.adapters.adapter import Adapter, adapter_for
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import gc_paused
from tinytorch.perf.profiling.resizing import axis_length, axis_number, resize_inputs
from tinytorch.perf.profiling.size_trends import LEAST_SIZES, SizePoint, Trend, fit_trend
from tinytorch.workloads.memory_timeline import MemoryTimeline
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["SizePoint", "SizeScaling", "Trend", "measure_scaling"]

BLOCK_S = 1e-3
"""Calls are timed in blocks of about this length; shorter ones mostly show the clock."""
MIN_ROUNDS, MAX_ROUNDS = 5, 50
MOST_SIZES = 5


class Progress(Protocol):
    """Somebody who may be watching."""

    def describe(self, text: str) -> None: ...


@dataclass(frozen=True)
class SizeScaling:
    """Measurements at several sizes of one axis, and what they predict for the size `at`.

    `usual` is the size of the example inputs. `check` has what was measured at `at`, if asked for.
    """

    name: str
    framework: str
    device: str
    axis: str
    usual: int
    points: tuple[SizePoint, ...]
    at: int
    time: Trend
    flops: Trend | None
    memory: Trend | None
    check: SizePoint | None = None
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool | None:
        """Whether the measured time lies in the predicted interval; None without a check."""
        return self.time.holds

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON but for numbers that are not finite."""
        trends = {"time": self.time, "flops": self.flops, "memory": self.memory}
        return {
            **asdict(self),
            **{name: trend.to_dict() if trend else None for name, trend in trends.items()},
            "holds": self.holds,
        }


def measure_scaling(
    workload: Workload,
    *,
    at: int,
    axis: str | int = "batch",
    sizes: Sequence[int] | None = None,
    check: bool = False,
    budget_s: float = 5.0,
    progress: Progress | None = None,
) -> SizeScaling:
    """Measure a model at several sizes of an axis, and predict what it takes at a larger one.

    `axis` is `batch` (0), `sequence` (1) or a number. Without `sizes` it takes powers of two below
    `at`, the largest that `budget_s` allows. Sizes take turns, so that noise meets all alike.
    `check` measures `at` too and says whether the prediction holds.
    """
    chosen = _check(workload, at, sizes, budget_s)
    trial = _Trial(workload, axis_number(axis), progress)
    with trial.environment():
        trial.run_as_it_is()
        if check:
            trial.admit(at)
        if chosen is None:
            chosen = trial.choose(at, budget_s)
        else:
            for size in chosen:
                trial.admit(size)
        before = observe()
        every = (*chosen, at) if check else chosen
        values = trial.time_in_turns(every, budget_s)
        doubts = observe().doubts_since(before)
        found = {size: trial.count(size, values[size]) for size in every}
    points = tuple(found[size] for size in chosen)
    return _conclude(workload, axis, trial, points, at, found.get(at), doubts)


def _conclude(
    workload: Workload,
    axis: str | int,
    trial: _Trial,
    points: tuple[SizePoint, ...],
    at: int,
    truth: SizePoint | None,
    doubts: tuple[str, ...],
) -> SizeScaling:
    missing = sorted({kind for point in points for kind in point.not_counted})
    left_out = [f"not in the FLOPs, for want of a formula: {', '.join(missing)}"] if missing else []
    counted = all(point.flops for point in points)
    grown = all(point.peak_bytes > point.resident_bytes for point in points)
    return SizeScaling(
        name=workload.name,
        framework=trial.adapter.name,
        device=trial.device,
        axis=str(axis),
        usual=axis_length(workload.inputs, trial.axis),
        points=points,
        at=at,
        time=fit_trend("time", points, at, truth),
        flops=fit_trend("FLOPs", points, at, truth) if counted else None,
        memory=fit_trend("memory", points, at, truth) if grown else None,
        check=truth,
        notes=(*trial.notes, *left_out, *doubts),
    )


# ---------------------------------------------------------------- measuring


@dataclass
class _Trial:
    """A model that is called with inputs of several sizes."""

    workload: Workload
    axis: int
    progress: Progress | None = None
    adapter: Adapter = field(init=False)
    device: str = field(init=False)
    inputs: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        axis_length(self.workload.inputs, self.axis)
        self.adapter = adapter_for(self.workload.model)
        self.device = self.adapter.device(self.workload.model, self.workload.inputs)

    @contextmanager
    def environment(self) -> Iterator[None]:
        with self.adapter.preserving(self.workload.model), self.adapter.without_gradients():
            yield

    def tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress.describe(f"{self.workload.name}: {text}")

    def run_as_it_is(self) -> None:
        """Call the model with its own inputs: if that fails, the size is not to blame."""
        with self.adapter.naming_failures(self.workload.model):
            call_model(self.workload.model, *self.workload.inputs)

    def admit(self, size: int) -> None:
        """Try a size; one that the model refuses is an error that says so."""
        self.tell(f"trying size {size}")
        self.inputs[size] = resize_inputs(self.workload.inputs, self.axis, size)
        try:
            with self.adapter.naming_failures(self.workload.model):
                call_model(self.workload.model, *self.inputs[size])
        except TinyTorchError as error:
            del self.inputs[size]
            raise SettingError(
                f"{self.workload.name} refuses size {size} on axis {self.axis}: {error}"
            ) from error
        self.seconds[size] = self.time_block(size, 1)

    def choose(self, at: int, budget_s: float) -> tuple[int, ...]:
        """Give the largest powers of two below `at` that can be measured often enough."""
        admitted: list[int] = []
        too_small: SettingError | None = None
        for size in (2**power for power in range((at - 1).bit_length())):
            try:
                self.admit(size)
            except SettingError as error:
                if admitted:
                    raise
                too_small = error
                continue
            admitted.append(size)
            in_a_round = sum(max(BLOCK_S, self.seconds[each]) for each in admitted[-MOST_SIZES:])
            # The next size takes about twice as long, and every size needs its turns.
            if len(admitted) >= LEAST_SIZES and 2 * in_a_round * MIN_ROUNDS > budget_s:
                break
        if too_small is not None:
            self.notes.append(f"smaller sizes are left out: {too_small}")
        if len(admitted) < 2:
            raise SettingError(
                f"a trend needs two sizes below at={at}, and there are {len(admitted)}; ask for a "
                f"larger one, or give the sizes to measure. {too_small or ''}".strip()
            )
        return tuple(admitted[-MOST_SIZES:])

    def time_in_turns(self, sizes: Sequence[int], budget_s: float) -> dict[int, list[float]]:
        """Give seconds per call for each size; in every round all sizes have a turn."""
        loops = {size: max(1, round(BLOCK_S / self.seconds[size])) for size in sizes}
        values: dict[int, list[float]] = {size: [] for size in sizes}
        until = perf_counter() + budget_s
        with gc_paused():
            for turn in range(MAX_ROUNDS):
                if turn >= MIN_ROUNDS and perf_counter() > until:
                    break
                self.tell(f"timing {len(sizes)} sizes, round {turn + 1}")
                # There and back, so that what drifts meets small and large sizes alike.
                for size in sizes if turn % 2 == 0 else reversed(sizes):
                    values[size].append(self.time_block(size, loops[size]))
        return values

    def time_block(self, size: int, loops: int) -> float:
        inputs, model = self.inputs[size], self.workload.model
        self.adapter.synchronize(self.device)
        self.adapter.forget_marks()
        stamp = self.adapter.stamp(self.device)
        begin = stamp()
        for _ in range(loops):
            call_model(model, *inputs)
        end = stamp()
        self.adapter.synchronize(self.device)
        return self.adapter.seconds(begin, end) / loops

    def count(self, size: int, values: Sequence[float]) -> SizePoint:
        """Record one call for its FLOPs and memory, and put them to the times."""
        self.tell(f"counting at size {size}")
        inputs, model = self.inputs[size], self.workload.model
        recording = self.adapter.record(
            model, lambda: call_model(model, *inputs), device=self.device, inputs=inputs
        )
        memory = MemoryTimeline(recording.allocations)
        held = memory.peak_by_category
        missing = {record.kind for record in recording.operations if record.cost is None}
        return SizePoint(
            size=size,
            latency=Samples(f"{self.workload.name} at size {size}", tuple(values)),
            flops=sum(record.flops for record in recording.operations),
            peak_bytes=memory.peak_bytes,
            resident_bytes=held.get("parameters", 0) + held.get("buffers", 0),
            not_counted=tuple(sorted(missing)),
        )


def _check(
    workload: Workload, at: int, sizes: Sequence[int] | None, budget_s: float
) -> tuple[int, ...] | None:
    """Refuse what cannot work; give the sizes in order."""
    if not workload.inputs:
        raise SettingError(
            f"workload {workload.name!r} has no example inputs; give the model something to run on"
        )
    if at < 1:
        raise SettingError(f"at={at}; a size is at least 1")
    if not budget_s > 0:
        raise SettingError(f"budget_s={budget_s}; measuring needs some time")
    if sizes is None:
        return None
    ordered = tuple(sorted(set(sizes)))
    if len(ordered) < 2 or ordered[0] < 1:
        raise SettingError(f"sizes {list(sizes)}; a trend needs two different ones, from 1 on")
    if at <= ordered[-1]:
        raise SettingError(
            f"at={at} is not above the sizes to measure, {list(ordered)}; ask for a larger one, "
            "or measure smaller ones"
        )
    return ordered
