"""Which batch size, which sequence length? Answered by measuring growing ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from time import perf_counter
from typing import ClassVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.comparison.sequential import estimate_ratio
from tinytorch.errors import MeasurementError, ModelError, SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.measure.environment import observe
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload, check_workload
from tinytorch.profiling.size_runs import (
    LATE,
    MEMORY,
    REFUSED,
    Attempt,
    CannotSendError,
    SizeBench,
    SizeProcess,
    SizeTrial,
    round_s,
    time_in_turns,
)
from tinytorch.showing import Shown

# ---------------------------------------------------------------- what was measured at growing
# sizes, and which size follows from it

CONFIDENCE = 0.95
"""All comparisons with the best size hold together with this."""
UNFINISHED = ("budget", "not tried", "late")
"""What ended a search although larger sizes might run."""


@dataclass(frozen=True)
class SizeMeasurement(Coded):
    """What was measured at one size. `items` are the examples or tokens of one call.

    `latency` has seconds per call, round by round; in each round every size had a turn.
    `peak_bytes` is the most that was held at once, parameters and inputs included: by live buffers
    on a processor, by the allocator on a GPU. None where it is unknown.
    """

    size: int
    items: int
    latency: Samples
    peak_bytes: int | None = None

    also_written = (
        *("latency.median", "throughput", "throughput_interval.low", "throughput_interval.high"),
    )
    renames: ClassVar = {
        "latency.median": "latency_s",
        "throughput_interval.low": "throughput_low",
        "throughput_interval.high": "throughput_high",
    }

    @property
    def throughput(self) -> float:
        """Return examples or tokens per second, at the median latency."""
        return self.items / self.latency.median

    @property
    def throughput_interval(self) -> Estimate:
        found = self.latency.median_interval(CONFIDENCE)
        return found.inverse.scaled(self.items)


@dataclass(frozen=True)
class Limit:
    """What ended a search: a word for programs (`memory`, `refused`, `budget`, ...) and a reason.

    The other words are `latency`, `saturated`, `sizes` (no others were asked for), `ended` (its
    process did), `late` (it gave no answer) and `not tried` (it might not have fitted).
    """

    kind: str
    reason: str


@dataclass(frozen=True)
class Ceiling(Coded):
    """The largest size that ran within the limits of memory, and the next one that did not.

    0 if there is no such size, and None if no larger one was tried. `limit` says why that one
    failed, or why there was no larger try.
    """

    largest: int
    failed: int | None
    limit: Limit

    also_written = ("is_exact",)

    @property
    def is_exact(self) -> bool:
        """Whether the very next size fails."""
        return self.failed == self.largest + 1

    @property
    def words(self) -> str:
        if not self.largest and self.failed is None:
            return f"unknown; {self.limit.reason}"
        if self.failed is None:
            return f">= {self.largest:,}; larger ones were not tried: {self.limit.reason}"
        start = f"{self.largest:,}" if self.is_exact else f">= {self.largest:,}"
        start = start if self.largest else "none of those tried"
        return f"{start}; {self.failed:,} does not: {self.limit.reason}"


@dataclass(frozen=True)
class Recommendation:
    """The size to use, None if no measured one is shown to keep the limits; and why."""

    size: int | None
    reason: str


@dataclass(frozen=True)
class SizeAdvice(Coded, Shown):
    """Throughput against latency over a batch size or a sequence length, and what follows.

    `usual` is the size of the example inputs; `unit` what one call works on, `examples` or
    `tokens`. `tolerance` is how far below the best throughput counts as equal.
    `limited_by` says why no larger sizes are in the curve. `is_isolated` tells whether a process of
    its own was measured, which may run out of memory without harm.
    """

    name: str
    framework: str
    device: str
    axis: str
    unit: str
    usual: int
    points: tuple[SizeMeasurement, ...]
    ceiling: Ceiling
    limited_by: Limit
    tolerance: float = 0.1
    latency_limit_s: float | None = None
    memory_limit_bytes: int | None = None
    is_isolated: bool = True
    notes: tuple[str, ...] = ()

    also_written = ("best", "knee", "recommended.size", "recommended.reason", "meets_limits")
    renames: ClassVar = {"recommended.size": "recommended"}

    def __post_init__(self) -> None:
        if not self.points:
            raise SettingError(f"advice about {self.name!r} without a measured size")

    def point(self, size: int) -> SizeMeasurement:
        """Return what was measured at a size."""
        return next(each for each in self.points if each.size == size)

    @cached_property
    def best(self) -> int:
        """The size with the highest throughput of those measured, round by round."""
        return self._best(self.points).size

    @cached_property
    def knee(self) -> int:
        """The smallest size that is shown to come within `tolerance` of the best throughput.

        Beyond it calls take longer for almost nothing.
        """
        return self._knee(self.points)

    def slowdown(self, size: int, other: int | None = None) -> Estimate:
        """Return the time per item at a size over that at another, the best; below 1 is faster."""
        best = self.point(self.best if other is None else other)
        return self._slowdown(self.point(size), best)

    @property
    def meets_limits(self) -> bool | None:
        """Whether a size keeps the limits: False if all are shown not to, None if unknown."""
        found = {self._keeps_limits(point) for point in self.points}
        return True if True in found else None if None in found else False

    @cached_property
    def recommended(self) -> Recommendation:
        """The knee, or where it breaks a limit the knee of the sizes that keep all limits."""
        fitting = [point for point in self.points if self._keeps_limits(point)]
        if not fitting:
            return Recommendation(None, self._why_none())
        size = self._knee(fitting)
        return Recommendation(size, self._why(size, fitting))

    # ------------------------------------------------------------ judging

    def _knee(self, points: Sequence[SizeMeasurement]) -> int:
        best = self._best(points)
        most = 1 / (1 - self.tolerance)
        near = (p for p in points if p is best or self._slowdown(p, best).high <= most)
        return min(point.size for point in near)

    def _best(self, points: Sequence[SizeMeasurement]) -> SizeMeasurement:
        """Return the size that none beats in the same rounds; medians mix quiet and busy ones."""
        best = max(points, key=lambda point: point.throughput)
        for _ in points:
            rival = min(points, key=lambda point: self._slowdown(point, best).value)
            if rival is best or self._slowdown(rival, best).value >= 1:
                break
            best = rival
        return best

    def _slowdown(self, point: SizeMeasurement, best: SizeMeasurement) -> Estimate:
        rounds = min(point.latency.count, best.latency.count)
        seconds = np.array(point.latency.values[:rounds]) / point.items
        others = np.array(best.latency.values[:rounds]) / best.items
        alpha = (1 - CONFIDENCE) / max(1, len(self.points) - 1)
        return estimate_ratio(np.log(seconds / others).tolist(), alpha)

    @property
    def _limits(self) -> list[str]:
        found = {"latency limit": self.latency_limit_s, "memory limit": self.memory_limit_bytes}
        return [name for name, limit in found.items() if limit is not None]

    def _keeps_limits(self, point: SizeMeasurement) -> bool | None:
        verdicts: set[bool | None] = {True}
        if self.latency_limit_s is not None:
            seconds = point.latency.median_interval(CONFIDENCE)
            verdicts.add(seconds.is_below(self.latency_limit_s))
        if self.memory_limit_bytes is not None:
            peak = point.peak_bytes
            verdicts.add(None if peak is None else peak <= self.memory_limit_bytes)
        return False if False in verdicts else None if None in verdicts else True

    def _why(self, size: int, fitting: Sequence[SizeMeasurement]) -> str:
        """Return why a size is recommended among those within the limits, and what is unknown."""
        limits = _listed(self._limits)
        among = (
            f" among the sizes that keep the {limits}" if len(fitting) < len(self.points) else ""
        )
        if len(fitting) == 1:
            reason = (
                f"the only measured size that keeps the {limits}"
                if among
                else "the only one measured"
            )
        elif size != self._best(fitting).size:
            within = f"{self.tolerance:.0%} of the best throughput{among}"
            reason = f"the smallest size conclusively within {within}"
        else:
            reason = f"the highest throughput{among}"
            if size > fitting[0].size:
                reason += f"; no smaller size is conclusively within {self.tolerance:.0%} of it"
        if limits and not among:
            reason += f"; it keeps the {limits}"
        if self.limited_by.kind in UNFINISHED and self.best == self.points[-1].size and not among:
            reason += "; larger ones were not measured"
        return reason

    def _why_none(self) -> str:
        smallest = self.points[0]
        start = f"no measured size conclusively keeps the {_listed(self._limits)}: even"
        facts = []
        if self.latency_limit_s is not None:
            took, limit = smallest.latency.median * 1e3, self.latency_limit_s * 1e3
            facts.append(f"takes {took:.3g} ms, with a limit of {limit:g} ms")
        if self.memory_limit_bytes is not None:
            peak = smallest.peak_bytes
            held = "holds an unknown number of bytes" if peak is None else f"holds {peak:,} bytes"
            facts.append(f"{held}, with a limit of {self.memory_limit_bytes:,}")
        return f"{start} size {smallest.size} {' and '.join(facts)}"


def _listed(names: Sequence[str]) -> str:
    return " and the ".join(names)


# ---------------------------------------------------------------- searching through sizes: which
# are worth timing, how fast they are, which is the largest

FEWEST_ROUNDS, MOST_ROUNDS = 10, 40
"""With ten rounds 26 sizes can be told from the best one with an error of 5% in all."""
FIRST_SEQUENCE = 16
CLIMB_SHARE, TIMING_SHARE = 0.4, 0.8
"""The parts of the budget after which climbing and timing end; the rest is for the ceiling."""
CALLS_PER_ATTEMPT = 4
BARELY_MORE, IDLE_STEPS = 1.05, 2
"""The climb ends after this many doublings in a row that gain less than this factor."""
FAR_TOO_SLOW = 4.0
"""Sizes beyond this many times the latency limit are not tried."""
SHARE_OF_FREE = {"cpu": 0.8, "cuda": 0.95}
SHARE_HERE = 0.5
"""The part of the free memory that a separate process may use, and this process."""
FINE_ENOUGH = 1 / 100
"""Ceilings are searched until the largest that ran and the smallest that failed are so near."""
JUST_BELOW, JUST_ABOVE = 0.95, 1.1
"""What is tried first, as shares of what the peaks tell about the ceiling."""
LONGEST_STEP = 8
"""Sizes grow by this factor at most: what is known tells little about the time of larger ones."""
LARGEST = 1 << 24
FIRST_WAIT_S, SHORTEST_WAIT_S = 120.0, 20.0
"""Seconds that an answer may take, whatever the budget: the first, which may have to
compile, and the others."""
NOT_TRIED = "not tried"
MEBIBYTE = 1 << 20
NOISY = 1.5
"""Intervals whose ends differ by this factor leave much open."""


@dataclass(frozen=True)
class SearchSettings:
    """What was asked for."""

    sizes: Sequence[int] | None
    latency_limit_s: float | None
    memory_limit_bytes: int | None
    budget_s: float
    tolerance: float

    def __post_init__(self) -> None:
        if self.sizes is not None:
            try:
                ordered = tuple(sorted({index(size) for size in self.sizes}))
            except TypeError:
                ordered = ()
            if not ordered or ordered[0] < 1:
                raise SettingError(f"sizes {list(self.sizes)}; give whole numbers from 1 on")
            object.__setattr__(self, "sizes", ordered)
        for name in ("latency_limit_s", "memory_limit_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SettingError(f"{name}={value}; a limit is a positive number")
        if not 0 < self.budget_s < math.inf:
            raise SettingError(f"budget_s={self.budget_s}; measuring needs some seconds")
        if not 0 < self.tolerance < 1:
            raise SettingError(f"tolerance={self.tolerance}; it must be a share such as 0.1")


@dataclass
class SizeSearch:
    """Sizes that were tried, and what they tell about the next one."""

    bench: SizeBench
    kind: str
    settings: SearchSettings
    progress: Progress | None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    allowed_bytes: int = 0
    is_fenced: bool = False
    started: float = field(default_factory=perf_counter)

    @property
    def elapsed_s(self) -> float:
        """Return the time used, without restarting processes (up to the budget)."""
        elapsed_s = perf_counter() - self.started
        return elapsed_s - min(self.bench.restarting_s, self.settings.budget_s)

    # ------------------------------------------------------------ before

    def check_own_size(self) -> None:
        """Run the model on its own inputs; raise where that fails."""
        found = self.attempt(self.bench.facts.usual, wait_s=FIRST_WAIT_S)
        if found.kind == LATE:
            raise ModelError(
                f"{self.bench.facts.name}: {found.failure}; a larger budget waits longer"
            )
        if not found.works:
            raise ModelError(f"{self.bench.facts.name} fails on its own inputs: {found.failure}")
        self.started = perf_counter()  # what is done once, such as compiling, is not counted

    def set_memory_limit(self) -> None:
        """Set how much memory all sizes may take on top of the model, and enforce it."""
        on_gpu = self.bench.facts.device.startswith("cuda")
        share = SHARE_OF_FREE["cuda" if on_gpu else "cpu"] if self.bench.is_isolated else SHARE_HERE
        free = self.bench.free_bytes()
        self.allowed_bytes = fenced_at = int(share * free)
        limit = self.settings.memory_limit_bytes
        if limit is not None:
            held = self.bench.facts.resident_bytes
            if limit <= held:
                raise SettingError(
                    f"memory_limit_bytes={limit:,}; the parameters alone hold {held:,}"
                )
            self.allowed_bytes = min(self.allowed_bytes, limit - held)
        if self.bench.is_isolated:
            # Not at the limit that was asked for, which is about the memory in use: the fence
            # counts what threads and compilers only reserve, too.
            self.is_fenced = self.bench.fence(fenced_at)

    # ------------------------------------------------------------ the curve

    def climb(self) -> Limit:
        """Try growing sizes, and say what ended that."""
        for size in self.candidates():
            if size in self.attempts:
                continue
            why_not = self.why_not_try(size, share=CLIMB_SHARE, calls=CALLS_PER_ATTEMPT)
            if why_not and (self.settings.sizes is None or why_not.kind == NOT_TRIED):
                return why_not
            found = self.attempt(size)
            if not found.works:
                if found.kind == REFUSED and size < self.bench.facts.usual:
                    self.notes.append(f"size {size} is left out: {found.failure}")
                    continue
                limit = self.as_limit(found)
                return Limit(limit.kind, f"size {size:,} fails: {limit.reason}")
            if found.peak_bytes is not None and not self.fits(found):
                return Limit(MEMORY, f"size {size:,} {self.as_limit(found).reason}")
            if ended := self.why_enough(found):
                return ended
        asked = self.settings.sizes is not None
        return Limit("sizes", "no larger size was asked for" if asked else "no size is larger")

    def candidates(self) -> Iterator[int]:
        usual = self.bench.facts.usual
        if self.settings.sizes is not None:
            yield from self.settings.sizes
            return
        size = 1 if self.kind == "batch" else min(FIRST_SEQUENCE, usual)
        while size <= LARGEST:
            yield size
            size = usual if size < usual < 2 * size else 2 ** (size.bit_length())

    def why_not_try(self, size: int, *, share: float, calls: int) -> Limit | None:
        """Return why a size is not even tried: memory that nothing protects, or time."""
        known = [each for each in self.attempts.values() if each.works and each.size < size]
        if not known:
            return None
        last = max(known, key=lambda each: each.size)
        return self.why_unsafe(size, last) or self.why_too_long(size, last, share, calls)

    def why_unsafe(self, size: int, last: Attempt) -> Limit | None:
        if self.is_fenced:
            return None
        if last.peak_bytes is None:
            return Limit(NOT_TRIED, "the memory of a larger size is unknown")
        # Attention grows with the square of the sequence; nothing grows faster with the batch.
        grown = last.peak_bytes * (size / last.size) ** (1 if self.kind == "batch" else 2)
        if grown - self.bench.facts.resident_bytes <= self.allowed_bytes:
            return None
        room = f"{self.allowed_bytes:,} bytes that are allowed"
        return Limit(NOT_TRIED, f"size {size:,} may exceed the {room}")

    def why_too_long(self, size: int, last: Attempt, share: float, calls: int) -> Limit | None:
        grown = size / last.size
        seconds, first_s = grown * last.seconds, grown * max(last.seconds, last.first_s)
        left_s = share * self.settings.budget_s - self.elapsed_s
        if first_s + (calls - 1) * seconds > left_s:
            return Limit("budget", f"size {size:,} exceeds the remaining time budget")
        timing_s = (TIMING_SHARE - CLIMB_SHARE) * self.settings.budget_s
        known = (each.seconds for each in self.attempts.values() if each.works)
        if calls > 1 and FEWEST_ROUNDS * round_s((*known, seconds)) > timing_s:
            return Limit("budget", f"timing size {size:,} exceeds the time budget")
        return None

    def why_enough(self, found: Attempt) -> Limit | None:
        """Return why larger sizes are not needed, or None."""
        limit_s = self.settings.latency_limit_s
        if self.settings.sizes is not None:
            return None
        if limit_s is not None and found.seconds > FAR_TOO_SLOW * limit_s:
            return Limit("latency", f"size {found.size:,} takes far longer than the latency limit")
        works = sorted((a for a in self.attempts.values() if a.works), key=lambda a: a.size)
        rates = [each.size / each.seconds for each in works]
        if found is not works[-1] or len(rates) <= IDLE_STEPS:
            return None
        before = max(rates[:-IDLE_STEPS])
        is_growing = rates[-1] >= BARELY_MORE * rates[-2]
        if max(rates[-IDLE_STEPS:]) < BARELY_MORE * before and not is_growing:
            reason = (
                f"the throughput no longer grows: the last {IDLE_STEPS} sizes gave less than "
                f"{BARELY_MORE - 1:.0%} more"
            )
            return Limit("saturated", reason)
        return None

    def measure(self, limited_by: Limit) -> tuple[SizeMeasurement, ...]:
        """Time all sizes that work in turns; `limited_by` says why there are no others."""
        works = {size: each for size, each in sorted(self.attempts.items()) if each.works}
        if self.settings.sizes is not None:
            asked = set(self.settings.sizes)
            works = {size: each for size, each in works.items() if size in asked}
        name, axis = self.bench.facts.name, self.bench.facts.axis
        refused = [each for each in self.attempts.values() if each.kind == REFUSED]
        if refused and len(works) < (2 if self.settings.sizes is None else 1):
            raise SettingError(
                f"{name} cannot be run with other sizes on axis {axis}: size {refused[0].size} "
                f"failed ({refused[0].failure}); give axis=, the number of the axis to change, or "
                "sizes= that the model takes"
            )
        if not works:
            raise SettingError(f"{name}: none of the sizes can be measured; {limited_by.reason}")
        self.notes += [each.note for each in works.values() if each.note]
        values, failures = time_in_turns(
            self.bench,
            {size: each.seconds for size, each in works.items()},
            at_least=FEWEST_ROUNDS,
            at_most=MOST_ROUNDS,
            budget_s=TIMING_SHARE * self.settings.budget_s - self.elapsed_s,
            tell=self.tell,
        )
        self.notes += [f"size {size} is left out: {error}" for size, error in failures.items()]
        if not values:
            raise MeasurementError(f"{name}: every size fails when timed; {self.notes[-1]}")
        per_size = self.bench.facts.items_per_size
        points = tuple(
            SizeMeasurement(
                size,
                size * per_size,
                Samples(f"{name} at size {size}", tuple(values[size])),
                works[size].peak_bytes,
            )
            for size in values
        )
        self.notes += _noise_note(points)
        return points

    # ------------------------------------------------------------ the ceiling

    def find_ceiling(self, limited_by: Limit) -> Ceiling:
        """Go on to the largest size that runs, as far as time and memory allow.

        Where nothing fails in time, the peak of each size has to tell whether the next one fits.
        """
        fitting = [size for size, each in self.attempts.items() if self.fits(each)]
        works = max(fitting, default=0)
        failures = [each for size, each in self.attempts.items() if size > works]
        failed = min(failures, key=lambda each: each.size, default=None)
        if not works and failed is not None and failed.works and failed.peak_bytes is None:
            return Ceiling(0, None, Limit(NOT_TRIED, "the memory that a size holds is unknown"))
        if self.settings.sizes is not None or not works:
            limit = self.as_limit(failed) if failed else limited_by
            return Ceiling(works, failed.size if failed else None, limit)
        while failed is None:
            size, why_not = self.next_larger(works)
            if why_not:
                return Ceiling(works, None, why_not)
            found = self.attempt(size, briefly=self.may_be_brief)
            works, failed = (size, None) if self.fits(found) else (works, found)
        while failed.kind != LATE and failed.size - works > max(1, FINE_ENOUGH * works):
            size = (works + failed.size) // 2
            if self.why_not_try(size, share=1.0, calls=1):
                break
            found = self.attempt(size, briefly=self.may_be_brief)
            works, failed = (size, failed) if self.fits(found) else (works, found)
        return Ceiling(works, failed.size, self.as_limit(failed))

    def next_larger(self, works: int) -> tuple[int, Limit | None]:
        """Return a size just below what memory seems to allow, then one above, else a double one.

        With it comes why it is not even tried.
        """
        if 2 * works > LARGEST:
            return works, Limit("sizes", f"{works:,} is enough")
        limit_s = self.settings.latency_limit_s
        if limit_s is not None and self.attempts[works].seconds > limit_s:
            return works, Limit("latency", "it takes longer than the latency limit already")
        guess = self.guessed_ceiling()
        sizes = [int(factor * guess) for factor in (JUST_BELOW, JUST_ABOVE)] if guess else []
        for size in (min(each, LONGEST_STEP * works) for each in sizes):
            if works < size <= LARGEST and not self.why_not_try(size, share=1.0, calls=1):
                return size, None
        return 2 * works, self.why_not_try(2 * works, share=1.0, calls=1)

    def guessed_ceiling(self) -> float | None:
        """Follow the last two peaks up to what is allowed; None where they tell nothing."""
        known = sorted(
            (each.size, each.peak_bytes)
            for each in self.attempts.values()
            if each.works and each.peak_bytes is not None
        )
        if len(known) < 2 or known[-1][1] <= known[-2][1]:
            return None
        (smaller, less), (larger, more) = known[-2:]
        room = self.bench.facts.resident_bytes + self.allowed_bytes - more
        return larger + room * (larger - smaller) / (more - less)

    # ------------------------------------------------------------ one size

    def attempt(
        self, size: int, *, briefly: bool = False, wait_s: float = SHORTEST_WAIT_S
    ) -> Attempt:
        self.tell(f"trying size {size:,}")
        if isinstance(self.bench, SizeProcess):
            left_s = self.settings.budget_s - self.elapsed_s
            self.bench.timeout_s = max(wait_s, left_s)
        found = self.bench.attempt(size, briefly=briefly)
        self.attempts[size] = found
        return found

    @property
    def may_be_brief(self) -> bool:
        """Whether it is enough that a call returns: its peak is not needed."""
        return self.is_fenced and self.settings.memory_limit_bytes is None

    def fits(self, found: Attempt) -> bool:
        """Return whether a size ran, and is known to have held no more than was asked for."""
        limit, peak = self.settings.memory_limit_bytes, found.peak_bytes
        return found.works and (limit is None or (peak is not None and peak <= limit))

    def as_limit(self, found: Attempt) -> Limit:
        """Return why a size failed, in terms of what it was allowed."""
        if found.works:
            return Limit(MEMORY, f"holds {found.peak_bytes:,} bytes, more than the memory limit")
        if found.kind == MEMORY:
            room = f"{self.allowed_bytes / MEBIBYTE:,.0f} MiB on top of the model"
            return Limit(MEMORY, f"out of memory (it may take {room}): {found.failure}")
        return Limit(found.kind, found.failure)

    def tell(self, text: str) -> None:
        if self.progress is None:
            return
        progress, words = self.progress, f"{self.bench.facts.name}: {text}"
        progress.describe(words)
        if isinstance(self.bench, SizeProcess):
            self.bench.while_waiting = lambda: progress.describe(words)


def _noise_note(points: Sequence[SizeMeasurement]) -> list[str]:
    """Return a note if the latencies at many sizes are noisy."""
    found = [point.latency.median_interval() for point in points]
    spreads = sorted(each.high / each.low for each in found if each.low > 0)
    if not spreads or (middle := spreads[len(spreads) // 2]) < NOISY:
        return []
    return [
        f"noisy: median latencies are known within a factor of {middle:.1f}; measure again on an "
        "idle machine"
    ]


# ---------------------------------------------------------------- which batch size, which sequence
# length? Answered by measuring growing ones

TWICE = (
    "the device holds the model twice, here and in the process that was measured; a target such as "
    "file.py:factory leaves more room"
)


def advise_batch_size(
    workload: Workload | str,
    *,
    sizes: Sequence[int] | None = None,
    latency_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    budget_s: float = 30.0,
    tolerance: float = 0.1,
    axis: int | None = None,
    progress: Progress | None = None,
) -> SizeAdvice:
    """Measure growing batches, and say which one to use and which one still fits into memory.

    The workload, or the one that a target such as ``"gpt"`` names, is measured in a process of its
    own, whose inputs are made of the example inputs: 1, 2, 4, ... of them, or `sizes`. It may run
    out of memory without harm: on a processor it gets at most 80% of what is free, on a GPU 95%. A
    workload that no other process can have is measured here, up to half of the free memory.
    `memory_limit_bytes` is compared with the peak of each size: everything that was held while the
    model ran.

    A size within `tolerance` of the best throughput counts as equal. `budget_s` is for
    measuring; loading the model comes on top. `axis` is where examples are counted, if not first.
    """
    settings = SearchSettings(sizes, latency_limit_s, memory_limit_bytes, budget_s, tolerance)
    return _advise(workload, "batch", axis, settings, progress)


def advise_sequence_length(
    workload: Workload | str,
    *,
    sizes: Sequence[int] | None = None,
    latency_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    budget_s: float = 30.0,
    tolerance: float = 0.1,
    axis: int | None = None,
    progress: Progress | None = None,
) -> SizeAdvice:
    """Measure growing sequences at the batch of the example inputs: tokens per second, memory.

    Everything else is as for :func:`advise_batch_size`. `axis` is where tokens are counted, if not
    second. The ceiling may be that of the model, which has a fixed number of positions.
    """
    settings = SearchSettings(sizes, latency_limit_s, memory_limit_bytes, budget_s, tolerance)
    return _advise(workload, "sequence", axis, settings, progress)


def _advise(
    source: Workload | str,
    kind: str,
    axis: int | None,
    settings: SearchSettings,
    progress: Progress | None,
) -> SizeAdvice:
    if not isinstance(source, str):
        check_workload(source, "advice about sizes")
    with ExitStack() as stack:
        bench, reason = _bench(source, kind, axis, progress)
        stack.callback(bench.close)
        stack.enter_context(bench.environment())
        search = SizeSearch(bench, kind, settings, progress)
        before = observe()
        search.check_own_size()
        search.set_memory_limit()
        limited_by = search.climb()
        points = search.measure(limited_by)
        ceiling = search.find_ceiling(limited_by)
        doubts = observe().doubts_since(before, is_computing=not bench.is_isolated)
    facts = bench.facts
    return SizeAdvice(
        name=facts.name,
        framework=facts.framework,
        device=facts.device,
        axis=kind,
        unit="examples" if kind == "batch" else "tokens",
        usual=facts.usual,
        points=points,
        ceiling=ceiling,
        limited_by=limited_by,
        tolerance=settings.tolerance,
        latency_limit_s=settings.latency_limit_s,
        memory_limit_bytes=settings.memory_limit_bytes,
        is_isolated=bench.is_isolated,
        notes=tuple(dict.fromkeys([*reason, *facts.notes, *search.notes, *doubts])),
    )


def _bench(
    source: Workload | str, kind: str, axis: int | None, progress: Progress | None
) -> tuple[SizeBench, list[str]]:
    """Return the place where sizes are tried, and what to know about it."""
    name = source if isinstance(source, str) else source.name
    loading = (lambda: progress.describe(f"{name}: loading")) if progress else lambda: None
    try:
        process = SizeProcess(source, kind, axis, while_waiting=loading)
        is_twice = not isinstance(source, str) and process.facts.device.startswith("cuda")
        return process, [TWICE] if is_twice else []
    except CannotSendError as error:
        workload = load_workload(source) if isinstance(source, str) else source
        note = f"measured in this process, up to {SHARE_HERE:.0%} of the free memory: {error}"
        return SizeTrial(workload, kind, axis), [note]
