"""Documents of the competition: boards, what a judge saw, findings with their fixes, the rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.board import (
    KINDS,
    Board,
    BoardKind,
    ContestBoard,
    Innovation,
    Place,
    Ranking,
    RefusedRun,
    Standing,
)
from tinytorch.competition.board import Mark as RecordMark
from tinytorch.competition.board_files import to_csv, to_json
from tinytorch.competition.events import EVENTS, KEPT, LOST, Division, Event, Measure, tier_verdict
from tinytorch.competition.judgement import (
    FASTER_BEYOND,
    FEWEST_HEATS,
    Heat,
    Judgement,
    Score,
    score_of,
)
from tinytorch.competition.rules import Finding, Rule
from tinytorch.competition.run_files import NOT_CHECKED, SEED_NOT_REVEALED, KeptRun
from tinytorch.competition.signing import WHAT_TO_INSTALL
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
from tinytorch.reading import as_plain
from tinytorch.reporting import document as doc
from tinytorch.reporting.comparison import accuracy_line
from tinytorch.reporting.comparison import score_text as accuracy_writer
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.profiling_classics import show
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    date_text,
    ratio_text,
    seconds_text,
    value_text,
)
from tinytorch.reporting.terminal import render

NOT_AFFILIATED = "This competition is not affiliated with MLCommons or its MLPerf benchmarks."
TONES: dict[str, doc.Tone] = {
    FASTER: "good",
    SLOWER: "bad",
    SAME: "neutral",
    INCONCLUSIVE: "unknown",
}
BAND = FASTER_BEYOND - 1
UNITS = {"s": "s", "byte": "B", "ratio": ""}
"""Unit of a measure -> as reports write it."""
SHORT_HASH = 12


# ---------------------------------------------------------------- words


def plain(text: object) -> str:
    """Return a text of others in one line, without letters that move the cursor or hide."""
    return as_plain(" ".join(str(text).split()))


def contest_text(event: str, division: str, tier: float) -> str:
    """Name where entries compete: ``MLP Sprint, closed, 99%``."""
    return f"{_event_title(event)}, {plain(division)}, {100 * tier:.6g}%"


def _event_title(name: str) -> str:
    return EVENTS[name].title if name in EVENTS else plain(name)


def score_text(score: Score | None) -> str:
    """Write a score with its interval: ``1.84x (1.79x to 1.90x)``."""
    return UNKNOWN if score is None else f"{ratio_text(score.value)} ({_ends(score)})"


def _ends(score: Score) -> str:
    return f"{ratio_text(score.low)} to {ratio_text(score.high)}"


def _score_cell(score: Score | None) -> doc.Cell:
    return doc.Cell(score_text(score), score.value if score else None)


def _moment(created_at: str) -> str:
    return f"{date_text(plain(created_at))} UTC" if created_at else UNKNOWN


def _counted(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def _techniques(names: Sequence[Any]) -> str:
    return ", ".join(plain(each.name) for each in names) or "none"


# ---------------------------------------------------------------- one run before the judge

FACTS = ("team", "techniques", "heats", "round")


def judgement_document(judgement: Judgement) -> doc.Document:
    """Return what one run before the judge gave, the verdict first."""
    words, tone = headline(judgement)
    accuracy = "" if judgement.accuracy is None else accuracy_line(judgement.accuracy)
    facts = _run_facts(judgement)
    sections = [
        doc.Section("findings", "Findings", _findings(judgement.findings)),
        doc.Section("measures", "Against the reference", list(_measures(judgement))),
        doc.Section("techniques", "Ablation", _ablations(judgement), OF_ABLATIONS),
        doc.Section("run", "Run", (doc.Facts(facts),)),
    ]
    return doc.Document(
        f"{judgement.event.title}: {plain(judgement.entry.team)}",
        doc.Banner(words, accuracy, tuple(each for each in facts if each[0] in FACTS), tone),
        [each for each in sections if each.blocks],
        [plain(note) for note in judgement.notes],
        judgement.system,
        _raw(judgement),
        "tinytorch-judgement.json",
        NOT_AFFILIATED,
    )


def headline(judgement: Judgement) -> tuple[str, doc.Tone]:
    """Return what came of a run in one line, and the tone of that."""
    entry = judgement.entry
    where = contest_text(entry.event, entry.division, entry.tier)
    fatal = sorted({each.rule for each in judgement.findings if each.is_fatal})
    if fatal:
        return f"{where}: not valid: it breaks {', '.join(fatal)}", "bad"
    score, found = judgement.score, judgement.accuracy
    if score is None:
        return f"{where}: no score: {_why_no_score(judgement)}", "unknown"
    said, tone = f"{where}: {score_text(score)}: {score.verdict}", TONES[score.verdict]
    if found is None:
        return f"{said}; accuracy not measured", tone
    verdict = tier_verdict(found)
    if verdict != KEPT:
        tone = "bad" if verdict == LOST else "unknown"
    return f"{said}; {found.metric} {verdict}", tone


def _why_no_score(judgement: Judgement) -> str:
    count = len(judgement.heats)
    if count < FEWEST_HEATS:
        return f"{count} heats, at least {FEWEST_HEATS} are needed"
    return "a measure that counts is missing, or is not above zero"


def _measures(judgement: Judgement) -> Iterator[doc.Block]:
    scores = _measure_scores(judgement)
    rows = [
        ForestRow(
            measure.name,
            score.value,
            score.low,
            score.high,
            score_text(score) + ("" if measure.is_scored else ", not scored"),
            TONES[score.verdict] if measure.is_scored else "",
        )
        for measure, score in scores
        if score is not None
    ]
    about = "How many times better than the reference, with a 95% interval over heats."
    if rows:
        sides = ("worse", "better")
        title = "Score of each measure."
        yield ForestPlot(rows, 0.0, BAND, sides=sides, title=title, about=about)
    if judgement.heats:
        columns = [
            doc.Column("median of the heats", least=12),
            doc.Column("reference", "number"),
            doc.Column("entry", "number"),
            doc.Column("score", "number", rank=2),
            doc.Column("what it is", rank=1, least=20, wraps=True),
        ]
        table = [_measure_row(judgement.heats, *each) for each in scores]
        yield doc.Table(columns, table, is_sortable=False)
    yield doc.Bullets(_missing_lines(judgement), "Not measured")


def _measure_scores(judgement: Judgement) -> list[tuple[Measure, Score | None]]:
    measures = judgement.event.measures
    return [(each, score_of(judgement.heats, [each.name])) for each in measures]


def _measure_row(
    heats: Sequence[Heat], measure: Measure, score: Score | None
) -> list[doc.Cell | str]:
    sides = ([heat.reference for heat in heats], [heat.entry for heat in heats])
    medians = [_median([each[measure.name] for each in s if measure.name in each]) for s in sides]
    cells = [doc.Cell(value_text(each, UNITS[measure.unit]), each) for each in medians]
    return [measure.name, *cells, _score_cell(score), measure.about]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


OF_ABLATIONS = "The whole entry against the entry without the technique, in heats of their own."


def _ablations(judgement: Judgement) -> list[doc.Block]:
    columns = [
        doc.Column("technique", least=12),
        doc.Column("contributes", "number"),
        doc.Column("notes", rank=1, least=16, wraps=True),
    ]
    rows = []
    for each in judgement.ablations:
        score = score_of(each.heats, judgement.event.scored)
        said = each.reason or f"{len(each.heats)} heats, too few for an interval"
        if score is not None:
            said = {FASTER: "helps", SLOWER: "hurts"}.get(score.verdict, INCONCLUSIVE)
        cells = (plain(each.technique), _score_cell(score), plain(said))
        rows.append(doc.Row(cells, tone=TONES[score.verdict] if score else "unknown"))
    return [doc.Table(columns, rows)] if rows else []


def _missing_lines(judgement: Judgement) -> list[str]:
    """Return what was not measured, and why where that is known."""
    lines = [f"{m.name}: no heat has it" for m, s in _measure_scores(judgement) if s is None]
    if len(judgement.heats) < FEWEST_HEATS:
        lines = [_why_no_score(judgement)]
    if judgement.accuracy is None:
        lines.append("accuracy")
    measured = {each.technique for each in judgement.ablations}
    lines += [
        f"what {plain(each.name)} contributes: no ablation"
        for each in judgement.entry.techniques
        if each.name not in measured
    ]
    return lines


def _run_facts(judgement: Judgement) -> list[tuple[str, str]]:
    """Return who ran when, on which questions, and how the entry was isolated."""
    entry = judgement.entry
    rows = [
        ("team", plain(entry.team)),
        ("techniques", _techniques(entry.techniques)),
        ("precision", plain(entry.precision)),
        ("heats", str(len(judgement.heats))),
        ("round", plain(judgement.round_name)),
        ("questions", plain(judgement.data_sha256)[:SHORT_HASH] or UNKNOWN),
        ("when", _moment(judgement.created_at)),
        ("time used", seconds_text(judgement.seconds_used)),
    ]
    rows += [(f"isolation: {plain(k)}", plain(v)) for k, v in judgement.protection.items()]
    return rows


def _raw(judgement: Judgement) -> dict[str, object]:
    entry = judgement.entry
    return {
        "team": entry.team,
        "event": entry.event,
        "division": entry.division,
        "tier": entry.tier,
        "entry_sha256": entry.sha256,
        "created_at": judgement.created_at,
        "heats": _raw_heats(judgement.heats),
        "ablations": [
            {"technique": x.technique, "reason": x.reason, "heats": _raw_heats(x.heats)}
            for x in judgement.ablations
        ],
        "findings": [
            {"rule": each.rule, "seen": each.seen, "severity": each.severity}
            for each in judgement.findings
        ],
    }


def _raw_heats(heats: Sequence[Heat]) -> list[dict[str, object]]:
    return [{"reference": dict(each.reference), "entry": dict(each.entry)} for each in heats]


# ---------------------------------------------------------------- findings


def findings_document(findings: Sequence[Finding], *, about: str = "") -> doc.Document:
    """Return findings with their rules and what to do; also says when there are none."""
    fatal = sum(each.is_fatal for each in findings)
    counts = [(fatal, "rule violation"), (len(findings) - fatal, "warning")]
    said = ", ".join(_counted(count, one) for count, one in counts if count)
    tone: doc.Tone = "bad" if fatal else "unknown" if findings else "good"
    banner = doc.Banner(said or "No rule violations found", tone=tone)
    return doc.Document(about, banner, _findings(findings))


def _findings(findings: Sequence[Finding]) -> list[doc.Block]:
    columns = [
        doc.Column("rule"),
        doc.Column("severity", rank=1),
        doc.Column("what was seen", least=20, wraps=True),
        doc.Column("what to do", least=20, wraps=True),
    ]
    rows = [
        doc.Row(
            (plain(each.rule), each.severity, plain(each.seen), plain(each.fix)),
            tone="bad" if each.is_fatal else "unknown",
        )
        for each in sorted(findings, key=lambda found: (not found.is_fatal, found.rule))
    ]
    return [doc.Table(columns, rows, is_sortable=False)] if rows else []


# ---------------------------------------------------------------- the rules and events

CHAPTERS = {
    "E": "The entry, before it runs",
    "A": "Its answers",
    "T": "How they came about",
    "R": "The record",
    "W": "Warnings; the run is still ranked",
}
"""What the first letter of a rule's name means."""

