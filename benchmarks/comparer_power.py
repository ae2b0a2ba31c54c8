"""How often the comparer errs, and what it finds: A against A, and against A with known extra work.

    python benchmarks/comparer_power.py [--trials 16] [--rivals 8] [--out power.json]

Four kinds of work, each a hundred equal steps; the other side makes 100, 101 or 102 of them. Quiet,
beside a neighbour process in bursts, and beside as many busy neighbours as there are cores; the
neighbours are started here. `built` sides are factories with buffers of their own, `shared` ones
are finished functions on the same buffers. The rivals judge what is usually done: all of A, then
all of B, two seconds in all, of sides that were built once. Everything runs in one thread.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch import Tensor, compare, no_grad
from tinytorch.core.layers import Linear, Sequential
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.timing import WALL, gc_paused

STEPS = 100
EXTRAS = (0, 1, 2)
Function = Callable[[], Any]
Make = Callable[[int], Function]

NEIGHBOUR = """
import random, sys, time
import numpy as np
bursty = sys.argv[1] == "bursts"
a = np.ones((200, 200)); b = np.ones(1 << 18)
while True:
    end = time.perf_counter() + random.uniform(0.01, 0.2)
    while time.perf_counter() < end:
        a @ a; b * 1.5
    if bursty:
        time.sleep(random.uniform(0.01, 0.2))
