"""A comparison as a page: the verdict, the picture, both sides' times, and what stands beside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from tinytorch.comparison import accuracy as accuracies
from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import Comparison, quality_doubt, quality_loss
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
from tinytorch.reporting.comparison import (
    accuracy_line,
    beside_the_times,
    call_count_text,
    call_rows,
    difference_text,
    forest_plot_of,
    measured_rows,
    missing_lines,
    note_lines,
    outcome_text,
    outputs_line,
    quality_headline,
    score_text,
    speedup_text,
    verdict_text,
)
from tinytorch.reporting.document import Distribution, Run, RunOrder, Tone
from tinytorch.reporting.forest_plot import ratio_text
from tinytorch.reporting.html.forest import forest_picture
from tinytorch.reporting.html.markup import Cell, Column, Markup, element, joined, listed, table
from tinytorch.reporting.html.page import Banner, Page, Section, appendix
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    across_axis,
    beside,
    figure,
    plot,
    upright_line,
    words,
)
from tinytorch.reporting.html.runs import overlaid_distributions, run_order
from tinytorch.reporting.quantities import UNKNOWN, percent_text

__all__ = [
    "accuracy_section",
    "comparison_banner",
    "comparison_page",
    "outputs_section",
]


# ---------------------------------------------------------------- is a candidate as good as
# before? Sections about accuracy and outputs

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


# ---------------------------------------------------------------- a comparison as a page: the
# verdict, the picture, both sides' times, and what stands beside

VERDICT_TONES: dict[str, Tone] = {
    FASTER: "good",
    SLOWER: "bad",
    SAME: "neutral",
    INCONCLUSIVE: "unknown",
}
FACTS = ("peak memory", "device peak beside weights", "file on disk")
"""Rows of the table that the banner shows, too."""


def comparison_page(comparison: Comparison, *, about: Sequence[str] = ()) -> Page:
    """Give the page of a comparison; lines in `about` say what the two sides are."""
    raw = comparison.to_dict()
    title = f"{comparison.candidate_name} against {comparison.baseline_name}"
    sections = [
        _speedup(comparison),
        _numbers(comparison),
        _times(comparison),
        _single_calls(comparison),
        accuracy_section(comparison),
        outputs_section(comparison),
        _doubts(comparison),
        appendix(comparison.environment, (), raw, file_name="tinytorch-comparison.json"),
    ]
    return Page(
        title,
        comparison_banner(comparison),
        tuple(each for each in sections if each is not None),
        raw,
        "; ".join(about),
    )


# ---------------------------------------------------------------- banner


def comparison_banner(comparison: Comparison) -> Banner:
    """Give the verdict: what is lost in quality comes before any gain of speed."""
    quality = quality_headline(comparison)
    said = f"{quality}. {verdict_text(comparison)}." if quality else f"{verdict_text(comparison)}."
    return Banner(_verdict(comparison), said, tuple(_facts(comparison)), _tone(comparison))


def _tone(comparison: Comparison) -> Tone:
    if quality_loss(comparison):
        return "bad"
    is_doubtful = quality_doubt(comparison) and comparison.verdict != SLOWER
    return "unknown" if is_doubtful else VERDICT_TONES[comparison.verdict]


def _verdict(comparison: Comparison) -> str:
    if quality_loss(comparison):
        return outcome_text(comparison).capitalize()
    words = {
        FASTER: f"{ratio_text(comparison.speedup)} as fast",
        SLOWER: f"Slower: {ratio_text(comparison.time_ratio)} the time",
        SAME: "The same speed",
        INCONCLUSIVE: "Inconclusive",
    }[comparison.verdict]
    return f"{words}, accuracy inconclusive" if quality_doubt(comparison) else words


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "speedup", speedup_text(comparison)
    if comparison.accuracy is not None:
        yield comparison.accuracy.metric, _accuracy(comparison.accuracy)
    for label, first, second, ratio in measured_rows(comparison):
        if label in FACTS:
            share = f" ({ratio})" if ratio != UNKNOWN else ""
            yield label, f"{first} → {second}{share}"


def _accuracy(found: AccuracyComparison) -> str:
    write = score_text(found)
    return f"{write(found.baseline_mean)} → {write(found.candidate_mean)} ({found.verdict})"


# ---------------------------------------------------------------- sections


def _speedup(comparison: Comparison) -> Section:
    picture = forest_picture(forest_plot_of(comparison))
    confidence = f"{comparison.rule.confidence:.0%}"
    return Section(
        "speedup",
        "Speedup",
        figure(picture, title="The baseline's time over the candidate's", about=""),
        f"The point is the speedup, the line its {confidence} interval, every dot a round. It is "
        "faster when the whole interval lies right of the floor, and the same when it lies inside "
        "of the band.",
    )


def _numbers(comparison: Comparison) -> Section:
    columns = [
        Column("per call"),
        Column(comparison.baseline_name, "number"),
        Column(comparison.candidate_name, "number"),
        Column("ratio", "number", "the candidate's over the baseline's: below 1 is less"),
    ]
    lines = beside_the_times(comparison)
    body = [table(columns, measured_rows(comparison), sortable=False)]
    if lines:
        body += [element("h3", "Not part of the times"), listed(lines)]
    return Section("numbers", "Time, memory, size", joined(body))


def _times(comparison: Comparison) -> Section:
    runs = _runs(comparison)
    ends = accumulate(len(each.baseline) for each in comparison.rounds)
    breaks = list(ends)[:-1]
    order = run_order(RunOrder(runs, "s", breaks))
    loops = " and ".join(dict.fromkeys(map(str, comparison.pace.loops)))
    calls = "1 call" if loops == "1" else f"{loops} calls"
    return Section(
        "times",
        "Times of both sides",
        beside(
            figure(
                overlaid_distributions(Distribution(runs, "s")),
                title="How often which time was seen.",
                about="Lines are medians.",
            ),
            figure(order, title="In the order of measuring.", about=_rounds_text(comparison)),
        ),
        f"Seconds per call; each value is a turn of {calls}. Baseline and candidate take turns, so "
        "what disturbs the machine meets both.",
    )


def _rounds_text(comparison: Comparison) -> str:
    turns = f"{comparison.n} rounds with {comparison.pairs} pairs of turns"
    return f"{turns}; a line where a round begins."


def _runs(comparison: Comparison) -> tuple[Run, Run]:
    return (
        Run(comparison.baseline_name, comparison.baseline.values),
        Run(comparison.candidate_name, comparison.candidate.values),
    )


def _single_calls(comparison: Comparison) -> Section | None:
    rows = call_rows(comparison)
    if not rows or comparison.calls is None:
        return None
    columns = [
        Column("percentile"),
        Column(comparison.baseline_name, "number"),
        Column("95% interval", "number"),
        Column(comparison.candidate_name, "number"),
        Column("95% interval", "number"),
    ]
    names = (comparison.baseline_name, comparison.candidate_name)
    runs = [Run(name, each.values) for name, each in zip(names, comparison.calls, strict=True)]
    return Section(
        "calls",
        "Single calls",
        joined(
            [
                table(columns, rows, sortable=False),
                figure(
                    run_order(RunOrder(runs, "s", things="calls")),
                    title="Single calls in their order.",
                ),
            ]
        ),
        f"{call_count_text(comparison)} calls of each side, one at a time: what somebody who waits "
        "for one call sees.",
    )


def _doubts(comparison: Comparison) -> Section | None:
    missing, notes = missing_lines(comparison), note_lines(comparison)
    parts: list[Markup] = []
    if notes:
        parts += [element("h3", "Notes"), listed(notes)]
    if missing:
        parts += [element("h3", "Not measured"), listed(missing)]
    if not parts:
        return None
    return Section("notes", "What to doubt, what is missing", joined(parts))
