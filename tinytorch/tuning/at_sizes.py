"""Is the gain the same at other batch sizes? The best attempts, compared at each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from tinytorch.comparison.compare import compare
from tinytorch.comparison.evidence import BASELINE
from tinytorch.comparison.outputs import compare_outputs
from tinytorch.comparison.sides import WorkloadSide
from tinytorch.errors import SettingError, first_line
from tinytorch.measure.ceilings import Progress
from tinytorch.models.adapter import Array
from tinytorch.models.workload import Workload, axis_length, resize_workload
from tinytorch.profiling.size_runs import find_axis
from tinytorch.tuning.attempt import NOT_TRIED, Attempt, Settings
from tinytorch.tuning.catalog import find_entries
from tinytorch.tuning.optimization import AtSize
from tinytorch.tuning.trying import build_stack

SHARE = 0.3
"""The part of a time budget that is kept for comparisons at other sizes."""
LEAST_S, MOST_S = 0.5, 4.0
MOST_RIVALS = 2
"""So many attempts are compared beside the recommended one."""
BROKEN = "its outputs are broken at this size"


def checked_sizes(
    workload: Workload, batch: Sequence[int], sequence: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes that were asked for by axis, in order; raise where inputs have none."""
    asked: dict[str, tuple[Any, ...]] = {"batch": tuple(batch), "sequence": tuple(sequence)}
    for axis, sizes in asked.items():
        if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
            raise SettingError(f"{axis}={list(sizes)}; give whole numbers from 1 on")
        if sizes:
            find_axis(workload, axis)
    return {axis: tuple(sorted(set(sizes))) for axis, sizes in asked.items() if sizes}


def compare_at_sizes(
    workload: Workload,
    sizes: Mapping[str, Sequence[int]],
    *,
    recommended: Attempt | None,
    others: Sequence[Attempt],
    settings: Settings,
    until: float,
    progress: Progress | None = None,
) -> tuple[AtSize, ...]:
    """Compare the recommended attempt, then some others, with the baseline at each size.

    At the size of the example inputs it is what was measured before. What is not begun `until` a
    moment of :func:`time.monotonic` is left out, and says so.
    """
    rivals = [each for each in others if not (recommended and each.stack == recommended.stack)]
    chosen = [*([recommended] if recommended else []), *rivals[:MOST_RIVALS]]
    asked = [
        (attempt, axis, size) for attempt in chosen for axis, each in sizes.items() for size in each
    ]
    found = []
    for place, (attempt, axis, size) in enumerate(asked):
        if progress:
            progress.describe(f"{attempt.name} at {axis} {size}")
        if size == axis_length(workload.arguments, find_axis(workload, axis)):
            found.append(AtSize(axis, size, attempt.name, attempt.comparison))
            continue
        left_s = until - monotonic()
        if left_s <= 0:
            found.append(AtSize(axis, size, attempt.name, None, f"{NOT_TRIED}: time budget"))
            continue
        budget_s = min(MOST_S, max(LEAST_S, left_s / (len(asked) - place) / 2))
        found.append(_compared(workload, attempt, axis, size, settings, budget_s))
    return tuple(found)


def _compared(
    workload: Workload, attempt: Attempt, axis: str, size: int, settings: Settings, budget_s: float
) -> AtSize:
    baseline = resize_workload(workload, find_axis(workload, axis), size)
    try:
        built = build_stack(baseline, find_entries(attempt.stack))
        candidate = replace(baseline, model=built.model)
        if compare_outputs(_outputs(baseline), _outputs(candidate)).broken:
            return AtSize(axis, size, attempt.name, None, BROKEN)
        comparison = compare(
            WorkloadSide(baseline, name=BASELINE),
            WorkloadSide(candidate, name=attempt.name),
            budget_s=budget_s,
            evidence=False,
            timing=settings.timing,
            names=(BASELINE, attempt.name),
            seed=settings.seed,
        )
    except Exception as error:  # a model may raise anything at a size that it does not take
        return AtSize(axis, size, attempt.name, None, first_line(error))
    return AtSize(axis, size, attempt.name, comparison)


def _outputs(workload: Workload) -> Sequence[Array]:
    side = WorkloadSide(workload, name=BASELINE)
    with side.opened():
        side.stay_as_it_is("its outputs are compared")
        return side.outputs()


def notes_at_sizes(found: Sequence[AtSize], recommended: str) -> Iterator[str]:
    """Yield a note for every size at which something else than the recommended is best."""
    for axis, size in dict.fromkeys((each.axis, each.size) for each in found):
        here = [each for each in found if (each.axis, each.size) == (axis, size)]
        ours = next((each for each in here if each.attempt == recommended), None)
        faster = [each for each in here if each.is_faster]
        best = max(faster, key=_speedup, default=None)
        if best is None:
            if ours is not None and ours.comparison is not None:
                yield f"at {axis} {size} {ours.attempt}: {ours.comparison.verdict}"
        elif best is not ours and _is_beyond(best, ours):
            yield f"at {axis} {size} the fastest is {best.attempt}, {_speedup(best):.2f}x"


def _speedup(each: AtSize) -> float:
    return each.comparison.speedup if each.comparison else 0.0


def _is_beyond(best: AtSize, ours: AtSize | None) -> bool:
    """Return whether one is faster than the other by their intervals."""
    if ours is None or ours.comparison is None or best.comparison is None:
        return True
    return best.comparison.speedup_low > ours.comparison.speedup_high
