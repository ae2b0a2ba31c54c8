"""A board as JSON and CSV, for others to compute with."""

from __future__ import annotations

import csv
import io
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tinytorch.competition.board import (
    KINDS,
    Board,
    ContestBoard,
    Place,
    Ranking,
    RefusedRun,
    Standing,
)
from tinytorch.competition.events import KEPT, tier_verdict
from tinytorch.competition.judgement import Score
from tinytorch.competition.run_files import NOT_CHECKED, KeptRun
from tinytorch.competition.signing import WHAT_TO_INSTALL
from tinytorch.errors import SettingError

# ---------------------------------------------------------------- tables for spreadsheets:
# comma-separated, and nothing in them is computed

Cell = str | int | float | None
Row = dict[str, Cell]
FORMULA_STARTS = ("=", "+", "-", "@")
"""What makes a spreadsheet compute a cell instead of showing it."""


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Cell]]) -> str:
    """Write a table as RFC 4180 wants it.

    A row may lack columns: these cells are empty. Text that a spreadsheet would compute gets an
    apostrophe in front; numbers stay what they are.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_defused(row.get(name)) for name in columns] for row in rows)
    return file.getvalue()


def _defused(cell: Cell) -> str:
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return str(cell)
    text = " ".join(cell.split())
    # A full-width equals sign counts as one, too.
    is_formula = unicodedata.normalize("NFKC", text).lstrip().startswith(FORMULA_STARTS)
    return f"'{text}" if is_formula else text


# ---------------------------------------------------------------- grades for a class: points for
# each team and event, with what they follow from

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
    rows |= {
        key: _standing_row(place) | {"points": worth[1]} for key, (place, worth) in best.items()
    }
    for run in (run for contest in board.contests for run in contest.not_checked):
        key = run.judgement.entry.team, run.judgement.entry.event
        if key not in best or not best[key][0].standing.is_verified:
            rows[key] = _run_row(run) | {"findings": WHAT_TO_INSTALL}
    return csv_text(COLUMNS, [rows[key] for key in sorted(rows)])


def points_of(score: Score, full_marks_at: float = FULL_MARKS_AT) -> float:
    """Return 0 to 100 points for the lower bound of a score, on a logarithmic scale.

    No speedup shown is 0, `full_marks_at` and more is 100; by default 2x is 50 and 4x is 100.

    >>> points_of(Score(2.1, 2.0, 2.2, n=10))
    50.0
    """
    if score.low <= 1:
        return 0.0
    return round(100 * min(1.0, math.log(score.low) / math.log(full_marks_at)), 1)


def reasons_of(refused: Sequence[RefusedRun]) -> str:
    """Return the reasons of refused runs, without repetition."""
    found = []
    for each in refused:
        seen = [f"{f.rule}: {f.seen}" for f in each.run.judgement.findings if f.is_fatal]
        found.append("; ".join(seen) or each.reason)
    return "; ".join(dict.fromkeys(found))


def _failed_row(wrong: Sequence[RefusedRun]) -> Row:
    return _run_row(wrong[-1].run) | {
        "points": 0.0,
        "verdict": "not valid",
        "runs": 0,
        "runs_not_valid": len(wrong),
        "findings": reasons_of(wrong),
    }


def _run_row(run: KeptRun) -> Row:
    """Return what both tables show of a single run; each takes the columns that it has."""
    found = run.judgement
    return {
        "team": found.entry.team,
        "event": found.entry.event,
        "division": found.entry.division,
        "tier": found.entry.tier,
        "status": run.status,
        "heats": len(found.heats),
        "last_run": found.created_at,
        "entry_sha256": found.entry.sha256,
    }


def _standing_row(place: Place) -> Row:
    """Return what both tables show of a standing."""
    standing, accuracy = place.standing, place.standing.accuracy
    verdict = tier_verdict(accuracy) if accuracy else "not measured"
    return _run_row(standing.runs[-1]) | {
        "status": standing.status,
        "rank": place.rank,
        "score": place.score.value,
        "low": place.score.low,
        "high": place.score.high,
        "verdict": place.score.verdict,
        "tier_kept": "yes" if verdict == KEPT else verdict,
        "innovation": place.innovation.value,
        "composite": place.composite.value,
        "composite_low": place.composite.low,
        "composite_high": place.composite.high,
        "metric": accuracy.metric if accuracy else None,
        "reference_accuracy": accuracy.baseline_mean if accuracy else None,
        "entry_accuracy": _finite(accuracy.candidate_mean) if accuracy else None,
        "peak_memory_bytes": standing.peak_bytes,
        "runs": len(standing.runs),
        "runs_not_valid": standing.refused,
        "heats": len(standing.heats),
        "entries_tried": standing.entries_tried,
        "techniques": ", ".join(each.name for each in standing.entry.techniques),
        "findings": _warnings(standing),
    }


def _warnings(standing: Standing) -> str:
    found = {
        f"{each.rule}: {each.seen}" for run in standing.runs for each in run.judgement.findings
    }
    return "; ".join(sorted(found))


# ---------------------------------------------------------------- a board as JSON and CSV, for
# others to compute with

FORMAT, SCHEMA = "tinytorch competition board", 1
# fmt: off
CSV_COLUMNS = (
    "event", "division", "tier", "status", "rank", "team", "score", "low", "high", "verdict",
    "innovation_rank", "innovation", "composite_rank", "composite", "composite_low",
    "composite_high", "metric", "reference_accuracy", "entry_accuracy", "peak_memory_bytes", "runs",
    "runs_not_valid", "heats", "entries_tried", "techniques", "last_run", "entry_sha256", "reason",
)
# fmt: on


def to_json(board: Board) -> str:
    """Write everything that a board shows; the same board gives the same text."""
    return json.dumps(board_fields(board), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def to_csv(board: Board) -> str:
    """Write a row for each standing, and one for each run that is not ranked (without a rank)."""
    rows: list[Row] = []
    for contest in board.contests:
        for ranking in (contest.verified, contest.unverified):
            rows += _standing_rows(ranking)
        not_checked = (RefusedRun(each, NOT_CHECKED) for each in contest.not_checked)
        rows += [
            _run_row(each.run) | {"reason": reasons_of([each])}
            for each in (*contest.refused, *not_checked)
        ]
    return csv_text(CSV_COLUMNS, rows)


# ---------------------------------------------------------------- JSON


def board_fields(board: Board) -> dict[str, Any]:
    """Return the fields that :func:`to_json` writes."""
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "contests": [_contest_fields(each) for each in board.contests],
        "runs": [_run_fields(each) for each in board.runs],
        "damaged": [asdict(each) for each in board.damaged],
        "rounds": [asdict(each) for each in board.rounds],
    }


def _contest_fields(found: ContestBoard) -> dict[str, Any]:
    return {
        **asdict(found.contest),
        "verified": _ranking_fields(found.verified),
        "unverified": _ranking_fields(found.unverified),
        "not_ranked": [{"run": each.run.sha256, "reason": each.reason} for each in found.refused],
        "signature_not_checked": [each.sha256 for each in found.not_checked],
    }


def _ranking_fields(ranking: Ranking) -> dict[str, Any]:
    tables: dict[str, Any] = {
        kind: [
            {
                "rank": place.rank,
                "team": place.standing.team,
                "entry_sha256": place.standing.entry.sha256,
                **_score_fields(place.score),
            }
            for place in ranking.table(kind)
        ]
        for kind in KINDS
    }
    history = [
        {
            "created_at": mark.created_at,
            "team": mark.team,
            "entry_sha256": mark.entry_sha256,
            **_score_fields(mark.score),
        }
        for mark in ranking.history
    ]
    standings = [_standing_fields(place) for place in ranking.speed]
    return {**tables, "history": history, "standings": standings}


def _standing_fields(place: Place) -> dict[str, Any]:
    standing = place.standing
    return {
        "team": standing.team,
        "entry_sha256": standing.entry.sha256,
        "status": standing.status,
        "runs": [run.sha256 for run in standing.runs],
        "runs_not_valid": standing.refused,
        "do_runs_agree": standing.do_runs_agree,
        "entries_tried": standing.entries_tried,
        "peak_memory_bytes": standing.peak_bytes,
        "innovation": place.innovation.value,
        "is_innovation_capped": place.innovation.is_capped,
        "techniques": [
            {
                "name": each.technique,
                "contribution": each.contribution and _score_fields(each.contribution),
                "others": each.others,
                "others_without_it": each.without_it,
                "helps_elsewhere": each.helps_elsewhere,
                "credit": each.value,
            }
            for each in place.innovation.credits
        ],
    }


def _run_fields(run: KeptRun) -> dict[str, Any]:
    found = run.judgement
    return {
        "sha256": run.sha256,
        "status": run.status,
        "signer": run.signer,
        "path": run.path,
        "team": found.entry.team,
        "event": found.entry.event,
        "division": found.entry.division,
        "tier": found.entry.tier,
        "entry_sha256": found.entry.sha256,
        "created_at": found.created_at,
        "round": found.round_name,
        "heats": len(found.heats),
        "findings": [{"rule": each.rule, "seen": each.seen} for each in found.findings],
    }


def _score_fields(score: Score) -> dict[str, Any]:
    return {"value": score.value, "low": score.low, "high": score.high, "heats": score.n}


# ---------------------------------------------------------------- CSV


def _standing_rows(ranking: Ranking) -> list[Row]:
    """Return one row per team; a team has one place in a ranking."""
    new = {place.standing.team: place.rank for place in ranking.innovation}
    mixed = {place.standing.team: place.rank for place in ranking.composite}
    return [
        _standing_row(each)
        | {"innovation_rank": new[each.standing.team], "composite_rank": mixed[each.standing.team]}
        for each in ranking.speed
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
