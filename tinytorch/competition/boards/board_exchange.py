"""A board as JSON and CSV, for others to compute with."""

from __future__ import annotations

import json
import math
from typing import Any

from tinytorch.competition.boards.board import KINDS, Board, ContestBoard, Place, Ranking
from tinytorch.competition.boards.grades import grades_csv, reasons_of
from tinytorch.competition.boards.spreadsheet import Cell, csv_text
from tinytorch.competition.boards.standings import RefusedRun
from tinytorch.competition.judgement import Score
from tinytorch.competition.runs.kept_run import NOT_CHECKED, KeptRun

__all__ = ["board_fields", "grades_csv", "to_csv", "to_json"]

FORMAT, SCHEMA = "tinytorch competition board", 1
# fmt: off
COLUMNS = (
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
    rows: list[dict[str, Cell]] = []
    for contest in board.contests:
        for ranking in (contest.verified, contest.unverified):
            rows += _standing_rows(ranking)
        rows += [_refused_row(each) for each in contest.refused]
        rows += [_refused_row(RefusedRun(each, NOT_CHECKED)) for each in contest.not_checked]
    return csv_text(COLUMNS, rows)


# ---------------------------------------------------------------- JSON


def board_fields(board: Board) -> dict[str, Any]:
    """Give what :func:`to_json` writes."""
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "contests": [_contest_fields(each) for each in board.contests],
        "runs": [_run_fields(each) for each in board.runs],
        "damaged": [{"path": each.path, "reason": each.reason} for each in board.damaged],
        "rounds": [
            {
                "name": each.name,
                "commitment": each.commitment,
                "seed": each.seed,
                "created_at": each.created_at,
                "public_key": each.public_key,
            }
            for each in board.rounds
        ],
    }


def _contest_fields(found: ContestBoard) -> dict[str, Any]:
    return {
        "event": found.contest.event,
        "division": found.contest.division,
        "tier": found.contest.tier,
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


def _standing_rows(ranking: Ranking) -> list[dict[str, Cell]]:
    """Give a row for each team; a team stands once in a ranking."""
    new = {place.standing.team: place.rank for place in ranking.innovation}
    mixed = {place.standing.team: place.rank for place in ranking.composite}
    return [
        _standing_row(each)
        | {"innovation_rank": new[each.standing.team], "composite_rank": mixed[each.standing.team]}
        for each in ranking.speed
    ]


def _standing_row(place: Place) -> dict[str, Cell]:
    standing, accuracy = place.standing, place.standing.accuracy
    return {
        "event": standing.contest.event,
        "division": standing.contest.division,
        "tier": standing.contest.tier,
        "status": standing.status,
        "rank": place.rank,
        "team": standing.team,
        "score": place.score.value,
        "low": place.score.low,
        "high": place.score.high,
        "verdict": place.score.verdict,
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
        "last_run": standing.created_at,
        "entry_sha256": standing.entry.sha256,
    }


def _refused_row(each: RefusedRun) -> dict[str, Cell]:
    found = each.run.judgement
    return {
        "event": found.entry.event,
        "division": found.entry.division,
        "tier": found.entry.tier,
        "status": each.run.status,
        "team": found.entry.team,
        "heats": len(found.heats),
        "last_run": found.created_at,
        "entry_sha256": found.entry.sha256,
        "reason": reasons_of([each]),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
