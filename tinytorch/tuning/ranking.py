"""Which attempt is best at a goal, and whether one is better than another at all."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SLOWER, Estimate
from tinytorch.tuning.attempt import (
    BASELINE,
    BETTER,
    KEPT,
    NO_GAIN,
    OBJECTIVES,
    SAME_BYTES,
    WORSE,
    Attempt,
    Measured,
    check_limits,
    is_less,
    is_more,
    measured_by,
)

OBJECTIVE_OF = {"latency": "time", "throughput": "time", "memory": "memory", "size": "size"}
"""Goal -> the objective that decides about it."""
OF_TIME = {FASTER: BETTER, SLOWER: WORSE, INCONCLUSIVE: INCONCLUSIVE}


def outcome_at(goal: str, comparison: Comparison) -> str:
    """Return the outcome of a comparison at a goal, regardless of accuracy."""
    if OBJECTIVE_OF[goal] == "time":
        return OF_TIME.get(comparison.verdict, NO_GAIN)
    share = value_at(goal, measured_by(comparison))
    if share is None:
        return INCONCLUSIVE
    return BETTER if is_less(share) else WORSE if is_more(share) else NO_GAIN


def best_of(
    attempts: Sequence[Attempt], *, goal: str, limits: Mapping[str, float]
) -> Attempt | None:
    """Return the best attempt that is acceptable, better at the goal and within the limits.

    Where limits are set and only some attempt that is not better at the goal keeps to them, it is
    that one: a limit is a condition, a goal a wish. A stack that was compared with another of them,
    and inconclusive, does not come before it: its value may be smaller by chance.
    """
    acceptable = [each for each in attempts if each.is_acceptable and each.comparison]
    fitting = [each for each in acceptable if _keeps(each, limits)]
    better = [each for each in fitting if each.outcome == BETTER]
    if limits and not better and not baseline_keeps(acceptable, limits):
        better = fitting
    names = {each.name for each in better}
    ranked = [
        (value.value, each)
        for each in better
        if (value := value_at(goal, each.measured)) and not _adds_nothing(each, names)
    ]
    if not ranked:
        return None
    least = min(value for value, _ in ranked)
    slack = 0.0 if OBJECTIVE_OF[goal] == "time" else SAME_BYTES
    alike = [pair for pair in ranked if pair[0] <= least * (1 + slack)]
    return min(alike, key=lambda pair: (_time_of(pair[1]), pair[0]))[1]


def choose(
    attempts: Sequence[Attempt],
    confirmations: Sequence[Attempt],
    *,
    goal: str,
    limits: Mapping[str, float],
) -> Attempt | None:
    """Return the best attempt that no confirmation contradicts.

    What was confirmed comes before everything else; once one did not hold, nothing else is chosen:
    the others were found the same way.
    """
    best = _best_confirmed(confirmations, goal=goal, limits=limits)
    if best is not None:
        return next((each for each in attempts if each.stack == best.stack), None)
    return None if confirmations else best_of(attempts, goal=goal, limits=limits)


def next_best(
    attempts: Sequence[Attempt],
    confirmations: Sequence[Attempt],
    *,
    goal: str,
    limits: Mapping[str, float],
) -> Attempt | None:
    """Return the attempt to confirm next, or the best one that is confirmed already.

    It is the best attempt that was not refuted. Once one is confirmed, another one comes before it
    only where its interval is wholly better than what was left of the first one's.
    """
    best = _best_confirmed(confirmations, goal=goal, limits=limits)
    compared = {each.stack for each in confirmations}
    others = [each for each in attempts if each.stack not in compared]
    if best is None:
        return best_of(others, goal=goal, limits=limits)
    rivals = [each for each in others if _is_shown_better(each, best, goal)]
    rival = best_of(rivals, goal=goal, limits=limits)
    return rival or next(each for each in attempts if each.stack == best.stack)


def _best_confirmed(
    confirmations: Sequence[Attempt], *, goal: str, limits: Mapping[str, float]
) -> Attempt | None:
    held = [each for each in confirmations if holds(each, goal=goal, limits=limits)]
    return best_of(held, goal=goal, limits=limits)


def _is_shown_better(attempt: Attempt, best: Attempt, goal: str) -> bool:
    value, least = value_at(goal, attempt.measured), value_at(goal, best.measured)
    return value is not None and least is not None and value.high < least.low


def holds(confirmation: Attempt, *, goal: str, limits: Mapping[str, float]) -> bool:
    """Return whether a confirmation, on its own, leads to the same choice."""
    return best_of([confirmation], goal=goal, limits=limits) is not None


def value_at(goal: str, measured: Measured) -> Estimate | None:
    """Return the value that decides about a goal."""
    value: Estimate | None = getattr(measured, OBJECTIVE_OF[goal])
    return value


def _time_of(attempt: Attempt) -> float:
    time = attempt.measured.time
    return math.inf if time is None else time.value


def _adds_nothing(attempt: Attempt, names: Collection[str]) -> bool:
    """Return whether it was compared with another one of these and not found faster."""
    against = attempt.against_best
    return against is not None and against.verdict != FASTER and against.baseline_name in names


def _keeps(attempt: Attempt, limits: Mapping[str, float]) -> bool:
    return all(each.verdict == KEPT for each in check_limits(attempt, limits))


def baseline_keeps(attempts: Sequence[Attempt], limits: Mapping[str, float]) -> bool:
    """Return whether the baseline is within all limits, by the first comparison."""
    compared = next((each for each in attempts if each.comparison), None)
    checks = check_limits(compared, limits, of_baseline=True)
    return all(each.verdict == KEPT for each in checks)


# ---------------------------------------------------------------- the Pareto front over time,
# memory, size and accuracy, with uncertainty

HIGHER_IS_BETTER = frozenset({"accuracy"})
COUNTED = frozenset({"memory", "size"})


def front_of(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Return the names of the acceptable, non-dominated attempts; "" is the baseline."""
    points = {"": BASELINE} | {x.name: x.measured for x in attempts if x.is_acceptable}
    return tuple(
        name
        for name, point in points.items()
        if not any(dominates(other, point) for key, other in points.items() if key != name)
    )


def dominates(first: Measured, second: Measured) -> bool:
    """Return whether the first is no worse in every objective and better in one.

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


def _is_as_good(objective: str, ours: Estimate, theirs: Estimate) -> bool:
    if objective in HIGHER_IS_BETTER:
        return ours.value >= theirs.value
    return ours.value <= theirs.value * (1 + _slack(objective))


def _is_better(objective: str, ours: Estimate, theirs: Estimate) -> bool:
    if objective in HIGHER_IS_BETTER:
        return theirs.is_less_than(ours)
    return ours.is_less_than(theirs, by=_slack(objective))


def _slack(objective: str) -> float:
    return SAME_BYTES if objective in COUNTED else 0.0
