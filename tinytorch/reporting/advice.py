"""Suggestions: the evidence, what should come of it, and what did; the catalog; size advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tinytorch.reporting import document as doc
from tinytorch.reporting.comparison import speedup_text
from tinytorch.reporting.optimization_words import TONES
from tinytorch.reporting.quantities import (
    UNKNOWN,
    Mark,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    range_text,
    seconds_text,
)
from tinytorch.reporting.transforms import gain_text
from tinytorch.transforms.plan import GOALS
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import Attempt
from tinytorch.tuning.catalog import Entry
from tinytorch.tuning.sizes import SizeAdvice, SizeMeasurement

NO_ADVICE = "Nothing in the profile suggests a change."
MANUAL = "a manual step"
NAMED = 3
"""Entries of the catalog that are named in a line."""
BEST_FIRST: tuple[doc.Tone, ...] = ("good", "neutral", "unknown", "bad")
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
) -> doc.Section:
    """Return a card for the suggestions that share their evidence.

    `outcomes` has what came of an entry of the catalog on its own, by its name, where it was tried;
    without it, nothing was tried yet.
    """
    groups: dict[tuple[str, ...], list[Advice]] = {}
    for each in advice:
        groups.setdefault(each.evidence, []).append(each)
    cards = [_card(place, found, outcomes) for place, found in enumerate(groups.values(), 1)]
    blocks = (doc.Beside(cards) if cards else doc.Paragraph(NO_ADVICE, "faint"),)
    return doc.Section("advice", "Suggestions", blocks, ABOUT)


def suggestion_lines(advice: Sequence[Advice]) -> Iterator[tuple[str, str]]:
    """Yield a line of what `tinytorch optimize` would try, and one of a manual step."""
    entries = {each.entry: each for each in reversed(advice) if each.entry}
    named = [_with_gain(each) for each in reversed(entries.values())]
    if named:
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        yield "next", f"tinytorch optimize tries {', '.join(named[:NAMED])}{more}"
    manual = [each.title for each in advice if not each.entry and each.share is not None]
    yield from (("manual", title) for title in manual[:1])


def _with_gain(advice: Advice) -> str:
    if advice.predicted is None:
        return advice.entry
    return f"{advice.entry} (predicted {factor_text(advice.predicted.value)})"


def _card(
    place: int, group: Sequence[Advice], outcomes: Mapping[str, Attempt] | None
) -> doc.Section:
    """Return the evidence of some suggestions, and below it what each of them is."""
    first, tones = group[0], [_tone(each, outcomes) for each in group]
    said = [[*_lines(each), *_tried(each, outcomes)] for each in group]
    lines: list[doc.Words | doc.Item] = [*first.evidence]
    if len(group) == 1:
        lines += said[0]
    else:
        lines += [
            doc.Item(doc.Code(each.entry) if each.entry else MANUAL, below[1:])
            for each, below in zip(group, said, strict=True)
        ]
    share = "" if first.share is None else f"about {percent_text(first.share)} of the time"
    titles = " or ".join(dict.fromkeys(each.title for each in group))
    best = min(tones, key=BEST_FIRST.index)
    return doc.Section("", f"{place}. {titles}", (doc.Bullets(lines),), share, best)


def _tone(advice: Advice, outcomes: Mapping[str, Attempt] | None) -> doc.Tone:
    if outcomes is None or not advice.entry:
        return "neutral"
    attempt = outcomes.get(advice.entry)
    return TONES[attempt.outcome] if attempt else "unknown"


def _lines(advice: Advice) -> Iterator[doc.Words]:
    yield doc.Strong("done by"), ": ", doc.Code(advice.entry) if advice.entry else MANUAL
    yield doc.Strong("predicted"), f": {predicted_words(advice)}"
    if advice.risk:
        yield doc.Strong("risk"), f": {RISKS.get(advice.risk, advice.risk)}"
    if advice.cost:
        yield doc.Strong("cost"), f": {advice.cost}"


def _tried(advice: Advice, outcomes: Mapping[str, Attempt] | None) -> Iterator[doc.Words]:
    if outcomes is not None and advice.entry:
        yield doc.Strong("tried"), f": {outcome_words(advice, outcomes.get(advice.entry))}"


def predicted_words(advice: Advice) -> str:
    """Say how much faster it should become, or why that is unknown."""
    if advice.predicted is None:
        return advice.not_predicted or UNKNOWN
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


def size_advice_document(advice: SizeAdvice) -> doc.Document:
    """Return the recommendation, what was measured by size, and the curve."""
    found, name = advice.recommended, SIZE_NAMES[advice.axis]
    where = f"{advice.framework} on {advice.device}, by {name}; example inputs have {advice.usual}"
    if found.size is None:
        banner = doc.Banner(f"No {name} is recommended", f"{found.reason}.", tone="bad")
    else:
        banner = doc.Banner(f"Recommended {name}: {found.size:,}", f"{found.reason}.", tone="good")
    return doc.Document(
        advice.name,
        banner,
        (_size_table(advice), _size_plot(advice), *map(doc.Paragraph, _conclusions(advice))),
        advice.notes,
        raw=advice.to_dict(),
        file_name="size-advice.json",
        subtitle=where,
        brief=(_size_table(advice), doc.Paragraph(next(_conclusions(advice)))),
    )


def _size_table(advice: SizeAdvice) -> doc.Table:
    name = SIZE_NAMES[advice.axis]

    def interval(point: SizeMeasurement) -> str:
        return range_text(point.latency.median_interval(), seconds_text)

    return doc.table_of(
        advice.points,
        doc.number(name, lambda point: point.size, "{:,}".format, least=len(name)),
        doc.number("latency", lambda point: point.latency.median, seconds_text),
        doc.column("interval", interval, "number", rank=4),
        doc.number(f"{advice.unit}/s", lambda point: point.throughput, count_text),
        doc.column("of the best", lambda point: _share(advice, point), "number", rank=3),
        doc.number("peak memory", lambda point: point.peak_bytes, bytes_text, rank=1),
        doc.number("n", lambda point: point.latency.count, str, rank=5),
        doc.column("", lambda point: _remarks(advice, point), rank=2),
        tone=lambda point: "hot" if point.size == advice.recommended.size else "",
    )


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


def _size_plot(advice: SizeAdvice) -> doc.LogPlot:
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
    return doc.LogPlot(ordered, x_unit="s", title=title)


def _conclusions(advice: SizeAdvice) -> Iterator[str]:
    if advice.knee != advice.recommended.size:
        yield (
            f"Knee: {advice.knee:,}, the smallest size conclusively within {advice.tolerance:.0%} "
            "of the best throughput."
        )
    limit = "" if advice.memory_limit_bytes is None else " into the memory limit"
    yield f"Largest size that fits{limit}: {advice.ceiling.words}."
    yield f"No larger size was measured: {advice.limited_by.reason}."
