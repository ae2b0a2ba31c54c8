"""The interleaver: sides take turns in random order; estimates and interim analyses of ratios."""

from __future__ import annotations

import gc
import importlib
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from statistics import NormalDist
from time import perf_counter, perf_counter_ns, process_time_ns, sleep, thread_time_ns
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tinytorch.codec import Coded
from tinytorch.core.kernels.backend import matmul
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure.timing import Clock, gc_paused

# ---------------------------------------------------------------- who is next: any number of
# sides in rounds of random order, or two sides in pairs

Named = TypeVar("Named", bound=Hashable)


def interleave(
    sides: Collection[Named],
    *,
    rng: np.random.Generator,
    at_least: int,
    at_most: int | None = None,
    budget_s: float = math.inf,
) -> Iterator[tuple[int, Named]]:
    """Yield the number of a round and a side: each side once a round, in a fresh random order.

    What slows the machine down for a while then meets all sides alike. After `at_least` rounds a
    new one begins only while `budget_s` lasts, up to `at_most` (default: `at_least`). A side that
    is removed from `sides` meanwhile has no further turns. The garbage collector is off.
    """
    end = perf_counter() + budget_s
    with gc_paused():
        for number in range(at_least if at_most is None else at_most):
            if number >= at_least and perf_counter() >= end:
                return
            present = list(sides)
            for index in rng.permutation(len(present)):
                if present[index] in sides:
                    yield number, present[index]


