"""How time, FLOPs and memory of a model grow with the size of its inputs, and what comes next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import ClassVar, Protocol

from tinytorch.codec import Coded
from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.measure.environment import observe
from tinytorch.measure.samples import Interval, Samples
from tinytorch.measure.timing import gc_paused
from tinytorch.models.adapter import Adapter, adapter_for
from tinytorch.models.workload import Workload, axis_length, axis_number, resize_workload
from tinytorch.profiling.profile import MemoryTimeline
from tinytorch.profiling.size_laws import POWER, Law, exact_polynomial, fit_law, tail_power_law

__all__ = ["NOT_RESOLVED", "SizePoint", "SizeScaling", "Trend", "fit_trend", "measure_scaling"]


# ---------------------------------------------------------------- how time, FLOPs and memory grow
# with a size, from what was measured at several

ROUNDING = 1e-6
"""Numbers may follow a law so exactly that only rounding is left of their interval."""
WIDEST = 10.0
"""An interval whose ends differ by a larger factor would contain almost anything."""
RESOLVED = 0.5
"""An exponent that is not known better than this has no words."""
NOT_RESOLVED = "not resolved by these measurements"
LAWS = ("constant", "linear", "quadratic", "cubic")
NEARLY = 0.1
NORMAL_REACH = 1.96
"""Standard errors from the middle of a 95% interval to its ends."""


@dataclass(frozen=True)
class SizePoint:
    """What was measured and counted at one size.

    `peak_bytes` are those of live buffers; `resident_bytes` of them are parameters and buffers of
    the model, whatever the size.
    """

    size: int
    latency: Samples
    flops: int
    peak_bytes: int
    resident_bytes: int
    not_counted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trend(Coded):
    """What a law through the measured sizes says about one quantity at the size `at`.

    `constant` does not grow and is added to what the law gives. `measured` is the truth, if known.
    """

    quantity: str
    at: int
    law: Law
    constant: int = 0
    measured: float | None = None

    also_written = ("value", "interval", "law.is_exact", "is_shown", "holds", "words", "notes")

    @property
    def value(self) -> float:
        return self.value_at(self.at)

    def value_at(self, size: float) -> float:
        """Give what the law says about any size."""
        return self.law.value(size) + self.constant

    @property
    def interval(self) -> Interval | None:
        """Where a measurement is expected; None if nothing is left to judge the law by."""
        found = self.law.interval
        if found is None:
            return None
        return Interval(found.low + self.constant, found.high + self.constant, found.confidence)

    @property
    def is_shown(self) -> bool:
        """Whether the interval is narrow enough to be a prediction."""
        return self.interval is not None and self.interval.high <= WIDEST * self.interval.low

    @property
    def holds(self) -> bool | None:
        """Whether what was measured lies in the interval.

        None if nothing was measured, and if the interval is missing or so wide that a number in it
        shows nothing.
        """
        if self.measured is None or self.interval is None or not self.is_shown:
            return None
        slack = ROUNDING * abs(self.measured)
        return self.interval.low - slack <= self.measured <= self.interval.high + slack

    @property
    def exponent_reach(self) -> float:
        """How far the interval of the exponent reaches to both sides, infinite without one."""
        found = self.law.exponent_interval
        return math.inf if found is None else found.high - self.law.exponent

    @property
    def words(self) -> str:
        """The exponent in words: `about linear`, `between linear and quadratic`."""
        if self.exponent_reach > RESOLVED:
            return NOT_RESOLVED
        exponent = self.law.exponent
        nearest = round(exponent)
        if 0 <= nearest < len(LAWS) and abs(exponent - nearest) <= NEARLY:
            return f"about {LAWS[nearest]}"
        if exponent < 0:
            return "falling"
        below = math.floor(exponent)
        if below >= len(LAWS) - 1:
            return f"more than {LAWS[-1]}"
        return f"between {LAWS[below]} and {LAWS[below + 1]}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Which law it is, how well it tells what it has not seen, and what to doubt."""
        doubts = tuple(f"{self.quantity}: {note}" for note in self.law.notes)
        if self.interval is not None and not self.is_shown:
            wide = f"its interval is wider than a factor of {WIDEST:g}: nothing is shown"
            doubts = (f"{self.quantity}: {wide}", *doubts)
        if self.words == NOT_RESOLVED:
            doubts = (f"{self.quantity}: the exponent is {NOT_RESOLVED}", *doubts)
        return (*self._law_in_words(), *doubts)

    def _law_in_words(self) -> tuple[str, ...]:
        law, sizes = self.law, self.law.fitted
        if law.is_exact:
            verb, unit = ("follows", " bytes") if self.quantity == "memory" else ("follow", "")
            where = f"exactly at all {len(sizes)} sizes"
            return (f"{self.quantity} {verb} {law.formula}{unit} {where}",)
        if law.error is None:
            return ()
        words = f"{self.quantity} follows: {law.name}; a size left out is missed by {law.error:.1%}"
        if law.name != POWER and law.power_law_error is not None:
            words += f", by a power law by {law.power_law_error:.1%}"
            words += f"; the exponent is that at {sizes[-1]}"
        if law.rivals:
            words += f"; not told apart, and covered by the interval: {', '.join(law.rivals)}"
        return (words,)


