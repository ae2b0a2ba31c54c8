"""Labs: what was checked, the progress in all of them, and the pictures in their text."""

from __future__ import annotations

import math
from string import ascii_uppercase

import numpy as np

from tinytorch.learning.checking import LabChecked, StepResult
from tinytorch.learning.exercise import Bars, Growth, Histogram, Outcome, Roof
from tinytorch.learning.progress import LabOverview, Overview
from tinytorch.reporting.document import (
    Banner,
    Block,
    Bullets,
    Cell,
    Column,
    Document,
    Item,
    Paragraph,
    Row,
    Section,
    Table,
)
from tinytorch.reporting.quantities import rate_text
from tinytorch.reporting.roofline import Roofline, RooflinePoint

BINS = 24


def checked_document(checked: LabChecked) -> Document:
    """Build the document of checked steps: the first that was missed is what to look at next."""
    done = [each for each in checked.steps if each.passed]
    missed = [each for each in checked.steps if not each.passed]
    total = len(checked.steps)
    said = f"{len(done)} of {total} steps" if total > 1 else checked.steps[0].title
    banner = Banner(
        "passed" if not missed else "not yet", said, tone="good" if not missed else "warning"
    )
    # Only the first step that was missed is told in full: one thing at a time.
    blocks: list[Block] = [
        Table(
            [Column("step"), Column("", rank=1), Column("checks")],
            [_step_row(each) for each in checked.steps],
            is_sortable=False,
        )
    ]
    if missed:
        blocks.append(_missed_section(missed[0], checked))
    return Document(f"{checked.lab}: {checked.file}", banner, blocks, raw=checked.to_dict())


def _step_row(step: StepResult) -> Row:
    held = sum(each.passed for each in step.checks)
    word = f"{held} of {step.total}"
    if step.missed is not None and step.missed.code == "not-written":
        word = "not written yet"
    return Row([step.name, step.title, Cell(word)], tone="" if step.passed else "hot")


def _missed_section(step: StepResult, checked: LabChecked) -> Section:
    missed = step.missed
    assert missed is not None
    held = [each.what for each in step.checks if each.passed]
    below = [f"printed: {missed.printed.strip()}"] if missed.printed.strip() else []
    items = [f"holds: {each}" for each in held]
    blocks: list[Block] = [Bullets(items)] if items else []
    blocks += [Bullets([Item(f"not yet: {missed.what}", [missed.words, *below])])]
    if missed.code != "not-written":
        again = f"The same case again: tinytorch learn check {step.name} --seed {checked.seed}"
        shown = f"Stuck? tinytorch learn solution {step.name}"
        blocks += [Paragraph(again, "faint"), Paragraph(shown, "faint")]
    return Section(step.name, f"{step.name}: {step.title}", blocks)


def overview_document(found: Overview) -> Document:
    """Build the document of all labs."""
    columns = [
        Column("lab"),
        Column("", "bar"),
        Column("steps"),
        Column("hours", rank=3),
        Column("about", rank=1, wraps=True),
        Column("folder", rank=2),
    ]
    rows = [_overview_row(each) for each in found.labs]
    begun = [each for each in found.labs if each.progress is not None]
    words = "Go on with `tinytorch learn check` in a lab's folder."
    if not begun:
        words = f"Begin with `tinytorch learn start {found.labs[0].name}`."
    return Document("Labs", None, [Table(columns, rows, is_sortable=False), Paragraph(words)])


def _overview_row(lab: LabOverview) -> Row:
    passed = [name for name in lab.steps if lab.progress and lab.progress.of(name).passed]
    share = len(passed) / len(lab.steps)
    steps = f"{len(passed)} of {len(lab.steps)}" if lab.progress else f"{len(lab.steps)}"
    _, _, about = lab.title.partition(": ")
    bar = Cell("", share, bar=share if lab.progress else None)
    return Row([lab.name, bar, steps, lab.hours, about or lab.title, lab.folder or ""])


# ---------------------------------------------------------------- pictures in the text of a lab