DIVISION_WORDS: Mapping[Division, str] = {
    "closed": "the same function: the reference's weights, quantized or not, and nothing pruned",
    "open": "anything, also other weights, architectures and frameworks",
    "learner": "any technique of TinyTorch, and no other framework",
}
"""What may be done in each division."""


def rules_document(
    rules: Sequence[Rule], *, events: Mapping[str, Event] | None = None, tiers: Sequence[float] = ()
) -> doc.Document:
    """Return rules by chapter with what to do when one is broken, after the events and tiers."""
    parts = [_event_section(each) for each in (events or {}).values()]
    if tiers:
        shares = " or ".join(f"{100 * each:g}%" for each in tiers)
        kept = f"{shares} of the reference's accuracy has to be left"
        facts = doc.Facts([*DIVISION_WORDS.items(), ("tier", kept)])
        parts.append(doc.Section("divisions", "Divisions and tiers", (facts,)))
    columns = [
        doc.Column("rule"),
        doc.Column("requirement", least=20, wraps=True),
        doc.Column("if not", least=20, wraps=True),
    ]
    for letter, title in CHAPTERS.items():
        rows = [(each.id, each.title, each.fix) for each in rules if each.id.startswith(letter)]
        if rows:
            parts.append(doc.Section(f"rules-{letter}", title, (doc.Table(columns, rows),)))
    return doc.Document("", None, parts)


