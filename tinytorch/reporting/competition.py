"""The competition in the terminal: what a judge saw, findings with their fixes, and boards."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.competition.board import (
    Board,
    BoardKind,
    ContestBoard,
    Credit,
    Innovation,
    Place,
    Ranking,
    RefusedRun,
    Standing,
)
from tinytorch.competition.entry import as_plain
from tinytorch.competition.events import EVENTS, KEPT, LOST, Division, Event, Measure, tier_verdict
from tinytorch.competition.judgement import (
    FASTER_BEYOND,
    FEWEST_HEATS,
    Heat,
    Judgement,
    Score,
    score_of,
)
from tinytorch.competition.rounds import Round
from tinytorch.competition.rules import Finding, Rule
from tinytorch.competition.run_files import NOT_CHECKED, SEED_NOT_REVEALED, KeptRun
from tinytorch.competition.signing import WHAT_TO_INSTALL
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
from tinytorch.reporting.comparison import accuracy_line
from tinytorch.reporting.comparison import score_text as accuracy_writer
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.optimization import named_lines
from tinytorch.reporting.profiling_classics import show
from tinytorch.reporting.quantities import (
    UNKNOWN,
    Column,
    FittingTable,
    bytes_text,
    date_text,
    seconds_text,
)

__all__ = [
    "NOT_AFFILIATED",
    "VERDICT_STYLES",
    "ablation_rows",
    "accuracy_text",
    "cap_text",
    "contest_text",
    "credit_text",
    "event_title",
    "finding_lines",
    "headline",
    "innovation_text",
    "measure_plot",
    "measure_rows",
    "missing_lines",
    "moment_text",
    "not_checked_text",
    "plain",
    "print_board",
    "rank_texts",
    "render_divisions",
    "render_events",
    "render_rules",
    "run_facts",
    "run_score_text",
    "runs_text",
    "score_text",
    "show_board",
    "show_findings",
    "show_judgement",
    "standing_notes",
    "tier_text",
    "value_text",
]


# ---------------------------------------------------------------- the competition in words: the
# same ones in the terminal and on pages

NOT_AFFILIATED = "This competition is not affiliated with MLCommons or its MLPerf benchmarks."
VERDICT_STYLES = {FASTER: "green", SLOWER: "red", SAME: "cyan", INCONCLUSIVE: "yellow"}
BAND = FASTER_BEYOND - 1


def plain(text: object) -> str:
    """Give a text of somebody else in one line, without letters that move the cursor or hide."""
    return as_plain(" ".join(str(text).split()))


def event_title(name: str) -> str:
    """Give the title of an event; one that is not known keeps its name."""
    return EVENTS[name].title if name in EVENTS else plain(name)


def tier_text(tier: float) -> str:
    """Write a tier: ``99%``, ``99.9%``."""
    return f"{100 * tier:.6g}%"


def contest_text(event: str, division: str, tier: float) -> str:
    """Name where entries compete: ``MLP Sprint, closed, 99%``."""
    return f"{event_title(event)}, {plain(division)}, {tier_text(tier)}"


def score_text(score: Score | None) -> str:
    """Write a score with its interval: ``1.84x (1.79x to 1.90x)``."""
    if score is None:
        return UNKNOWN
    return f"{ratio_text(score.value)} ({ratio_text(score.low)} to {ratio_text(score.high)})"


def run_score_text(judgement: Judgement) -> str:
    """Write the score of one run, or that it has none."""
    names = judgement.event.scored
    return score_text(score_of(judgement.heats, names))


def moment_text(created_at: str) -> str:
    """Write when something was made, to the minute."""
    return f"{date_text(plain(created_at))} UTC" if created_at else UNKNOWN


def headline(judgement: Judgement) -> tuple[str, str]:
    """Say what came of a run in one line, and give the style of that."""
    entry = judgement.entry
    where = contest_text(entry.event, entry.division, entry.tier)
    fatal = sorted({each.rule for each in judgement.findings if each.is_fatal})
    if fatal:
        return f"{where}: not valid: it breaks {', '.join(fatal)}", "bold red"
    score = score_of(judgement.heats, judgement.event.scored)
    if score is None:
        return f"{where}: no score: {_why_no_score(judgement)}", "bold yellow"
    kept = _accuracy_words(judgement)
    return f"{where}: {score_text(score)}: {score.verdict}; {kept}", _style(judgement, score)


def _style(judgement: Judgement, score: Score) -> str:
    found = judgement.accuracy
    if found is None or tier_verdict(found) == KEPT:
        return f"bold {VERDICT_STYLES[score.verdict]}"
    return "bold red" if tier_verdict(found) == LOST else "bold yellow"


def _why_no_score(judgement: Judgement) -> str:
    count = len(judgement.heats)
    if count < FEWEST_HEATS:
        return f"{count} heats, at least {FEWEST_HEATS} are needed"
    return "a measure that counts is missing, or is not above zero"


def _accuracy_words(judgement: Judgement) -> str:
    found = judgement.accuracy
    if found is None:
        return "accuracy not measured"
    name = "accuracy" if found.metric == "accuracy" else found.metric
    verdict = tier_verdict(found)
    return f"{name} {verdict}"


# ---------------------------------------------------------------- measures


def measure_plot(judgement: Judgement) -> ForestPlot | None:
    """Give the score of each measure as a forest plot; the ones that do not count say so."""
    rows = [
        ForestRow(
            measure.name,
            score.value,
            score.low,
            score.high,
            score_text(score) + ("" if measure.is_scored else ", not scored"),
            VERDICT_STYLES[score.verdict] if measure.is_scored else "",
        )
        for measure, score in _measure_scores(judgement)
        if score is not None
    ]
    return ForestPlot(rows, 0.0, BAND, sides=("worse", "better")) if rows else None


def measure_rows(judgement: Judgement) -> list[tuple[str, str, str, str, str]]:
    """Give name, median of the reference, median of the entry, score, and meaning of each."""
    return [
        (
            measure.name,
            value_text(_median(judgement.heats, "reference", measure.name), measure.unit),
            value_text(_median(judgement.heats, "entry", measure.name), measure.unit),
            score_text(score),
            measure.about,
        )
        for measure, score in _measure_scores(judgement)
    ]


def value_text(value: float | None, unit: str) -> str:
    """Write a value of a measure."""
    write: Mapping[str, Callable[[float | None], str]] = {"s": seconds_text, "byte": bytes_text}
    if value is None:
        return UNKNOWN
    return write[unit](value) if unit in write else f"{value:.4g}"


def _measure_scores(judgement: Judgement) -> list[tuple[Measure, Score | None]]:
    measures = judgement.event.measures
    return [(each, score_of(judgement.heats, [each.name])) for each in measures]


def _median(heats: Sequence[Heat], side: str, name: str) -> float | None:
    values = [getattr(heat, side)[name] for heat in heats if name in getattr(heat, side)]
    return statistics.median(values) if values else None


# ---------------------------------------------------------------- the rest


def ablation_rows(judgement: Judgement) -> list[tuple[str, Score | None, str]]:
    """Give name, contribution and what is to be said of each technique that was switched off."""
    names = judgement.event.scored
    rows = []
    for each in judgement.ablations:
        score = score_of(each.heats, names)
        said = each.reason or f"{len(each.heats)} heats, too few for an interval"
        if score is not None:
            said = {FASTER: "helps", SLOWER: "hurts"}.get(score.verdict, "no help is shown")
        rows.append((plain(each.technique), score, plain(said)))
    return rows


def finding_lines(finding: Finding) -> tuple[str, str, str]:
    """Give the rule, what was seen, and what to do about it."""
    return plain(finding.rule), plain(finding.seen), plain(finding.fix)


def missing_lines(judgement: Judgement) -> list[str]:
    """Say what was not measured, and why where that is known."""
    lines = [f"{m.name}: no heat has it" for m, s in _measure_scores(judgement) if s is None]
    if len(judgement.heats) < FEWEST_HEATS:
        lines = [_why_no_score(judgement)]
    if judgement.accuracy is None:
        lines.append("accuracy")
    measured = {each.technique for each in judgement.ablations}
    lines += [
        f"what {plain(each.name)} contributes: it was not switched off"
        for each in judgement.entry.techniques
        if each.name not in measured
    ]
    return lines


def run_facts(judgement: Judgement) -> list[tuple[str, str]]:
    """Give who ran when, on which questions, and how the entry was kept apart."""
    entry = judgement.entry
    techniques = ", ".join(plain(each.name) for each in entry.techniques) or "none"
    rows = [
        ("team", plain(entry.team)),
        ("techniques", techniques),
        ("precision", plain(entry.precision)),
        ("heats", str(len(judgement.heats))),
        ("round", plain(judgement.round_name)),
        ("questions", plain(judgement.data_sha256)[:12] or UNKNOWN),
        ("when", moment_text(judgement.created_at)),
        ("time used", seconds_text(judgement.seconds_used)),
    ]
    rows += [(f"kept apart: {plain(k)}", plain(v)) for k, v in judgement.protection.items()]
    return rows


# ---------------------------------------------------------------- the rules of the competition and
# its events, as tables

CHAPTERS = {
    "E": "The entry, before it runs",
    "A": "Its answers",
    "T": "How they came about",
    "R": "The record",
    "W": "Doubts, which keep nobody off the board",
}
"""What the first letter of a rule's name means."""

