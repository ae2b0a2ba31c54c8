"""The competition in words: the same ones in the terminal and on pages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from tinytorch.competition.boards.standings import pooled_score
from tinytorch.competition.entries.plain_text import as_plain
from tinytorch.competition.events import EVENTS, Measure
from tinytorch.competition.judgement import FASTER_BEYOND, FEWEST_HEATS, Heat, Judgement, Score
from tinytorch.competition.rules import Finding
from tinytorch.competition.tiers import KEPT, LOST, tier_verdict
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.history import date_text
from tinytorch.reporting.quantities import UNKNOWN, bytes_text, seconds_text

__all__ = [
    "NOT_AFFILIATED",
    "VERDICT_STYLES",
    "ablation_rows",
    "contest_text",
    "event_title",
    "finding_lines",
    "headline",
    "measure_plot",
    "measure_rows",
    "missing_lines",
    "moment_text",
    "plain",
    "run_facts",
    "run_score_text",
    "score_text",
    "tier_text",
    "value_text",
]

NOT_AFFILIATED = "This competition is not affiliated with MLCommons or its MLPerf benchmarks."
VERDICT_STYLES = {"faster": "green", "slower": "red", "not shown": "yellow"}
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
    names = [each.name for each in judgement.event.scored]
    return score_text(pooled_score(judgement.heats, names))


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
    score = pooled_score(judgement.heats, [each.name for each in judgement.event.scored])
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
    return [(each, pooled_score(judgement.heats, [each.name])) for each in measures]


def _median(heats: Sequence[Heat], side: str, name: str) -> float | None:
    values = [getattr(heat, side)[name] for heat in heats if name in getattr(heat, side)]
    return statistics.median(values) if values else None


# ---------------------------------------------------------------- the rest


def ablation_rows(judgement: Judgement) -> list[tuple[str, Score | None, str]]:
    """Give name, contribution and what is to be said of each technique that was switched off."""
    names = [each.name for each in judgement.event.scored]
    rows = []
    for each in judgement.ablations:
        score = pooled_score(each.heats, names)
        said = each.reason or f"{len(each.heats)} heats, too few for an interval"
        if score is not None:
            said = {"faster": "helps", "slower": "hurts"}.get(score.verdict, "no help is shown")
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
