"""A board of the competition as a page: contests, rounds, all runs, and files to take away."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence

from tinytorch.competition.board import (
    Board,
    ContestBoard,
    Credit,
    Mark,
    Place,
    Ranking,
    RefusedRun,
)
from tinytorch.competition.board_files import to_csv, to_json
from tinytorch.competition.judgement import Heat, Judgement, Score, score_of
from tinytorch.competition.run_files import NOT_CHECKED, KeptRun
from tinytorch.reporting.comparison import accuracy_line
from tinytorch.reporting.competition import (
    ABOUT,
    BAND,
    NOT_AFFILIATED,
    NOT_CHECKED_HERE,
    VERDICT_STYLES,
    ablation_rows,
    accuracy_text,
    cap_text,
    contest_text,
    finding_lines,
    headline,
    innovation_text,
    measure_plot,
    measure_rows,
    missing_lines,
    not_checked_text,
    plain,
    rank_texts,
    run_facts,
    run_score_text,
    runs_text,
    score_text,
    standing_notes,
)
from tinytorch.reporting.document import TrendLine
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.html.forest import TONES, forest_picture
from tinytorch.reporting.html.markup import Cell, Column, Markup, element, joined, listed, table
from tinytorch.reporting.html.page import Banner, Page, Section, appendix
from tinytorch.reporting.html.plot import figure
from tinytorch.reporting.html.trend import trend_picture
from tinytorch.reporting.quantities import UNKNOWN, bytes_text, date_text

__all__ = ["board_page", "contest_section", "judgement_page"]


# ---------------------------------------------------------------- one contest on the page of a
# board: pictures, three tables, records, and who is not ranked

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
        chart = TrendLine(
            [mark.score.value for mark in marks],
            unit="x",
            intervals=[(mark.score.low, mark.score.high) for mark in marks],
            has_levels=False,
            ends=(plain(marks[0].created_at)[:10], plain(marks[-1].created_at)[:10]),
            titles=[
                f"{plain(m.team)}, {date_text(m.created_at)}: {score_text(m.score)}" for m in marks
            ],
        )
        about = "A new one needs its whole interval above the former score."
        parts.append(figure(trend_picture(chart), title="Records, oldest first.", about=about))
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


# ---------------------------------------------------------------- a board of the competition as a
# page: contests, rounds, all runs, and files to take away

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
    score = score_of(found.heats, found.event.scored)
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


# ---------------------------------------------------------------- one run before the judge as a
# page: the verdict, the measures, the techniques, the findings

FACTS = ("team", "techniques", "heats", "round")


def judgement_page(judgement: Judgement) -> Page:
    """Give the page of one run."""
    raw = _raw(judgement)
    notes = [plain(note) for note in judgement.notes]
    sections = [
        _findings(judgement),
        _measures(judgement),
        _ablations(judgement),
        _run(judgement),
        appendix(judgement.system, notes, raw, file_name="tinytorch-judgement.json"),
    ]
    return Page(
        f"{judgement.event.title}: {plain(judgement.entry.team)}",
        _judgement_banner(judgement),
        tuple(each for each in sections if each is not None),
        raw,
        NOT_AFFILIATED,
    )


def _judgement_banner(judgement: Judgement) -> Banner:
    words, style = headline(judgement)
    accuracy = "" if judgement.accuracy is None else accuracy_line(judgement.accuracy)
    known = dict(run_facts(judgement))
    facts = tuple((name, known[name]) for name in FACTS)
    tone = TONES[style.rpartition(" ")[2]]
    return Banner(words, accuracy, facts, tone)  # type: ignore[arg-type]


def _findings(judgement: Judgement) -> Section | None:
    if not judgement.findings:
        return None
    ordered = sorted(judgement.findings, key=lambda each: (not each.is_fatal, each.rule))
    rows: list[list[Cell | str]] = []
    for each in ordered:
        rule, seen, fix = finding_lines(each)
        tone = "bad" if each.is_fatal else "unknown"
        rows.append([Cell(rule, tone=tone), Cell(each.severity, tone=tone), seen, fix])
    columns = [Column("rule"), Column("severity"), Column("what was seen"), Column("what to do")]
    return Section("findings", "Findings", table(columns, rows, sortable=False))


def _measures(judgement: Judgement) -> Section | None:
    plot = measure_plot(judgement)
    parts: list[Markup] = []
    if plot is not None:
        about = "How many times better than the reference, with a 95% interval over heats."
        parts.append(figure(forest_picture(plot), title="Score of each measure.", about=about))
    names = ("measure", "reference", "entry", "score", "what it is")
    kinds = {"reference": "number", "entry": "number", "score": "number"}
    columns = [Column(name, kinds.get(name, "text")) for name in names]  # type: ignore[arg-type]
    rows = measure_rows(judgement)
    parts.append(table(columns, rows, caption="median of the heats", sortable=False))
    missing = missing_lines(judgement)
    if missing:
        parts += [element("h3", "Not measured"), listed(missing)]
    return Section("measures", "Against the reference", joined(parts))


def _ablations(judgement: Judgement) -> Section | None:
    rows: list[list[Cell | str]] = [
        [
            name,
            Cell(score_text(score), score.value if score else None),
            Cell(said, tone=TONES[VERDICT_STYLES[score.verdict]] if score else "unknown"),
        ]
        for name, score, said in ablation_rows(judgement)
    ]
    if not rows:
        return None
    columns = [Column("technique"), Column("contributes", "number"), Column("notes")]
    about = "The whole entry against the entry without it, in heats of their own."
    return Section("techniques", "What each technique contributes", table(columns, rows), about)


def _run(judgement: Judgement) -> Section:
    columns = [Column("what"), Column("value")]
    return Section("run", "The run", table(columns, run_facts(judgement), sortable=False))


def _raw(judgement: Judgement) -> dict[str, object]:
    entry = judgement.entry
    return {
        "team": entry.team,
        "event": entry.event,
        "division": entry.division,
        "tier": entry.tier,
        "entry_sha256": entry.sha256,
        "created_at": judgement.created_at,
        "heats": [_heat(each) for each in judgement.heats],
        "ablations": [
            {
                "technique": each.technique,
                "reason": each.reason,
                "heats": list(map(_heat, each.heats)),
            }
            for each in judgement.ablations
        ],
        "findings": [
            {"rule": each.rule, "seen": each.seen, "severity": each.severity}
            for each in judgement.findings
        ],
    }


def _heat(heat: Heat) -> dict[str, object]:
    return {"reference": dict(heat.reference), "entry": dict(heat.entry)}