"""
NOISES = {"quiet": [], "bursty": ["bursts"], "heavy": ["always"] * (os.cpu_count() or 1)}


# ---------------------------------------------------------------- four kinds of work


def small_products() -> Make:
    """Give a maker of functions on one set of buffers: 20 x 20 matrix products."""
    a = np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)
    b, out = a.copy(), np.empty_like(a)

    def make(steps: int) -> Function:
        def run() -> None:
            for _ in range(steps):
                np.matmul(a, b, out=out)

        return run

    return make


def streaming() -> Make:
    """Elementwise products of 6,000 numbers."""
    a = np.ones(6000, np.float32)
    out = np.empty_like(a)

    def make(steps: int) -> Function:
        def run() -> None:
            for _ in range(steps):
                np.multiply(a, 1.5, out=out)

        return run

    return make


def plain_python() -> Make:
    """Sums over a dictionary."""
    table = {number: number for number in range(30)}

    def make(steps: int) -> Function:
        def run() -> int:
            total = 0
            for _ in range(steps):
                for value in table.values():
                    total += value
            return total

        return run

    return make


def layers() -> Make:
    """A model of a hundred tiny layers, or a few more."""
    linear = [Linear(4, 4) for _ in range(STEPS + max(EXTRAS))]
    x = Tensor(np.ones((1, 4), np.float32))

    def make(steps: int) -> Function:
        model = Sequential(*linear[:steps])

        def run() -> Any:
            with no_grad():
                return model(x)

        return run

    return make


KINDS: dict[str, Callable[[], Make]] = {
    "small products": small_products,
    "streaming": streaming,
    "plain python": plain_python,
    "100 layers": layers,
}


# ---------------------------------------------------------------- trials


@dataclass(frozen=True)
class Trial:
    """One comparison and what came out."""

    sides: str
    noise: str
    kind: str
    extra: int
    verdict: str
    ratio: float
    low: float
    high: float
    seconds: float
    rounds: int
    displaced: float

    @property
    def covers(self) -> bool:
        return self.low <= 1 + self.extra / 100 <= self.high


def try_built(noise: str, kind: str, extra: int, seed: int) -> Trial:
    fresh = KINDS[kind]
    found = compare(
        lambda: fresh()(STEPS),
        lambda: fresh()(STEPS + extra),
        factories=True,
        evidence=False,
        seed=seed,
    )
    return _trial("built", noise, kind, extra, found)


def try_shared(noise: str, kind: str, extra: int, seed: int) -> Trial:
    make = KINDS[kind]()
    found = compare(make(STEPS), make(STEPS + extra), evidence=False, seed=seed)
    return _trial("shared", noise, kind, extra, found)


def _trial(sides: str, noise: str, kind: str, extra: int, found: Any) -> Trial:
    return Trial(
        sides,
        noise,
        kind,
        extra,
        found.verdict,
        found.time_ratio,
        found.time_ratio_low,
        found.time_ratio_high,
        found.seconds_used,
        found.n,
        found.displaced_share,
    )


# ---------------------------------------------------------------- what is usually done


def one_after_the_other(kind: str, extra: int) -> tuple[list[float], list[float]]:
    """Give blocks of about a millisecond: for a second of A, then for a second of B."""
    fresh = KINDS[kind]
    both = []
    sides = [fresh()(STEPS), fresh()(STEPS + extra)]
    with gc_paused():
        for run in sides:
            for _ in range(20):
                run()
            loops = max(1, round(1e-3 / min(WALL.time(run, 3) / 3 for _ in range(5))))
            blocks, end = [], time.perf_counter() + 1.0
            while time.perf_counter() < end:
                blocks.append(WALL.time(run, loops) / loops)
            both.append(blocks)
    return both[0], both[1]


def _median_intervals_apart(a: Any, b: Any) -> bool:
    from tinytorch.measure.samples import Samples

    one, other = (Samples("", tuple(x)).median_interval() for x in (a, b))
    return one.low > other.high or other.low > one.high


def _welch(a: Any, b: Any) -> bool:
    from scipy import stats

    return bool(stats.ttest_ind(a, b, equal_var=False).pvalue < 0.05)


def _rank_test(a: Any, b: Any, threshold: float = 0.0) -> bool:
    from scipy import stats

    a, b = (np.array([np.median(part) for part in np.array_split(x, 60)]) for x in (a, b))
    apart = abs(np.median(b) / np.median(a) - 1) > threshold
    return bool(stats.mannwhitneyu(a, b).pvalue < 0.05 and apart)


def _run_means(a: Any, b: Any) -> bool:
    from scipy import stats

    means = [[np.mean(part) for part in np.array_split(x, 5)] for x in (a, b)]
    return bool(stats.ttest_ind(*means).pvalue < 0.05)


def _resampled_means(a: Any, b: Any) -> bool:
    rng = np.random.default_rng(0)
    draws = [[np.mean(rng.choice(x, len(x))) for _ in range(400)] for x in (a, b)]
    low, high = np.percentile(np.array(draws[1]) / np.array(draws[0]), (2.5, 97.5))
    return bool(low > 1.01 or high < 1 / 1.01)


def _minimum(a: Any, b: Any) -> bool:
    return abs(min(b) / min(a) - 1) > 0.01


RIVALS: dict[str, Callable[[Any, Any], bool]] = {
    "intervals of medians do not overlap": _median_intervals_apart,
    "Welch's t-test on all blocks": _welch,
    "Mann-Whitney on 60 blocks": _rank_test,
    "t-test on means of 5 runs": _run_means,
    "resampled means, 1% threshold": _resampled_means,
    "minimum, 1% threshold": _minimum,
    "Mann-Whitney, 10% threshold": lambda a, b: _rank_test(a, b, 0.1),
}


# ---------------------------------------------------------------- running it


@contextmanager
def neighbours(noise: str) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR, how]) for how in NOISES[noise]]
    try:
        time.sleep(0.5 if started else 0.0)
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def run_trials(trials: int, rivals: int, noises: list[str]) -> dict[str, Any]:
    order = random.Random(0)
    ours: list[Trial] = []
    judged: dict[str, list[tuple[str, int, bool]]] = {name: [] for name in RIVALS}
    for noise in noises:
        jobs: list[tuple[Any, ...]] = []
        for kind in KINDS:
            for number in range(trials):
                jobs += [(try_built, kind, extra, number) for extra in EXTRAS]
                jobs += [(try_shared, kind, extra, number) for extra in (0, 2)]
            jobs += [(None, kind, extra, 0) for extra in (0, 2) for _ in range(rivals)]
        order.shuffle(jobs)
        with neighbours(noise):
            for done, (attempt, kind, extra, seed) in enumerate(jobs):
                if attempt is not None:
                    ours.append(attempt(noise, kind, extra, seed))
                else:
                    a, b = one_after_the_other(kind, extra)
                    for name, rule in RIVALS.items():
                        judged[name].append((noise, extra, rule(a, b)))
                if sys.stderr.isatty():
                    print(f"\r{noise}: {done + 1} of {len(jobs)}   ", end="", file=sys.stderr)
    return {
        "environment": describe_environment(Path(__file__).parent).to_dict(),
        "trials": [asdict(trial) for trial in ours],
        "rivals": judged,
    }


def show(results: dict[str, Any]) -> None:
    ours = [Trial(**each) for each in results["trials"]]
    noises = list(dict.fromkeys(trial.noise for trial in ours))
    print("| sides | noise | false alarms | +1% found | +2% found | same | seconds: median, 90% |")
    print("|---|---|---|---|---|---|---|")
    for sides in ("built", "shared"):
        for noise in [*noises, "all"]:
            some = [t for t in ours if t.sides == sides and noise in (t.noise, "all")]
            alarms = [t.verdict in ("faster", "slower") for t in some if t.extra == 0]
            same = [t.verdict == "same" for t in some if t.extra == 0]
            found = [[t.verdict == "slower" for t in some if t.extra == e] for e in (1, 2)]
            seconds = [t.seconds for t in some]
            print(
                f"| {sides} | {noise} | {_share(alarms)} | {_share(found[0])} | "
                f"{_share(found[1])} | {_share(same)} | "
                f"{np.median(seconds):.2f}, {np.percentile(seconds, 90):.2f} |"
            )
    print()
    for sides in ("built", "shared"):
        some = [t for t in ours if t.sides == sides]
        for extra in sorted({t.extra for t in some}):
            cell = [t for t in some if t.extra == extra]
            same = [t.seconds for t in cell if t.verdict == "same"]
            print(
                f"{sides} +{extra}%: the interval covers the truth in "
                f"{_share([t.covers for t in cell])}, "
                f"median {np.median([t.seconds for t in cell]):.2f} s"
                + (f"; `same` after {np.median(same):.2f} s in the median" if same else "")
            )
        print(f"{sides}: coverage pooled {_share([t.covers for t in some])}")
    for kind in KINDS:
        cell = [t for t in ours if t.kind == kind and t.sides == "built"]
        wrong = [t.verdict in ("faster", "slower") for t in cell if t.extra == 0]
        one = [t.verdict == "slower" for t in cell if t.extra == 1]
        spread = np.median([math.log(t.high / t.low) / 2 for t in cell])
        print(f"built, {kind}: false alarms {_share(wrong)}, +1% {_share(one)}, reach {spread:.2%}")
    print("\n| rule, all of A and then all of B, 2 s | false alarms | +2% found |\n|---|---|---|")
    for name, verdicts in results["rivals"].items():
        if verdicts:
            cells = [_share([said for _, e, said in verdicts if e == extra]) for extra in (0, 2)]
            print(f"| {name} | {cells[0]} | {cells[1]} |")


def show_targets(results: dict[str, Any]) -> bool:
    """Say which of the targets are met, over all kinds of noise; True when all are."""
    trials = [Trial(**each) for each in results["trials"]]
    built, shared = ([t for t in trials if t.sides == sides] for sides in ("built", "shared"))

    def share(some: list[Trial], extra: int, *verdicts: str) -> float:
        return float(np.mean([t.verdict in verdicts for t in some if t.extra == extra]))

    def median_s(some: list[Trial]) -> float:
        return float(np.median([t.seconds for t in some]))

    # What, found, at least or at most, the target.
    rows = [
        ("built: false alarms", share(built, 0, "faster", "slower"), "<=", 0.05),
        ("built: +1% found", share(built, 1, "slower"), ">=", 0.90),
        ("built: +2% found", share(built, 2, "slower"), ">=", 0.95),
        ("built: median seconds", median_s(built), "<=", 0.5),
        ("shared: false alarms", share(shared, 0, "faster", "slower"), "<=", 0.03),
        ("shared: +2% found", share(shared, 2, "slower"), ">=", 0.98),
        ("shared: median seconds", median_s(shared), "<=", 0.2),
        ("same: median seconds", median_s([t for t in trials if t.verdict == "same"]), "<=", 0.7),
        ("coverage", float(np.mean([t.covers for t in trials])), ">=", 0.94),
    ]
    print("\n| target | found | wanted | met |\n|---|---|---|---|")
    met = []
    for what, found, sign, target in rows:
        met.append(found <= target if sign == "<=" else found >= target)
        print(f"| {what} | {found:.3f} | {sign} {target:g} | {'yes' if met[-1] else 'no'} |")
    return all(met)


def _share(hits: list[bool]) -> str:
    return f"{sum(hits)} of {len(hits)} ({sum(hits) / len(hits):.0%})" if hits else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=16, help="of each cell (default 16)")
    parser.add_argument("--rivals", type=int, default=8, help="of each kind and noise (default 8)")
    parser.add_argument("--noise", choices=NOISES, help="only this one")
    parser.add_argument("--out", type=Path, help="write every trial as JSON")
    parser.add_argument("--show", type=Path, help="show the results of an earlier run")
    options = parser.parse_args()
    if options.show:
        results = json.loads(options.show.read_text())
        show(results)
        sys.exit(not show_targets(results))
    noises = [options.noise] if options.noise else list(NOISES)
    results = run_trials(options.trials, options.rivals, noises)
    if options.out:
        options.out.write_text(json.dumps(results))
    show(results)
    sys.exit(not show_targets(results))


if __name__ == "__main__":
    main()
