"""Imaginary attempts to keep in records, for tests of what reads them."""

from example_comparisons import comparison, with_evidence
from example_optimizations import UNUSABLE, outcome_of
from example_optimizations import optimization as any_optimization

from tinytorch.tuning.attempt import Attempt

__all__ = ["UNUSABLE", "optimization", "timed", "undecided"]


def timed(*stack, ratio=0.5, **changes):
    """Give an attempt that takes this share of the baseline's time."""
    found = with_evidence(ratio, candidate_name=" + ".join(stack))
    fields = {"outcome": outcome_of(ratio), "reason": str(found), "comparison": found, "seconds": 2}
    return Attempt(stack, **(fields | changes))


def undecided(*stack):
    """Give an attempt that shows nothing about time."""
    return timed(*stack, outcome="inconclusive", comparison=comparison(0.97, spread=0.3))


def optimization(*attempts, **changes):
    """Give an optimization in which these were tried, by default one that helps among others."""
    tried = attempts or (timed("int8-dynamic"), timed("compiled-kernels", ratio=0.8))
    return any_optimization(*tried, **({"name": "w"} | changes))