def _event_section(event: Event) -> doc.Section:
    columns = [doc.Column("measure"), doc.Column("what it is", least=20, wraps=True)]
    rows = [
        (each.name, each.about + ("" if each.is_scored else ", not scored"))
        for each in event.measures
    ]
    title = f"{event.name}: {event.title}"
    return doc.Section(
        event.name, title, (doc.Table(columns, rows, is_sortable=False),), event.about
    )


# ---------------------------------------------------------------- boards

ABOUT: dict[BoardKind, str] = {
    "speed": "how many times faster than the reference, over the heats of all runs",
    "innovation": "what the techniques contribute at least, weighted by how rare they are",
    "composite": "70% speed, 30% innovation",
}
OF_SCORES = (
    "A score is how many times better than the reference, which ran in turns with the entry, with "
    "a 95% interval over the heats of all runs. A shared rank (=): not distinguishable."
)
VERIFIED = "run by the organiser on the round's questions"
UNVERIFIED = "as the teams report; not run by the organiser"
NOT_CHECKED_HERE = "signed; whether by the organiser's key could not be checked here"
FEW_RUNS = 20
NOT_REVEALED = "not revealed yet"


def board_document(
    board: Board, *, event: str | None = None, kinds: Sequence[BoardKind] = KINDS, name: str = ""
) -> doc.Document:
    """Return the rankings of each contest, or of those of one event, and what they rest on."""
    numbered = list(enumerate(board.contests, 1))
    chosen = [(n, each) for n, each in numbered if event in (None, each.contest.event)]
    blocks: list[doc.Block] = []
    if chosen:
        rows = [_overview_row(each, f"contest-{n}") for n, each in chosen]
        about = "Who is ahead in speed: all that share the first rank. Tiers are apart."
        overview = (doc.Table(OVERVIEW, rows), doc.Paragraph(OF_SCORES, "faint"))
        blocks = [doc.Section("overview", "Overview", overview, about)]
    blocks += [_contest(each, f"contest-{n}", kinds) for n, each in chosen]
    return doc.Document(
        f"TinyTorch competition: {plain(name)}" if name else "TinyTorch competition",
        _banner(board, event),
        [*blocks, *_foundations(board)],
        subtitle=NOT_AFFILIATED,
    )


