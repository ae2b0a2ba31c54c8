"""An optimization in the terminal: what helps, why it was slow, everything that was tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.reporting.advice import render_advice
from tinytorch.reporting.attempt_words import STYLES, TONES
from tinytorch.reporting.optimization_markdown import optimization_markdown
from tinytorch.reporting.optimization_tables import attempt_table, front_table, suggestion_table
from tinytorch.reporting.optimization_words import (
    asked_words,
    beside_lines,
    confirmation_lines,
    contribution_words,
    every_note,
    forest_plot,
    headline,
    limit_line,
    limits_owner,
    reason_lines,
    why_slow,
)
from tinytorch.tuning.attempt import BETTER, Attempt
from tinytorch.tuning.optimization import Optimization

__all__ = ["named_lines", "optimization_markdown", "render_optimization"]


def render_optimization(optimization: Optimization) -> RenderableType:
    """Lay an optimization out, top to bottom: the verdict first, then the evidence."""
    return Group(
        *_head(optimization),
        *_section("Why it takes its time", [Text(each) for each in why_slow(optimization)]),
        *_tried(optimization),
        *_section("Limits", _limits(optimization)),
        *_section("What each part brings", _ablation(optimization)),
        *_section("The Pareto front: nothing beats these in everything", _front(optimization)),
        *_section("Suggestions, and what came of each alone", _suggestions(optimization)),
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


def _limits(optimization: Optimization) -> Iterator[Text]:
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


def _suggestions(optimization: Optimization) -> Iterator[RenderableType]:
    if any(each.entry for each in optimization.advice):
        yield suggestion_table(optimization)


def _next(optimization: Optimization) -> Iterator[RenderableType]:
    advice = [each for each in optimization.advice if not each.entry]
    if advice:
        yield render_advice(advice)


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
