"""Imaginary comparisons, for tests."""

import math

from example_records import ENVIRONMENT

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.evidence import EVALUATE_FAILED
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.comparison.resources import Resources
from tinytorch.comparison.sequential import Rule
from tinytorch.errors import Failure
from tinytorch.measure.interleaving import Pace, Round
from tinytorch.measure.samples import Samples


def comparison(ratio=0.8, *, spread=0.01, n=13, **changes):
    """Give a comparison whose rounds lie evenly around a ratio of times, without evidence."""
    noise = [spread * (2 * index / (n - 1) - 1) for index in range(n)]
    rounds = tuple(Round((1e-3,) * 3, tuple([1e-3 * ratio * math.exp(each)] * 3)) for each in noise)
    fields = {
        "baseline_name": "baseline",
        "candidate_name": "candidate",
        "rounds": rounds,
        "rule": Rule(),
        "floor": 0.005,
        "alpha": 0.05,
        "pace": Pace((10, 10), 3, 0, 0.02, (1e-3, 1e-3 * ratio)),
        "clock": "wall",
        "seconds_used": 0.41,
        "environment": ENVIRONMENT,
    }
    return Comparison(**(fields | changes))


def contradictory():
    """Give a comparison whose typical calls are faster, and whose mean is slower."""
    rounds = tuple(
        Round((1e-3,) * 5, (8e-4, 8e-4 + 1e-7 * index, 8e-4, 8e-4, 9e-3)) for index in range(13)
    )
    return comparison(rounds=rounds)


def with_evidence(ratio=0.8, **changes):
    """Give a comparison with everything that can be known beside time."""
    calls = [Samples(name, [1e-3 + 1e-6 * i for i in range(40)]) for name in ("one", "other")]
    energy = [Samples(name, [value], "J") for name, value in (("one", 0.5), ("other", 0.25))]
    array = ArrayDifference((8, 10), 1e-3, 1e-4, 61.5, 0.99, is_identical=False)
    fields = {
        "accuracy": compare_accuracy([1, 1, 0, 1] * 200, [1, 1, 0, 1] * 199 + [1, 1, 1, 1]),
        "outputs": OutputDifference((array,)),
        "resources": (
            Resources(4096, 8192, None, 5000, 8, {"device_peak_bytes": "on a processor"}),
            Resources(1024, 4096, None, None, 8, {"file_bytes": "OSError: no room"}),
        ),
        "calls": tuple(calls),
        "energy": tuple(energy),
        "not_measured": {"counters": Failure("perf is not installed")},
        "notes": ("the machine is busy",),
    }
    return comparison(ratio, **(fields | changes))


def unevaluated(side="candidate", words="could not be evaluated: X", *, name=None):
    """Return why there is no accuracy where a side could not be evaluated."""
    return {"accuracy": Failure(f"{name or side} {words}", EVALUATE_FAILED, side)}
