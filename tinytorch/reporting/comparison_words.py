"""What a comparison says, in plain words: the same in the terminal, in HTML and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import (
    FASTER,
    NOT_SHOWN,
    NOT_STATED,
    SAME,
    SLOWER,
    Comparison,
)
from tinytorch.comparison.quality import failed_evaluation, quality_doubt, quality_loss
from tinytorch.comparison.rounds import LATENCY, THROUGHPUT, Round
from tinytorch.comparison.tails import Tail, TailPercentile
from tinytorch.measure.samples import values_needed
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.preparation import cache_line, preparation_lines
from tinytorch.reporting.quality_lines import difference_text, score_text
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    rate_text,
    seconds_text,
)

__all__ = [
    "BY_EVENTS",
    "CALLS",
    "SINGLE",
    "STYLES",
    "SUSTAINED",
    "beside_the_times",
    "call_count_text",
    "call_rows",
    "forest_plot_of",
    "measured_rows",
    "missing_lines",
    "note_lines",
    "outcome_text",
    "quality_headline",
    "quality_note_lines",
    "ratio_style",
    "speedup_text",
    "timed_calls",
    "verdict_text",
]

STYLES = {FASTER: "green", SLOWER: "red", SAME: "cyan", NOT_SHOWN: "yellow"}
SINGLE = "latency (one synchronised call)"
SUSTAINED = "throughput (sustained calls)"
BY_EVENTS = "device time (CUDA events)"
"""What a time on a device is the time of; on a processor there is one time per call."""
CALLS = {LATENCY: "single synchronised calls", THROUGHPUT: "sustained calls"}
USUAL_NAMES = ("baseline", "candidate")
# Field of Resources -> its row.
SIZES = {
    "peak_bytes": "peak memory",
    "device_peak_bytes": "device peak beside weights",
    "parameter_bytes": "parameters",
    "file_bytes": "file on disk",
}
MISSING = {
    "calls": "single calls",
    "resources": "memory and size",
    LATENCY: SINGLE,
    THROUGHPUT: SUSTAINED,
    "device_times": BY_EVENTS,
}
"""What was not measured -> its name."""
Row = tuple[str, str, str, str]
"""What is compared, the baseline's value, the candidate's, and their ratio."""
CallRow = tuple[str, str, str, str, str]
"""A percentile, then value and interval of the baseline, and of the candidate."""


# ---------------------------------------------------------------- the verdict


def verdict_text(comparison: Comparison) -> str:
    """Say what is shown about time, in words to act on, with n and the seconds it took."""
    found = f"n={comparison.n} rounds, {seconds_text(comparison.seconds_used)}"
    if about := timed_calls(comparison):
        found = f"{about}, {found}"
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


def timed_calls(comparison: Comparison) -> str:
    """Name the calls that a verdict on a device is about; on a processor there is one kind."""
    return CALLS.get(comparison.timing, "") if comparison.is_on_device else ""


def quality_headline(comparison: Comparison) -> str:
    """Say what is lost or doubtful beside time, or nothing; no speed makes up for it."""
    loss = _loss(comparison)
    return f"{loss}; its speed does not count" if loss else quality_doubt(comparison)


def outcome_text(comparison: Comparison) -> str:
    """Say in two words what became of the candidate."""
    if comparison.outputs is not None and comparison.outputs.broken:
        return "broken outputs"
    if comparison.is_accurate is False:
        return "less accurate"
    return "not evaluated" if failed_evaluation(comparison) else comparison.verdict


def ratio_style(comparison: Comparison) -> str:
    """Give the colour of a comparison among others: what is lost is red, whatever its time."""
    return "red" if quality_loss(comparison) else STYLES[comparison.verdict]


def quality_note_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Say what stands against each beside its time; a loss of accuracy is its outcome already."""
    for each in comparisons:
        loss = "" if outcome_text(each) == "less accurate" else quality_loss(each)
        reason = loss or quality_doubt(each)
        if reason:
            name = each.candidate_name
            yield reason if reason.startswith(name) else f"{name}: {reason}"


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


# ---------------------------------------------------------------- the numbers


def forest_plot_of(comparison: Comparison) -> ForestPlot:
    """Give the speedup as a picture, with the ratios of the rounds below it."""
    row = ForestRow(
        "speedup",
        comparison.speedup,
        comparison.speedup_low,
        comparison.speedup_high,
        style=STYLES[comparison.verdict],
    )
    rounds = [math.exp(-each.log_ratio) for each in comparison.rounds]
    return ForestPlot([row], comparison.floor, comparison.rule.band, rounds)