def print_board(board: Board, kind: BoardKind = "speed", *, event: str | None = None) -> None:
    """Print a board on stdout."""
    show(render(board_document(board, event=event, kinds=(kind,))))


def _banner(board: Board, event: str | None) -> doc.Banner:
    runs = [each for each in board.runs if event in (None, each.judgement.entry.event)]
    teams = {run.judgement.entry.team for run in runs}
    verified = sum(run.is_verified for run in runs)
    not_checked = sum(run.status == NOT_CHECKED for run in runs)
    contests = board.of_event(event)
    facts = (
        ("contests", str(len(contests))),
        ("verified runs", str(verified)),
        ("unverified runs", str(len(runs) - verified - not_checked)),
        *([("signatures not checked", str(not_checked))] if not_checked else []),
        ("runs not ranked", str(sum(len(each.refused) for each in contests))),
        ("files that do not count", str(len(board.damaged))),
    )
    if not teams:
        where = f" of {_event_title(event)}" if event else ""
        return doc.Banner(
            f"No runs{where} yet", "Submit an entry to be the first.", facts, "unknown"
        )
    sentence = "Every run counts; there is no best-of."
    if not_checked:
        sentence += f" {_counted(not_checked, 'signature')} not checked, and not counted; "
        sentence += f"{WHAT_TO_INSTALL}."
    return doc.Banner(f"{_counted(len(teams), 'team')} on the board", sentence, facts)


