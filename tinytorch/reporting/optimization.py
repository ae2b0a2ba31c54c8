"""An optimization in the terminal: what helps, why it was slow, everything that was tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.reporting.advice import (
    advice_section,
    agreement_words,
    outcome_words,
    predicted_words,
)
from tinytorch.reporting.document import Document
from tinytorch.reporting.markdown import code, escaped, fenced, folded, listed, table_of
from tinytorch.reporting.optimization_words import (
    STYLES,
    TONES,
    accuracy_change,
    accuracy_text,
    asked_words,
    beside_lines,
    confirmation_lines,
    contribution_words,
    every_note,
    forest_plot,
    front_name,
    headline,
    interval_text,
    limit_line,
    limits_owner,
    reason_lines,
    score_title,
    share_text,
    speed_text,
    verdict_word,
    why_slow,
)
from tinytorch.reporting.quantities import UNKNOWN, Column, FittingTable, factor_text, seconds_text
from tinytorch.reporting.terminal import render
from tinytorch.reporting.transforms import gain_text
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import BASELINE, BETTER, NOT_TRIED, Attempt
from tinytorch.tuning.optimization import Optimization

__all__ = [
    "attempt_table",
    "front_table",
    "named_lines",
    "optimization_markdown",
    "render_optimization",
    "suggestion_table",
]


# ---------------------------------------------------------------- the tables of an optimization:
# everything that was tried, suggestions, and the front

LEAST_NAME = 32


def attempt_table(optimization: Optimization) -> FittingTable:
    """Give a row for each attempt, the best at the goal first."""
    rows, best = optimization.ranked, optimization.chosen
    found = [each.measured for each in rows]
    return FittingTable(
        "attempt",
        [Text(each.name, style="bold" if each is best else "") for each in rows],
        [
            Column("outcome", [each.outcome for each in rows], 0, "left"),
            Column("predicted", [_predicted(optimization, each) for each in rows], 4),
            Column("speedup", [speed_text(each) for each in rows]),
            Column("95% interval", [interval_text(each) for each in rows], 7),
            Column("memory", [share_text(each.memory) for each in found], 2),
            Column("size", [share_text(each.size) for each in found], 2),
            Column(score_title(optimization), [accuracy_text(each) for each in rows], 1),
            Column("once", [_once(each) for each in rows], 5),
            Column("took", [seconds_text(each.seconds) for each in rows], 6),
        ],
        styles=[STYLES[TONES[each.outcome]] if each.comparison else "dim" for each in rows],
        label_least=LEAST_NAME,
    )


def _once(attempt: Attempt) -> str:
    """Write what it needs once; where nothing does, the column is blank and left out."""
    return seconds_text(attempt.once_s) if attempt.once_s else ""


def _predicted(optimization: Optimization, attempt: Attempt) -> str:
    gain = optimization.predicted(attempt)
    return UNKNOWN if gain is None else factor_text(gain.value)


def front_table(optimization: Optimization) -> FittingTable:
    """Give a row for everything on the front, as shares of the model as it is."""
    names = optimization.front
    known = {each.name: each for each in optimization.attempts}
    found = [known[name].measured if name else BASELINE for name in names]
    changes = [accuracy_change(known[name]) if name else UNKNOWN for name in names]
    return FittingTable(
        "attempt",
        [Text(front_name(name)) for name in names],
        [
            Column("time", [share_text(each.time) for each in found]),
            Column("memory", [share_text(each.memory) for each in found], 1),
            Column("size", [share_text(each.size) for each in found], 1),
            Column(score_title(optimization), changes),
        ],
        label_least=LEAST_NAME,
    )


def suggestion_table(optimization: Optimization) -> FittingTable:
    """Give a row for each suggestion that something here carries out: predicted and measured."""
    rows = [each for each in optimization.advice if each.entry]
    tried = [optimization.outcome_of(each) for each in rows]
    pairs = list(zip(rows, tried, strict=True))
    return FittingTable(
        "suggestion",
        [Text(each.title) for each in rows],
        [
            Column("done by", [each.entry for each in rows], 0, "left"),
            Column("predicted", [_gain(each) for each in rows], 1),
            Column("measured", [speed_text(each) if each else UNKNOWN for each in tried], 1),
            Column("outcome", [each.outcome if each else NOT_TRIED for each in tried], 0, "left"),
            Column("", [agreement_words(a, x) if x else "" for a, x in pairs], 2, "left"),
        ],
        styles=[STYLES[TONES[each.outcome]] if each else "dim" for each in tried],
        label_least=LEAST_NAME,
    )


def _gain(advice: Advice) -> str:
    return UNKNOWN if advice.predicted is None else gain_text(advice.predicted)


# ---------------------------------------------------------------- an optimization as Markdown, for
# a pull request or a wiki: the verdict, the picture, tables

INTERRUPTED = "Interrupted: this is what was finished before."


def optimization_markdown(optimization: Optimization) -> str:
    """Write an optimization: the verdict and what was timed open, the rest folded."""
    picture = forest_plot(optimization)
    said = (*beside_lines(optimization), *confirmation_lines(optimization))
    lines = [
        f"### {escaped(verdict_word(optimization))}",
        "",
        escaped(headline(optimization)),
        "",
        *(part for line in said for part in (escaped(line), "")),
        escaped(asked_words(optimization)),
        "",
    ]
    if optimization.was_interrupted:
        lines += [INTERRUPTED, ""]
    lines += [*_limits(optimization)]
    if picture is not None:
        lines += [fenced(picture), ""]
    if optimization.attempts:
        lines += [*table_of(attempt_table(optimization)), ""]
    for title, inside in _details(optimization).items():
        lines += folded(title, inside)
    return "\n".join(lines)


def _details(optimization: Optimization) -> dict[str, list[str]]:
    """Give what is folded away, by its title."""
    was_timed = any(each.comparison for each in optimization.attempts)
    return {
        "Why it takes its time": [escaped(each) for each in why_slow(optimization)],
        "What was not used, and why": [
            f"- {code(each.name)}: {escaped(words)}" for each, words in reason_lines(optimization)
        ],
        "What each part brings": [
            f"- {code(each.part)}: {escaped(contribution_words(each))}"
            for each in optimization.ablation
        ],
        "The Pareto front": table_of(front_table(optimization)) if was_timed else [],
        "Suggestions": _suggestions(optimization),
        "Notes": listed(every_note(optimization)),
    }


def _limits(optimization: Optimization) -> list[str]:
    if not optimization.limit_checks:
        return []
    lines = listed(limit_line(each) for each in optimization.limit_checks)
    return [f"Limits, for {escaped(limits_owner(optimization))}:", "", *lines, ""]


def _suggestions(optimization: Optimization) -> list[str]:
    lines = []
    for each in optimization.advice:
        lines.append(
            f"- **{escaped(each.title)}**" + (f" ({code(each.entry)})" if each.entry else "")
        )
        lines += [f"  - {escaped(sentence)}" for sentence in each.evidence]
        lines.append(f"  - predicted: {escaped(predicted_words(each))}")
        if each.entry:
            tried = outcome_words(each, optimization.outcome_of(each))
            lines.append(f"  - tried: {escaped(tried)}")
    return lines


# ---------------------------------------------------------------- an optimization in the terminal:
# what helps, why it was slow, everything that was tried


def render_optimization(optimization: Optimization) -> RenderableType:
    """Lay an optimization out, top to bottom: the verdict first, then the evidence."""
    return Group(
        *_head(optimization),
        *_section("Why it takes its time", [Text(each) for each in why_slow(optimization)]),
        *_tried(optimization),
        *_section("Limits", _limit_section(optimization)),
        *_section("What each part brings", _ablation(optimization)),
        *_section("The Pareto front: nothing beats these in everything", _front(optimization)),
        *_section("Suggestions, and what came of each alone", _suggestion_section(optimization)),
        *_section("What to do next", _next(optimization)),
        *_section("Notes", _notes(optimization)),
    )


# ---------------------------------------------------------------- the head


def _head(optimization: Optimization) -> Iterator[Text]:
    best = optimization.recommended
    yield Text(headline(optimization), style=f"bold {_verdict_style(best)}")
    yield Text(asked_words(optimization), style="dim")
    for line in beside_lines(optimization):
        yield Text(line)
    for line in confirmation_lines(optimization):
        yield Text(line, style="" if optimization.confirmation else "yellow")
    if optimization.was_interrupted:
        yield Text("Interrupted: this is what was finished before.", style="yellow")


def _verdict_style(best: Attempt | None) -> str:
    if best is None:
        return STYLES["unknown"]
    return STYLES["good"] if best.outcome == BETTER else STYLES["neutral"]


def _section(title: str, parts: Iterable[RenderableType]) -> list[RenderableType]:
    """Give a titled part, or nothing where it has nothing to say."""
    found = list(parts)
    return [Text(""), Text(title, style="bold"), *found] if found else []


# ---------------------------------------------------------------- what was tried


def _tried(optimization: Optimization) -> Iterator[RenderableType]:
    picture = forest_plot(optimization)
    if picture is not None:
        yield from _section("Speedup of what was timed", [picture])
    if optimization.attempts:
        yield from _section("Everything that was tried", [attempt_table(optimization)])
    reasons = [
        (each.name, Text(words, STYLES[TONES[each.outcome]]))
        for each, words in reason_lines(optimization)
    ]
    if reasons:
        yield from _section("What was not used, and why", [named_lines(reasons)])


# ---------------------------------------------------------------- what follows


def _limit_section(optimization: Optimization) -> Iterator[Text]:
    whose = limits_owner(optimization)
    styles = {"kept": "green", "broken": "red"}
    for check in optimization.limit_checks:
        style = styles.get(check.verdict, "yellow")
        yield Text(f"- {whose}: {limit_line(check)}", style=style)


def _ablation(optimization: Optimization) -> Iterator[RenderableType]:
    if optimization.ablation:
        yield Text("The whole against the whole without it, measured in turns.", style="dim")
        yield named_lines(
            (each.part, Text(contribution_words(each))) for each in optimization.ablation
        )


def _front(optimization: Optimization) -> Iterator[RenderableType]:
    if any(each.comparison for each in optimization.attempts):
        yield Text("As shares of the model as it is: less is better.", style="dim")
        yield front_table(optimization)


def _suggestion_section(optimization: Optimization) -> Iterator[RenderableType]:
    if any(each.entry for each in optimization.advice):
        yield suggestion_table(optimization)


def _next(optimization: Optimization) -> Iterator[RenderableType]:
    advice = [each for each in optimization.advice if not each.entry]
    if advice:
        yield render(Document("", None, advice_section(advice).blocks))


def _notes(optimization: Optimization) -> Iterator[RenderableType]:
    notes = every_note(optimization)
    if notes:
        yield named_lines(("-", Text(note, "yellow")) for note in notes)


def named_lines(rows: Iterable[tuple[str, Text]]) -> Table:
    """Lay names and texts out below each other; a text that does not fit goes on below itself."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), text)
    return table