def balanced_pairs(pairs: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield the order of two sides in each pair: A B B A or B A A B, against drifts."""
    first = 0
    for position in range(pairs):
        first = int(rng.integers(2)) if position % 2 == 0 else 1 - first
        yield first, 1 - first


# ---------------------------------------------------------------- timing two sides in rounds:
# build both anew, then let them take turns, neighbours in pairs

LATENCY, THROUGHPUT = "latency", "throughput"
TIMINGS = (LATENCY, THROUGHPUT)
"""What a time per call means where calls run on a device: of a call that is waited for, or of calls
in a row of which only the last is. On a processor both are the same."""

TURN_S = 1e-4
"""The length of a turn: many calls of a fast function, one of a slow one. Short turns, since
most of what disturbs lasts longer: it then meets both neighbours, and their ratio does not move.
With turns of a millisecond the ratio of a round spread three to ten times as much."""
ROUND_S = 0.01
"""Both sides are rebuilt after this much measuring. Where the parts of a model happen to lie in
memory moves its speed by one or two percent; only building again averages over that."""
ROUND_OF_FINISHED_S = 0.006
"""What cannot be built anew needs rounds only to tell noise from difference."""
LONG_CALL_S, VERY_LONG_CALL_S = 0.05, 1.0
"""Calls longer than the first are made no more often than they must be; one that took longer than
the second is not called again to confirm it."""
LARGE_SHARE = 1 / 12
"""Calls that take a larger share of the budget, too, are made no more often than they must be."""
COLD_SHARE, COLD_TRIES, COLD_OFTEN = 0.015, 15, 12
"""Where the caches, which the other side has emptied, make a turn longer by more than this share,
one call that is not timed fills them again before each turn. It must show in 12 tries out
of 15, since it doubles the time that a comparison takes."""
SETTLING_S = 5e-4
"""What was just built is called this long, or for a turn, before it counts."""
CALLS_OF_TURN, CALLS_BEFORE = 4, 2
"""Calls of each side in a turn on a device, one by one, and calls before them that are not timed:
those pay for what the other side has left in caches, allocators and clocks. A turn is no longer
than `LONG_CALL_S`, as far as that is possible."""
SUSTAINED_CALLS, FEWEST_SUSTAINED = 8, 2
"""The fewest calls in a row that are sustained, and the fewest where one takes `LONG_CALL_S`."""
WARM_UP_CALLS, WARM_UP_SHARE, STEADY = 5, 0.1, 0.02
"""A device is warm when the median of some calls moves by no more than the last of these. Half
of an eager model's time is Python, whose allocators and caches take tens of calls; clocks of an
idle device take longer still. Each side may use the share of the budget for it."""
MEDIAN_LOSS = math.pi / 2
"""The variance of a median over that of a mean, for normal noise."""
QUARTILES_TO_SIGMA = 1.349
LOPSIDED = 4.0
"""Both sides make as many calls in a turn, unless one is this many times slower."""
CALIBRATION_TRIES, MOST_GROWTH, AGREEMENT = 30, 10.0, 0.1
MOST_ROUNDS = 1000
"""Rounds for which there is time; more would only make the estimate slow to compute."""
DIGITS = 7
"""Significant digits of seconds; clocks are not better."""
GARBAGE_ALLOWED = 20_000
"""Objects that wait for the collector, which is off while timing, before it runs between rounds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of some calls together, and the part of it that others had the core (0: unknown)."""

    seconds: float
    lost_s: float = 0.0


class Side(Protocol):
    """One of the two things that are compared."""

    @property
    def name(self) -> str:
        """Return the word that reports use."""

    @property
    def can_rebuild(self) -> bool:
        """Return whether :meth:`build` makes new buffers; a finished function has what it has."""

    @property
    def runs_here(self) -> bool:
        """Return whether it runs in this process and on its processor."""

    @property
    def warms_itself(self) -> bool:
        """Return whether it makes a call that is not timed before each turn in any case."""

    @property
    def least_turn_s(self) -> float:
        """Return the shortest turn that hides the cost of timing it."""

    @property
    def device_timing(self) -> str | None:
        """Return what a time per call means where calls run on a device, else None."""

    @property
    def untimed_call_s(self) -> float:
        """Return what every call takes beside its time: emptying the caches, if asked for."""

    @property
    def slow_call_s(self) -> float:
        """Return what a call is known to take that takes much of the budget; 0 for all others."""

    def release(self) -> None:
        """Free what was built, if it can be built anew."""

    def build(self) -> None:
        """Make what is timed, in other places of the memory than before."""

    def time(self, loops: int, *, before: int = 0) -> Reading:
        """Call it `loops` times, after some calls `before` that are not timed."""


@dataclass(frozen=True)
class Round(Coded):
    """Both sides, built once, timed in turns: seconds per call, neighbours at the same position.

    Time lost because the process was preempted is subtracted; `displaced` counts these turns.
    """

    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    displaced: int = 0

    def __post_init__(self) -> None:
        if len(self.baseline) != len(self.candidate):
            raise SettingError(
                f"a round of {len(self.baseline)} turns of the baseline and "
                f"{len(self.candidate)} of the candidate; they take turns"
            )

    @property
    def log_ratios(self) -> list[float]:
        """Return the log-ratios of neighbours: candidate over baseline."""
        ratios: list[float] = np.log(np.array(self.candidate) / np.array(self.baseline)).tolist()
        return ratios

    @cached_property
    def log_ratio(self) -> float:
        """Return the median of the log-ratios of neighbours."""
        return float(np.median(self.log_ratios))

    @cached_property
    def log_mean_ratio(self) -> float:
        """Return the log-ratio of the mean times."""
        ratio = float(np.mean(self.candidate) / np.mean(self.baseline))
        return math.log(ratio) if ratio > 0 else math.nan

    @property
    def turns(self) -> int:
        return 2 * len(self.baseline)


@dataclass(frozen=True)
class Pace(Coded):
    """How many calls a turn has, how many pairs of turns a round, and how long a round takes.

    `loops` and `call_s`, the seconds of one call, are of the baseline and of the candidate;
    `calls_before` are made before each turn and not timed; `fixed_s` is what building and settling
    take in each round, `untimed_s` what emptying caches takes in a pair of turns.
    """

    loops: tuple[int, int]
    pairs: int
    calls_before: int
    round_s: float
    call_s: tuple[float, float]
    fixed_s: float = 0.0
    untimed_s: float = 0.0

    @property
    def pair_s(self) -> float:
        """Return the seconds of a pair of turns."""
        calls = (loops + self.calls_before for loops in self.loops)
        timed_s = sum(count * seconds for count, seconds in zip(calls, self.call_s, strict=True))
        return timed_s + self.untimed_s

    def with_pairs(self, pairs: int) -> Pace:
        """Return the same pace with another number of pairs in a round."""
        return replace(self, pairs=pairs, round_s=self.fixed_s + pairs * self.pair_s)


def find_pace(baseline: Side, candidate: Side, *, budget_s: float) -> Pace:
    """Build both sides once, warm them up, and see how long building and calling takes."""
    sides = (baseline, candidate)
    # Calls that find empty caches are timed one by one; more of them in a turn hide nothing.
    untimed_s = sum(side.untimed_call_s for side in sides)
    is_cold = untimed_s > 0
    turn_s = 0.0 if is_cold else max(TURN_S, baseline.least_turn_s, candidate.least_turn_s)
    started = perf_counter()
    for side in sides:
        side.release()
    for side in sides:
        side.build()
    build_s = perf_counter() - started
    believed_s = min(VERY_LONG_CALL_S, max(LONG_CALL_S, budget_s * LARGE_SHARE))
    timing = next((side.device_timing for side in sides if side.device_timing), None)
    if timing:
        _warm_up(sides, budget_s=WARM_UP_SHARE * budget_s)
    call_s = [
        side.slow_call_s or _seconds_per_call(side, turn_s, believed_s=believed_s) for side in sides
    ]
    seconds = (call_s[0], call_s[1])
    if is_cold or timing is None:
        both = _loops(seconds, turn_s)
        calls_before = 0 if is_cold else _calls_before(sides, both, max(seconds))
    else:
        both, calls_before = _turns_on_device(timing, seconds, turn_s)
    pace = Pace(both, 1, calls_before, round_s=0.0, call_s=seconds, untimed_s=untimed_s)
    if not (baseline.can_rebuild or candidate.can_rebuild):
        wanted_s = max(ROUND_OF_FINISHED_S, budget_s / MOST_ROUNDS)
        return pace.with_pairs(max(_least_pairs(pace), round(wanted_s / pace.pair_s)))
    pace = replace(pace, fixed_s=build_s + max(2 * SETTLING_S, pace.pair_s))
    # Measuring should take at least as long as building, until more is known.
    wanted_s = max(ROUND_S, min(build_s, budget_s / 20))
    return pace.with_pairs(max(_least_pairs(pace), round(wanted_s / pace.pair_s)))


def _loops(call_s: tuple[float, float], turn_s: float) -> tuple[int, int]:
    """Return how many calls of each side make a turn of `turn_s`."""
    loops = [max(1, math.ceil(turn_s / seconds)) for seconds in call_s]
    if max(call_s) < LOPSIDED * min(call_s):
        loops = [max(loops)] * 2
    return loops[0], loops[1]


def _calls_before(sides: tuple[Side, Side], loops: tuple[int, int], slow_s: float) -> int:
    can_be_cold = slow_s < LONG_CALL_S and not all(side.warms_itself for side in sides)
    return 1 if can_be_cold and _coldness(sides, loops) > COLD_SHARE else 0


def _turns_on_device(
    timing: str, call_s: tuple[float, float], turn_s: float
) -> tuple[tuple[int, int], int]:
    """Return the calls of both sides in a turn on a device, and those before it.

    Both make as many single calls. Sustained calls last as long instead: a captured model would
    have to be called very often to last as long as a few calls of an eager one.
    """
    fast, slow = min(call_s), max(call_s)
    if timing == THROUGHPUT:
        loops = _loops(call_s, turn_s)
        least = [SUSTAINED_CALLS if each < LONG_CALL_S else FEWEST_SUSTAINED for each in call_s]
        return (max(loops[0], least[0]), max(loops[1], least[1])), int(slow < LONG_CALL_S)
    if slow >= LONG_CALL_S:
        return (1, 1), 0
    calls = max(CALLS_OF_TURN, math.ceil(turn_s / fast))
    calls = max(1, min(calls, int(LONG_CALL_S / slow)))
    return (calls, calls), min(CALLS_BEFORE, calls)


def _warm_up(sides: tuple[Side, Side], *, budget_s: float) -> None:
    """Call each side on a device until its calls take as long as those before them."""
    for side in sides:
        end, before = perf_counter() + budget_s, math.inf
        while not side.slow_call_s:
            now = float(np.median([side.time(1).seconds for _ in range(WARM_UP_CALLS)]))
            if abs(now - before) <= STEADY * now or perf_counter() >= end:
                break
            before = now


def refine_pace(pace: Pace, rounds: Sequence[Round], *, budget_s: float) -> Pace:
    """Choose the number of pairs that makes the estimate sharpest for the time that it takes.

    Many pairs in a round average over noise, many rounds over the layout of memory, and every round
    costs what building takes. Which one is the larger, the rounds so far tell.
    """
    if not pace.fixed_s:
        return pace
    noise = [_spread(each.log_ratios) ** 2 for each in rounds]  # of one pair
    of_noise = float(
        np.mean([one / len(each.baseline) for one, each in zip(noise, rounds, strict=True)])
    )
    of_rounds = _spread([each.log_ratio for each in rounds]) ** 2
    of_layout = max(of_rounds - MEDIAN_LOSS * of_noise, of_rounds / 10)
    if not of_layout > 0:
        return pace
    best = math.sqrt(pace.fixed_s / pace.pair_s * MEDIAN_LOSS * float(np.mean(noise)) / of_layout)
    least = max(_least_pairs(pace), (budget_s / MOST_ROUNDS - pace.fixed_s) / pace.pair_s)
    most = max(least, (budget_s / 40 - pace.fixed_s) / pace.pair_s)
    return pace.with_pairs(round(min(max(best, least), most)))


def _least_pairs(pace: Pace) -> int:
    """Two pairs, A B B A, cancel what changes after building; long calls cannot afford that."""
    return 2 if pace.pair_s < LONG_CALL_S else 1


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation that a normal distribution with these quartiles would have."""
    low, high = np.percentile(values, (25, 75))
    return float(high - low) / QUARTILES_TO_SIGMA


def take_round(baseline: Side, candidate: Side, *, pace: Pace, rng: np.random.Generator) -> Round:
    """Build both sides anew and let them take turns."""
    sides = (baseline, candidate)
    if gc.get_count()[0] > GARBAGE_ALLOWED:
        gc.collect()
    # Both give their memory back before either takes some: what lies well is then anyone's.
    for side in sides:
        side.release()
    for index in rng.permutation(2):
        if sides[index].can_rebuild:
            sides[index].build()
    # Building one side may have emptied the caches of the other, which stayed where it is.
    is_any_new = any(side.can_rebuild for side in sides)
    for index in rng.permutation(2):
        if is_any_new and not _is_settled(sides[index], pace.call_s[index]):
            call_s = pace.call_s[index] + pace.untimed_s / 2
            _settle(sides[index], pace.loops[index], call_s, rng)
    seconds: tuple[list[float], list[float]] = ([], [])
    displaced = 0
    for order in balanced_pairs(pace.pairs, rng):
        for index in order:
            side, loops = sides[index], pace.loops[index]
            reading = side.time(loops, before=pace.calls_before)
            displaced += reading.lost_s > 0
            own_s = reading.seconds - reading.lost_s
            if not 0 < own_s < math.inf:
                raise MeasurementError(
                    f"the clock showed {reading.seconds} s for {loops} calls of "
                    f"{side.name}: it was set back or is too coarse; nothing can be compared"
                )
            seconds[index].append(own_s / loops)
    return Round(_rounded(seconds[0]), _rounded(seconds[1]), displaced)


def _rounded(seconds: list[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in seconds)


def _seconds_per_call(side: Side, turn_s: float, *, believed_s: float) -> float:
    """Call a side more and more often until a turn is long enough.

    Two readings must agree, but for one that is longer than what is believed.
    """
    loops, previous, call_s = 1, math.inf, math.inf
    side.time(1)
    for _ in range(CALIBRATION_TRIES):
        seconds = side.time(loops).seconds
        shorter = max(min(seconds, previous), 1e-9)
        call_s = shorter / loops
        if seconds < turn_s:
            loops = max(loops + 1, math.ceil(loops * min(MOST_GROWTH, turn_s / shorter)))
            previous = math.inf
        elif abs(seconds - previous) <= AGREEMENT * shorter or seconds > believed_s:
            break
        else:
            previous = seconds
    return call_s


def _coldness(sides: tuple[Side, Side], loops: tuple[int, int]) -> float:
    """Return the share of a turn that its first call takes longer after the other side ran.

    The larger one of both sides; 0 when it does not show in the noise.
    """
    shares = np.empty((2, COLD_TRIES))
    for attempt in range(COLD_TRIES):
        for index, side in enumerate(sides):
            first, again = side.time(1), side.time(1)
            cold_s, warm_s = (each.seconds - each.lost_s for each in (first, again))
            shares[index, attempt] = cold_s / max(warm_s, 1e-9) - 1
    is_shown = (shares > 0).sum(axis=1) >= COLD_OFTEN
    return float((is_shown * np.median(shares, axis=1) / loops).max())


def _is_settled(side: Side, call_s: float) -> bool:
    """Return whether a side makes long calls and has touched, or will touch, its memory."""
    return call_s > LONG_CALL_S and (side.warms_itself or not side.can_rebuild)


def _settle(side: Side, loops: int, call_s: float, rng: np.random.Generator) -> None:
    """Call what was just built for a turn, or a millisecond: it has to touch its memory.

    A few calls more or less, so that what happens periodically does not always happen here.
    """
    least = max(loops, min(1000, math.ceil(SETTLING_S / call_s)))
    side.time(least + (int(rng.integers(5)) if call_s < LONG_CALL_S else 0))


# ---------------------------------------------------------------- how much of a time other
# processes had the core, as far as the operating system tells

DISPLACED_SHARE = 0.02
"""Less than this share of a turn is within the accuracy of the counters."""
OTHERS_SHARE, OTHERS_S = 0.01, 4e-6
"""Processor time of other threads, as a share of the turn and on top of it, that means nothing:
reading the two clocks one after the other takes a few microseconds."""
CALIBRATIONS = 51
SHORT_S = 1e-4


class Stopwatch:
    """Times calls with a clock, and estimates what they lost to preemption.

    A thread that did not wait by its own will (sleep, read, take a lock) and yet was not computing
    all the time was preempted. Where the calls did wait, other threads of this process computed (it
    may have waited for them), or the system does not count that, nothing is known: the time is
    theirs.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._counts_waits = clock.is_disturbed_by_host and _are_waits_counted()
        self._extra_s = self._reading_cost() if self._counts_waits else 0.0

    def time(self, function: Callable[[], object], loops: int) -> Reading:
        """Call a function `loops` times."""
        if not self._counts_waits:
            return Reading(self.clock.time(function, loops))
        waits, of_all, computing = _waits(), process_time_ns(), thread_time_ns()
        seconds = self.clock.time(function, loops)
        computing = thread_time_ns() - computing
        by_others = (process_time_ns() - of_all - computing) * 1e-9
        if by_others > OTHERS_SHARE * seconds + OTHERS_S or _waits() != waits:
            return Reading(seconds)
        lost_s = seconds - computing * 1e-9 + self._extra_s
        return Reading(seconds, lost_s if lost_s > DISPLACED_SHARE * seconds else 0.0)

    def _reading_cost(self) -> float:
        """Return how much more processor time than time an undisturbed reading shows."""
        extra = []
        for _ in range(CALIBRATIONS):
            computing, started = thread_time_ns(), perf_counter_ns()
            passed = perf_counter_ns() - started
            extra.append(thread_time_ns() - computing - passed)
        return sorted(extra)[CALIBRATIONS // 2] * 1e-9


def _waits() -> int | None:
    """Return how often this thread has waited voluntarily; None where it is not counted."""
    if _usage is None:
        return None
    waits: int = _usage(_of_thread).ru_nvcsw
    return waits


@cache
def _are_waits_counted() -> bool:
    """Check whether the system counts a wait, and processor time finely; some only claim to."""
    before = _waits()
    if before is None:
        return False
    sleep(SHORT_S)
    waited = _waits() != before
    computing, started = thread_time_ns(), perf_counter_ns()
    while perf_counter_ns() - started < SHORT_S * 1e9:
        pass
    return waited and thread_time_ns() > computing


def _usage_of_thread() -> tuple[Any, Any]:
    try:
        resource = importlib.import_module("resource")
        return resource.getrusage, resource.RUSAGE_THREAD
    except (ImportError, AttributeError):  # Windows has no module, macOS does not count threads.
        return None, None


_usage, _of_thread = _usage_of_thread()


# ---------------------------------------------------------------- how much slower is it? Estimates
# and intervals for paired log-ratios, one per round
#
# The interval is exact and asks nothing of the distribution but symmetry.

LARGEST_EXACT = 300
"""Up to this many values the distribution of signed ranks is computed; beyond, it is normal."""

Bounds = tuple[float, float]
EVERYWHERE: Bounds = (-math.inf, math.inf)


def hodges_lehmann(values: Sequence[float]) -> float:
    """Return the median of the means of all pairs: almost as sharp as the mean, and robust."""
    return float(np.median(_pair_means(values)))


def signed_rank_interval(values: Sequence[float], alpha: float) -> Bounds:
    """Return the bounds of the centre that Wilcoxon's signed-rank test does not reject at `alpha`.

    With too few values for so small an `alpha` nothing can be excluded.
    """
    left_out = _signed_rank_cut(len(values), alpha)
    if left_out < 0:
        return EVERYWHERE
    means = np.sort(_pair_means(values))
    return float(means[left_out]), float(means[-1 - left_out])


def _pair_means(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the means of all pairs, each value with itself included."""
    numbers = np.asarray(values, dtype=np.float64)
    first, second = np.triu_indices(len(numbers))
    return (numbers[first] + numbers[second]) / 2


@lru_cache(maxsize=512)
def _signed_rank_cut(count: int, alpha: float) -> int:
    """Return how many pair means to leave out at each end, or -1."""
    if count > LARGEST_EXACT:
        mean = count * (count + 1) / 4
        spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return math.floor(mean + NormalDist().inv_cdf(alpha / 2) * spread - 0.5)
    chances = np.ones(1)  # of each sum of positive ranks, rank by rank
    for rank in range(1, count + 1):
        with_rank = np.zeros(len(chances) + rank)
        with_rank[: len(chances)] += chances
        with_rank[rank:] += chances
        chances = with_rank / 2
    return int(np.searchsorted(np.cumsum(chances), alpha / 2, side="right")) - 1


# ---------------------------------------------------------------- interim analyses: when to do
# them, and how much each may err
#
# A test that is repeated on growing data, and stopped when it finds something, errs more often
# than each analysis alone. Later analyses share values with earlier ones, so their errors overlap:
# each may use more than its share of the allowed error, though far less than all. The level of one
# is such that the intervals of all analyses hold together with 1 - allowed (repeated confidence
# intervals, after Pocock, 1977, and Jennison and Turnbull, 1989).

FIRST = 9
"""The first interim analysis. With nine values the widest interval errs with 0.4%."""
FEWEST = 6
"""With six values the widest interval, from the smallest to the largest, still covers 96.9%."""
GROWTH, MOST = 1.4, 12
RESERVE = 2
"""Analyses are planned up to this many times the expected values: estimates of time err."""
GRID = 161


class InterimAnalyses:
    """The interim analyses of about `expected` values; all intervals hold with 1 - `allowed`.

    `level` is the error of each but the last, which is made when the time budget is spent.
    """

    def __init__(self, expected: int, allowed: float) -> None:
        self.counts = _planned_counts(max(FIRST, expected))
        self.level = common_level(self.counts, allowed)
        self._allowed = allowed

    def is_due(self, count: int) -> bool:
        return count in self.counts

    def is_last(self, count: int) -> bool:
        return count >= self.counts[-1]

    def last_level(self, count: int) -> float:
        """Return the error of the last analysis: all that those before it have left.

        Analyses that were planned for later have not spent their part when the time budget ends.
        """
        before = tuple(each for each in self.counts if each < count)
        return _last_level(before, self.level, count, self._allowed)


@lru_cache(maxsize=64)
def common_level(counts: tuple[int, ...], allowed: float) -> float:
    """Return the error of each analysis at which all of them together err with `allowed`."""
    return _level_for(allowed, lambda level: _chance_to_leave(counts, (level,) * len(counts)))


@lru_cache(maxsize=64)
def _last_level(before: tuple[int, ...], level: float, count: int, allowed: float) -> float:
    levels = (level,) * len(before)
    return _level_for(allowed, lambda last: _chance_to_leave((*before, count), (*levels, last)))


def _level_for(allowed: float, chance: Callable[[float], float]) -> float:
    """Return the largest level, up to `allowed`, at which the chance to err is not above it."""
    if chance(allowed) <= 1.01 * allowed:  # one analysis; the grid is not finer
        return allowed
    low, high = allowed / 100, allowed
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if chance(middle) <= allowed else (low, middle)
    return low


def _planned_counts(expected: int) -> tuple[int, ...]:
    most = RESERVE * expected
    growth = max(GROWTH, (most / FIRST) ** (1 / (MOST - 1)))
    counts = [FIRST]
    while counts[-1] < most:
        counts.append(math.ceil(counts[-1] * growth))
    return tuple(counts)


def _chance_to_leave(counts: tuple[int, ...], levels: tuple[float, ...]) -> float:
    """Return the probability that a random walk leaves its tunnel at one of the analyses.

    The sum of independent values is a random walk; the tunnel is what an analysis at each of
    the levels leaves open. Followed is the density of walks that are still inside.
    """
    widths = [NormalDist().inv_cdf(1 - level / 2) for level in levels]
    inside = np.linspace(-1, 1, GRID)
    step = inside[1] - inside[0]
    # On positions in units of the tunnel's half width at each analysis.
    density = np.exp(-((widths[0] * inside) ** 2) / 2) * widths[0] / math.sqrt(2 * math.pi)
    for look in range(1, len(counts)):
        before, now = (widths[each] * math.sqrt(counts[each]) for each in (look - 1, look))
        spread = math.sqrt(counts[look] - counts[look - 1])
        jumps = (now * inside[:, None] - before * inside[None, :]) / spread
        chances = np.exp(-(jumps**2) / 2) * now / spread / math.sqrt(2 * math.pi)
        density = matmul(chances, density * _trapezoid) * step
    return 1 - float(matmul(density, _trapezoid)) * step


_trapezoid = np.ones(GRID)
_trapezoid[[0, -1]] = 0.5