OVERVIEW = (
    doc.Column("contest", least=20),
    doc.Column("ahead", least=12),
    doc.Column("score"),
    doc.Column("status", rank=1),
    doc.Column("ranked", "number", rank=2),
    doc.Column("not ranked", "number", rank=2),
)


def _overview_row(found: ContestBoard, anchor: str) -> list[doc.Cell | str]:
    where = found.contest
    name = contest_text(where.event, where.division, where.tier)
    ranking = found.verified if found.verified.speed else found.unverified
    count = len(found.verified.speed) + len(found.unverified.speed)
    first = [each for each in ranking.speed if each.rank == 1]
    status = "verified" if ranking is found.verified else "unverified"
    return [
        doc.Cell(name, name, anchor=anchor),
        ", ".join(plain(each.standing.team) for each in first) or "no valid run",
        score_text(first[0].score) if first else UNKNOWN,
        status if first else "",
        doc.Cell(str(count), count),
        doc.Cell(str(len(found.refused)), len(found.refused)),
    ]


# ---------------------------------------------------------------- one contest


def _contest(found: ContestBoard, anchor: str, kinds: Sequence[BoardKind]) -> doc.Section:
    where = found.contest
    parts = (
        ("verified", "Verified", _ranking(found.verified, kinds), VERIFIED),
        ("unverified", "Unverified", _ranking(found.unverified, kinds), UNVERIFIED),
        ("not-checked", "Signature not checked", _unchecked(found.not_checked), NOT_CHECKED_HERE),
        ("not-ranked", "Not ranked", _refused(found.refused), ""),
    )
    sections: list[doc.Block] = [
        doc.Section(f"{anchor}-{name}", title, blocks, about)
        for name, title, blocks, about in parts
        if blocks
    ]
    if not (found.verified.speed or found.unverified.speed or found.not_checked):
        sections.insert(0, doc.Paragraph("No valid run yet.", "unknown"))
    return doc.Section(anchor, contest_text(where.event, where.division, where.tier), sections)


def _ranking(ranking: Ranking, kinds: Sequence[BoardKind]) -> list[doc.Block]:
    if not ranking.speed:
        return []
    tables = [table for kind in kinds for table in TABLES[kind](ranking.table(kind))]
    if "speed" not in kinds:
        return [*tables]
    return [doc.Only(("html",), (_forest(ranking.speed),)), *tables, *_records(ranking.history)]


def _forest(places: Sequence[Place]) -> ForestPlot:
    rows = [
        ForestRow(
            f"{rank}  {plain(place.standing.team)}",
            place.score.value,
            place.score.low,
            place.score.high,
            score_text(place.score),
            TONES[place.score.verdict],
        )
        for rank, place in zip(_ranks(places), places, strict=True)
    ]
    return ForestPlot(rows, 0.0, BAND, title="Speed.", about="Rank, team, score and interval.")


def _ranks(places: Sequence[Place]) -> list[str]:
    """Write ranks; one that is shared has an equals sign."""
    ranks = [place.rank for place in places]
    return [f"{rank}=" if ranks.count(rank) > 1 else f"{rank}" for rank in ranks]


