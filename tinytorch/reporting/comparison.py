"""Comparisons in the terminal: the verdict first, then the picture, the numbers and the doubts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.comparison import accuracy as accuracies
from tinytorch.comparison.accuracy import AccuracyComparison
from tinytorch.comparison.comparison import (
    NOT_STATED,
    Comparison,
    failed_evaluation,
    quality_doubt,
    quality_loss,
)
from tinytorch.comparison.evidence import Tail, TailPercentile
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.comparison.self_check import SelfCheck
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT, Round
from tinytorch.measure.samples import values_needed
from tinytorch.measure.timing import COLD
from tinytorch.models.workload import Preparation
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.quantities import (
    UNKNOWN,
    Column,
    FittingTable,
    bytes_text,
    count_text,
    percent_text,
    rate_text,
    seconds_text,
)

__all__ = [
    "BY_EVENTS",
    "CALLS",
    "SINGLE",
    "STYLES",
    "SUSTAINED",
    "accuracy_and_outputs",
    "accuracy_line",
    "beside_the_times",
    "cache_line",
    "call_count_text",
    "call_rows",
    "difference_text",
    "forest_plot_of",
    "measured_rows",
    "missing_lines",
    "note_lines",
    "outcome_text",
    "outputs_line",
    "preparation_lines",
    "quality_headline",
    "quality_note_lines",
    "ratio_style",
    "render_comparison",
    "render_comparisons",
    "render_self_check",
    "score_text",
    "speedup_text",
    "timed_calls",
    "verdict_text",
]


# ---------------------------------------------------------------- what was done once for the sides
# of a comparison, in words: how long it took, when it pays


def preparation_lines(comparison: Comparison) -> Iterator[str]:
    """Say what is no part of the times, a line for each side, and after how many calls it pays."""
    names = (comparison.baseline_name, comparison.candidate_name)
    for name, done in zip(names, comparison.preparations, strict=True):
        if done:
            yield f"{name}: {'; '.join(map(_done, done))}: not part of the times"
    found = comparison.break_even
    if found is None:
        return
    calls, low, high = (count_text(math.ceil(x)) for x in (found.value, found.low, found.high))
    yield f"{names[1]} has made up for that after {calls} calls ({low} to {high})"


def cache_line(comparison: Comparison) -> str:
    """Say that calls found cold caches; warm ones are what everybody expects."""
    if comparison.cache != COLD:
        return ""
    return "cold caches: emptied before every call, outside of its time"


def _done(preparation: Preparation) -> str:
    took = seconds_text(preparation.seconds)
    if preparation.is_estimate:
        text = f"{preparation.what} took about {took} longer than the others"
    else:
        text = f"{preparation.what} once in {took}"
    if preparation.nbytes:
        text += f", {bytes_text(preparation.nbytes)} stay taken"
    return text


# ---------------------------------------------------------------- is a candidate as good as
# before? Accuracy and outputs, a line each

FAR_OFF_DB = 20.0
"""Outputs with less signal over noise than this are hardly the same computation."""


def accuracy_and_outputs(comparison: Comparison) -> Iterator[Text]:
    """Give a line about accuracy and one about outputs, as far as they are known."""
    lines = []
    if comparison.accuracy is not None:
        lines.append(_about_accuracy(comparison.accuracy))
    if comparison.outputs is not None:
        lines.append(_about_outputs(comparison.outputs))
    if lines:
        yield Text("")
        yield from lines


def accuracy_line(found: AccuracyComparison) -> str:
    """Say what became of the accuracy."""
    return _about_accuracy(found).plain


def outputs_line(found: OutputDifference) -> str:
    """Say how far the outputs are apart."""
    return _about_outputs(found).plain


def _about_accuracy(found: AccuracyComparison) -> Text:
    write = score_text(found)
    style = {accuracies.NOT_WORSE: "green", accuracies.WORSE: "red"}.get(found.verdict, "yellow")
    parts = [
        f"difference {difference_text(found, found.difference)}",
        f"at least {difference_text(found, found.low)}",
        f"margin {difference_text(found, found.margin, sign=False)}",
        f"{found.n} examples",
    ]
    if found.is_binary:
        parts.append(f"{found.lost} lost and {found.gained} gained")
    if found.examples_needed is not None:
        parts.append(found.remedy)
    means = f"{write(found.baseline_mean)} to {write(found.candidate_mean)}"
    return Text.assemble(
        f"{found.metric}: ", (found.verdict, style), f", {means} ({', '.join(parts)})"
    )


def score_text(found: AccuracyComparison) -> Callable[[float], str]:
    """Give what writes a score: shares of right answers in percent, others as they are."""
    if found.is_binary:
        return lambda score: f"{score:.2%}" if math.isfinite(score) else UNKNOWN
    return lambda score: f"{score:.4g}" if math.isfinite(score) else UNKNOWN


def difference_text(found: AccuracyComparison, value: float, *, sign: bool = True) -> str:
    """Write a difference of scores: in points where these are shares of right answers."""
    if not math.isfinite(value):
        return UNKNOWN
    plus = "+" if sign else ""
    if not found.is_binary:
        return f"{value:{plus}.3g}"
    points = f"{100 * value:{plus}.3g}"
    return f"{points} point" if points == "1" else f"{points} points"


def _about_outputs(found: OutputDifference) -> Text:
    if found.mismatch:
        return Text(f"outputs: cannot be compared: {found.mismatch}", style="yellow")
    if found.is_identical:
        return Text("outputs: identical")
    parts = []
    if found.max_error is not None:
        relative = found.max_relative_error
        share = "" if relative is None else f" ({relative:.2g} of the largest value)"
        parts.append(f"largest error {found.max_error:.3g}{share}")
    if found.sqnr_db is not None:
        parts.append(f"SQNR {found.sqnr_db:.1f} dB")
    if found.top1_agreement is not None:
        parts.append(f"top-1 agreement {percent_text(found.top1_agreement)}")
    if found.equal_share is not None:
        parts.append(f"equal whole numbers {percent_text(found.equal_share)}")
    is_far = found.sqnr_db is not None and found.sqnr_db < FAR_OFF_DB
    return Text(f"outputs: {', '.join(parts)}", style="yellow" if is_far else "")


# ---------------------------------------------------------------- what a comparison says, in plain
# words: the same in the terminal, in HTML and in Markdown

STYLES = {FASTER: "green", SLOWER: "red", SAME: "cyan", INCONCLUSIVE: "yellow"}
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
        return f"inconclusive: typical calls and the mean disagree, see the notes; {found}"
    ends = f"{ratio_text(comparison.speedup_low)} to {ratio_text(comparison.speedup_high)}"
    spent = f"n={comparison.n}, {seconds_text(comparison.seconds_used)}"
    return f"inconclusive (interval {ends}); a larger budget may decide ({spent})"


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
        if loss:
            yield loss  # it names the candidate
        elif doubt := quality_doubt(each):
            yield f"{each.candidate_name}: {doubt}"


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
        tone=STYLES[comparison.verdict],
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


# ---------------------------------------------------------------- comparisons in the terminal: the
# verdict first, then the picture, the numbers and the doubts

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


# ---------------------------------------------------------------- a against A in the terminal:
# what the comparer shows where there is nothing to show

BAND = 0.01


def render_self_check(check: SelfCheck) -> RenderableType:
    """Lay out how often identical code was called different, and what to believe from now on."""
    trials, alarms = len(check.trials), check.false_alarms
    style = "green" if not alarms else "yellow"
    facts = {
        "trials": f"{trials} comparisons of {check.target} with itself",
        "false alarms": f"{alarms} of {trials}",
        "same": f"{trials - alarms - check.undecided} of {trials}",
        "inconclusive": f"{check.undecided} of {trials}",
        "largest difference": f"{_percent(check.largest_difference)}, of estimates",
        "noise": f"{_percent(check.reach)} from the estimate to the end of its interval",
        "floor": f"{_percent(check.floor)}; {_use(check)}",
        "time": f"{seconds_text(check.median_seconds)} for one comparison",
        "kept": check.kept or f"no: {check.obstacle or 'it has no name that others know'}",
    }
    width = max(map(len, facts))
    return Group(
        Text(_verdict(check), style=f"bold {style}"),
        Text(""),
        ForestPlot(
            [_check_row(check, number) for number in range(trials)],
            check.floor,
            max(BAND, check.floor),
        ),
        Text(""),
        *(Text(f"{name:<{width}}  {text}") for name, text in facts.items()),
    )


def _verdict(check: SelfCheck) -> str:
    if not check.false_alarms:
        open_ones = f", {check.undecided} of {len(check.trials)} not decided"
        return (
            f"no false alarm{open_ones if check.undecided else ''}: believe differences of "
            f"{_percent(check.floor)} and more here"
        )
    return (
        f"identical code was called different in {check.false_alarms} of {len(check.trials)}: "
        f"believe only differences of more than {_percent(check.floor)} here"
    )


def _use(check: SelfCheck) -> str:
    if check.is_kept:
        return "`tinytorch gate` takes no tolerance below it"
    return "it is not kept, so `tinytorch gate` does not know it"


def _check_row(check: SelfCheck, number: int) -> ForestRow:
    trial = check.trials[number]
    style = {SAME: "cyan", INCONCLUSIVE: "yellow"}.get(trial.verdict, "red")
    # As a speedup: right of 1 is faster.
    found = trial.ratio.inverse
    text = f"{trial.verdict:<12}  {ratio_text(found.low)} to {ratio_text(found.high)}"
    return ForestRow(str(number + 1), found.value, found.low, found.high, text, style)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%"