DIVISION_WORDS: Mapping[Division, str] = {
    "closed": "the same function: the reference's weights, quantized or not, and nothing pruned",
    "open": "anything, also other weights, architectures and frameworks",
    "learner": "any technique of TinyTorch, and no other framework",
}
"""What may be done in each division."""


def render_rules(rules: Sequence[Rule]) -> RenderableType:
    """List rules by chapter, each with what to do when it is broken."""
    parts: list[RenderableType] = []
    for letter, title in CHAPTERS.items():
        chapter = [each for each in rules if each.id.startswith(letter)]
        if not chapter:
            continue
        table = Table.grid(padding=(0, 2))
        for rule in chapter:
            told = Text.assemble(rule.title, "\n", (f"if not: {rule.fix}", "dim"))
            table.add_row(Text(rule.id, style="bold"), told)
        parts += [Text(title, style="bold"), Padding(table, (0, 0, 1, 3))]
    return Group(*parts)


def render_events(events: Mapping[str, Event]) -> RenderableType:
    """List the events with what is asked and what is measured."""
    parts: list[RenderableType] = []
    for event in events.values():
        table = Table.grid(padding=(0, 2))
        for measure in event.measures:
            mark = "" if measure.is_scored else ", not scored"
            table.add_row(measure.name, Text(f"{measure.about}{mark}", style="dim"))
        heading = Text.assemble((event.name, "bold"), f"  {event.title}: {event.about}")
        parts += [heading, Padding(table, (0, 0, 1, 3))]
    return Group(*parts)