def _table(
    kind: BoardKind,
    places: Sequence[Place],
    columns: Sequence[doc.Column],
    cells: Callable[[Place], Sequence[doc.Cell | str]],
) -> doc.Table:
    """Return a ranking; each row begins with rank, team, score and interval."""
    heads = [
        doc.Column("rank", "number"),
        doc.Column("team", least=16),
        doc.Column(kind, "bar"),
        doc.Column("95% interval" if kind != "innovation" else "at least to at most", rank=1),
    ]
    most = max(place.score.value for place in places)
    rows = []
    for rank, place in zip(_ranks(places), places, strict=True):
        entry, score = place.standing.entry, place.score
        head: tuple[doc.Cell | str, ...] = (
            doc.Cell(rank, place.rank),
            doc.Cell(_team(place.standing), title=f"entry {entry.sha256[:SHORT_HASH]}"),
            doc.Cell(ratio_text(score.value), score.value, bar=score.value / most),
            doc.Cell(_ends(score), score.low),
        )
        rows.append((*head, *cells(place)))
    return doc.Table([*heads, *columns], rows, f"{kind}: {ABOUT[kind]}")


def _team(standing: Standing) -> str:
    """Return who stands there; that code ran without a sandbox is said in every table."""
    return plain(standing.team) + (" (unconfined)" if standing.is_unconfined else "")


def _speed(places: Sequence[Place]) -> list[doc.Table]:
    columns = [
        doc.Column("verdict", rank=1),
        doc.Column(
            "accuracy", "number", "of the last run, on the questions that were timed", rank=2
        ),
        doc.Column(
            "peak memory", "number", "median over the heats of the growth of the process", rank=4
        ),
        doc.Column("runs (heats)", "number", "valid runs, all of which count, and heats", rank=3),
        doc.Column("techniques", rank=5, least=10),
        doc.Column("last run", rank=8),
        doc.Column("notes", rank=7, least=16, wraps=True),
    ]
    return [_table("speed", places, columns, _speed_cells)]


def _speed_cells(place: Place) -> list[doc.Cell | str]:
    standing, accuracy = place.standing, place.standing.accuracy
    return [
        doc.Cell(place.score.verdict, tone=TONES[place.score.verdict]),
        doc.Cell(_accuracy_text(accuracy), accuracy.candidate_mean if accuracy else None),
        doc.Cell(bytes_text(standing.peak_bytes), standing.peak_bytes),
        doc.Cell(f"{_runs_text(standing)} ({len(standing.heats)})", len(standing.heats)),
        _techniques(standing.entry.techniques),
        date_text(standing.created_at),
        doc.Cell("; ".join(_standing_notes(place)), tone="unknown"),
    ]


def _accuracy_text(found: AccuracyComparison | None) -> str:
    return UNKNOWN if found is None else accuracy_writer(found)(found.candidate_mean)


def _runs_text(standing: Standing) -> str:
    """Return from how many runs a standing comes, and how many there are of its entry."""
    valid = len(standing.runs)
    return f"{valid} of {valid + standing.refused}" if standing.refused else f"{valid}"


def _standing_notes(place: Place) -> list[str]:
    """Return what to know before believing a row."""
    standing, notes = place.standing, []
    if standing.status == SEED_NOT_REVEALED:
        notes.append("seed not revealed yet")
    if not standing.do_runs_agree:
        notes.append("its runs differ by more than chance")
    if standing.is_unconfined:
        notes.append("its code ran without a sandbox")
    if standing.refused:
        notes.append(f"{standing.refused} of its runs not valid")
    if place.innovation.is_capped:
        notes.append("innovation capped by its speed")
    if standing.entries_tried > 1:
        notes.append(f"entry {standing.entries_tried} of this team")
    return notes


def _innovation(places: Sequence[Place]) -> list[doc.Table]:
    columns = [doc.Column("notes", rank=2, least=16, wraps=True)]
    found = [
        _table(
            "innovation",
            places,
            columns,
            lambda place: [doc.Cell(_cap_text(place.innovation), tone="unknown")],
        )
    ]
    credits = [row for place in places for row in _credit_rows(place)]
    if credits:
        named = [
            doc.Column("team", least=16),
            doc.Column("technique", least=12),
            doc.Column("contributes", "number"),
            doc.Column(
                "others without it", "number", "teams with a verified entry in this event", 2
            ),
            doc.Column("helps elsewhere", rank=3),
            doc.Column("credit", "number", rank=1),
        ]
        found.append(doc.Table(named, credits, "what each technique counts"))
    return found


