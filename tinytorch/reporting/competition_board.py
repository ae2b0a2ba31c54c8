"""Boards of the competition in the terminal: ranks with intervals, and what is not ranked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.boards.board import Board, BoardKind, ContestBoard, Place, Ranking
from tinytorch.competition.boards.innovation import Credit, Innovation
from tinytorch.competition.boards.standings import RefusedRun, Standing
from tinytorch.competition.rounds import Round
from tinytorch.competition.runs.kept_run import NOT_CHECKED, SEED_NOT_REVEALED, KeptRun
from tinytorch.competition.runs.signing import WHAT_TO_INSTALL
from tinytorch.reporting.competition_words import (
    NOT_AFFILIATED,
    VERDICT_STYLES,
    contest_text,
    event_title,
    moment_text,
    plain,
    run_score_text,
    score_text,
)
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.forest_plot import ratio_text
from tinytorch.reporting.optimization import named_lines
from tinytorch.reporting.profiling_classics import show
from tinytorch.reporting.quality_lines import score_text as accuracy_writer
from tinytorch.reporting.quantities import UNKNOWN, bytes_text

__all__ = [
    "accuracy_text",
    "cap_text",
    "credit_text",
    "innovation_text",
    "not_checked_text",
    "print_board",
    "rank_texts",
    "runs_text",
    "show_board",
    "standing_notes",
]

NOT_SHOWN_APART = "A rank that is shared (=) means: no difference between these is shown."
ABOUT: dict[BoardKind, str] = {
    "speed": "how many times faster than the reference, over the heats of all runs",
    "innovation": "what the techniques contribute at least, weighted by how rare they are",
    "composite": "70% speed, 30% innovation",
}
NOT_CHECKED_HERE = "signed; whether by the organiser's key could not be checked here"
SHORT_HASH = 12


def show_board(
    board: Board, event: str | None = None, *, kind: BoardKind = "speed"
) -> RenderableType:
    """Lay out one kind of table for each contest, or for those of one event."""
    contests = board.of_event(event)
    parts: list[RenderableType] = []
    for each in contests:
        parts += [*_contest(each, kind), Text("")]
    if not contests:
        where = f" of {event_title(event)}" if event else ""
        parts = [Text(f"There is no run{where} yet.", style="yellow"), Text("")]
    return Group(
        *parts,
        *_missing_part(contests),
        *_damaged(board),
        *_rounds(board),
        Text(NOT_SHOWN_APART, style="dim"),
        Text(NOT_AFFILIATED, style="dim"),
    )


def print_board(board: Board, kind: BoardKind = "speed", *, event: str | None = None) -> None:
    """Print a board on stdout."""
    show(show_board(board, event, kind=kind))


# ---------------------------------------------------------------- words that pages share


def rank_texts(places: Sequence[Place]) -> list[str]:
    """Write ranks; one that is shared has an equals sign."""
    ranks = [place.rank for place in places]
    return [f"{rank}=" if ranks.count(rank) > 1 else f"{rank}" for rank in ranks]


def accuracy_text(found: AccuracyComparison | None) -> str:
    """Write the mean score of an entry."""
    return UNKNOWN if found is None else accuracy_writer(found)(found.candidate_mean)


def runs_text(standing: Standing) -> str:
    """Say from how many runs a standing comes, and how many there are of its entry."""
    valid = len(standing.runs)
    return f"{valid} of {valid + standing.refused}" if standing.refused else f"{valid}"


def credit_text(credit: Credit) -> str:
    """Say what a technique counts, and why."""
    if credit.contribution is None:
        return f"{plain(credit.technique)}: not measured"
    words = f"{plain(credit.technique)}: {score_text(credit.contribution)}"
    others = f"{credit.without_it} of {credit.others} others do without"
    words += f", {others if credit.others else 'no other team yet'}"
    return words + (", also helps in another event" if credit.helps_elsewhere else "")


def not_checked_text(count: int) -> str:
    """Say how many signatures were not checked, and what to install."""
    runs = "1 run" if count == 1 else f"{count} runs"
    return f"The signature of {runs} was not checked, so that they do not count; {WHAT_TO_INSTALL}"


def cap_text(innovation: Innovation) -> str:
    """Say why innovation is less than the credits come to; "" where it is not."""
    if not innovation.is_capped:
        return ""
    return f"capped by its speed: the credits come to {ratio_text(innovation.uncapped)}"


def innovation_text(innovation: Innovation) -> str:
    """Write innovation; one that is capped says so."""
    words = ratio_text(innovation.value)
    return f"{words} (capped by its speed)" if innovation.is_capped else words


def standing_notes(place: Place) -> list[str]:
    """Say what to know before believing a row."""
    standing, notes = place.standing, []
    if standing.status == SEED_NOT_REVEALED:
        notes.append("seed not revealed yet")
    if not standing.do_runs_agree:
        notes.append("its runs differ by more than chance")
    if standing.refused:
        notes.append(f"{standing.refused} of its runs not valid")
    if place.innovation.is_capped:
        notes.append("innovation capped by its speed")
    if standing.entries_tried > 1:
        notes.append(f"entry {standing.entries_tried} of this team")
    return notes


# ---------------------------------------------------------------- the parts


def _contest(found: ContestBoard, kind: BoardKind) -> Iterator[RenderableType]:
    where = found.contest
    yield Text(contest_text(where.event, where.division, where.tier), style="bold")
    yield Text(f"{kind}: {ABOUT[kind]}", style="dim")
    if not (found.verified.speed or found.unverified.speed or found.not_checked):
        yield Text("No valid run yet.", style="yellow")
    yield from _ranking(found.verified, kind, "")
    yield from _ranking(found.unverified, kind, "unverified: as the teams say themselves")
    yield from _not_checked(found.not_checked)
    yield from _refused(found.refused)


def _ranking(ranking: Ranking, kind: BoardKind, title: str) -> Iterator[RenderableType]:
    places = ranking.table(kind)
    if not places:
        return
    if title:
        yield Text(title, style="yellow")
    yield _table(places, kind)
    if kind == "innovation":
        yield named_lines(
            (plain(place.standing.team), Text(credit, style="dim"))
            for place in places
            for credit in (*map(credit_text, place.innovation.credits), cap_text(place.innovation))
            if credit
        )
    if kind == "speed" and ranking.history:
        last = ranking.history[-1]
        since = f"{plain(last.team)} since {moment_text(last.created_at)}, {score_text(last.score)}"
        yield Text(f"record: {since}", style="dim")


def _table(places: Sequence[Place], kind: BoardKind) -> FittingTable:
    standings = [place.standing for place in places]
    verdicts = [each.score.verdict for each in standings]
    scores = [
        innovation_text(p.innovation) if kind == "innovation" else score_text(p.score)
        for p in places
    ]
    return FittingTable(
        "rank  team",
        [
            Text(f"{rank:<4}  {plain(each.team)}")
            for rank, each in zip(rank_texts(places), standings, strict=True)
        ],
        [
            Column(kind, scores, 0, "left"),
            Column("verdict", verdicts if kind == "speed" else [""] * len(places), 1, "left"),
            Column("accuracy", [accuracy_text(each.accuracy) for each in standings], 2),
            Column("peak memory", [bytes_text(each.peak_bytes) for each in standings], 4),
            Column("runs", [runs_text(each) for each in standings], 3),
            Column("heats", [str(len(each.heats)) for each in standings], 6),
            Column("techniques", [_techniques(each) for each in standings], 5, "left", least=10),
            Column(
                "notes", ["; ".join(standing_notes(each)) for each in places], 7, "left", least=10
            ),
        ],
        [VERDICT_STYLES[verdict] if kind == "speed" else "" for verdict in verdicts],
        label_least=16,
    )


def _techniques(standing: Standing) -> str:
    return ", ".join(plain(each.name) for each in standing.entry.techniques) or "none"


def _not_checked(runs: Sequence[KeptRun]) -> Iterator[RenderableType]:
    if not runs:
        return
    yield Text(f"{NOT_CHECKED}: {NOT_CHECKED_HERE}", style="yellow")
    yield named_lines(
        (
            f"- {plain(run.judgement.entry.team)}",
            Text(f"{run_score_text(run.judgement)}, {moment_text(run.judgement.created_at)}"),
        )
        for run in runs
    )


def _refused(refused: Sequence[RefusedRun]) -> Iterator[RenderableType]:
    if not refused:
        return
    yield Text("not ranked", style="red")
    rows = []
    for each in refused:
        judgement = each.run.judgement
        seen = [found.seen for found in judgement.findings if found.is_fatal]
        words = plain(": ".join([each.reason, "; ".join(seen)] if seen else [each.reason]))
        rows.append((f"- {plain(judgement.entry.team)}", Text(words)))
    yield named_lines(rows)


def _missing_part(contests: Sequence[ContestBoard]) -> Iterator[RenderableType]:
    """Say once what it takes to check signatures."""
    count = sum(len(each.not_checked) for each in contests)
    if count:
        yield Text(f"{not_checked_text(count)}.", style="yellow")
        yield Text("")


def _damaged(board: Board) -> Iterator[RenderableType]:
    if board.damaged:
        yield Text("Files that do not count", style="bold")
        for each in board.damaged:  # a path is long: what is wrong with it stands below
            yield Text(plain(each.path), overflow="fold")
            yield Padding(Text(plain(each.reason), style="yellow"), (0, 0, 0, 2), expand=False)
        yield Text("")


def _rounds(board: Board) -> Iterator[RenderableType]:
    if board.rounds:
        yield Text("Rounds", style="bold")
        yield named_lines(
            (plain(each.name), Text(f"commitment {each.commitment[:SHORT_HASH]}..., {_seed(each)}"))
            for each in board.rounds
        )
        yield Text("")


def _seed(found: Round) -> str:
    return f"seed {found.seed[:SHORT_HASH]}..." if found.seed else "seed not revealed yet"