def measured_rows(comparison: Comparison) -> list[Row]:
    """Give time, throughput, memory, size and energy of both sides, as far as there are any."""
    return [
        *_time_rows(comparison),
        *_throughput_row(comparison),
        *_size_rows(comparison),
        *_energy_row(comparison),
    ]


def _time_rows(comparison: Comparison) -> Iterator[Row]:
    """Yield the time per call, and where a device is in use what it is the time of.

    Latency first, then sustained calls, then the time between events of the device.
    """
    if not comparison.is_on_device or comparison.timing == NOT_STATED:
        yield _time_row("time per call", comparison.rounds, _ends_of(comparison, "time_ratio"))
    else:
        if rounds := comparison.rounds_of(LATENCY):
            yield _time_row(SINGLE, rounds, _ends_of(comparison, "latency_ratio"))
        if rounds := comparison.rounds_of(THROUGHPUT):
            ends = _ends_of(comparison, "throughput_ratio")
            yield _time_row(SUSTAINED, rounds, ends, write=_calls_per_second)
    if comparison.device_times is not None:
        first, second = (samples.median for samples in comparison.device_times)
        yield _row(BY_EVENTS, first, second, seconds_text)


def _time_row(
    label: str,
    rounds: Sequence[Round],
    ratio: str,
    *,
    write: Callable[[float | None], str] = seconds_text,
) -> Row:
    sides = ([each.baseline for each in rounds], [each.candidate for each in rounds])
    first, second = (median(value for each in side for value in each) for side in sides)
    return label, write(first), write(second), ratio


def _calls_per_second(seconds: float | None) -> str:
    return UNKNOWN if not seconds else f"{count_text(1 / seconds)}/s"


def _ends_of(comparison: Comparison, name: str) -> str:
    value, low, high = (getattr(comparison, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{ratio_text(value)} ({ratio_text(low)} to {ratio_text(high)})"


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


def beside_the_times(comparison: Comparison) -> list[str]:
    """Say what the times do not hold: cold caches, and what was done once."""
    lines = [cache_line(comparison), *preparation_lines(comparison)]
    return [line for line in lines if line]


def call_rows(comparison: Comparison) -> list[CallRow]:
    """Give the percentiles of single calls with their intervals."""
    if comparison.tails is None:
        return []
    one, other = comparison.tails
    return [
        (
            f"p{first.q:g}",
            seconds_text(first.value),
            _ends(one, first),
            seconds_text(second.value),
            _ends(other, second),
        )
        for first, second in zip(one.percentiles, other.percentiles, strict=True)
    ]


def call_count_text(comparison: Comparison) -> str:
    """Say how many single calls there were of both sides."""
    tails = comparison.tails or ()
    return ", ".join(dict.fromkeys(str(each.samples.count) for each in tails))


def _ends(tail: Tail, found: TailPercentile) -> str:
    """Write an interval; an end that is not known is a dash, with the calls that it takes."""
    low, high = found.interval.low, found.interval.high
    known = f"{_known(low)} to {_known(high)}"
    if math.isfinite(low) and math.isfinite(high):
        return known
    return f"{known}, needs {values_needed(found.q, tail.confidence)} calls"


def _known(seconds: float) -> str:
    return seconds_text(seconds) if math.isfinite(seconds) else UNKNOWN


# ---------------------------------------------------------------- what is missing, what to doubt


def missing_lines(comparison: Comparison) -> list[str]:
    """Say what could not be measured, and why."""
    reasons = [f"{_plain(name)}: {why}" for name, why in comparison.not_measured.items()]
    for name in SIZES if comparison.resources else ():
        reasons += _size_reasons(comparison, name)
    return reasons


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


def note_lines(comparison: Comparison) -> list[str]:
    """Say what to doubt, each only once."""
    notes = list(comparison.notes)
    if comparison.accuracy is not None:
        notes += [f"{comparison.accuracy.metric}: {note}" for note in comparison.accuracy.notes]
    if comparison.outputs is not None:
        notes += comparison.outputs.notes
    notes += _notes_on_calls(comparison)
    return list(dict.fromkeys(notes))


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
    return MISSING.get(name, name)


def _share(share: float) -> str:
    return f"{100 * share:.3g}%"
