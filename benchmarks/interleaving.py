"""Time two things side by side on a noisy machine: a ratio with an interval.

Each side lives in a process of its own, since the idle threads of one library spin for a while and
would slow the other one down. The two sides take turns in random order; before each turn both are
idle until their threads sleep. Both are rebuilt for every replicate, since memory layout alone can
move identical code by several percent. A replicate's value is the median ratio of neighbours; the
result is the median over the replicates, and the interval lies between the second smallest and the
second largest of nine (96% for any distribution).
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

REPLICATES = 9
PAIRS = 7
TURN_S = 0.03
SETTLE_S = 0.04  # OpenBLAS threads spin for about 30 ms before they sleep

Run = Callable[[], Any]
Build = Callable[..., tuple[Run, Callable[[], Any]]]
"""Gives what is to be timed, and a function that gives arrays to check."""


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


class Side:
    """A process that builds and times what it is told to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def start(self, *arguments: Any) -> None:
        """Begin to build anew; the other side may build at the same time."""
        self._connection.send(("build", arguments))

    def built(self) -> Any:
        """Wait until it is built and give the arrays to check."""
        return self._answer()

    def turn(self) -> float:
        """Give the mean seconds of one call, over a turn of about 30 ms."""
        time.sleep(SETTLE_S)
        self._connection.send(("turn", None))
        return self._answer()

    def _answer(self) -> Any:
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def side(build: Build) -> Iterator[Side]:
    """Start a process that builds with `build`, a function of a module that it can import."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, build), daemon=True)
    process.start()
    try:
        yield Side(ours)
    finally:
        process.terminate()
        process.join()


def compare(candidate: Side, baseline: Side) -> Iterator[tuple[float, float]]:
    """Yield the seconds of both, turn by turn, for one replicate; both must be built."""
    rng = np.random.default_rng()
    for _ in range(PAIRS):
        seconds = [0.0, 0.0]
        for index in rng.permutation(2):
            seconds[index] = (candidate, baseline)[index].turn()
        yield seconds[0], seconds[1]


def summarise(replicates: list[list[tuple[float, float]]]) -> Ratio:
    """Turn the seconds of all replicates into a ratio."""
    return Ratio(
        values=tuple(math.exp(np.median([math.log(a / b) for a, b in r])) for r in replicates),
        candidate_s=float(np.median([a for r in replicates for a, _ in r])),
        baseline_s=float(np.median([b for r in replicates for _, b in r])),
        pairs=sum(len(r) for r in replicates),
    )


def _serve(connection: Connection, build: Build) -> None:
    run: Run | None = None
    loops = 0
    while True:
        verb, value = connection.recv()
        try:
            if verb == "build":
                run = None  # free the old one first
                gc.collect()
                run, check = build(*value)
                answer = check()
                loops = 0
            else:
                assert run is not None
                run()  # wakes the threads
                loops = loops or _calibrate(run)
                answer = _time(run, loops)
        except Exception as error:
            answer = error
        connection.send(answer)


def _calibrate(run: Run) -> int:
    for _ in range(3):
        run()
    return max(1, round(TURN_S / min(_time(run, 1) for _ in range(3))))


def _time(run: Run, loops: int) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(loops):
            run()
        return (time.perf_counter() - start) / loops
    finally:
        gc.enable()
