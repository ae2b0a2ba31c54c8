"""How often is a loss as large as the margin called *not worse*? At most one time in twenty.

    python benchmarks/accuracy_errors.py [--trials 2000] [--json FILE]

Differences between scores are drawn from distributions with skewed, heavy and rare losses, whose
mean is the margin, so that each *not worse* is an error. A row has the share of errors with 30,
100, 300, 1000 and 5000 examples. Exit code 1 where a share is above 6% by more than chance makes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

COUNTS = (30, 100, 300, 1000, 5000)
ALLOWED = 0.06
LARGEST = 1.0
"""Scores are between 0 and 1: nothing can lose more."""

Array = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]


def rare(share: float, loss: float, noise: float = 1e-3) -> Draw:
    """Return differences of which a share loses this much."""
    return lambda rng, n: rng.normal(0, noise, n) - loss * (rng.random(n) < share)


def capped(draw: Draw) -> Draw:
    """Return losses that nothing takes below a score of 0."""
    return lambda rng, n: -np.minimum(draw(rng, n), LARGEST)


DISTRIBUTIONS: dict[str, tuple[Draw, float | None]] = {
    "normal": (lambda rng, n: rng.normal(-0.01, 0.1, n), -0.01),
    "Student, 3 degrees": (lambda rng, n: 0.02 * rng.standard_t(3, n) - 0.01, -0.01),
    "0.1% lose 1": (rare(0.001, 1.0), -0.001),
    "1% lose 0.5": (rare(0.01, 0.5), -0.005),
    "2% lose 0.5": (rare(0.02, 0.5), -0.01),
    "5% lose 0.2": (rare(0.05, 0.2, 0.01), -0.01),
    "10% lose 0.2": (rare(0.1, 0.2), -0.02),
    "30% lose 0.2": (rare(0.3, 0.2), -0.06),
    "2% lose 0.5, 2% gain 0.3": (
        lambda rng, n: rare(0.02, 0.5)(rng, n) + 0.3 * (rng.random(n) < 0.02),
        -0.004,
    ),
    "exponential": (lambda rng, n: -rng.exponential(0.05, n), -0.05),
    "log-normal, 1": (capped(lambda rng, n: 0.01 * rng.lognormal(0, 1, n)), None),
    "log-normal, 2": (capped(lambda rng, n: 0.002 * rng.lognormal(0, 2, n)), None),
    "Pareto, 1.5": (capped(lambda rng, n: 0.005 * rng.pareto(1.5, n)), None),
    "Pareto, 3": (capped(lambda rng, n: 0.02 * rng.pareto(3, n)), None),
    "3% lose exponentially": (
        capped(lambda rng, n: rng.exponential(0.2, n) * (rng.random(n) < 0.03)),
        None,
    ),
    "2% lose up to 1": (
        lambda rng, n: np.where(rng.random(n) < 0.02, -rng.random(n), rng.normal(0, 0.01, n)),
        -0.01,
    ),
}
"""Name -> what draws differences, and their mean; None where it is drawn, too."""


def mean_of(name: str) -> float:
    """Return the mean of a distribution."""
    draw, mean = DISTRIBUTIONS[name]
    return float(draw(np.random.default_rng(1), 4_000_000).mean()) if mean is None else mean


def error_of(name: str, count: int, *, trials: int, seed: int = 0) -> float:
    """Return the share of samples that are called not worse, though the mean is the margin."""
    from tinytorch.comparison.accuracy import NOT_WORSE, compare_accuracy

    draw, margin = DISTRIBUTIONS[name][0], -mean_of(name)
    rng = np.random.default_rng([seed, count])
    passed = 0
    for _ in range(trials):
        baseline = 0.5 + 0.5 * rng.random(count)
        found = compare_accuracy(baseline, baseline + draw(rng, count), margin=margin)
        passed += found.verdict == NOT_WORSE
    return passed / trials


def main() -> int:
    """Print a row for each distribution."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    started, rows = time.monotonic(), {}
    chance = 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / options.trials)
    print(f"| not worse, though {'':14}| {' | '.join(f'n={n}' for n in COUNTS)} |")
    print(f"|---|{'---|' * len(COUNTS)}")
    for name in DISTRIBUTIONS:
        rows[name] = [error_of(name, count, trials=options.trials) for count in COUNTS]
        print(f"| {name} | {' | '.join(f'{share:.1%}' for share in rows[name])} |", flush=True)
    worst = max(max(row) for row in rows.values())
    print(f"largest: {worst:.1%} of {options.trials} ({time.monotonic() - started:.0f} s)")
    if options.json:
        options.json.write_text(json.dumps({"trials": options.trials, "rows": rows}) + "\n")
    return 1 if worst > ALLOWED + chance else 0


if __name__ == "__main__":
    sys.exit(main())
