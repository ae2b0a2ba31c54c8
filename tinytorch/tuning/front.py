"""The Pareto front over time, memory, size and accuracy, with doubt."""

from __future__ import annotations

from collections.abc import Sequence

from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.objectives import BASELINE, OBJECTIVES, SAME_BYTES, Measured, Value

__all__ = ["dominates", "front_of"]

HIGHER_IS_BETTER = frozenset({"accuracy"})
COUNTED = frozenset({"memory", "size"})


def front_of(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Give the names of acceptable attempts that no other dominates; "" is the model as it is."""
    points = {"": BASELINE} | {x.name: x.measured for x in attempts if x.is_acceptable}
    return tuple(
        name
        for name, point in points.items()
        if not any(dominates(other, point) for key, other in points.items() if key != name)
    )


def dominates(first: Measured, second: Measured) -> bool:
    """Tell whether the first is at least as good in everything, and shown better in something.

    So what is best at one objective is always on the front. What one of them does not have decides
    nothing.
    """
    pairs = [
        (name, ours, theirs)
        for name in OBJECTIVES
        if (ours := getattr(first, name)) is not None
        and (theirs := getattr(second, name)) is not None
    ]
    return all(_is_as_good(*each) for each in pairs) and any(_is_better(*each) for each in pairs)


def _is_as_good(objective: str, ours: Value, theirs: Value) -> bool:
    if objective in HIGHER_IS_BETTER:
        return ours.value >= theirs.value
    return ours.value <= theirs.value * (1 + _slack(objective))


def _is_better(objective: str, ours: Value, theirs: Value) -> bool:
    if objective in HIGHER_IS_BETTER:
        return theirs.is_below(ours)
    return ours.is_below(theirs, by=_slack(objective))


def _slack(objective: str) -> float:
    return SAME_BYTES if objective in COUNTED else 0.0
