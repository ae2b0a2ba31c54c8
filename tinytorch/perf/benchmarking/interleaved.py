"""Timing several functions so that their ratios mean something: they take turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tinytorch.core.progress import ProgressLine
from tinytorch.measure.clocks import WALL, Clock
from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import calibrate_loops, gc_paused, warm_up
from tinytorch.perf.benchmarking.checks import failure_text

__all__ = ["TurnTimes", "time_in_turns"]

TURN_S = 1e-3
"""A turn lasts about so long, where its length is not given: many calls of a fast function."""
FEWEST_ROUNDS, MOST_ROUNDS = 6, 1000
"""From six values on an interval of the median covers more than 95%."""
WARMUP_SHARE = 0.1
"""The part of the budget that warming up one function may use."""

Function = Callable[[], object]


@dataclass(frozen=True)
class TurnTimes:
    """Seconds per call of each function; the i-th value of each is from the same round.

    `failures` says what the others raised. They have no values, not even those from before.
    """

    samples: Mapping[str, Samples]
    failures: Mapping[str, str]


def time_in_turns(
    functions: Mapping[str, Function],
    *,
    rounds: int | None = None,
    warmup: int | None = None,
    budget_s: float = 1.0,
    clock: Clock = WALL,
    rng: np.random.Generator | None = None,
) -> TurnTimes:
    """Call functions in rounds, each function once a round, in a new random order every time.

    So whatever slows the machine down for a while meets all of them alike. With `rounds` a turn is
    one call. Without, a turn is as many calls as take about a millisecond, and there are as many
    rounds as `budget_s` seconds for each function allow. Where several functions take turns, each
    turn begins with a call that is not timed: it finds the caches full of somebody else's data. A
    function that raises is left out from there on.
    """
    if not functions:
        return TurnTimes({}, {})
    tally = _Tally(dict(functions), clock)
    rng = np.random.default_rng(0) if rng is None else rng
    with gc_paused():
        tally.for_each(lambda name: tally.warm_up(name, warmup, budget_s))
        if rounds is None:
            tally.for_each(tally.find_loops)
            rounds = tally.affordable_rounds(budget_s)
        before = observe()
        tally.take_rounds(rounds, rng)
        doubts = observe().doubts_since(before) if clock.is_disturbed_by_host else ()
    return tally.finished(doubts)


class _Tally:
    """The functions that still take part, how many calls a turn has, and what was seen."""

    def __init__(self, functions: dict[str, Function], clock: Clock) -> None:
        self.running = functions
        self.clock = clock
        self.loops = dict.fromkeys(functions, 1)
        self.turn_s = dict.fromkeys(functions, 0.0)
        self.values: dict[str, list[float]] = {name: [] for name in functions}
        self.failures: dict[str, str] = {}

    def for_each(self, action: Callable[[str], None], order: Iterable[int] | None = None) -> None:
        """Do something with every function that still runs; leave out the one that raises."""
        names = list(self.running)
        for index in range(len(names)) if order is None else order:
            name = names[index]
            try:
                action(name)
            except Exception as error:
                self.failures[name] = failure_text(error)
                del self.running[name]

    def warm_up(self, name: str, calls: int | None, budget_s: float) -> None:
        """Call a function so many times, or until it takes as long as before."""
        if calls is None:
            warm_up(self.running[name], self.clock, budget_s * WARMUP_SHARE)
        for _ in range(calls or 0):
            self.running[name]()

    def find_loops(self, name: str) -> None:
        """Let a turn last about a millisecond, and in any case long enough to hide the clock."""
        call = self.running[name]
        loops = calibrate_loops(call, self.clock)
        seconds = max(self.clock.time(call, loops), 1e-9) / loops
        self.loops[name] = max(loops, math.ceil(TURN_S / seconds))
        self.turn_s[name] = self.loops[name] * seconds

    def affordable_rounds(self, budget_s: float) -> int:
        """Give how many rounds fit into the budget of all functions together."""
        spare = [self.turn_s[name] / self.loops[name] for name in self.running]  # the untimed call
        round_s = sum(self.turn_s[name] for name in self.running) + sum(spare)
        wanted = int(budget_s * len(self.running) / round_s) if round_s else FEWEST_ROUNDS
        return max(FEWEST_ROUNDS, min(MOST_ROUNDS, wanted))

    def take_rounds(self, rounds: int, rng: np.random.Generator) -> None:
        progress = ProgressLine(rounds)
        try:
            for _ in range(rounds):
                self.for_each(self.take_turn, rng.permutation(len(self.running)))
                progress.advance("timing in turns")
        finally:
            progress.close()

    def take_turn(self, name: str) -> None:
        call, loops = self.running[name], self.loops[name]
        if len(self.running) > 1:
            call()
        self.values[name].append(self.clock.time(call, loops) / loops)

    def finished(self, doubts: tuple[str, ...]) -> TurnTimes:
        samples = {}
        for name in self.running:
            found = Samples(name, tuple(self.values[name]), loops=self.loops[name], notes=doubts)
            is_stable = found.stability.is_stable
            samples[name] = found if is_stable else found.with_notes(found.stability.note)
        return TurnTimes(samples, self.failures)
