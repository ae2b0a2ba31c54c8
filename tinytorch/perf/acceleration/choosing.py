"""Choosing among implementations of an operation by measuring them in turns."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.comparison.displacement import Stopwatch
from tinytorch.comparison.sequential import TimeRatio, estimate_ratio
from tinytorch.core.backends import Backend, Kernel
from tinytorch.errors import BackendError, SettingError
from tinytorch.measure.clocks import WALL
from tinytorch.perf.acceleration.checking import IN_PLACE, Check, copied
from tinytorch.perf.acceleration.kernel_choice import (
    DEFAULT_WINS,
    DEFAULT_WRONG,
    FASTER,
    NO_DIFFERENCE,
    ONLY_ONE,
    Choice,
    Rival,
)

__all__ = ["Race", "choose", "implementations"]

TURN_S = 1e-4
"""A turn takes about so long; most of what disturbs lasts longer, and so meets all alike."""
WARMED_BELOW_S = 1e-3
"""Calls shorter than this are made once before each turn: the others have filled the caches, and
their threads may still be waiting for work."""
MOST_LOOPS = 1000
FEWEST_ROUNDS, MOST_ROUNDS = 9, 100
"""With nine rounds two implementations can be told apart with an error of 0.4%."""
LOOKS, LONGER = 2, 5.0
"""Where the first look does not decide, so many times as much time is spent before the second."""
HOPELESS, FIRST_READINGS, FIRST_READINGS_S = 10.0, 5, 0.1
"""Who takes so many times as long as the fastest, at best of the first readings, is not timed
further. There are fewer readings of what takes longer than a tenth of a second."""

Times = dict[str, list[float]]
Call = Callable[[], object]


@dataclass(frozen=True)
class Race:
    """How implementations are compared.

    A difference counts when its interval lies beyond `floor`. About `budget_s` are spent on timing,
    five times as much where that does not decide, and more where nine calls of each take longer.
    All intervals of a choice hold together with `confidence`.
    """

    floor: float = 0.02
    budget_s: float = 0.01
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.floor < 1:
            raise SettingError(f"floor={self.floor}; it must be a share such as 0.02")
        if not 0 < self.budget_s < math.inf:
            raise SettingError(f"budget_s={self.budget_s}; measuring needs some seconds")
        if not 0.5 <= self.confidence < 1:
            raise SettingError(f"confidence={self.confidence}; it must be a share such as 0.95")


def implementations(kind: str, backends: Sequence[Backend]) -> dict[str, Kernel]:
    """Give the different functions for an operation, by the first backend that has each."""
    found: dict[str, Kernel] = {}
    for backend in backends:
        kernel = backend.kernels.get(kind)
        if kernel is not None and not any(kernel is known for known in found.values()):
            found[backend.name] = kernel
    return found


def choose(
    op: str,
    size_class: str,
    kernels: Mapping[str, Kernel],
    arguments: Sequence[Any],
    settings: Mapping[str, Any],
    *,
    reference: Kernel,
    default: str,
    race: Race,
) -> Choice:
    """Check every implementation against the reference, then time those that are right."""
    check = Check(op, reference, arguments, settings)
    problems = {name: check.why_wrong(kernel) for name, kernel in kernels.items()}
    right = {name: kernel for name, kernel in kernels.items() if problems[name] is None}
    excluded = [Rival(name, None, why) for name, why in problems.items() if why is not None]
    if not right:
        raise BackendError(f"no implementation of {op} can be used: {excluded[0].note}")
    if len(right) == 1:
        return Choice(op, size_class, next(iter(right)), default, tuple(excluded), 0, ONLY_ONE)
    alpha = (1 - race.confidence) / LOOKS / (len(right) - 1)

    def is_known(times: Times) -> bool:
        return _is_decided(times, _start(times, default), alpha, race.floor)

    times, hopeless = _race(op, right, arguments, settings, race, is_known)
    chosen = _winner(times, _start(times, default), alpha, race.floor)
    rivals = [
        Rival(name, _ratio(times[name], times[chosen], alpha)) for name in times if name != chosen
    ]
    if default not in right:
        verdict = DEFAULT_WRONG
    elif chosen != default:
        verdict = FASTER
    else:
        are_slower = all(each.ratio and each.ratio.low > 1 + race.floor for each in rivals)
        verdict = DEFAULT_WINS if are_slower else NO_DIFFERENCE
    return Choice(
        op,
        size_class,
        chosen,
        default,
        (*rivals, *hopeless, *excluded),
        len(times[chosen]),
        verdict,
        float(np.median(times[chosen])),
    )


def _start(times: Times, default: str) -> str:
    """Give the default, or the fastest where that is wrong or needs no further evidence."""
    if default in times:
        return default
    return min(times, key=lambda name: float(np.median(times[name])))


def _ratios(times: Times, start: str, alpha: float) -> dict[str, TimeRatio]:
    return {
        name: _ratio(values, times[start], alpha) for name, values in times.items() if name != start
    }


def _winner(times: Times, start: str, alpha: float, floor: float) -> str:
    """Give the fastest of those that are shown to be faster than the one to start from."""
    ratios = _ratios(times, start, alpha)
    shown = {name: ratio.value for name, ratio in ratios.items() if ratio.high < 1 - floor}
    return min(shown, key=shown.__getitem__) if shown else start


def _is_decided(times: Times, start: str, alpha: float, floor: float) -> bool:
    """Say whether each is known to be faster by more than the floor, or known not to be."""
    ratios = _ratios(times, start, alpha).values()
    return not any(ratio.low <= 1 - floor <= ratio.high for ratio in ratios)


def _ratio(times: Sequence[float], others: Sequence[float], alpha: float) -> TimeRatio:
    return estimate_ratio(np.log(np.array(times) / np.array(others)).tolist(), alpha)


def _race(
    op: str,
    kernels: Mapping[str, Kernel],
    arguments: Sequence[Any],
    settings: Mapping[str, Any],
    race: Race,
    is_known: Callable[[Times], bool],
) -> tuple[Times, list[Rival]]:
    """Let implementations take turns in random order; give the seconds per call in each round."""
    rng = np.random.default_rng(race.seed)
    calls = {name: _call(op, kernel, arguments, settings) for name, kernel in kernels.items()}
    with _no_collections():
        first = _first_readings(calls)
        fastest = min(first.values())
        hopeless = [
            Rival(name, None, f"a call took {seconds / fastest:.0f} times as long at first")
            for name, seconds in first.items()
            if seconds > HOPELESS * fastest
        ]
        for rival in hopeless:
            del calls[rival.name]
        times: Times = {name: [] for name in calls}
        for budget_s in (race.budget_s, LONGER * race.budget_s):
            _take_rounds(calls, first, times, budget_s=budget_s, rng=rng)
            if len(calls) == 1 or is_known(times):
                break
    return times, hopeless


def _first_readings(calls: Mapping[str, Call]) -> dict[str, float]:
    """Give the shortest of a few single calls of each, taken in turns."""
    readings: Times = {name: [] for name in calls}
    for _ in range(FIRST_READINGS):
        for name, call in calls.items():
            if sum(readings[name]) < FIRST_READINGS_S:
                readings[name].append(_seconds(call, 1))
    return {name: min(values) for name, values in readings.items()}


def _take_rounds(
    calls: Mapping[str, Call],
    first: Mapping[str, float],
    times: Times,
    *,
    budget_s: float,
    rng: np.random.Generator,
) -> None:
    """Add rounds to `times`, each with a turn of everyone."""
    end, names = perf_counter() + budget_s, list(calls)
    loops = {name: min(MOST_LOOPS, max(1, round(TURN_S / first[name]))) for name in names}
    while (done := len(times[names[0]])) < FEWEST_ROUNDS or (
        done < MOST_ROUNDS and perf_counter() < end
    ):
        for index in rng.permutation(len(names)):
            name = names[index]
            if first[name] < WARMED_BELOW_S:
                calls[name]()
            times[name].append(_seconds(calls[name], loops[name]))


def _call(op: str, kernel: Kernel, arguments: Sequence[Any], settings: Mapping[str, Any]) -> Call:
    """Give the call to time; what changes its arguments works on copies."""
    own = copied(arguments) if op in IN_PLACE else tuple(arguments)
    return lambda: kernel(*own, **settings)


def _seconds(call: Call, loops: int) -> float:
    reading = _watch().time(call, loops)
    return max(reading.seconds - reading.lost_s, 1e-9) / loops


@cache
def _watch() -> Stopwatch:
    return Stopwatch(WALL)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the collector off, without the collection before that longer measurements afford."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
