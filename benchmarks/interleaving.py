"""Time two things side by side on a noisy machine: a ratio with an interval.

Each side lives in a process of its own, since the idle threads of one library spin for a while and
would slow the other one down. The two sides take turns in random order; before each turn both are
idle until their threads sleep. Both are rebuilt for every replicate, since memory layout alone can
move identical code by several percent. A replicate's value is the median ratio of neighbours; the
result is the median over the replicates, and the interval lies between the second smallest and the
second largest of nine (96% for any distribution).

Import this before NumPy: it sets the threads, as many as the process may run on, or
TINYTORCH_BENCHMARK_THREADS.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

THREADS_VARIABLE = "TINYTORCH_BENCHMARK_THREADS"
THREADS = int(os.environ.setdefault(THREADS_VARIABLE, str(len(os.sched_getaffinity(0)))))
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(THREADS)  # before NumPy and PyTorch start their pools

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
        """Give the ends of the 96% interval; it needs nine replicates."""
        ordered = sorted(self.values)
        return ordered[1], ordered[-2]


class TakesTurns(Protocol):
    """One of two things that are compared."""

    def turn(self) -> float:
        """Give the mean seconds of one call, over a turn of about 30 ms."""


class Timed:
    """A function of this process that takes turns."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loops = 0

    def turn(self) -> float:
        """Wait until all threads sleep, then give the mean seconds of one call."""
        time.sleep(SETTLE_S)
        self._run()  # wakes the threads
        self._loops = self._loops or calibrate(self._run)
        return time_calls(self._run, self._loops)


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
        """Let the other process take a turn; see :meth:`Timed.turn`."""
        self._connection.send(("turn", None))
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer = self._connection.recv()
        except EOFError:
            raise SystemExit("the process of one side has crashed; nothing more is timed") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def side(build: Build) -> Iterator[Side]:
    """Start a process that builds with `build`, a function of a module that it can import."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, build), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is seen as the end of the pipe
    try:
        yield Side(ours)
    finally:
        process.terminate()
        process.join()


def compare(
    candidate: TakesTurns, baseline: TakesTurns, *, pairs: int = PAIRS
) -> Iterator[tuple[float, float]]:
    """Yield the seconds of both, turn by turn, for one replicate; both must be built."""
    rng = np.random.default_rng()
    for _ in range(pairs):
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


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(np.mean([math.log(value) for value in values]))


@dataclass(frozen=True)
class Target:
    """What is promised, and what was found; None where this run did not measure it."""

    claim: str
    limit: float
    found: float | None
    at_least: bool = False

    @property
    def is_missed(self) -> bool:
        if self.found is None:
            return False
        return self.found < self.limit if self.at_least else self.found > self.limit


def show_targets(targets: Sequence[Target]) -> None:
    """Print what is promised beside what was found."""
    print("\n| target | promised | found | |")
    print("|---|---|---|---|")
    for target in targets:
        bound = f"at {'least' if target.at_least else 'most'} {target.limit:g}"
        found, verdict = "not measured in this run", ""
        if target.found is not None:
            found, verdict = f"{target.found:.2f}", "missed" if target.is_missed else "met"
        print(f"| {target.claim} | {bound} | {found} | {verdict} |", flush=True)


def serve(connection: Connection, build: Build) -> None:
    timed: Timed | None = None
    while True:
        verb, value = connection.recv()
        try:
            if verb == "build":
                timed = run = check = None  # free the old one first
                gc.collect()
                run, check = build(*value)
                answer = check()
                timed = Timed(run)
            else:
                assert timed is not None
                answer = timed.turn()
        except Exception as error:
            answer = error
        connection.send(answer)


def calibrate(run: Run) -> int:
    for _ in range(3):
        run()
    return max(1, round(TURN_S / min(time_calls(run, 1) for _ in range(3))))


def time_calls(run: Run, loops: int) -> float:
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(loops):
            run()
        return (time.perf_counter() - start) / loops
    finally:
        gc.enable()