def bars_document(bars: Bars) -> Document:
    """Build the document of bars; the largest is as long as there is room."""
    most = max(bars.values.values(), default=0.0)
    rows = [
        Row(
            [
                name,
                Cell("", value, bar=value / most if most > 0 else 0.0),
                _number(value, bars.unit),
            ]
        )
        for name, value in bars.values.items()
    ]
    columns = [Column(bars.title), Column("", "bar"), Column("value", "number")]
    return Document("", None, [Table(columns, rows, is_sortable=False)])


def growth_document(growth: Growth) -> Document:
    """Build the document of quantities over a size, with the slope between its ends."""
    names = list(growth.values)
    columns = [Column(growth.size_name, "number"), *(Column(name, "number") for name in names)]
    rows: list[Row] = []
    for place, size in enumerate(growth.sizes):
        cells = [_number(growth.values[name][place], growth.unit) for name in names]
        rows.append(Row([f"{size:,}", *cells]))
    slopes = [f"{exponent_of(growth.sizes, growth.values[name]):.2f}" for name in names]
    rows.append(Row(["exponent", *slopes], tone="total"))
    return Document("", None, [Paragraph(growth.title), Table(columns, rows, is_sortable=False)])


def roof_document(roof: Roof) -> Document:
    """Build the document of a roofline: each piece of work is a letter below the roof."""
    peak, bandwidth = roof.ceilings.peak_flops(roof.dtype), roof.ceilings.bandwidth()
    points, rows = [], []
    for letter, (name, (intensity, rate)) in zip(
        ascii_uppercase, roof.points.items(), strict=False
    ):
        points.append(RooflinePoint(letter, intensity, rate))
        attainable = min(peak or math.inf, bandwidth * intensity)
        share = f"{rate / attainable:.0%}"
        rows.append([letter, name, _number(intensity), rate_text(rate), share])
    columns = [
        Column(""),
        Column("what"),
        Column("FLOP/byte", "number"),
        Column("achieved", "number"),
        Column("of attainable from memory", "number"),
    ]
    peaks = {roof.dtype: peak} if peak else {}
    chart = Roofline(peaks, roof.ceilings.bandwidths, points)
    blocks: list[Block] = [Paragraph(roof.title), chart, Table(columns, rows, is_sortable=False)]
    return Document("", None, blocks)


def histogram_document(histogram: Histogram) -> Document:
    """Build the document of a histogram: bars of counts, the marks beside the bar they fall into.

    The last bar holds everything above the highest mark.
    """
    values = np.asarray(histogram.values, float)
    most = max([*histogram.marks.values(), float(np.median(values))])
    edges = np.linspace(min(float(values.min()), most), most, BINS + 1)
    places = np.searchsorted(edges[1:-1], values, side="right")
    counts = np.bincount(np.where(values > most, BINS, places), minlength=BINS + 1)
    rows = []
    for place, count in enumerate(counts):
        if place == BINS and not count:
            continue
        low = edges[place] if place < BINS else most
        here = [
            name
            for name, each in histogram.marks.items()
            if int(np.searchsorted(edges[1:-1], each, side="right")) == place
        ]
        share = float(count) / float(counts.max())
        start = (
            _number(low, histogram.unit) if place < BINS else f"> {_number(most, histogram.unit)}"
        )
        rows.append(Row([start, Cell("", share, bar=share), f"{count:,}", ", ".join(here)]))
    columns = [Column("from", "number"), Column("", "bar"), Column("count", "number"), Column("")]
    blocks: list[Block] = [Paragraph(histogram.title), Table(columns, rows, is_sortable=False)]
    return Document("", None, blocks)


def exponent_of(sizes: object, values: object) -> float:
    """Return the exponent of the power law that fits best; NaN unless all values are positive."""
    x, y = np.asarray(sizes, float), np.asarray(values, float)
    if len(x) < 2 or not (x > 0).all() or not (y > 0).all():
        return math.nan
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def outcome_document(outcome: Outcome) -> Document:
    """Build the document of predictions beside what was measured."""
    rows = [
        [name, _number(outcome.predicted.get(name)), _number(value)]
        for name, value in outcome.measured.items()
    ]
    return Document(
        "", None, [Table([Column("what"), Column("predicted"), Column("measured")], rows)]
    )


def _number(value: object, unit: str = "") -> str:
    if isinstance(value, (int, float)):
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return f"{text} {unit}".rstrip()
    return "?" if value is None else str(value)
