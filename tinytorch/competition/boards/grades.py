"""Grades for a class: points for each team and event, with what they follow from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinytorch.competition.boards.board import Board, Place
from tinytorch.competition.boards.spreadsheet import Cell, csv_text
from tinytorch.competition.boards.standings import RefusedRun, Standing
from tinytorch.competition.judgement import Score
from tinytorch.competition.runs.kept_run import KeptRun
from tinytorch.competition.runs.signing import WHAT_TO_INSTALL
from tinytorch.competition.tiers import KEPT, tier_verdict
from tinytorch.errors import SettingError

__all__ = ["FULL_MARKS_AT", "grades_csv", "points_of", "reasons_of"]

FULL_MARKS_AT = 4.0
"""The speedup whose lower bound is worth all points."""
# fmt: off
COLUMNS = (
    "team", "event", "points", "division", "tier", "status", "score", "low", "high", "verdict",
    "tier_kept", "innovation", "composite", "runs", "runs_not_valid", "findings", "last_run",
)
# fmt: on


def grades_csv(board: Board, *, full_marks_at: float = FULL_MARKS_AT) -> str:
    """Write a row for each team and event, with points; see :func:`points_of`.

    Of a team's standings in an event, a verified one goes before others, then the one with the most
    points. A team whose runs are all refused has no points, and the reasons instead. While a
    signature of a team could not be checked, and nothing else is verified, its points are open.
    """
    if not (math.isfinite(full_marks_at) and full_marks_at > 1):
        raise SettingError(
            f"full marks at {full_marks_at}; give a speedup above 1, such as {FULL_MARKS_AT:g}"
        )
    best: dict[tuple[str, str], tuple[Place, tuple[bool, float]]] = {}
    wrong: dict[tuple[str, str], list[RefusedRun]] = {}
    for contest in board.contests:
        for place in (*contest.verified.speed, *contest.unverified.speed):
            key = place.standing.team, contest.contest.event
            worth = place.standing.is_verified, points_of(place.score, full_marks_at)
            if key not in best or worth > best[key][1]:
                best[key] = place, worth
        for each in contest.refused:
            key = each.run.judgement.entry.team, contest.contest.event
            wrong.setdefault(key, []).append(each)
    rows = {key: _failed_row(found) for key, found in wrong.items()}
    rows |= {key: _grade_row(place, worth[1]) for key, (place, worth) in best.items()}
    for run in (run for contest in board.contests for run in contest.not_checked):
        key = run.judgement.entry.team, run.judgement.entry.event
        if key not in best or not best[key][0].standing.is_verified:
            rows[key] = _open_row(run)
    return csv_text(COLUMNS, [rows[key] for key in sorted(rows)])


def points_of(score: Score, full_marks_at: float = FULL_MARKS_AT) -> float:
    """Give 0 to 100 points for the lower bound of a score, evenly by doublings.

    No speedup shown is 0, `full_marks_at` and more is 100; by default 2x is 50 and 4x is 100.

    >>> points_of(Score(2.1, 2.0, 2.2, 10))
    50.0
    """
    if score.low <= 1:
        return 0.0
    return round(100 * min(1.0, math.log(score.low) / math.log(full_marks_at)), 1)


def reasons_of(refused: Sequence[RefusedRun]) -> str:
    """Say why runs were refused: the rules and what was seen, each once."""
    found = []
    for each in refused:
        seen = [f"{f.rule}: {f.seen}" for f in each.run.judgement.findings if f.is_fatal]
        found.append("; ".join(seen) or each.reason)
    return "; ".join(dict.fromkeys(found))


def _grade_row(place: Place, points: float) -> dict[str, Cell]:
    standing, accuracy = place.standing, place.standing.accuracy
    verdict = tier_verdict(accuracy) if accuracy else "not measured"
    return {
        "team": standing.team,
        "event": standing.contest.event,
        "points": points,
        "division": standing.contest.division,
        "tier": standing.contest.tier,
        "status": standing.status,
        "score": place.score.value,
        "low": place.score.low,
        "high": place.score.high,
        "verdict": place.score.verdict,
        "tier_kept": "yes" if verdict == KEPT else verdict,
        "innovation": place.innovation.value,
        "composite": place.composite.value,
        "runs": len(standing.runs),
        "runs_not_valid": standing.refused,
        "findings": _warnings(standing),
        "last_run": standing.created_at,
    }


def _failed_row(wrong: Sequence[RefusedRun]) -> dict[str, Cell]:
    last = wrong[-1].run
    entry = last.judgement.entry
    return {
        "team": entry.team,
        "event": entry.event,
        "points": 0.0,
        "division": entry.division,
        "tier": entry.tier,
        "status": last.status,
        "verdict": "not valid",
        "runs": 0,
        "runs_not_valid": len(wrong),
        "findings": reasons_of(wrong),
        "last_run": last.judgement.created_at,
    }


def _open_row(run: KeptRun) -> dict[str, Cell]:
    entry = run.judgement.entry
    return {
        "team": entry.team,
        "event": entry.event,
        "division": entry.division,
        "tier": entry.tier,
        "status": run.status,
        "findings": WHAT_TO_INSTALL,
        "last_run": run.judgement.created_at,
    }


def _warnings(standing: Standing) -> str:
    found = {
        f"{each.rule}: {each.seen}" for run in standing.runs for each in run.judgement.findings
    }
    return "; ".join(sorted(found))
