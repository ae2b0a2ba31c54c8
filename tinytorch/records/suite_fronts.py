"""Which entries of a suite no other beats: time against accuracy, and time against memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinytorch.perf.benchmarking.pareto import pareto_front
from tinytorch.records.suite_outcome import EntryOutcome

__all__ = ["Front", "suite_fronts"]

TIMED = ("single-stream", "offline")


@dataclass(frozen=True)
class Front:
    """Entries of one target: seconds per example against something else.

    `points` has both by the name of the entry, `front` those that no other beats, fastest first.
    """

    target: str
    objective: str
    unit: str
    points: dict[str, tuple[float, float]]
    front: tuple[str, ...]


def suite_fronts(outcomes: Sequence[EntryOutcome]) -> tuple[Front, ...]:
    """Give the fronts of every target, over its entries that are timed alike.

    Entries of different targets do different work and are not set against each other, and neither
    are those of different scenarios: the first scenario of a target that has a time counts.
    """
    fronts = []
    for target in dict.fromkeys(each.target for each in outcomes):
        timed = _timed_alike([each for each in outcomes if each.target == target])
        metrics = dict.fromkeys(str(each.accuracy["metric"]) for each in timed if each.accuracy)
        for metric in metrics:
            unit = "%" if metric == "accuracy" else ""
            fronts.append(_front(target, metric, unit, timed, _score_of(metric), lower=False))
        fronts.append(
            _front(target, "peak memory", "B", timed, lambda each: each.peak_bytes, lower=True)
        )
    return tuple(each for each in fronts if each.points)


def _timed_alike(outcomes: Sequence[EntryOutcome]) -> list[EntryOutcome]:
    for scenario in TIMED:
        found = [
            each
            for each in outcomes
            if each.scenario == scenario and each.seconds_per_example is not None
        ]
        if found:
            return found
    return []


def _score_of(metric: str) -> Callable[[EntryOutcome], float | None]:
    def score(outcome: EntryOutcome) -> float | None:
        found = outcome.accuracy
        return float(found["mean"]) if found and found["metric"] == metric else None

    return score


def _front(
    target: str,
    objective: str,
    unit: str,
    outcomes: Sequence[EntryOutcome],
    value_of: Callable[[EntryOutcome], float | None],
    *,
    lower: bool,
) -> Front:
    points = {}
    for each in outcomes:
        seconds, value = each.seconds_per_example, value_of(each)
        if seconds is not None and value is not None:
            points[each.name] = (seconds, value)
    front = pareto_front(points, lower_is_better=(True, lower))
    return Front(target, objective, unit, points, tuple(front))
