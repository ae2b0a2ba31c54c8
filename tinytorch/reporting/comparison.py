"""Comparisons in the terminal: the verdict first, then the picture, the numbers and the doubts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import FASTER, NOT_SHOWN, SAME, SLOWER, Comparison
from tinytorch.comparison.quality import failed_evaluation, quality_doubt, quality_loss
from tinytorch.comparison.tails import Tail, TailPercentile
from tinytorch.measure.samples import values_needed
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.notebook import notebook_html
from tinytorch.reporting.preparation import cache_line, preparation_lines
from tinytorch.reporting.quality_lines import (
    accuracy_and_outputs,
    difference_text,
    score_text,
)
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    rate_text,
    seconds_text,
)

__all__ = [
    "comparison_html",
    "render_comparison",
    "render_comparisons",
    "speedup_text",
    "verdict_text",
]

STYLES = {FASTER: "green", SLOWER: "red", SAME: "cyan", NOT_SHOWN: "yellow"}
USUAL_NAMES = ("baseline", "candidate")
LONGEST_NAME = 20
# Field of Resources -> its row.
SIZES = {
    "peak_bytes": "peak memory",
    "device_peak_bytes": "peak on the device",
    "parameter_bytes": "parameters",
    "file_bytes": "file on disk",
}
Row = tuple[str, str, str, str]
"""What is compared, the baseline's value, the candidate's, and their ratio."""


def render_comparison(comparison: Comparison, *, about: Sequence[str] = ()) -> RenderableType:
    """Lay out a comparison; lines in `about` say what the two sides are."""
    return Group(
        *_headlines(comparison),
        *(Text(line, style="dim") for line in about),
        Text(""),
        _picture(comparison),
        Text(""),
        _table(comparison),
        *_beside_the_times(comparison),
        *accuracy_and_outputs(comparison),
        *_single_calls(comparison),
        *_missing(comparison),
        *_all_notes(comparison),
    )


def comparison_html(comparison: Comparison) -> str:
    """Lay out a comparison for a notebook."""
    return notebook_html(render_comparison(comparison))


def render_comparisons(comparisons: Sequence[Comparison]) -> RenderableType:
    """Lay out several comparisons as one forest plot, a row for each."""
    if not comparisons:
        return Text("no comparisons")
    plain = all(each.baseline_name == comparisons[0].baseline_name for each in comparisons)
    widest = max(len(_outcome(each)) for each in comparisons)
    rows = [
        ForestRow(
            each.candidate_name if plain else f"{each.candidate_name} : {each.baseline_name}",
            each.speedup,
            each.speedup_low,
            each.speedup_high,
            f"{_outcome(each):<{widest}}  {speedup_text(each)}",
            _style(each),
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
        *_quality_notes(comparisons),
    )


def _quality_notes(comparisons: Sequence[Comparison]) -> Iterator[Text]:
    """Say what stands against a row beside its time; a loss of accuracy is in the row."""
    for each in comparisons:
        loss = "" if _outcome(each) == "less accurate" else quality_loss(each)
        reason = loss or quality_doubt(each)
        if reason:
            name = each.candidate_name
            own = reason if reason.startswith(name) else f"{name}: {reason}"
            yield Text(f"- {own}", style="yellow")


# ---------------------------------------------------------------- in words


def verdict_text(comparison: Comparison) -> str:
    """Say what is shown about time, in words to act on, with n and the seconds it took."""
    found = f"n={comparison.n} rounds, {seconds_text(comparison.seconds_used)}"
    low, high = comparison.time_ratio_low, comparison.time_ratio_high
    name, than = _names(comparison)
    if comparison.verdict == FASTER:
        return f"{name} is faster{than}: {speedup_text(comparison)}, {found}"
    if comparison.verdict == SLOWER:
        time = f"{ratio_text(comparison.time_ratio)} the time"
        interval = f"{ratio_text(low)} to {ratio_text(high)}"
        return f"{name} is slower{than}: {time} ({interval}), {found}"
    if comparison.verdict == SAME:
        interval = f"{ratio_text(low)} to {ratio_text(high)} the time"
        return f"same: within {_share(comparison.rule.band)} ({interval}), {found}"
    if comparison.contradiction:
        return f"not shown: typical calls and the mean disagree, see the notes; {found}"
    ends = f"{ratio_text(comparison.speedup_low)} and {ratio_text(comparison.speedup_high)}"
    spent = f"n={comparison.n}, {seconds_text(comparison.seconds_used)}"
    return f"not shown: between {ends}; a larger budget may decide ({spent})"


def speedup_text(comparison: Comparison) -> str:
    """Write the speedup with its interval: ``1.31x (1.28x to 1.35x)``."""
    interval = f"{ratio_text(comparison.speedup_low)} to {ratio_text(comparison.speedup_high)}"
    return f"{ratio_text(comparison.speedup)} ({interval})"


def _headlines(comparison: Comparison) -> Iterator[Text]:
    """Give the verdict; what is lost or doubtful comes first, since no speed makes up for it."""
    style = STYLES[comparison.verdict]
    loss, doubt = _loss(comparison), quality_doubt(comparison)
    if loss or doubt:
        ending = "; its speed does not count" if loss else ""
        yield Text(f"{loss or doubt}{ending}", style="bold red" if loss else "bold yellow")
        style = ""
    yield Text(verdict_text(comparison), style=f"bold {style}".strip())


def _loss(comparison: Comparison) -> str:
    """Say why the candidate is not as good; a loss of accuracy with its margin."""
    accuracy, outputs = comparison.accuracy, comparison.outputs
    is_broken = outputs is not None and bool(outputs.broken)
    if comparison.is_accurate is False and accuracy is not None and not is_broken:
        return _accuracy_lost(comparison, accuracy)
    return quality_loss(comparison)


def _accuracy_lost(comparison: Comparison, accuracy: AccuracyComparison) -> str:
    name, than = _names(comparison)
    write = score_text(accuracy)
    means = f"{write(accuracy.candidate_mean)} against {write(accuracy.baseline_mean)}"
    margin = f"beyond the margin of {difference_text(accuracy, accuracy.margin, sign=False)}"
    return f"{name} is less accurate{than}: {means}, {margin}"


def _names(comparison: Comparison) -> tuple[str, str]:
    names = (comparison.baseline_name, comparison.candidate_name)
    return names[1], "" if names == USUAL_NAMES else f" than {names[0]}"


def _outcome(comparison: Comparison) -> str:
    if comparison.outputs is not None and comparison.outputs.broken:
        return "broken outputs"
    if comparison.is_accurate is False:
        return "less accurate"
    return "not evaluated" if failed_evaluation(comparison) else comparison.verdict


def _style(comparison: Comparison) -> str:
    return "red" if quality_loss(comparison) else STYLES[comparison.verdict]


# ---------------------------------------------------------------- picture and tables


def _picture(comparison: Comparison) -> ForestPlot:
    row = ForestRow(
        "speedup",
        comparison.speedup,
        comparison.speedup_low,
        comparison.speedup_high,
        style=STYLES[comparison.verdict],
    )
    rounds = [math.exp(-each.log_ratio) for each in comparison.rounds]
    return ForestPlot([row], comparison.floor, comparison.rule.band, rounds)


def _table(comparison: Comparison) -> FittingTable:
    rows = [_time_row(comparison), *_throughput_row(comparison), *_size_rows(comparison)]
    rows += _energy_row(comparison)
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


def _time_row(comparison: Comparison) -> Row:
    ends = f"{ratio_text(comparison.time_ratio_low)} to {ratio_text(comparison.time_ratio_high)}"
    return (
        "time per call",
        seconds_text(comparison.baseline.median),
        seconds_text(comparison.candidate.median),
        f"{ratio_text(comparison.time_ratio)} ({ends})",
    )


def _beside_the_times(comparison: Comparison) -> Iterator[Text]:
    lines = [cache_line(comparison), *preparation_lines(comparison)]
    lines = [line for line in lines if line]
    if lines:
        yield Text("")
        yield from map(Text, lines)


def _throughput_row(comparison: Comparison) -> list[Row]:
    found = comparison.throughputs
    return [] if found is None else [_row("examples per second", *found, count_text)]


def _size_rows(comparison: Comparison) -> Iterator[Row]:
    for field, label in SIZES.items() if comparison.resources else ():
        assert comparison.resources is not None
        first, second = (getattr(each, field) for each in comparison.resources)
        if first is not None or second is not None:
            yield _row(label, first, second, bytes_text)


def _energy_row(comparison: Comparison) -> list[Row]:
    if comparison.energy is None:
        return []
    first, second = (samples.median for samples in comparison.energy)
    return [_row("energy per call", first, second, lambda joules: rate_text(joules, "J"))]


def _row(
    label: str, first: float | None, second: float | None, write: Callable[[float | None], str]
) -> Row:
    ratio = ratio_text(second / first) if first and second is not None else UNKNOWN
    return label, write(first), write(second), ratio


def _single_calls(comparison: Comparison) -> Iterator[RenderableType]:
    if comparison.tails is None:
        return
    one, other = comparison.tails
    pairs = list(zip(one.percentiles, other.percentiles, strict=True))
    yield Text("")
    yield FittingTable(
        f"{_counts(one, other)} single calls",
        [Text(f"p{first.q:g}") for first, _ in pairs],
        [
            Column(_short(comparison.baseline_name), [seconds_text(a.value) for a, _ in pairs]),
            Column("95% interval", [_ends(one, a) for a, _ in pairs], 2, "left"),
            Column(_short(comparison.candidate_name), [seconds_text(b.value) for _, b in pairs]),
            Column("95% interval", [_ends(other, b) for _, b in pairs], 2, "left"),
        ],
        label_least=12,
    )


def _ends(tail: Tail, found: TailPercentile) -> str:
    """Write an interval; an end that is not known is a dash, with the calls that it takes."""
    low, high = found.interval.low, found.interval.high
    known = f"{_known(low)} to {_known(high)}"
    if math.isfinite(low) and math.isfinite(high):
        return known
    return f"{known}, needs {values_needed(found.q, tail.confidence)} calls"


def _known(seconds: float) -> str:
    return seconds_text(seconds) if math.isfinite(seconds) else UNKNOWN


def _counts(one: Tail, other: Tail) -> str:
    counts = dict.fromkeys(str(each.samples.count) for each in (one, other))
    return ", ".join(counts)


# ---------------------------------------------------------------- what is missing, what to doubt


def _missing(comparison: Comparison) -> Iterator[Text]:
    reasons = [f"{_plain(name)}: {why}" for name, why in comparison.not_measured.items()]
    for name in SIZES if comparison.resources else ():
        reasons += _size_reasons(comparison, name)
    if reasons:
        yield Text("")
        yield Text("Not measured", style="bold")
        yield from (Text(f"- {reason}") for reason in reasons)


def _size_reasons(comparison: Comparison, name: str) -> list[str]:
    assert comparison.resources is not None
    both = comparison.resources
    if name == "device_peak_bytes" and all(each.device_peak_bytes is None for each in both):
        return []  # Neither runs on a device.
    names = (comparison.baseline_name, comparison.candidate_name)
    found = [each.not_measured.get(name) for each in both]
    if found[0] is not None and found[0] == found[1]:
        return [f"{SIZES[name]}: {found[0]}"]
    return [
        f"{SIZES[name]} of {side}: {why}"
        for side, why in zip(names, found, strict=True)
        if why is not None
    ]


def _all_notes(comparison: Comparison) -> Iterator[Text]:
    notes = list(comparison.notes)
    if comparison.accuracy is not None:
        notes += [f"{comparison.accuracy.metric}: {note}" for note in comparison.accuracy.notes]
    if comparison.outputs is not None:
        notes += comparison.outputs.notes
    notes += _notes_on_calls(comparison)
    if notes:
        yield Text("")
        yield Text("Notes", style="bold")
        yield from (Text(f"- {note}", style="yellow") for note in dict.fromkeys(notes))


def _notes_on_calls(comparison: Comparison) -> Iterator[str]:
    """Give what to doubt about single calls, unless it was said about the whole already."""
    if comparison.calls is None:
        return
    one, other = comparison.calls
    for note in dict.fromkeys((*one.notes, *other.notes)):
        if note in comparison.notes:
            continue
        sides = [each.name for each in comparison.calls if note in each.notes]
        whose = f" of {sides[0]}" if len(sides) == 1 else ""
        yield f"single calls{whose}: {note}"


def _plain(name: str) -> str:
    return {"calls": "single calls", "resources": "memory and size"}.get(name, name)


def _share(share: float) -> str:
    return f"{100 * share:.3g}%"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
