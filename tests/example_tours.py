"""A tour whose measurements are imaginary."""

import numpy as np
from example_comparisons import comparison
from example_optimizations import attempt, optimization
from example_profiles import example_profile

from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import INACCURATE, NOT_TRIED, WORSE, Settings
from tinytorch.tuning.optimization import Contribution
from tinytorch.tuning.tour import STOPS, Introduction, SampleDigit, Tour, Visit, Writing

INTRODUCTION = Introduction(
    digits=(
        SampleDigit(np.pad(np.full((26, 2), 2.0), ((1, 1), (12, 14))), 1, 1, 0.99),
        SampleDigit(np.full((28, 28), 2.0), 4, 9, 0.61),
    ),
    prompt="It is a ",
    text="truth [bold]<b>universally",
)
ADVICE = (
    Advice(
        "products", "Multiply in 8-bit integers", (), "int8", Gain(1.5, 1.2, 2.4, basis="a guess")
    ),
    Advice("factors", "Compute fewer products", (), "low-rank", not_predicted="ranks decide"),
    Advice("program", "Call it less often", ()),
)
LOST = attempt("low-rank", outcome=INACCURATE, reason="accuracy 0.75 became 0.5")


def written(name, ratio, *, equal=1.0):
    """Give a comparison of two ways to write 38 tokens, of which a share is the same."""
    array = ArrayDifference((64,), equal_share=equal, is_identical=equal == 1)
    outputs = OutputDifference((array,))
    return comparison(ratio, baseline_name="plain", candidate_name=name, outputs=outputs)


WRITING = Writing(
    "It is a ", "truth", 38, written("cached", 0.25), written("cached, INT8", 0.2, equal=0.75)
)


def tour_of(*optimizations, backend="numba", **changes):
    """Give a tour that found this."""
    visits = tuple(Visit(*pair) for pair in zip(STOPS, optimizations, strict=False))
    fields = {"writing": WRITING, "visits": visits, "seconds": 101.0}
    return Tour(backend, 0, INTRODUCTION, **(fields | changes))


def faster():
    """Give an optimization in which a stack of two helps, and something loses accuracy."""
    stack = attempt("int8", "fused", time=0.5, size=0.25)
    return optimization(
        attempt("int8", time=0.6, size=0.25),
        LOST,
        stack,
        attempt("fewer", outcome=NOT_TRIED, reason="no time"),
        name="cnn",
        advice=ADVICE,
        ablation=(Contribution("int8", stack.comparison), Contribution("fused", None, "no copy")),
        profile=example_profile(),
    )


def smaller():
    """Give an optimization for size in which something helps."""
    return optimization(
        attempt("int4", time=1.0, size=0.2, lost=1), name="mlp", settings=Settings(goal="size")
    )


def no_faster():
    """Give an optimization in which nothing is faster, and something smaller."""
    return optimization(
        attempt("int8", outcome=INCONCLUSIVE, time=1.0, size=0.25), LOST, name="cnn", advice=ADVICE
    )


def slower():
    """Give an optimization whose only attempt is slower."""
    return optimization(attempt("low-rank", outcome=WORSE, time=2.0), name="cnn")