def _credit_rows(place: Place) -> Iterator[list[doc.Cell | str]]:
    for credit in place.innovation.credits:
        found = credit.contribution
        yield [
            plain(place.standing.team),
            plain(credit.technique),
            doc.Cell(score_text(found) if found else "not measured", found.low if found else None),
            doc.Cell(f"{credit.without_it} of {credit.others}", credit.rarity),
            "yes" if credit.helps_elsewhere else "no",
            doc.Cell(ratio_text(math.exp(credit.value)), credit.value),
        ]


def _cap_text(innovation: Innovation) -> str:
    """Return why innovation is less than the credits come to; "" where it is not."""
    if not innovation.is_capped:
        return ""
    return f"capped by its speed: the credits come to {ratio_text(innovation.uncapped)}"


def _composite(places: Sequence[Place]) -> list[doc.Table]:
    columns = [doc.Column("speed", "number", rank=2), doc.Column("innovation", "number", rank=2)]
    columns.append(doc.Column("notes", rank=3, least=16, wraps=True))
    return [_table("composite", places, columns, _composite_cells)]


def _composite_cells(place: Place) -> list[doc.Cell | str]:
    speed, innovation = place.standing.score.value, place.innovation
    return [
        doc.Cell(ratio_text(speed), speed),
        doc.Cell(ratio_text(innovation.value), innovation.value),
        doc.Cell("innovation capped by its speed" if innovation.is_capped else "", tone="unknown"),
    ]


TABLES: Mapping[BoardKind, Callable[[Sequence[Place]], list[doc.Table]]] = {
    "speed": _speed,
    "innovation": _innovation,
    "composite": _composite,
}


def _records(marks: Sequence[RecordMark]) -> Iterator[doc.Block]:
    """Yield who holds the record, and who held it from when; from two on, also as a chart."""
    if not marks:
        return
    last = marks[-1]
    since = f"{plain(last.team)} since {_moment(last.created_at)}, {score_text(last.score)}"
    yield doc.Paragraph(f"record: {since}", "faint")
    columns = [
        doc.Column("since"),
        doc.Column("team"),
        doc.Column("score then", "number"),
        doc.Column("95% interval"),
        doc.Column("entry", "code"),
    ]
    rows = [
        (
            date_text(mark.created_at),
            plain(mark.team),
            doc.Cell(ratio_text(mark.score.value), mark.score.value),
            _ends(mark.score),
            mark.entry_sha256[:SHORT_HASH],
        )
        for mark in reversed(marks)
    ]
    chart = doc.TrendLine(
        [mark.score.value for mark in marks],
        "x",
        [(mark.score.low, mark.score.high) for mark in marks],
        ends=(plain(marks[0].created_at)[:10], plain(last.created_at)[:10]),
        titles=[
            f"{plain(m.team)}, {date_text(m.created_at)}: {score_text(m.score)}" for m in marks
        ],
        has_levels=False,
        title="Records, oldest first.",
        about="A new one needs its whole interval above the former score.",
    )
    charts = [chart] if len(marks) > 1 else []
    yield doc.Folded("Records", (*charts, doc.Table(columns, rows)), is_open=True)


# ---------------------------------------------------------------- who is not ranked


def _unchecked(runs: Sequence[KeptRun]) -> list[doc.Block]:
    columns = [doc.Column("team"), doc.Column("score of the run"), doc.Column("when"), RECORD]
    rows = [
        (
            plain(run.judgement.entry.team),
            _score_cell(run.judgement.score),
            date_text(run.judgement.created_at),
            _record(run),
        )
        for run in runs
    ]
    return [doc.Table(columns, rows)] if rows else []