def fit_trend(
    quantity: str,
    points: Sequence[SizePoint],
    at: int,
    truth: SizePoint | None,
    *,
    flops: Trend | None = None,
) -> Trend:
    """Find the law that a quantity follows.

    `quantity` is `time`, `FLOPs` or `memory`; `truth` is the point at the size `at`, if known.
    Counts are exact, and so is a polynomial through them that leaves nothing over; if there is
    none, they get a power law. Time is fitted by the median of each size; `flops` is the trend of
    the FLOPs, which time may follow.
    """
    sizes = [point.size for point in points]
    constant = points[-1].resident_bytes if quantity == "memory" else 0
    measured = _value(quantity, truth) if truth is not None else None
    values = [_value(quantity, point) for point in points]
    if quantity == "time":
        work = flops.law.terms if flops and flops.law.is_exact else None
        noise = [_noise(point.latency) for point in points]
        law: Law | None = fit_law(sizes, values, at=at, noise=noise, work=work)
    else:
        law = exact_polynomial(sizes, [int(value) for value in values], at=at, constant=constant)
    if law is None:
        law = tail_power_law(sizes, [value - constant for value in values], at=at)
    return Trend(quantity, at, law, constant, measured)


def _value(quantity: str, point: SizePoint) -> float:
    values = {
        "time": point.latency.median,
        "FLOPs": point.flops,
        "memory": point.peak_bytes,
    }
    return values[quantity]


def _noise(latency: Samples) -> float:
    """Give the relative standard error of the median, from its interval."""
    found = latency.median_interval()
    return math.log(found.high / found.low) / (2 * NORMAL_REACH)


# ---------------------------------------------------------------- how time, FLOPs and memory of a
# model grow with the size of its inputs, and what comes next

BLOCK_S = 1e-3
"""Calls are timed in blocks of about this length; shorter ones mostly show the clock."""
MIN_ROUNDS, MAX_ROUNDS = 5, 50
ENOUGH_SIZES = 4
MANY_STEPS = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8)
"""The sizes to measure by default, as parts of the largest of them."""
FEW_STEPS = MANY_STEPS[::2]
"""These, where the budget does not allow more."""


class Progress(Protocol):
    """Somebody who may be watching."""

    def describe(self, text: str) -> None: ...


