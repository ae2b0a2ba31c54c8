"""Suggestions: the evidence, what should come of it, and what did; the catalog; size advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tinytorch.reporting.comparison import speedup_text
from tinytorch.reporting.document import (
    Banner,
    Beside,
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    LogPlot,
    Paragraph,
    Row,
    Section,
    Strong,
    Table,
    Tone,
    Words,
)
from tinytorch.reporting.optimization_words import TONES
from tinytorch.reporting.quantities import (
    Mark,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    seconds_text,
)
from tinytorch.reporting.transforms import gain_text
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.catalog import GOALS, Entry
from tinytorch.tuning.sizes import SizeAdvice, SizeMeasurement

__all__ = [
    "advice_section",
    "agreement_words",
    "outcome_words",
    "predicted_words",
    "render_catalog",
    "size_advice_document",
]


NO_ADVICE = "Nothing in the profile suggests a change."
MANUAL = "a manual step"
RISKS = {
    "exact": "the same function; sums may be rounded in another order",
    "rounding": "numbers with fewer bits: outputs change a little",
    "approximate": "another function: accuracy has to be checked",
}
"""Risk of an entry -> what it means; other risks are sentences already."""
ABOUT = (
    "Most promising first; tinytorch optimize tries them. Gains are predicted within what Amdahl's "
    "law and the roofline allow."
)


def advice_section(
    advice: Sequence[Advice], outcomes: Mapping[str, Attempt] | None = None
) -> Section:
    """Return a card for each suggestion.

    `outcomes` has what came of an entry of the catalog on its own, by its name, where it was tried;
    without it, nothing was tried yet.
    """
    cards = [_card(place, each, outcomes) for place, each in enumerate(advice, 1)]
    blocks = (Beside(cards) if cards else Paragraph(NO_ADVICE, "faint"),)
    return Section("advice", "Suggestions", blocks, ABOUT)


def _card(place: int, advice: Advice, outcomes: Mapping[str, Attempt] | None) -> Section:
    attempt = outcomes.get(advice.entry) if outcomes and advice.entry else None
    was_tried = outcomes is not None and bool(advice.entry)
    untried: Tone = "unknown" if was_tried else "neutral"
    tone = TONES[attempt.outcome] if attempt else untried
    lines = list(_lines(advice))
    if was_tried:
        lines.append((Strong("tried"), f": {outcome_words(advice, attempt)}"))
    share = "" if advice.share is None else f"about {percent_text(advice.share)} of the time"
    title = f"{place}. {advice.title}"
    return Section("", title, (Bullets(lines),), share, tone)


def _lines(advice: Advice) -> Iterator[Words]:
    yield from advice.evidence
    yield Strong("predicted"), f": {predicted_words(advice)}"
    yield Strong("done by"), ": ", Code(advice.entry) if advice.entry else MANUAL
    if advice.risk:
        yield Strong("risk"), f": {RISKS.get(advice.risk, advice.risk)}"
    if advice.cost:
        yield Strong("cost"), f": {advice.cost}"


def predicted_words(advice: Advice) -> str:
    """Say how much faster it should become, or why that is unknown."""
    if advice.predicted is None:
        return f"not predicted: {advice.not_predicted}" if advice.not_predicted else "not predicted"
    return f"{gain_text(advice.predicted)}: {advice.predicted.basis}"


def outcome_words(advice: Advice, attempt: Attempt | None) -> str:
    """Say what came of a suggestion beside what was predicted.

    ``predicted 1.80x, measured 1.60x (1.50x to 1.70x): better, as predicted``
    """
    if attempt is None:
        return "not tried"
    if attempt.comparison is None or attempt.measured.time is None:
        return f"{attempt.outcome}: {attempt.reason}" if attempt.reason else attempt.outcome
    measured = f"measured {speedup_text(attempt.comparison)}"
    if advice.predicted is None:
        return f"{measured}: {attempt.outcome}"
    predicted = f"predicted {factor_text(advice.predicted.value)}"
    return f"{predicted}, {measured}: {attempt.outcome}, {agreement_words(advice, attempt)}"


def agreement_words(advice: Advice, attempt: Attempt) -> str:
    """Say whether what was measured is as predicted; "" where one of them is missing."""
    time = attempt.measured.time
    return "" if time is None else advice.agreement(time.inverse)


# ---------------------------------------------------------------- the catalog of what can be
# tried, as a table

NOTHING_FITS = "Nothing in the catalog fits."
TITLES = ("entry", "risk", "role", "goal", "models")
LEGEND = (
    "exact: nothing but the order of sums changes; rounding: numbers have fewer bits; "
    "approximate: another function, tried only where there is an evaluate. "
    "At most one entry per role."
)
NAMES = {"core": "TinyTorch", "pytorch": "PyTorch"}


def render_catalog(entries: Sequence[Entry]) -> RenderableType:
    """List entries: their risk, role, what they are good for and where, and below what they do."""
    if not entries:
        return Text(NOTHING_FITS)
    rows = [(each.name, each.risk, each.role, _goals(each), _models(each)) for each in entries]
    widths = [max(map(len, column)) for column in zip(TITLES, *rows, strict=True)]
    parts: list[RenderableType] = [Text(_line(TITLES, widths), style="bold")]
    for entry, row in zip(entries, rows, strict=True):
        parts += [Text(_line(row, widths)), Padding(Text(entry.about, style="dim"), (0, 0, 0, 2))]
    return Group(*parts, Text(""), Text(LEGEND, style="dim"))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _goals(entry: Entry) -> str:
    if set(GOALS) <= entry.serves:
        return "all"
    times, sizes = {"latency", "throughput"}, {"memory", "size"}
    words = {"time": times, "bytes": sizes}
    return ", ".join(word for word, goals in words.items() if goals <= entry.serves) or ", ".join(
        sorted(entry.serves)
    )


def _models(entry: Entry) -> str:
    frameworks = ", ".join(NAMES.get(each, each) for each in entry.frameworks)
    is_everywhere = {"cpu", "cuda"} <= set(entry.devices)
    return frameworks if is_everywhere else f"{frameworks} on {', '.join(entry.devices)}"


# ---------------------------------------------------------------- advice about a batch size or a
# sequence length: the table, the picture, the recommendation

SIZE_NAMES = {"batch": "batch size", "sequence": "sequence length"}
MEASURED, KNEE, RECOMMENDED = "●", "◆", "★"


def size_advice_document(advice: SizeAdvice) -> Document:
    """Return the recommendation, what was measured by size, and the curve."""
    found, name = advice.recommended, SIZE_NAMES[advice.axis]
    where = f"{advice.framework} on {advice.device}, by {name}; example inputs have {advice.usual}"
    if found.size is None:
        banner = Banner(f"No {name} is recommended", f"{found.reason}.", tone="bad")
    else:
        banner = Banner(f"Recommended {name}: {found.size:,}", f"{found.reason}.", tone="good")
    return Document(
        advice.name,
        banner,
        (_size_table(advice), _size_plot(advice), *map(Paragraph, _conclusions(advice))),
        advice.notes,
        raw=advice.to_dict(),
        file_name="size-advice.json",
        subtitle=where,
    )


def _size_table(advice: SizeAdvice) -> Table:
    name = SIZE_NAMES[advice.axis]
    columns = [
        Column(name, "number", least=len(name)),
        Column("latency", "number"),
        Column("interval", "number", rank=4),
        Column(f"{advice.unit}/s", "number"),
        Column("of the best", "number", rank=3),
        Column("peak memory", "number", rank=1),
        Column("n", "number", rank=5),
        Column("", rank=2),
    ]
    return Table(columns, [_size_row(advice, point) for point in advice.points])


def _size_row(advice: SizeAdvice, point: SizeMeasurement) -> Row:
    interval = point.latency.median_interval()
    cells = (
        Cell(f"{point.size:,}", point.size),
        Cell(seconds_text(point.latency.median), point.latency.median),
        f"{seconds_text(interval.low)} to {seconds_text(interval.high)}",
        Cell(count_text(point.throughput), point.throughput),
        _share(advice, point),
        Cell(bytes_text(point.peak_bytes), point.peak_bytes),
        Cell(str(point.latency.count), point.latency.count),
        _remarks(advice, point),
    )
    return Row(cells, tone="hot" if point.size == advice.recommended.size else "")


def _share(advice: SizeAdvice, point: SizeMeasurement) -> str:
    """Say how much of the best throughput a size reaches, with the interval."""
    if point.size == advice.best:
        return "best"
    slowdown = advice.slowdown(point.size)
    low = 1 / slowdown.high if slowdown.high < float("inf") else 0.0
    high = f"{1 / slowdown.low:.0%}" if slowdown.low > 0 else "?"
    return f"{1 / slowdown.value:.0%} ({low:.0%} to {high})"


def _remarks(advice: SizeAdvice, point: SizeMeasurement) -> str:
    known = {
        "recommended": advice.recommended.size,
        "knee": advice.knee,
        "example inputs": advice.usual,
    }
    return ", ".join(words for words, size in known.items() if size == point.size)


def _size_plot(advice: SizeAdvice) -> LogPlot:
    found = advice.recommended.size
    letters = {advice.knee: KNEE, found: RECOMMENDED}
    marks = [
        Mark(point.latency.median, point.throughput, letters.get(point.size, MEASURED))
        for point in advice.points
    ]
    if found is None:
        legend = f"{KNEE} knee"
    elif found == advice.knee:
        legend = f"{RECOMMENDED} knee, recommended"
    else:
        legend = f"{KNEE} knee  {RECOMMENDED} recommended"
    title = f"{advice.unit} per second over the latency of a call  {legend}"
    ordered = sorted(marks, key=lambda mark: mark.letter != MEASURED)
    return LogPlot(ordered, x_unit="s", title=title)


def _conclusions(advice: SizeAdvice) -> Iterator[str]:
    if advice.knee != advice.recommended.size:
        yield (
            f"Knee: {advice.knee:,}, the smallest size conclusively within {advice.tolerance:.0%} "
            "of the best throughput."
        )
    limit = "" if advice.memory_limit_bytes is None else " into the memory limit"
    yield f"Largest size that fits{limit}: {advice.ceiling.words}."
    yield f"No larger size was measured: {advice.limited_by.reason}."
