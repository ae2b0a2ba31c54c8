"""One contest on the page of a board: pictures, three tables, records, and who is not ranked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tinytorch.competition.boards.board import ContestBoard, Mark, Place, Ranking
from tinytorch.competition.boards.innovation import Credit
from tinytorch.competition.boards.standings import RefusedRun
from tinytorch.competition.judgement import Score
from tinytorch.competition.runs.kept_run import NOT_CHECKED, KeptRun
from tinytorch.reporting.competition_board import (
    ABOUT,
    NOT_CHECKED_HERE,
    accuracy_text,
    cap_text,
    innovation_text,
    rank_texts,
    runs_text,
    standing_notes,
)
from tinytorch.reporting.competition_words import (
    BAND,
    VERDICT_STYLES,
    contest_text,
    finding_lines,
    plain,
    run_score_text,
    score_text,
)
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.history import date_text
from tinytorch.reporting.html.figures import figure
from tinytorch.reporting.html.forest import TONES, forest_picture
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.tables import Cell, Column, table
from tinytorch.reporting.html.trend import trend_picture
from tinytorch.reporting.quantities import bytes_text

__all__ = ["contest_section"]

UNVERIFIED = "as the teams say themselves; nobody else has run these entries"
SHORT_HASH = 12


def contest_section(found: ContestBoard, anchor: str) -> Section:
    """Give the section of one event in one division at one tier."""
    where = found.contest
    parts = [
        *_ranking(found.verified, "Verified", "run by the organiser on the round's questions"),
        *_ranking(found.unverified, "Unverified", UNVERIFIED),
        *_not_checked(found.not_checked),
        *_refused(found.refused),
    ]
    return Section(
        anchor,
        contest_text(where.event, where.division, where.tier),
        joined(parts),
        "A score is how many times better than the reference, which ran in turns with the entry, "
        "with a 95% interval over the heats of all runs. A shared rank (=) means that no "
        "difference is shown.",
    )


def _ranking(ranking: Ranking, title: str, about: str) -> list[Markup]:
    if not ranking.speed:
        return []
    return [
        element("h3", title),
        element("p", f"{about[0].upper()}{about[1:]}.", class_="muted"),
        figure(_forest(ranking.speed), title="Speed.", about="Rank, team, score and interval."),
        _speed(ranking.speed),
        *_innovation(ranking.innovation),
        _composite(ranking.composite),
        *_history(ranking.history),
    ]


def _forest(places: Sequence[Place]) -> Markup:
    rows = [
        ForestRow(
            f"{rank}  {plain(place.standing.team)}",
            place.score.value,
            place.score.low,
            place.score.high,
            score_text(place.score),
            VERDICT_STYLES[place.score.verdict],
        )
        for rank, place in zip(rank_texts(places), places, strict=True)
    ]
    return forest_picture(ForestPlot(rows, 0.0, BAND))


# ---------------------------------------------------------------- tables


def _speed(places: Sequence[Place]) -> Markup:
    columns = [
        *(Column("rank", "number"), Column("team"), Column("speed", "bar"), Column("95% interval")),
        Column("verdict"),
        Column("accuracy", "number", "of the last run, on the questions that were timed"),
        Column("peak memory", "number", "median over the heats of what the process grows by"),
        Column("runs (heats)", "number", "valid runs, all of which count, and their heats"),
        *(Column("techniques"), Column("last run"), Column("notes")),
    ]
    rows = [[*head, *_speed_cells(place)] for head, place in _heads(places)]
    return table(columns, rows, caption=f"speed: {ABOUT['speed']}", class_="board-speed")


def _heads(places: Sequence[Place]) -> Iterator[tuple[list[Cell | str], Place]]:
    """Give the first cells of each row: rank, team, score and its interval."""
    most = max(place.score.value for place in places)
    for rank, place in zip(rank_texts(places), places, strict=True):
        entry, score = place.standing.entry, place.score
        head: list[Cell | str] = [
            Cell(rank, place.rank),
            Cell(plain(entry.team), title=f"entry {entry.sha256[:SHORT_HASH]}"),
            Cell(ratio_text(score.value), score.value, bar=score.value / most),
            Cell(_ends(score), score.low),
        ]
        yield head, place


def _speed_cells(place: Place) -> list[Cell | str]:
    standing, accuracy = place.standing, place.standing.accuracy
    return [
        Cell(place.score.verdict, tone=TONES[VERDICT_STYLES[place.score.verdict]]),
        Cell(accuracy_text(accuracy), accuracy.candidate_mean if accuracy else None),
        Cell(bytes_text(standing.peak_bytes), standing.peak_bytes),
        Cell(f"{runs_text(standing)} ({len(standing.heats)})", len(standing.heats)),
        ", ".join(plain(each.name) for each in standing.entry.techniques) or "none",
        date_text(standing.created_at),
        Cell("; ".join(standing_notes(place)), tone="unknown"),
    ]


def _innovation(places: Sequence[Place]) -> list[Markup]:
    columns = [Column("rank", "number"), Column("team"), Column("innovation", "bar")]
    columns += [Column("at least to at most"), Column("notes")]
    rows = [[*head, Cell(cap_text(p.innovation), tone="unknown")] for head, p in _heads(places)]
    caption = f"innovation: {ABOUT['innovation']}"
    credits = [
        _credit_row(plain(place.standing.team), each)
        for place in places
        for each in place.innovation.credits
    ]
    found = [table(columns, rows, caption=caption, class_="board-innovation")]
    if credits:
        named = [
            *(Column("team"), Column("technique"), Column("contributes", "number")),
            Column("others without it", "number", "teams with a verified entry in this event"),
            *(Column("helps elsewhere"), Column("credit", "number")),
        ]
        found.append(table(named, credits, caption="what each technique counts"))
    return found


def _credit_row(team: str, credit: Credit) -> list[Cell | str]:
    found = credit.contribution
    return [
        team,
        plain(credit.technique),
        Cell("not measured" if found is None else score_text(found), found.low if found else None),
        Cell(f"{credit.without_it} of {credit.others}", credit.rarity),
        "yes" if credit.helps_elsewhere else "no",
        Cell(ratio_text(math.exp(credit.value)), credit.value),
    ]


def _composite(places: Sequence[Place]) -> Markup:
    columns = [
        *(Column("rank", "number"), Column("team"), Column("composite", "bar")),
        *(Column("95% interval"), Column("speed", "number"), Column("innovation", "number")),
    ]
    rows = [
        [
            *head,
            Cell(ratio_text(place.standing.score.value), place.standing.score.value),
            Cell(innovation_text(place.innovation), place.innovation.value),
        ]
        for head, place in _heads(places)
    ]
    caption = f"composite: {ABOUT['composite']}"
    return table(columns, rows, caption=caption, class_="board-composite")


def _ends(score: Score) -> str:
    return f"{ratio_text(score.low)} to {ratio_text(score.high)}"


# ---------------------------------------------------------------- records, refused


def _history(marks: Sequence[Mark]) -> list[Markup]:
    """Show who held the record from when; from two on, as a picture as well."""
    if not marks:
        return []
    parts = []
    if len(marks) > 1:
        picture = trend_picture(
            [mark.score.value for mark in marks],
            bars=[(mark.score.low, mark.score.high) for mark in marks],
            y_text=ratio_text,
            has_levels=False,
            ends=(plain(marks[0].created_at)[:10], plain(marks[-1].created_at)[:10]),
            titles=[
                f"{plain(m.team)}, {date_text(m.created_at)}: {score_text(m.score)}" for m in marks
            ],
        )
        about = "A new one needs its whole interval above the former score."
        parts.append(figure(picture, title="Records, oldest first.", about=about))
    rows: list[list[Cell | str]] = [
        [
            date_text(mark.created_at),
            plain(mark.team),
            Cell(ratio_text(mark.score.value), mark.score.value),
            _ends(mark.score),
            mark.entry_sha256[:SHORT_HASH],
        ]
        for mark in reversed(marks)
    ]
    columns = [
        Column("since"),
        Column("team"),
        Column("score then", "number"),
        Column("95% interval"),
        Column("entry"),
    ]
    return [*parts, table(columns, rows, caption="records, the newest first")]


def _not_checked(runs: Sequence[KeptRun]) -> list[Markup]:
    """List the runs that nobody can believe or doubt before their signature is checked."""
    if not runs:
        return []
    rows: list[list[Cell | str]] = [
        [
            plain(run.judgement.entry.team),
            run_score_text(run.judgement),
            date_text(run.judgement.created_at),
            Cell(run.sha256[:SHORT_HASH], title=plain(run.path)),
        ]
        for run in runs
    ]
    columns = [Column(name) for name in ("team", "score of the run", "when", "record")]
    return [
        element("h3", f"{NOT_CHECKED[0].upper()}{NOT_CHECKED[1:]}"),
        element("p", f"{NOT_CHECKED_HERE[0].upper()}{NOT_CHECKED_HERE[1:]}.", class_="muted"),
        table(columns, rows),
    ]


def _refused(refused: Sequence[RefusedRun]) -> list[Markup]:
    if not refused:
        return []
    rows: list[list[Cell | str]] = []
    for each in refused:
        judgement = each.run.judgement
        found = [finding_lines(one) for one in judgement.findings if one.is_fatal]
        rows.append(
            [
                plain(judgement.entry.team),
                Cell(plain(each.reason), tone="bad"),
                "; ".join(f"{rule}: {seen}" for rule, seen, _ in found),
                "; ".join(fix for _, _, fix in found),
                each.run.status,
                date_text(judgement.created_at),
                Cell(each.run.sha256[:SHORT_HASH], title=plain(each.run.path)),
            ]
        )
    names = ("team", "why", "what was seen", "what to do", "status", "when", "record")
    return [element("h3", "Not ranked"), table([Column(name) for name in names], rows)]
