"""Imaginary optimizations in which everything happened that a report has to show."""

from dataclasses import replace

from example_comparisons import comparison
from example_optimizations import UNUSABLE, optimization, outcome_of, plan
from example_profiles import example_profile

from tinytorch.comparison.accuracy import compare_accuracy
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.comparison.resources import Resources
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.models.workload import Preparation
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import Attempt, Settings
from tinytorch.tuning.optimization import Contribution

SCORES = [1, 1, 1, 0] * 500
ROUNDED = OutputDifference((ArrayDifference((8, 10), 1e-3, 1e-3, 61.5, 0.99, is_identical=False),))
HARMLESS = "<script>alert(1)</script>"


def timed(*stack, ratio=0.5, memory=0.5, size=0.25, lost=2, spread=0.01, **changes):
    """Give an attempt that takes `ratio` of the time and has `lost` wrong answers more."""
    scores = SCORES.copy()
    scores[: 4 * lost : 4] = [0] * lost
    found = comparison(
        ratio,
        spread=spread,
        candidate_name=" + ".join(stack),
        accuracy=compare_accuracy(SCORES, scores),
        outputs=ROUNDED,
        resources=(
            Resources(4000, 8000, None, 5000, 8),
            Resources(1000, int(8000 * memory), None, int(5000 * size), 8),
        ),
        preparations=((), (Preparation("compiled", 1.5),)),
    )
    fields = {
        "outcome": outcome_of(ratio),
        "reason": str(found),
        "comparison": found,
        "seconds": 2.5,
    }
    usual = {"outcome": outcome_of(ratio), "plans": (plan(),)}
    return Attempt(stack, **(usual | fields | changes))


def without_evidence(*stack, ratio=0.5, **changes):
    """Give an attempt of which only the time is known."""
    found = comparison(ratio, candidate_name=" + ".join(stack))
    fields = {
        "outcome": outcome_of(ratio),
        "reason": str(found),
        "comparison": found,
        "seconds": 2.5,
    }
    return Attempt(stack, **({"outcome": outcome_of(ratio)} | fields | changes))


ADVICE = (
    Advice(
        "memory-bound products",
        "Hold weights in fewer bits",
        ("blocks.*.fc takes 40.0% of the time and is memory-bound.", "It reads 400 B of weights."),
        entry="int8-dynamic",
        predicted=Gain(1.8, 1.2, 2.4, basis="Amdahl's law for 40.0% of the time"),
        risk="rounding",
        cost="calibration takes seconds",
        share=0.4,
    ),
    Advice(
        "compact layers",
        "Write weights as products of smaller ones",
        ("3 layers have a rank below 20.",),
        entry="low-rank",
        not_predicted="nobody knows the rank yet",
        risk="approximate",
    ),
    Advice(
        "small batch",
        "Work on more examples at once",
        ("A batch of 1 reads every weight for one row; from 24 rows on, computing is the limit.",),
        not_predicted="the batch is yours to choose",
        cost="latency of a call grows",
    ),
)


def best_is_a_stack(**changes):
    """Give an optimization in which a stack of two is best, and everything else happened too."""
    fields = {
        "name": "gpt",
        "advice": ADVICE,
        "ablation": (
            Contribution("int8-dynamic", comparison(0.5).named("compiled-kernels", "whole")),
            Contribution("compiled-kernels", None, "the budget is spent"),
        ),
        "environment": {"python": "3.12", "machine": "two cores"},
        "profile_summary": example_profile().to_dict(),
        "seconds": 61.5,
        "notes": ("the machine is busy",),
        "profile": example_profile(),
        "attempts": (
            timed("int8-dynamic", ratio=0.625),
            timed("compiled-kernels", ratio=0.8, memory=1.0, size=1.0, lost=0),
            timed("fused-layers", ratio=1.0, memory=1.0, size=1.0, lost=0, spread=0.002),
            timed("channels-last", ratio=1.25, memory=1.5, size=1.0, lost=0),
            timed("captured", ratio=0.97, spread=0.2, memory=1.0, size=1.0, outcome=INCONCLUSIVE),
            timed("int8-dynamic", "compiled-kernels", ratio=0.4, lost=3),
            *UNUSABLE,
        ),
    }
    return optimization(**(fields | changes))


def nothing_helps(**changes):
    """Give an optimization in which what was timed is slower or the same."""
    attempts = (
        timed("fused-layers", ratio=1.0, memory=1.0, size=1.0, lost=0, spread=0.002),
        timed("int8-dynamic", ratio=1.25),
        *UNUSABLE,
    )
    return best_is_a_stack(attempts=attempts, ablation=(), **changes)


def nothing_worked(**changes):
    """Give an optimization in which nothing could be timed."""
    return best_is_a_stack(attempts=UNUSABLE, ablation=(), **changes)


def nothing_tried(**changes):
    """Give an optimization that was interrupted before the first attempt was finished."""
    return best_is_a_stack(attempts=(), ablation=(), advice=(), was_interrupted=True, **changes)


def only_time(**changes):
    """Give an optimization without accuracy, memory and size."""
    attempts = (without_evidence("fused-layers"), without_evidence("threads", ratio=1.3))
    return best_is_a_stack(attempts=attempts, ablation=(), **changes)


def limits_broken(**changes):
    """Give an optimization whose limits nothing keeps: the baseline takes 1 ms and 8 kB."""
    limits = {"latency_ms": 0.1, "memory_mb": 0.006, "size_mb": 1.0}
    return best_is_a_stack(settings=Settings(limits=limits), ablation=(), **changes)


def harmful_names():
    """Give an optimization whose every name and reason is a script."""
    found = best_is_a_stack(name=HARMLESS, notes=(HARMLESS,), device=HARMLESS)
    attempts = [
        replace(each, stack=(f"{HARMLESS}{place}",), reason=HARMLESS, notes=(HARMLESS,))
        for place, each in enumerate(found.attempts)
    ]
    advice = [
        replace(each, title=HARMLESS, evidence=(HARMLESS,), risk=HARMLESS, cost=HARMLESS)
        for each in found.advice
    ]
    ablation = (Contribution(HARMLESS, None, HARMLESS),)
    return replace(found, attempts=tuple(attempts), advice=tuple(advice), ablation=ablation)


EVERY_KIND = (
    best_is_a_stack,
    nothing_helps,
    nothing_worked,
    nothing_tried,
    only_time,
    limits_broken,
    harmful_names,
)
"""What makes one optimization of each kind."""