@dataclass(frozen=True)
class SizeScaling(Coded):
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

    also_written = ("holds", "all_notes")
    renames: ClassVar = {"all_notes": "notes", "notes": None}

    @property
    def trends(self) -> tuple[Trend, ...]:
        """The trends that there are."""
        return tuple(each for each in (self.time, self.flops, self.memory) if each is not None)

    @property
    def holds(self) -> bool | None:
        """Whether every trend holds: False if one does not, None if one is not shown."""
        verdicts = {trend.holds for trend in self.trends}
        return False if False in verdicts else None if None in verdicts else True

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Notes on the laws, and on the measurement."""
        resident = self.memory.constant if self.memory else 0
        fixed = f"{resident:,} bytes of the memory are parameters, whatever the size"
        return (
            *(note for trend in self.trends for note in trend.notes),
            *([fixed] if resident else ()),
            *self.notes,
        )


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

    `axis` is `batch` (0), `sequence` (1) or a number. Without `sizes` it takes some from a
    sixteenth to half of `at`, or smaller ones if `budget_s` does not allow these. Sizes take turns,
    so that noise meets all alike. `check` measures `at` too and says whether the prediction holds.
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
    flops = fit_trend("FLOPs", points, at, truth) if counted else None
    return SizeScaling(
        name=workload.name,
        framework=trial.adapter.name,
        device=trial.device,
        axis=str(axis),
        usual=trial.usual,
        points=points,
        at=at,
        time=fit_trend("time", points, at, truth, flops=flops),
        flops=flops,
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
    usual: int = field(init=False)
    resized: dict[int, Workload] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        model, arguments = self.workload.model, self.workload.arguments
        self.usual = axis_length(arguments, self.axis)
        self.adapter = adapter_for(model, arguments)
        self.device = self.adapter.device(model, arguments)

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
            self.workload.run()

    def admit(self, size: int) -> None:
        """Try a size; one that the model refuses is an error that says so."""
        self.tell(f"trying size {size}")
        resized = resize_workload(self.workload, self.axis, size)
        try:
            with self.adapter.naming_failures(self.workload.model):
                resized.run()
        except TinyTorchError as error:
            raise SettingError(
                f"{self.workload.name} refuses size {size} on axis {self.axis}: {error}"
            ) from error
        self.resized[size] = resized
        self.seconds[size] = self.time_block(size, 1)

    def choose(self, at: int, budget_s: float) -> tuple[int, ...]:
        """Give sizes up to half of `at`, or up to the largest that the budget allows."""
        limit = max(at // 2, min(ENOUGH_SIZES, at - 1))
        if limit < 2:
            raise SettingError(f"a trend needs two sizes below at={at}; ask for a larger one")
        largest = self.climb(limit, budget_s)
        if largest < limit:
            self.notes.append(
                f"a budget of {budget_s:g} s allows sizes up to {largest}; "
                f"a larger one measures nearer to {at}"
            )
        many = self.round_s(self.seconds[largest], MANY_STEPS) * MIN_ROUNDS <= budget_s
        refused: dict[int, SettingError] = {}
        wanted = _spread_below(largest, MANY_STEPS if many else FEW_STEPS)
        for size in wanted:
            try:
                if size not in self.seconds:
                    self.admit(size)
            except SettingError as error:
                refused[size] = error
        if refused:
            sizes = ", ".join(map(str, refused))
            self.notes.append(f"sizes {sizes} are left out: {next(iter(refused.values()))}")
        chosen = tuple(size for size in wanted if size not in refused)
        if len(chosen) < 2:
            raise SettingError(
                f"a trend needs two sizes below at={at}, and the model takes only {largest}; give "
                f"the sizes to measure. {next(iter(refused.values()))}"
            )
        return chosen

    def climb(self, limit: int, budget_s: float) -> int:
        """Go from the usual size to the largest one that can be measured often enough."""

        def is_affordable(seconds: float) -> bool:
            return self.round_s(seconds, FEW_STEPS) * MIN_ROUNDS <= budget_s

        size = min(limit, max(self.usual, ENOUGH_SIZES))
        self.admit(size)
        while size > ENOUGH_SIZES and not is_affordable(self.seconds[size]):
            size = max(ENOUGH_SIZES, size // 2)
            self.admit(size)
        while size < limit:
            following = min(2 * size, limit)
            if not is_affordable(self.seconds[size] * following / size):
                break
            self.admit(following)
            if not is_affordable(self.seconds[following]):
                break
            size = following
        return size

    def round_s(self, seconds: float, steps: Sequence[float]) -> float:
        """Estimate a round of turns, if the largest size takes so long, and others their part."""
        return sum(max(BLOCK_S, seconds * step) for step in steps)

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
        call = self.resized[size].run
        self.adapter.synchronize(self.device)
        self.adapter.forget_marks()
        stamp = self.adapter.stamp(self.device)
        begin = stamp()
        for _ in range(loops):
            call()
        end = stamp()
        self.adapter.synchronize(self.device)
        return self.adapter.seconds(begin, end) / loops

    def count(self, size: int, values: Sequence[float]) -> SizePoint:
        """Record one call for its FLOPs and memory, and put them to the times."""
        self.tell(f"counting at size {size}")
        resized = self.resized[size]
        recording = self.adapter.record(
            resized.model, resized.run, device=self.device, inputs=resized.arguments
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


def _spread_below(largest: int, steps: Sequence[float]) -> tuple[int, ...]:
    """Give sizes up to the largest one by these steps, and more where these are too few."""
    sizes = {max(1, round(largest * step)) for step in steps}
    for size in range(largest, 0, -1):
        if len(sizes) >= ENOUGH_SIZES:
            break
        sizes.add(size)
    # A size of one is often a case of its own, with other kernels.
    return tuple(sorted(sizes - {1} if len(sizes) > ENOUGH_SIZES else sizes))


def _check(
    workload: Workload, at: int, sizes: Sequence[int] | None, budget_s: float
) -> tuple[int, ...] | None:
    """Refuse what cannot work; give the sizes in order."""
    if not workload.arguments:
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