def render_divisions(tiers: Sequence[float]) -> RenderableType:
    """List the divisions with what may be done in them, and the tiers."""
    table = Table.grid(padding=(0, 2))
    for division, about in DIVISION_WORDS.items():
        table.add_row(Text(division, style="bold"), Text(about, style="dim"))
    shares = " or ".join(f"{100 * each:g}%" for each in tiers)
    kept = Text(f"{shares} of the reference's accuracy has to be left", style="dim")
    table.add_row(Text("tier", style="bold"), kept)
    return Group(Text("Divisions and tiers", style="bold"), Padding(table, (0, 0, 1, 3)))


# ---------------------------------------------------------------- boards of the competition in the
# terminal: ranks with intervals, and what is not ranked

SHARED_RANK = "A rank that is shared (=) means: no difference between these is shown."
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
        Text(SHARED_RANK, style="dim"),
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


# ---------------------------------------------------------------- the competition in the terminal:
# what a judge saw, findings with their fixes, and boards


def show_judgement(judgement: Judgement) -> RenderableType:
    """Lay out what one run before the judge gave, top to bottom: the verdict first."""
    words, style = headline(judgement)
    return Group(
        Text(words, style=style),
        *_section("Findings", _findings(judgement.findings)),
        *_section("Against the reference", _measures(judgement)),
        *_accuracy(judgement),
        *_section("What each technique contributes", _ablations(judgement)),
        *_section("The run", [named_lines((k, Text(v)) for k, v in run_facts(judgement))]),
        *_section("Not measured", _dashes(missing_lines(judgement))),
        *_section("Notes", _dashes(map(plain, judgement.notes), "yellow")),
    )


def show_findings(findings: Sequence[Finding]) -> RenderableType:
    """Lay out findings with the names of their rules and what to do; also says when all is well."""
    if not findings:
        return Text("Nothing was found against the rules.", style="green")
    fatal = sum(each.is_fatal for each in findings)
    parts = [_counted(fatal, "finding that counts", "findings that count")] if fatal else []
    if len(findings) > fatal:
        parts.append(_counted(len(findings) - fatal, "warning", "warnings"))
    style = "bold red" if fatal else "bold yellow"
    return Group(Text(", ".join(parts), style=style), *_findings(findings))


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _section(title: str, parts: Iterable[RenderableType]) -> list[RenderableType]:
    found = list(parts)
    return [Text(""), Text(title, style="bold"), *found] if found else []


def _dashes(lines: Iterable[str], style: str = "") -> list[Text]:
    return [Text(f"- {line}", style=style) for line in lines]


def _findings(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    if not findings:
        return
    rows = []
    for each in sorted(findings, key=lambda found: (not found.is_fatal, found.rule)):
        rule, seen, fix = finding_lines(each)
        rows.append((rule, Text(seen, style="red" if each.is_fatal else "yellow")))
        rows.append(("", Text(f"to do: {fix}", style="dim")))
    yield named_lines(rows)


def _measures(judgement: Judgement) -> Iterator[RenderableType]:
    picture = measure_plot(judgement)
    if picture is not None:
        yield picture
    rows = measure_rows(judgement)
    if judgement.heats:
        yield Text("")
        yield FittingTable(
            "median of the heats",
            [Text(row[0]) for row in rows],
            [
                Column("reference", [row[1] for row in rows]),
                Column("entry", [row[2] for row in rows]),
                Column("what it is", [row[4] for row in rows], 1, "left"),
            ],
            label_least=12,
        )


def _accuracy(judgement: Judgement) -> Iterator[RenderableType]:
    if judgement.accuracy is not None:
        yield Text("")
        yield Text(accuracy_line(judgement.accuracy))


def _ablations(judgement: Judgement) -> Iterator[RenderableType]:
    rows = ablation_rows(judgement)
    if rows:
        yield Text("The whole entry against the entry without it, in heats of their own.", "dim")
        yield FittingTable(
            "technique",
            [Text(name) for name, _, _ in rows],
            [
                Column("contributes", [score_text(score) for _, score, _ in rows]),
                Column("notes", [said for _, _, said in rows], 1, "left", least=16),
            ],
            [VERDICT_STYLES[score.verdict] if score else "yellow" for _, score, _ in rows],
            label_least=12,
        )
