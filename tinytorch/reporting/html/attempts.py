"""Everything that was tried: the picture, the table, and each attempt with its plans."""

from __future__ import annotations

from collections.abc import Iterator

from tinytorch.reporting.attempt_words import (
    TONES,
    accuracy_text,
    attempt_phrases,
    share_text,
)
from tinytorch.reporting.comparison_words import speedup_text
from tinytorch.reporting.html.forest import forest_picture
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.tables import Cell, Column, table
from tinytorch.reporting.optimization_words import forest_plot, metric_of, score_title
from tinytorch.reporting.plan import gain_text, settings_text, skipped_lines
from tinytorch.reporting.preparation import preparation_lines
from tinytorch.reporting.quantities import UNKNOWN, factor_text, seconds_text
from tinytorch.tuning.attempt import ACCURACY_INCONCLUSIVE, OUTCOMES, Attempt
from tinytorch.tuning.objectives import Value
from tinytorch.tuning.optimization import Optimization
from tinytorch.workloads.plan import Gain, Plan

__all__ = ["attempts_section", "forest_section"]

RECOMMENDED = "★"


def forest_section(optimization: Optimization) -> Section | None:
    """Give the picture of everything that was timed; None where nothing was."""
    plot = forest_plot(optimization)
    if plot is None:
        return None
    about = (
        "The speedup of every attempt that is as good as the baseline, or of which accuracy is "
        "inconclusive, with its interval, the best first. Both were timed in turns; an interval "
        "that holds 1 shows no difference."
    )
    return Section("speedups", "Speedups", forest_picture(plot), about)


def attempts_section(optimization: Optimization) -> Section:
    """Give the table of all attempts, and below it what each one did."""
    rows = optimization.ranked
    if not rows:
        body = element("p", "Nothing was tried.", class_="muted")
        return Section("attempts", "Everything that was tried", body)
    cells = [_cells(optimization, each) for each in rows]
    details = [_details(each) for each in rows]
    about = (
        "Each attempt is a stack of changes to a copy of the model. What is not as good as the "
        "baseline was not timed; where accuracy is inconclusive it was, and is never recommended. "
        f"{RECOMMENDED} is recommended; the numbers here are those by which it was chosen."
    )
    body = joined(
        [table(_columns(optimization), cells), element("h3", "What each one did"), *details]
    )
    return Section("attempts", "Everything that was tried", body, about)


# ---------------------------------------------------------------- the table


def _columns(optimization: Optimization) -> list[Column]:
    return [
        Column("attempt"),
        Column("outcome", about="what came of it; point at a cell for what it means"),
        Column("predicted", "number", "how many times faster it was predicted to be"),
        Column("speedup", "number", "the baseline's time over this one's, with its interval"),
        Column("memory", "number", "peak memory as a share of the baseline's"),
        Column("size", "number", "size of the file as a share of the baseline's"),
        Column(score_title(optimization), "number", f"mean {metric_of(optimization)}"),
        Column("once", "number", "what it needs once, such as compiling; no part of the times"),
        Column("took", "number", "how long trying it took"),
    ]


def _cells(optimization: Optimization, attempt: Attempt) -> list[Cell]:
    measured, found = attempt.measured, attempt.comparison
    gain, tone = optimization.predicted(attempt), TONES[attempt.outcome]
    factor = gain.value if gain else None
    name = attempt.name
    if attempt is optimization.chosen:
        name = f"{RECOMMENDED} {name}"
    accuracy = found.accuracy.candidate_mean if found and found.accuracy else None
    return [
        Cell(name, attempt.name),
        # In one line: the words of an outcome belong together.
        Cell(attempt.outcome.replace(" ", "\u00a0"), tone=tone, title=OUTCOMES[attempt.outcome]),
        Cell(factor_text(factor), factor, title=_basis(gain)),
        Cell(speedup_text(found), found.speedup, tone=tone) if found else Cell(UNKNOWN),
        _share(measured.memory),
        _share(measured.size),
        Cell(accuracy_text(attempt), accuracy),
        Cell(seconds_text(attempt.once_s), attempt.once_s),
        Cell(seconds_text(attempt.seconds), attempt.seconds),
    ]


def _basis(gain: Gain | None) -> str:
    return "" if gain is None else f"{gain_text(gain)}: {gain.basis}"


def _share(share: Value | None) -> Cell:
    tone = "" if share is None else "good" if share.is_less else "bad" if share.is_more else ""
    return Cell(share_text(share), share.value if share else None, tone=tone)


# ---------------------------------------------------------------- one attempt


def _details(attempt: Attempt) -> Markup:
    tone = TONES[attempt.outcome]
    summary = element(
        "summary",
        joined([attempt.name, element("span", attempt.outcome, class_=f"badge {tone}")], " "),
    )
    return element("details", summary, *_paragraphs(attempt), *map(_plan, attempt.plans))


def _paragraphs(attempt: Attempt) -> Iterator[Markup]:
    yield element("p", f"{OUTCOMES[attempt.outcome]}.".capitalize(), class_="muted")
    if attempt.comparison is None:
        if attempt.reason:
            yield element("p", attempt.reason)
    else:
        yield element("p", f"It is {', '.join(attempt_phrases(attempt))}.")
        if attempt.outcome == ACCURACY_INCONCLUSIVE:
            yield element("p", attempt.reason, class_="warn")
        for line in preparation_lines(attempt.comparison):
            yield element("p", line)
        if attempt.comparison.contradiction:
            yield element("p", attempt.comparison.contradiction, class_="warn")
    for note in attempt.notes:
        yield element("p", note, class_="warn")


def _plan(plan: Plan) -> Markup:
    parts = [element("h4", element("code", f"{plan.transform}({settings_text(plan)})"))]
    if plan.steps:
        rows = [
            (each.layers.name or "(the model itself)", str(len(each.layers)), each.what, each.why)
            for each in plan.step_groups
        ]
        columns = (Column("layer"), Column("n", "number"), Column("what"), Column("why"))
        parts.append(table(columns, rows, sortable=False))
    else:
        parts.append(element("p", "Nothing to do: no layer changes."))
    lines = [f"{names}: left alone, {reason}" for names, reason in skipped_lines(plan)]
    lines += [f"note: {note}" for note in plan.notes]
    if lines:
        parts.append(element("ul", *(element("li", line) for line in lines), class_="muted"))
    return element("div", *parts)