def _refused(refused: Sequence[RefusedRun]) -> list[doc.Block]:
    columns = [
        doc.Column("team", least=16),
        doc.Column("why", least=12, wraps=True),
        doc.Column("what was seen", rank=1, least=20, wraps=True),
        doc.Column("what to do", rank=4, least=20, wraps=True),
        doc.Column("status", rank=3),
        doc.Column("when", rank=2),
        RECORD,
    ]
    return [doc.Table(columns, [_refused_row(each) for each in refused])] if refused else []


def _refused_row(refused: RefusedRun) -> list[doc.Cell | str]:
    judgement = refused.run.judgement
    found = [each for each in judgement.findings if each.is_fatal]
    return [
        plain(judgement.entry.team),
        doc.Cell(plain(refused.reason), tone="bad"),
        "; ".join(f"{plain(each.rule)}: {plain(each.seen)}" for each in found),
        "; ".join(plain(each.fix) for each in found),
        refused.run.status,
        date_text(judgement.created_at),
        _record(refused.run),
    ]


RECORD = doc.Column("record", "code", rank=5)


def _record(run: KeptRun) -> doc.Cell:
    return doc.Cell(run.sha256[:SHORT_HASH], title=plain(run.path))


# ---------------------------------------------------------------- what a board rests on


def _foundations(board: Board) -> Iterator[doc.Section]:
    """Yield rounds, files that do not count, all runs, and the files to compute with."""
    if board.rounds:
        yield doc.Section("rounds", "Rounds", (_rounds(board),), OF_ROUNDS)
    if board.damaged:
        items = [doc.Item(plain(each.path), (plain(each.reason),)) for each in board.damaged]
        yield doc.Section(
            "damaged", "Files that do not count", (doc.Bullets(items, tone="unknown"),)
        )
    if board.runs:
        table = doc.Table(RUNS, [_run_row(each) for each in board.runs[::-1]])
        count = len(board.runs)
        folded = doc.Folded(_counted(count, "run"), (table,), count <= FEW_RUNS)
        about = "Every run that was stored, the newest first. There is no best-of."
        yield doc.Section("runs", "All runs", (folded,), about)
    files = (
        doc.Attachment("board.csv", to_csv(board), "text/csv", "CSV: a row for each standing"),
        doc.Attachment("board.json", to_json(board), "application/json", "JSON: everything"),
    )
    yield doc.Section(
        "files", "Files", files, "The data of this page; both files are inside of it."
    )


OF_ROUNDS = (
    "The commitment is the SHA-256 of three lines: tinytorch round, the name, the seed. It is "
    "published before the round, the seed after it; with that, anyone can draw the same questions."
)


def _rounds(board: Board) -> doc.Table:
    columns = [
        doc.Column("round", least=12),
        doc.Column("since", rank=2),
        doc.Column("commitment", "code", least=SHORT_HASH),
        doc.Column("seed", "code", rank=1, least=len(NOT_REVEALED)),
    ]
    rows = [
        (
            plain(each.name),
            date_text(each.created_at) if each.created_at else UNKNOWN,
            each.commitment,
            each.seed or doc.Cell(NOT_REVEALED, tone="unknown"),
        )
        for each in board.rounds
    ]
    return doc.Table(columns, rows)


RUNS = (
    doc.Column("when"),
    doc.Column("team"),
    doc.Column("contest"),
    doc.Column("score", "number"),
    doc.Column("status"),
    doc.Column("findings"),
    doc.Column("round"),
    doc.Column("signed"),
    RECORD,
)


def _run_row(run: KeptRun) -> list[doc.Cell | str]:
    found = run.judgement
    entry = found.entry
    rules = sorted({plain(each.rule) for each in found.findings if each.is_fatal})
    signed = "not checked" if run.status == NOT_CHECKED else "yes" if run.signer else "no"
    return [
        date_text(found.created_at),
        plain(entry.team),
        contest_text(entry.event, entry.division, entry.tier),
        _score_cell(found.score),
        doc.Cell(run.status, tone="" if run.is_verified else "unknown"),
        doc.Cell(", ".join(rules), tone="bad"),
        plain(found.round_name),
        doc.Cell(signed, title=plain(run.signer)),
        _record(run),
    ]
