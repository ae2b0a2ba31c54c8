"""How time, FLOPs and memory of a model grow with the size of its inputs, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tinytorch.codec import Coded
from tinytorch.errors import SettingError, check_number
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import observe
from tinytorch.measure.samples import Samples
from tinytorch.models.workload import Workload, axis_number
from tinytorch.profiling.size_laws import SizePoint, Trend, fit_trend
from tinytorch.profiling.size_runs import MEMORY, SizeTrial, round_s, time_in_turns

# ---------------------------------------------------------------- how time, FLOPs and memory of a
# model grow with the size of its inputs, and what comes next

MIN_ROUNDS, MAX_ROUNDS = 5, 50
ENOUGH_SIZES = 4
MANY_STEPS = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8)
"""The sizes to measure by default, as parts of the largest of them."""
FEW_STEPS = MANY_STEPS[::2]
"""These, where the budget does not allow more."""


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
        """Whether every trend holds: False if one does not, None if one is inconclusive."""
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
    trial = _Search(SizeTrial(workload, "batch", axis_number(axis)), progress)
    with trial.bench.environment():
        with trial.bench.adapter.naming_failures(workload.model):
            workload.run()  # if that fails, the size is not to blame
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
    trial: _Search,
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
        framework=trial.bench.facts.framework,
        device=trial.bench.facts.device,
        axis=str(axis),
        usual=trial.bench.facts.usual,
        points=points,
        at=at,
        time=fit_trend("time", points, at, truth, flops=flops),
        flops=flops,
        memory=fit_trend("memory", points, at, truth) if grown else None,
        check=truth,
        notes=(*workload.notes, *trial.notes, *left_out, *doubts),
    )


# ---------------------------------------------------------------- measuring


@dataclass
class _Search:
    """Sizes that were tried, and the seconds of a call of each."""

    bench: SizeTrial
    progress: Progress | None = None
    seconds: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress.describe(f"{self.bench.facts.name}: {text}")

    def admit(self, size: int) -> None:
        """Try a size; one that the model refuses is an error that says so."""
        self.tell(f"trying size {size}")
        found = self.bench.attempt(size, with_peak=False)
        if not found.works:
            verb = "runs out of memory at" if found.kind == MEMORY else "refuses"
            raise SettingError(
                f"{self.bench.facts.name} {verb} size {size} on axis {self.bench.axis}: "
                f"{found.failure}"
            )
        self.seconds[size] = found.seconds

    def choose(self, at: int, budget_s: float) -> tuple[int, ...]:
        """Return sizes up to half of `at`, or up to the largest that the budget allows."""
        limit = max(at // 2, min(ENOUGH_SIZES, at - 1))
        if limit < 2:
            raise SettingError(f"a trend needs two sizes below at={at}; ask for a larger one")
        largest = self.climb(limit, budget_s)
        if largest < limit:
            self.notes.append(
                f"a budget of {budget_s:g} s allows sizes up to {largest}; "
                f"a larger one measures nearer to {at}"
            )
        longest_s = self.seconds[largest]
        many = MIN_ROUNDS * round_s(longest_s * step for step in MANY_STEPS) <= budget_s
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
            return MIN_ROUNDS * round_s(seconds * step for step in FEW_STEPS) <= budget_s

        size = min(limit, max(self.bench.facts.usual, ENOUGH_SIZES))
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

    def time_in_turns(self, sizes: Sequence[int], budget_s: float) -> dict[int, list[float]]:
        values, failures = time_in_turns(
            self.bench,
            {size: self.seconds[size] for size in sizes},
            at_least=MIN_ROUNDS,
            at_most=MAX_ROUNDS,
            budget_s=budget_s,
            tell=self.tell,
        )
        for error in failures.values():
            raise error
        return values

    def count(self, size: int, values: Sequence[float]) -> SizePoint:
        """Record one call for its FLOPs and memory, and put them to the times."""
        self.tell(f"counting at size {size}")
        counted = self.bench.count(size)
        return SizePoint(
            size=size,
            latency=Samples(f"{self.bench.facts.name} at size {size}", tuple(values)),
            flops=counted.flops,
            peak_bytes=counted.peak_bytes,
            resident_bytes=counted.resident_bytes,
            not_counted=counted.not_counted,
        )


def _spread_below(largest: int, steps: Sequence[float]) -> tuple[int, ...]:
    """Return sizes up to the largest one by these steps, and more where these are too few."""
    sizes = {max(1, round(largest * step)) for step in steps}
    for size in range(largest, 0, -1):
        if len(sizes) >= ENOUGH_SIZES:
            break
        sizes.add(size)
    # A size of one is often a special case, with other kernels.
    return tuple(sorted(sizes - {1} if len(sizes) > ENOUGH_SIZES else sizes))


def _check(
    workload: Workload, at: int, sizes: Sequence[int] | None, budget_s: float
) -> tuple[int, ...] | None:
    """Refuse what cannot work; give the sizes in order."""
    if not workload.arguments:
        raise SettingError(
            f"workload {workload.name!r} has no example inputs; give the model something to run on"
        )
    check_number("at", at, least=1)
    check_number("budget_s", budget_s, above=0)
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
