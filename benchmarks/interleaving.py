"""Time two things side by side on a noisy machine: a ratio with an interval.

Both sides are rebuilt for every replicate, since memory layout alone can move identical code by
several percent. Inside a replicate the two sides alternate in random order; the replicate's value
is the median ratio of neighbours. The result is the median over the replicates, and the interval
lies between the second smallest and the second largest of nine (96% for any distribution).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Run = Callable[[], object]
REPLICATES = 9


@dataclass(frozen=True)
class Ratio:
    """Time of the candidate over time of the baseline, per replicate, and both times."""

    values: tuple[float, ...]
    candidate_s: float
    baseline_s: float
    pairs: int

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def interval(self) -> tuple[float, float]:
        ordered = sorted(self.values)
        return ordered[1], ordered[-2]


def compare(build: Callable[[int], tuple[Run, Run]], *, replicate_s: float = 0.4) -> Ratio:
    """Measure (candidate, baseline) as `build(replicate)` makes them."""
    rng = np.random.default_rng(0)
    ratios, candidate_times, baseline_times, pairs = [], [], [], 0
    for replicate in range(REPLICATES):
        sides = build(replicate)
        loops = [_calibrate(side) for side in sides]
        count = max(3, math.ceil(replicate_s / sum(n * s for n, s in loops)))
        log_ratios = []
        gc.collect()
        gc.disable()
        try:
            for _ in range(count):
                seconds = [0.0, 0.0]
                for index in rng.permutation(2):
                    seconds[index] = _time(sides[index], loops[index][0])
                log_ratios.append(math.log(seconds[0] / seconds[1]))
                candidate_times.append(seconds[0])
                baseline_times.append(seconds[1])
        finally:
            gc.enable()
        pairs += count
        ratios.append(math.exp(float(np.median(log_ratios))))
    return Ratio(
        tuple(ratios), float(np.median(candidate_times)), float(np.median(baseline_times)), pairs
    )


def _calibrate(run: Run) -> tuple[int, float]:
    """Warm up; give how many calls fill about a millisecond, and the seconds of one call."""
    for _ in range(3):
        run()
    seconds = min(_time(run, 1) for _ in range(3))
    loops = max(1, round(1e-3 / seconds))
    return loops, seconds


def _time(run: Run, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        run()
    return (time.perf_counter() - start) / loops
