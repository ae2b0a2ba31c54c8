"""A comparison as a page: the verdict, the picture, both sides' times, and what stands beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import FASTER, NOT_SHOWN, SAME, SLOWER, Comparison
from tinytorch.comparison.quality import quality_doubt, quality_loss
from tinytorch.reporting.comparison_words import (
    beside_the_times,
    call_count_text,
    call_rows,
    forest_plot_of,
    measured_rows,
    missing_lines,
    note_lines,
    outcome_text,
    quality_headline,
    speedup_text,
    verdict_text,
)
from tinytorch.reporting.forest_plot import ratio_text
from tinytorch.reporting.html.appendix import appendix
from tinytorch.reporting.html.figures import beside, figure
from tinytorch.reporting.html.forest import forest_picture
from tinytorch.reporting.html.markup import Markup, element, joined, listed
from tinytorch.reporting.html.overlaid import overlaid_distributions
from tinytorch.reporting.html.page import Banner, Page, Section, Tone
from tinytorch.reporting.html.quality_sections import accuracy_section, outputs_section
from tinytorch.reporting.html.run_order import Run, run_order
from tinytorch.reporting.html.tables import Column, table
from tinytorch.reporting.quality_lines import score_text
from tinytorch.reporting.quantities import UNKNOWN, seconds_text

__all__ = ["comparison_banner", "comparison_page"]

TONES: dict[str, Tone] = {FASTER: "good", SLOWER: "bad", SAME: "neutral", NOT_SHOWN: "unknown"}
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
    return "unknown" if is_doubtful else TONES[comparison.verdict]


def _verdict(comparison: Comparison) -> str:
    if quality_loss(comparison):
        return outcome_text(comparison).capitalize()
    words = {
        FASTER: f"{ratio_text(comparison.speedup)} as fast",
        SLOWER: f"Slower: {ratio_text(comparison.time_ratio)} the time",
        SAME: "The same speed",
        NOT_SHOWN: "Not shown",
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
    order = run_order(runs, seconds_text, breaks=breaks)
    loops = " and ".join(dict.fromkeys(map(str, comparison.pace.loops)))
    calls = "1 call" if loops == "1" else f"{loops} calls"
    return Section(
        "times",
        "Times of both sides",
        beside(
            figure(
                overlaid_distributions(runs, seconds_text),
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
                    run_order(runs, seconds_text, things="calls"),
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
