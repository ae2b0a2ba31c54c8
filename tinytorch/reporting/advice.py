"""Suggestions in the terminal: the evidence, what should come of it, and what did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.reporting.comparison import speedup_text
from tinytorch.reporting.optimization_words import STYLES, TONES
from tinytorch.reporting.quantities import (
    WIDTH,
    Column,
    FittingTable,
    Mark,
    bytes_text,
    count_text,
    factor_text,
    log_plot,
    percent_text,
    seconds_text,
)
from tinytorch.reporting.transforms import gain_text
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.catalog import GOALS, Entry
from tinytorch.tuning.sizes import SizeAdvice, SizeMeasurement

__all__ = [
    "NOTHING_HERE",
    "NO_ADVICE",
    "RISKS",
    "agreement_words",
    "outcome_words",
    "predicted_words",
    "render_advice",
    "render_catalog",
    "render_size_advice",
]


NO_ADVICE = "Nothing in the profile suggests a change."
NOTHING_HERE = "nothing here does it: it is up to you"
RISKS = {
    "exact": "the same function; sums may be rounded in another order",
    "rounding": "numbers with fewer bits: outputs change a little",
    "approximate": "another function: accuracy has to be looked at",
}
"""Risk of an entry -> what it means; other risks are sentences already."""
INDENT = 3


def render_advice(
    advice: Sequence[Advice], outcomes: Mapping[str, Attempt] | None = None
) -> RenderableType:
    """Lay suggestions out as cards, the most promising first.

    `outcomes` has what came of an entry of the catalog on its own, by its name, where it was tried;
    without it, nothing was tried yet.
    """
    if not advice:
        return Text(NO_ADVICE, style="dim")
    cards = [_card(place, each, outcomes) for place, each in enumerate(advice, 1)]
    spaced = [part for card in cards for part in (Text(""), card)]
    return Group(*spaced[1:])


def predicted_words(advice: Advice) -> str:
    """Say how much faster it should become, or why nobody can tell."""
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


def _card(place: int, advice: Advice, outcomes: Mapping[str, Attempt] | None) -> RenderableType:
    share = "" if advice.share is None else f"  about {percent_text(advice.share)} of the time"
    title = Text.assemble(f"{place}. ", (advice.title, "bold"), (share, "dim"))
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    for name, text in _rows(advice, outcomes):
        lines.add_row(name, text)
    return Group(title, Padding(lines, (0, 0, 0, INDENT)))


def _rows(advice: Advice, outcomes: Mapping[str, Attempt] | None) -> Iterator[tuple[str, Text]]:
    for place, sentence in enumerate(advice.evidence):
        yield "" if place else "evidence", Text(sentence)
    yield "predicted", Text(predicted_words(advice))
    yield "done by", Text(advice.entry or NOTHING_HERE)
    if advice.risk:
        yield "risk", Text(RISKS.get(advice.risk, advice.risk))
    if advice.cost:
        yield "cost", Text(advice.cost)
    if outcomes is not None and advice.entry:
        attempt = outcomes.get(advice.entry)
        style = STYLES[TONES[attempt.outcome]] if attempt else "dim"
        yield "tried", Text(outcome_words(advice, attempt), style=style)


# ---------------------------------------------------------------- the catalog of what can be
# tried, as a table

NOTHING_FITS = "Nothing in the catalog fits."
TITLES = ("entry", "risk", "role", "for", "models")
LEGEND = (
    "exact: nothing but the order of sums changes; rounding: numbers have fewer bits; "
    "approximate: another function, tried only where there is an evaluate. "
    "Of one role a model gets one at a time."
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


def render_size_advice(advice: SizeAdvice) -> RenderableType:
    """Lay out what was measured by size, the curve, and what follows from it."""
    head = f"{advice.framework} on {advice.device}, by {SIZE_NAMES[advice.axis]}"
    usual = f"example inputs have {advice.usual}"
    return Group(
        Text.assemble((advice.name, "bold"), "  ", (f"{head}; {usual}", "dim")),
        Text(""),
        _table(advice),
        Text(""),
        _Picture(advice),
        Text(f"  {advice.unit} per second over the latency of a call  {_legend(advice)}", "dim"),
        Text(""),
        *_conclusions(advice),
        *(Text(f"- {note}", style="yellow") for note in advice.notes),
    )


def _table(advice: SizeAdvice) -> FittingTable:
    points = advice.points
    intervals = [point.latency.median_interval() for point in points]
    recommended = advice.recommended.size
    return FittingTable(
        SIZE_NAMES[advice.axis],
        [Text(f"{point.size:,}") for point in points],
        [
            Column("latency", [seconds_text(point.latency.median) for point in points]),
            Column(
                "interval",
                [f"{seconds_text(each.low)} to {seconds_text(each.high)}" for each in intervals],
                4,
            ),
            Column(f"{advice.unit}/s", [count_text(point.throughput) for point in points]),
            Column("of the best", [_share(advice, point) for point in points], 3),
            Column("peak memory", [bytes_text(point.peak_bytes) for point in points], 1),
            Column("n", [str(point.latency.count) for point in points], 5),
            Column("", [_words(advice, point) for point in points], 2, "left"),
        ],
        styles=["bold" if point.size == recommended else "" for point in points],
        label_least=len(SIZE_NAMES[advice.axis]),
    )


def _share(advice: SizeAdvice, point: SizeMeasurement) -> str:
    """Say how much of the best throughput a size reaches, with the interval."""
    if point.size == advice.best:
        return "best"
    slowdown = advice.slowdown(point.size)
    low = 1 / slowdown.high if slowdown.high < float("inf") else 0.0
    high = f"{1 / slowdown.low:.0%}" if slowdown.low > 0 else "?"
    return f"{1 / slowdown.value:.0%} ({low:.0%} to {high})"


def _words(advice: SizeAdvice, point: SizeMeasurement) -> str:
    words = []
    if point.size == advice.recommended.size:
        words.append("recommended")
    if point.size == advice.knee:
        words.append("knee")
    if point.size == advice.usual:
        words.append("as given")
    return ", ".join(words)


@dataclass(frozen=True)
class _Picture:
    """Throughput over latency, as wide as the terminal allows."""

    advice: SizeAdvice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        advice = self.advice
        letters = {advice.knee: KNEE, advice.recommended.size: RECOMMENDED}
        marks = [
            Mark(point.latency.median, point.throughput, letters.get(point.size, MEASURED))
            for point in advice.points
        ]
        picture = log_plot(
            sorted(marks, key=lambda mark: mark.letter != MEASURED),
            lambda latency: 0.0,  # no law, only what was measured
            x_text=seconds_text,
            y_text=count_text,
            width=min(WIDTH, options.max_width),
        )
        yield Text(picture, no_wrap=True, overflow="crop")


def _legend(advice: SizeAdvice) -> str:
    found = advice.recommended.size
    apart = found != advice.knee
    names = [f"{KNEE} knee"] if apart else []
    names += [f"{RECOMMENDED} recommended" if apart else f"{RECOMMENDED} knee, recommended"]
    return "  ".join(names if found is not None else [f"{KNEE} knee"])


def _conclusions(advice: SizeAdvice) -> Iterator[Text]:
    found = advice.recommended
    name = SIZE_NAMES[advice.axis]
    if found.size is None:
        yield Text(f"No {name} is recommended: {found.reason}.", style="red")
    else:
        yield Text(f"Recommended {name}: {found.size:,} ({found.reason}).", style="green")
    if advice.knee != found.size:
        yield Text(
            f"Knee: {advice.knee:,}, the smallest size shown within {advice.tolerance:.0%} of the "
            "best throughput."
        )
    yield Text(f"Largest that {_what_counts(advice)}: {advice.ceiling.words}.")
    yield Text(f"Why no larger one is in the table: {advice.limited_by.reason}.", style="dim")


def _what_counts(advice: SizeAdvice) -> str:
    return "runs" if advice.memory_limit_bytes is None else "runs within the memory limit"
