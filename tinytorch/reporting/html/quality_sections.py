"""Is a candidate as good as before? Sections about accuracy and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinytorch.comparison import accuracy as accuracies
from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.reporting.html.figures import figure
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.plot import across, across_axis, plot, upright_line, words
from tinytorch.reporting.html.svg import Scale
from tinytorch.reporting.html.tables import Cell, Column, table
from tinytorch.reporting.quality_lines import (
    accuracy_line,
    difference_text,
    outputs_line,
    score_text,
)
from tinytorch.reporting.quantities import UNKNOWN, percent_text

__all__ = ["accuracy_section", "outputs_section"]

TONES = {accuracies.NOT_WORSE: "good", accuracies.WORSE: "bad", accuracies.INCONCLUSIVE: "unknown"}
HEIGHT, EDGE = 42, 40
MOST_OUTPUTS = 50


def accuracy_section(comparison: Comparison) -> Section | None:
    """Show the scores of both sides, and how sure it is that nothing was lost."""
    found = comparison.accuracy
    if found is None:
        return None
    parts = [element("p", accuracy_line(found), class_=TONES[found.verdict]), _scores(comparison)]
    if math.isfinite(found.difference):
        picture = _difference(found)
        parts.insert(1, figure(picture, title="Difference of the mean scores", about=_how(found)))
    return Section(
        "accuracy",
        "Accuracy",
        joined(parts),
        "Both sides are scored on the same examples. The candidate is not worse when even the "
        "lower end of what is likely lies right of the margin.",
    )


def outputs_section(comparison: Comparison) -> Section | None:
    """Show how far the outputs are apart, each of them."""
    found = comparison.outputs
    if found is None:
        return None
    tone = "bad" if found.broken else None
    body = [element("p", outputs_line(found), class_=tone)]
    if found.outputs and not found.is_identical:
        body.append(_outputs_table(found))
    about = "The same inputs through both sides. How far outputs may differ, only their user knows."
    return Section("outputs", "Outputs", joined(body), about)


# ---------------------------------------------------------------- accuracy


def _scores(comparison: Comparison) -> Markup:
    found = comparison.accuracy
    assert found is not None
    write = score_text(found)
    rows = [
        (comparison.baseline_name, write(found.baseline_mean)),
        (comparison.candidate_name, write(found.candidate_mean)),
        ("difference", difference_text(found, found.difference)),
        ("at least", difference_text(found, found.low)),
        ("at most", difference_text(found, found.high)),
        ("margin", difference_text(found, found.margin, sign=False)),
        ("examples", str(found.n)),
    ]
    if found.is_binary:
        rows += [
            ("gained: only the candidate is right", str(found.gained)),
            ("lost: only the baseline is right", str(found.lost)),
        ]
    if found.failed:
        rows.append(("scores of the candidate that are no number", str(found.failed)))
    columns = [Column(found.metric), Column("mean score", "number")]
    return table(columns, rows, sortable=False)


def _how(found: AccuracyComparison) -> str:
    return f"Each end holds with {found.confidence:.0%} confidence."


def _difference(found: AccuracyComparison) -> Markup:
    """Draw the difference with its bounds, beside zero and the margin."""
    known = [found.difference, found.low, found.high, -found.margin, 0.0]
    finite = [each for each in known if math.isfinite(each)]
    spare = 0.12 * (max(finite) - min(finite)) or 0.01
    x = Scale(min(finite) - spare, max(finite) + spare, 0, 100)
    tone, middle, below = TONES[found.verdict], HEIGHT / 2, HEIGHT + 30
    margin, ends = x(-found.margin), (across(x(found.low)), across(x(found.high)))
    return plot(
        HEIGHT,
        element("rect", x=0, y=0, width=across(margin), height=HEIGHT, class_="faint"),
        *across_axis(x, HEIGHT, lambda at: difference_text(found, at), most=4),
        upright_line(x(0.0), 0, HEIGHT, class_="axis"),
        upright_line(margin, -6, HEIGHT, class_="line bad"),
        words(margin, -10, "margin", class_="tick", anchor="middle"),
        element("line", x1=ends[0], x2=ends[1], y1=middle, y2=middle, class_=f"interval {tone}"),
        element("circle", cx=across(x(found.difference)), cy=middle, r=5.5, class_=f"mark {tone}"),
        words(0, below, "← worse", class_="tick"),
        words(100, below, "better →", class_="tick", anchor="end"),
        label=accuracy_line(found),
        left=EDGE,
        right=EDGE,
        top=22,
        bottom=36,
        class_="difference",
    )


# ---------------------------------------------------------------- outputs


def _outputs_table(found: OutputDifference) -> Markup:
    columns = [
        Column("output"),
        Column("shape"),
        Column("largest error", "number"),
        Column("of the largest value", "number"),
        Column("SQNR", "number", "signal over noise: the larger, the closer"),
        Column("top-1 agreement", "number", "rows whose largest value is in the same place"),
        Column("equal whole numbers", "number"),
        Column("note"),
    ]
    rows = [_output_row(place, each) for place, each in enumerate(found.outputs[:MOST_OUTPUTS])]
    rest = len(found.outputs) - len(rows)
    caption = f"{rest} more outputs are in the raw data" if rest else ""
    return table(*_without_empty(columns, rows), caption=caption, sortable=len(rows) > 1)


def _output_row(place: int, each: ArrayDifference) -> list[Cell]:
    return [
        Cell(str(place), place),
        Cell("x".join(map(str, each.shape)) or "scalar"),
        _number(each.max_error, "{:.3g}"),
        _number(each.max_relative_error, "{:.2g}"),
        _number(each.sqnr_db, "{:.1f} dB"),
        Cell(percent_text(each.top1_agreement), each.top1_agreement),
        Cell(percent_text(each.equal_share), each.equal_share),
        Cell("identical" if each.is_identical else each.note),
    ]


def _number(value: float | None, pattern: str) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(pattern.format(value), value)


def _without_empty(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> tuple[list[Column], list[list[Cell]]]:
    """Leave out columns in which no row has anything."""
    kept = [
        place
        for place in range(len(columns))
        if any(row[place].text not in ("", UNKNOWN) for row in rows)
    ]
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]
