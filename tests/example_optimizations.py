"""Imaginary attempts and optimizations, for tests; the comparisons in them are imaginary too."""

from dataclasses import asdict

from example_comparisons import comparison
from example_records import ENVIRONMENT

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.resources import Resources
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.quantize import Quantize
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BETTER,
    BROKEN,
    FAILED,
    INACCURATE,
    NO_GAIN,
    NOT_TRIED,
    SKIPPED,
    WORSE,
    Attempt,
    Settings,
)
from tinytorch.tuning.optimization import Optimization

OUTCOMES_OF_TIME = ((0.98, BETTER), (1.02, NO_GAIN))


def outcome_of(ratio):
    """Say what came of something that takes this share of the baseline's time."""
    return next((name for most, name in OUTCOMES_OF_TIME if ratio <= most), WORSE)


def plan(transform="Quantize", *, layers=("blocks.0.fc", "blocks.1.fc"), **changes):
    """Give a plan that changes some layers and leaves one alone."""
    fields = {
        "settings": asdict(Quantize(mode="dynamic")),
        "steps": tuple(Step(each, "8-bit weights", "it takes 40% of the time") for each in layers),
        "skipped": (Skipped("head", "the last layer is kept"),),
        "speedup": Gain(1.8, 1.2, 2.4, basis="Amdahl's law"),
        "shrinkage": Gain.of_bytes(4000, 1000, "of weights"),
    }
    return Plan(transform, **(fields | changes))


def measured(time=0.5, *, memory=1.0, size=1.0, lost=0, spread=0.01):
    """Give a comparison with these shares of the baseline's; `lost` of 800 examples are lost."""
    scores = [1, 1, 0, 1] * 200
    others = [0] * lost + scores[lost:]
    resources = (
        Resources(4096, 10_000, None, 20_000, 8),
        Resources(4096, round(10_000 * memory), None, round(20_000 * size), 8),
    )
    return comparison(
        time, spread=spread, resources=resources, accuracy=compare_accuracy(scores, others)
    )


def attempt(*stack, outcome=BETTER, reason="", time=None, **changes):
    """Give an attempt; with `time`, one that was compared."""
    kept = ("plans", "against_best", "seconds", "notes", "comparison")
    fields = {name: changes.pop(name) for name in kept if name in changes}
    if time is not None:
        fields["comparison"] = measured(time, **changes)
    return Attempt(stack, outcome, reason, **fields)


def inconclusive(*stack, time=0.4, spread=0.01):
    """Return an attempt that was timed, with 168 examples of which one is gained."""
    accuracy = compare_accuracy([0] + [1] * 167, [1] * 168)
    found = comparison(
        time, spread=spread, accuracy=accuracy, candidate_name=" + ".join(stack), resources=None
    )
    reason = f"{accuracy.evidence}; {accuracy.remedy}"
    return Attempt(stack, ACCURACY_INCONCLUSIVE, reason, comparison=found)


def optimization(*attempts, **changes):
    """Give the end of a loop over these attempts."""
    fields = {
        "name": "example",
        "framework": "core",
        "device": "cpu",
        "settings": Settings(),
        "advice": (),
        "attempts": attempts,
        "environment": ENVIRONMENT,
        "seconds": 12.5,
    }
    return Optimization(**(fields | changes))


LOW_RANK = plan("LowRank", settings={"energy": 0.9})
UNUSABLE = (
    Attempt(("low-rank",), INACCURATE, "accuracy 0.75 became 0.61", (LOW_RANK,), None),
    Attempt(("int4-weights",), BROKEN, "3 of 80 values are not finite in output 0", seconds=0.5),
    Attempt(("threads",), FAILED, "RuntimeError: no threads", seconds=0.25),
    Attempt(("fewer-layers",), SKIPPED, "RemoveLayers: no blocks", seconds=0.125),
    Attempt(("fewer-channels",), NOT_TRIED, "the budget is spent"),
)
"""One attempt of each kind that was never timed."""
