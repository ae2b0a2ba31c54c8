"""A board of the competition as a page: contests, rounds, all runs, and files to take away."""

from __future__ import annotations

import base64

from tinytorch.competition.boards.board import Board, ContestBoard, Ranking
from tinytorch.competition.boards.board_exchange import to_csv, to_json
from tinytorch.competition.boards.standings import pooled_score
from tinytorch.competition.runs.kept_run import NOT_CHECKED, KeptRun
from tinytorch.reporting.competition_board import not_checked_text
from tinytorch.reporting.competition_words import (
    NOT_AFFILIATED,
    contest_text,
    plain,
    score_text,
)
from tinytorch.reporting.history import date_text
from tinytorch.reporting.html.board_contest import contest_section
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Banner, Page, Section
from tinytorch.reporting.html.tables import Cell, Column, table
from tinytorch.reporting.quantities import UNKNOWN

__all__ = ["board_page"]

SHORT_HASH = 12
FEW_RUNS = 20
ANY_BREAK = "overflow-wrap:anywhere"
NOT_REVEALED = "not revealed yet"


def board_page(board: Board, *, name: str = "") -> Page:
    """Give the page of a board; it needs nothing but the records that the board was made of."""
    contests = [
        contest_section(each, f"contest-{place}") for place, each in enumerate(board.contests, 1)
    ]
    sections = [
        _overview(board),
        *contests,
        _rounds(board),
        _damaged(board),
        _runs(board),
        _files(board),
    ]
    title = f"TinyTorch competition: {plain(name)}" if name else "TinyTorch competition"
    shown = tuple(each for each in sections if each is not None)
    return Page(title, _banner(board), shown, subtitle=NOT_AFFILIATED)


def _banner(board: Board) -> Banner:
    teams = {run.judgement.entry.team for run in board.runs}
    verified = sum(run.is_verified for run in board.runs)
    not_checked = sum(run.status == NOT_CHECKED for run in board.runs)
    refused = sum(len(each.refused) for each in board.contests)
    facts = (
        ("contests", str(len(board.contests))),
        ("verified runs", str(verified)),
        ("unverified runs", str(len(board.runs) - verified - not_checked)),
        *([("signatures not checked", str(not_checked))] if not_checked else []),
        ("runs not ranked", str(refused)),
        ("files that do not count", str(len(board.damaged))),
    )
    verdict = "1 team" if len(teams) == 1 else f"{len(teams)} teams"
    if not teams:
        return Banner("No runs yet", "Submit an entry to be the first.", facts, "unknown")
    sentence = (
        "Every run counts, none is chosen: who is ahead here is ahead over all of their runs."
    )
    if not_checked:
        sentence += f" {not_checked_text(not_checked)}."
    return Banner(f"{verdict} on the board", sentence, facts)


# ---------------------------------------------------------------- overview


def _overview(board: Board) -> Section | None:
    if not board.contests:
        return None
    columns = [Column("contest"), Column("ahead"), Column("score"), Column("status")]
    columns += [Column("ranked", "number"), Column("not ranked", "number")]
    rows = [_overview_row(each, place) for place, each in enumerate(board.contests, 1)]
    about = "Who is ahead in speed: all that share the first rank. Tiers are apart."
    return Section("overview", "Overview", table(columns, rows), about)


def _overview_row(found: ContestBoard, place: int) -> list[Cell | str]:
    where = found.contest
    name = contest_text(where.event, where.division, where.tier)
    ranking = found.verified if found.verified.speed else found.unverified
    count = len(found.verified.speed) + len(found.unverified.speed)
    first = [each for each in ranking.speed if each.rank == 1]
    return [
        Cell(element("a", name, href=f"#contest-{place}"), name),
        ", ".join(plain(each.standing.team) for each in first) or "nobody",
        score_text(first[0].score) if first else UNKNOWN,
        _status(found, ranking),
        Cell(str(count), count),
        Cell(str(len(found.refused)), len(found.refused)),
    ]


def _status(found: ContestBoard, ranking: Ranking) -> str:
    if not ranking.speed:
        return ""
    return "verified" if ranking is found.verified else "unverified"


# ---------------------------------------------------------------- what it rests on


def _rounds(board: Board) -> Section | None:
    if not board.rounds:
        return None
    columns = [Column("round"), Column("since"), Column("commitment"), Column("seed")]
    rows: list[list[Cell | str]] = [
        [
            plain(each.name),
            date_text(each.created_at) if each.created_at else UNKNOWN,
            element("code", each.commitment, style=ANY_BREAK),
            element("code", each.seed, style=ANY_BREAK)
            if each.seed
            else Cell(NOT_REVEALED, tone="unknown"),
        ]
        for each in board.rounds
    ]
    return Section(
        "rounds",
        "Rounds",
        table(columns, rows),
        "The commitment is the SHA-256 of three lines: tinytorch round, the name, the seed. The "
        "organiser publishes it before the round, and the seed after it; with that, everybody can "
        "draw the same questions.",
    )


def _damaged(board: Board) -> Section | None:
    if not board.damaged:
        return None
    rows = [(plain(each.path), plain(each.reason)) for each in board.damaged]
    drawn = table([Column("file"), Column("why")], rows)
    return Section("damaged", "Files that do not count", drawn)


def _runs(board: Board) -> Section | None:
    if not board.runs:
        return None
    names = ("when", "team", "contest", "score", "status", "findings", "round", "signed", "record")
    drawn = table([Column(name) for name in names], [_run_row(each) for each in board.runs[::-1]])
    count = f"{len(board.runs)} runs" if len(board.runs) != 1 else "1 run"
    folded = element("details", element("summary", count), drawn, open=len(board.runs) <= FEW_RUNS)
    about = "Every run that was kept, the newest first. There is no best-of."
    return Section("runs", "All runs", folded, about)


def _run_row(run: KeptRun) -> list[Cell | str]:
    found = run.judgement
    entry = found.entry
    score = pooled_score(found.heats, [each.name for each in found.event.scored])
    rules = sorted({each.rule for each in found.findings if each.is_fatal})
    return [
        date_text(found.created_at),
        plain(entry.team),
        contest_text(entry.event, entry.division, entry.tier),
        Cell(score_text(score), score.value if score else None),
        Cell(run.status, tone="" if run.is_verified else "unknown"),
        Cell(", ".join(rules), tone="bad"),
        plain(found.round_name),
        Cell(_signed(run), title=plain(run.signer)),
        Cell(run.sha256[:SHORT_HASH], title=plain(run.path)),
    ]


def _signed(run: KeptRun) -> str:
    if run.status == NOT_CHECKED:
        return "not checked"
    return "yes" if run.signer else "no"


def _files(board: Board) -> Section:
    links = [
        _download("CSV: a row for each standing", to_csv(board), "text/csv", "board.csv"),
        _download("JSON: everything", to_json(board), "application/json", "board.json"),
    ]
    return Section(
        "files",
        "Files",
        element("ul", *(element("li", link) for link in links)),
        "What this page shows, to compute with. Both files are inside of this one.",
    )


def _download(words: str, text: str, kind: str, file_name: str) -> Markup:
    letters = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    href = f"data:{kind};charset=utf-8;base64,{letters}"
    return joined([element("a", file_name, href=href, download=file_name), f" ({words})"])
