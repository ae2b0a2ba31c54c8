"""Do the numbers of a record follow from its raw values? (Rule R3.)"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tinytorch.competition.judgement import FEWEST_HEATS, Judgement
from tinytorch.competition.rules import Finding, finding
from tinytorch.competition.runs.judgement_parts import score_fields
from tinytorch.competition.tiers import KEPT, tier_margin, tier_verdict
from tinytorch.workloads.record import Record

__all__ = ["check_numbers"]

CLOSE = 1e-9
"""Logarithms of other machines may differ in the last digits."""
CLOCKS_DIFFER = timedelta(hours=1)
Check = Callable[[Record, Judgement], Iterator[str]]


def check_numbers(record: Record, judgement: Judgement) -> tuple[Finding, ...]:
    """Give what of a record does not follow from its own raw values."""
    return tuple(finding("R3", seen) for check in CHECKS for seen in check(record, judgement))


def _score(record: Record, judgement: Judgement) -> Iterator[str]:
    stored, expected = record.details["score"], score_fields(judgement.score)
    if expected is None or not isinstance(stored, dict):
        if stored != expected:
            yield f"the score says {stored}, the heats give {expected}"
        return
    if stored.keys() != expected.keys():
        yield f"the score has {', '.join(stored)} instead of {', '.join(expected)}"
        return
    for name, value in expected.items():
        said = stored[name]
        is_number = isinstance(said, int | float) and not isinstance(said, bool)
        if not is_number or not math.isclose(said, value, rel_tol=CLOSE):
            yield f"the score says {name} {said}, the heats give {value:.6g}"


def _heats(record: Record, judgement: Judgement) -> Iterator[str]:
    is_clean = not any(each.is_fatal for each in judgement.findings)
    if is_clean and len(judgement.heats) < FEWEST_HEATS:
        yield f"{len(judgement.heats)} heats without a finding; a run has {FEWEST_HEATS} or more"
    if judgement.seconds_used < 0:
        yield f"it took {judgement.seconds_used} seconds"


def _moment(record: Record, judgement: Judgement) -> Iterator[str]:
    if datetime.fromisoformat(record.created_at) > datetime.now(UTC) + CLOCKS_DIFFER:
        yield f"it was made at {record.created_at}, which is still to come"


def _accuracy(record: Record, judgement: Judgement) -> Iterator[str]:
    """Hold the margin and the verdict against the scores; a finding A2 may not be left out."""
    is_clean = not any(each.is_fatal for each in judgement.findings)
    if judgement.accuracy is None:
        if is_clean:
            yield "no answer was scored, and nothing was found against it"
        return
    # A copy, which takes what it has computed along; thousands of runs may be held at once.
    found = replace(judgement.accuracy)
    margin = tier_margin(judgement.event, judgement.entry.tier, found.baseline_mean)
    if not math.isclose(found.margin, margin, rel_tol=CLOSE, abs_tol=CLOSE):
        yield f"accuracy may drop by {found.margin:g} in it, but by {margin:g} in this tier"
    if is_clean and tier_verdict(found) != KEPT:
        yield "its scores do not show that the accuracy is kept, but there is no finding A2"


def _ablations(record: Record, judgement: Judgement) -> Iterator[str]:
    declared = [each.name for each in judgement.entry.techniques]
    removed = [each.technique for each in judgement.ablations]
    odd = [name for name in removed if name not in declared]
    if odd or len(set(removed)) < len(removed):
        yield f"the techniques {removed} were switched off, {declared} are declared"


CHECKS: tuple[Check, ...] = (_score, _heats, _moment, _accuracy, _ablations)
