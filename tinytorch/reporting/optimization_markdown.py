"""An optimization as Markdown, for a pull request or a wiki: the verdict, the picture, tables."""

from __future__ import annotations

from tinytorch.reporting.advice import outcome_words, predicted_words
from tinytorch.reporting.markdown import code, escaped, fenced, folded, listed, table_of
from tinytorch.reporting.optimization_tables import attempt_table, front_table
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
    verdict_word,
    why_slow,
)
from tinytorch.tuning.optimization import Optimization

__all__ = ["optimization_markdown"]

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
