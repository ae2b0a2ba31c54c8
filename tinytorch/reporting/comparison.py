"""Comparisons in the terminal: the verdict first, then the picture, the numbers and the doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.quality import quality_loss
from tinytorch.reporting.comparison_words import (
    STYLES,
    beside_the_times,
    call_count_text,
    call_rows,
    forest_plot_of,
    measured_rows,
    missing_lines,
    note_lines,
    outcome_text,
    quality_headline,
    quality_note_lines,
    ratio_style,
    speedup_text,
    verdict_text,
)
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.quality_lines import accuracy_and_outputs

__all__ = [
    "render_comparison",
    "render_comparisons",
    "speedup_text",
    "verdict_text",
]

LONGEST_NAME = 20


def render_comparison(comparison: Comparison, *, about: Sequence[str] = ()) -> RenderableType:
    """Lay out a comparison; lines in `about` say what the two sides are."""
    return Group(
        *_headlines(comparison),
        *(Text(line, style="dim") for line in about),
        Text(""),
        forest_plot_of(comparison),
        Text(""),
        _table(comparison),
        *_beside_the_times(comparison),
        *accuracy_and_outputs(comparison),
        *_single_calls(comparison),
        *_listed("Not measured", missing_lines(comparison), ""),
        *_listed("Notes", note_lines(comparison), "yellow"),
    )


def render_comparisons(comparisons: Sequence[Comparison]) -> RenderableType:
    """Lay out several comparisons as one forest plot, a row for each."""
    if not comparisons:
        return Text("no comparisons")
    plain = all(each.baseline_name == comparisons[0].baseline_name for each in comparisons)
    widest = max(len(outcome_text(each)) for each in comparisons)
    rows = [
        ForestRow(
            each.candidate_name if plain else f"{each.candidate_name} : {each.baseline_name}",
            each.speedup,
            each.speedup_low,
            each.speedup_high,
            f"{outcome_text(each):<{widest}}  {speedup_text(each)}",
            ratio_style(each),
        )
        for each in comparisons
    ]
    # The widest of them is shown: what lies inside of the smallest may be a difference elsewhere.
    floor, band = max(e.floor for e in comparisons), max(e.rule.band for e in comparisons)
    head = f"against {comparisons[0].baseline_name}" if plain else "candidate : baseline"
    return Group(
        Text(f"speedup {head}", style="dim"),
        ForestPlot(rows, floor, band),
        *(
            Text(f"- {each.candidate_name}: {each.contradiction}", style="yellow")
            for each in comparisons
            if each.contradiction
        ),
        *(Text(f"- {line}", style="yellow") for line in quality_note_lines(comparisons)),
    )


def _headlines(comparison: Comparison) -> Iterator[Text]:
    """Give the verdict; what is lost or doubtful comes first, since no speed makes up for it."""
    style = STYLES[comparison.verdict]
    quality = quality_headline(comparison)
    if quality:
        yield Text(quality, style="bold red" if quality_loss(comparison) else "bold yellow")
        style = ""
    yield Text(verdict_text(comparison), style=f"bold {style}".strip())


def _table(comparison: Comparison) -> FittingTable:
    rows = measured_rows(comparison)
    return FittingTable(
        "",
        [Text(row[0]) for row in rows],
        [
            Column(_short(comparison.baseline_name), [row[1] for row in rows]),
            Column(_short(comparison.candidate_name), [row[2] for row in rows]),
            Column("ratio", [row[3] for row in rows], 1, "left"),
        ],
        label_least=18,
    )


def _beside_the_times(comparison: Comparison) -> Iterator[Text]:
    lines = beside_the_times(comparison)
    if lines:
        yield Text("")
        yield from map(Text, lines)


def _single_calls(comparison: Comparison) -> Iterator[RenderableType]:
    rows = call_rows(comparison)
    if not rows:
        return
    yield Text("")
    yield FittingTable(
        f"{call_count_text(comparison)} single calls",
        [Text(row[0]) for row in rows],
        [
            Column(_short(comparison.baseline_name), [row[1] for row in rows]),
            Column("95% interval", [row[2] for row in rows], 2, "left"),
            Column(_short(comparison.candidate_name), [row[3] for row in rows]),
            Column("95% interval", [row[4] for row in rows], 2, "left"),
        ],
        label_least=12,
    )


def _listed(title: str, lines: Sequence[str], style: str) -> Iterator[Text]:
    if lines:
        yield Text("")
        yield Text(title, style="bold")
        yield from (Text(f"- {line}", style=style) for line in lines)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
