"""Documents of comparisons: the verdict first, then the picture, the numbers and the doubts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from statistics import median

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
from tinytorch.comparison.outputs import ArrayDifference, OutputDifference
from tinytorch.comparison.self_check import SelfCheck, Trial
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT, Round
from tinytorch.measure.samples import values_needed
from tinytorch.measure.timing import COLD
from tinytorch.models.workload import Preparation
from tinytorch.reporting.document import (
    Banner,
    Beside,
    Block,
    Bullets,
    Cell,
    Column,
    Distribution,
    Document,
    Facts,
    Folded,
    MarginPlot,
    Paragraph,
    Run,
    RunOrder,
    Section,
    Table,
    Tone,
)
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    percent_text,
    rate_text,
    ratio_text,
    seconds_text,
)

__all__ = [
    "CALLS",
    "TONES",
    "accuracy_line",
    "comparison_document",
    "comparisons_document",
    "difference_text",
    "measured_rows",
    "missing_lines",
    "note_lines",
    "preparation_lines",
    "score_text",
    "self_check_document",
    "speedup_text",
    "verdict_text",
]

TONES: dict[str, Tone] = {FASTER: "good", SLOWER: "bad", SAME: "neutral", INCONCLUSIVE: "unknown"}
ACCURACY_TONES: dict[str, Tone] = {
    accuracies.NOT_WORSE: "good",
    accuracies.WORSE: "bad",
    accuracies.INCONCLUSIVE: "unknown",
}
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
IN_BANNER = ("peak memory", "device peak beside weights", "file on disk")
"""Rows of the table that the banner shows, too."""
MISSING = {
    "calls": "single calls",
    "resources": "memory and size",
    LATENCY: SINGLE,
    THROUGHPUT: SUSTAINED,
    "device_times": BY_EVENTS,
}
"""What was not measured -> its name."""
LONGEST_NAME = 20
MOST_OUTPUTS = 50
FAR_OFF_DB = 20.0
"""Outputs with less signal over noise than this are hardly the same computation."""
MeasuredRow = tuple[str, str, str, str]
"""What is compared, the baseline's value, the candidate's, and their ratio."""


def comparison_document(comparison: Comparison, *, about: Sequence[str] = ()) -> Document:
    """Return a comparison; lines in `about` say what the two sides are."""
    return Document(
        f"{comparison.candidate_name} against {comparison.baseline_name}",
        _banner(comparison),
        list(_sections(comparison)),
        note_lines(comparison),
        comparison.environment,
        comparison.to_dict(),
        "tinytorch-comparison.json",
        "; ".join(about),
    )


def comparisons_document(comparisons: Sequence[Comparison]) -> Document:
    """Return several comparisons as one forest plot, a row for each."""
    if not comparisons:
        return Document("", None, (Paragraph("no comparisons"),))
    first = comparisons[0].baseline_name
    is_one = all(each.baseline_name == first for each in comparisons)
    widest = max(len(_outcome(each)) for each in comparisons)
    rows = [
        speedup_row(
            each.candidate_name if is_one else f"{each.candidate_name} : {each.baseline_name}",
            each,
            f"{_outcome(each):<{widest}}  {speedup_text(each)}",
            "bad" if quality_loss(each) else TONES[each.verdict],
        )
        for each in comparisons
    ]
    title = f"speedup against {first}" if is_one else "speedup, candidate : baseline"
    plot = shared_plot(rows, comparisons, title=title)
    doubts = [f"{x.candidate_name}: {x.contradiction}" for x in comparisons if x.contradiction]
    return Document(
        "", None, (plot, Bullets([*doubts, *_quality_notes(comparisons)], tone="unknown"))
    )


def _sections(comparison: Comparison) -> Iterator[Block]:
    yield _speedup(comparison)
    yield _numbers(comparison)
    yield _times(comparison)
    if comparison.tails is not None:
        yield _single_calls(comparison, comparison.tails)
    if comparison.accuracy is not None:
        yield _accuracy(comparison, comparison.accuracy)
    if comparison.outputs is not None:
        yield _outputs(comparison.outputs)
    if missing := missing_lines(comparison):
        yield Section("missing", "Not measured", (Bullets(missing),))


# ---------------------------------------------------------------- the verdict


def _banner(comparison: Comparison) -> Banner:
    """Return the verdict: a loss of quality comes before any gain of speed."""
    loss, doubt, verdict = quality_loss(comparison), quality_doubt(comparison), comparison.verdict
    tone = TONES[verdict]
    if loss:
        tone = "bad"
    elif doubt and verdict != SLOWER:
        tone = "unknown"
    said = [_quality(comparison), verdict_text(comparison)]
    return Banner(
        _verdict(comparison),
        "".join(f"{each}. " for each in said if each).strip(),
        tuple(_facts(comparison)),
        tone,
    )


def _verdict(comparison: Comparison) -> str:
    if quality_loss(comparison):
        return _outcome(comparison).capitalize()
    words = {
        FASTER: f"{ratio_text(comparison.speedup)} faster",
        SLOWER: f"{ratio_text(comparison.time_ratio)} slower",
        SAME: "Same speed",
        INCONCLUSIVE: INCONCLUSIVE.capitalize(),
    }[comparison.verdict]
    return f"{words}, accuracy inconclusive" if quality_doubt(comparison) else words


def verdict_text(comparison: Comparison) -> str:
    """Say what is shown about time, with its interval, n and the seconds it took."""
    verdict, (name, than) = comparison.verdict, _names(comparison)
    low, high = ratio_text(comparison.time_ratio_low), ratio_text(comparison.time_ratio_high)
    if verdict == FASTER:
        found = f"{name} is faster{than}: {speedup_text(comparison)}"
    elif verdict == SLOWER:
        time = f"{ratio_text(comparison.time_ratio)} the time ({low} to {high})"
        found = f"{name} is slower{than}: {time}"
    elif verdict == SAME:
        found = f"same: within {100 * comparison.rule.band:.3g}% ({low} to {high} the time)"
    elif comparison.contradiction:
        found = f"{verdict}: typical calls and the mean disagree, see the notes"
    else:
        ends = f"{ratio_text(comparison.speedup_low)} to {ratio_text(comparison.speedup_high)}"
        found = f"{verdict} (interval {ends}): a larger time budget may decide"
    # On a processor there is one kind of calls.
    calls = CALLS.get(comparison.timing, "") if comparison.is_on_device else ""
    spent = f"n={comparison.n} rounds, {seconds_text(comparison.seconds_used)}"
    return ", ".join(filter(None, (found, calls, spent)))


def speedup_text(comparison: Comparison) -> str:
    """Write the speedup with its interval: ``1.31x (1.28x to 1.35x)``."""
    interval = f"{ratio_text(comparison.speedup_low)} to {ratio_text(comparison.speedup_high)}"
    return f"{ratio_text(comparison.speedup)} ({interval})"


def _facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "speedup", speedup_text(comparison)
    found = comparison.accuracy
    if found is not None:
        yield found.metric, f"{_means(found, ' → ')} ({found.verdict})"
    for label, first, second, ratio in measured_rows(comparison):
        if label in IN_BANNER:
            share = f" ({ratio})" if ratio != UNKNOWN else ""
            yield label, f"{first} → {second}{share}"


def _quality(comparison: Comparison) -> str:
    """Say what is lost or doubtful beside time, or nothing; no speed makes up for it."""
    loss, found = quality_loss(comparison), comparison.accuracy
    if found is not None and _outcome(comparison) == "less accurate":
        name, than = _names(comparison)
        write = score_text(found)
        means = f"{write(found.candidate_mean)} against {write(found.baseline_mean)}"
        margin = difference_text(found, found.margin, sign=False)
        loss = f"{name} is less accurate{than}: {means}, beyond the margin of {margin}"
    return f"{loss}; its speed does not count" if loss else quality_doubt(comparison)


def _outcome(comparison: Comparison) -> str:
    """Say in two words what became of the candidate."""
    if comparison.outputs is not None and comparison.outputs.broken:
        return "broken outputs"
    if comparison.is_accurate is False:
        return "less accurate"
    return "not evaluated" if failed_evaluation(comparison) else comparison.verdict


def _quality_notes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Say what stands against each beside its time; a loss of accuracy is its outcome already."""
    for each in comparisons:
        loss = "" if _outcome(each) == "less accurate" else quality_loss(each)
        if loss:
            yield loss  # it names the candidate
        elif doubt := quality_doubt(each):
            yield f"{each.candidate_name}: {doubt}"


def _names(comparison: Comparison) -> tuple[str, str]:
    names = (comparison.baseline_name, comparison.candidate_name)
    return names[1], "" if names == USUAL_NAMES else f" than {names[0]}"


# ---------------------------------------------------------------- the picture


def _speedup(comparison: Comparison) -> Section:
    row = speedup_row("speedup", comparison, "", TONES[comparison.verdict])
    rounds = [math.exp(-each.log_ratio) for each in comparison.rounds]
    plot = ForestPlot([row], comparison.floor, comparison.rule.band, rounds)
    about = (
        f"Baseline time over candidate time, its {comparison.rule.confidence:.0%} interval and "
        "every round. Faster: all of it right of the floor; same: all of it inside of the band."
    )
    return Section("speedup", "Speedup", (plot,), about)


def speedup_row(label: str, comparison: Comparison, text: str, tone: str) -> ForestRow:
    """Return the speedup with its interval as a row of a forest plot."""
    ends = (comparison.speedup_low, comparison.speedup_high)
    return ForestRow(label, comparison.speedup, *ends, text, tone)


def shared_plot(
    rows: Sequence[ForestRow], comparisons: Sequence[Comparison], *, title: str = ""
) -> ForestPlot:
    """Return rows over one axis.

    The widest floor and band are shown: what lies inside of the smallest may be a difference
    elsewhere.
    """
    floor, band = max(e.floor for e in comparisons), max(e.rule.band for e in comparisons)
    return ForestPlot(rows, floor, band, title=title)


# ---------------------------------------------------------------- the numbers


def _numbers(comparison: Comparison) -> Section:
    ratio = Column("ratio", "number", "candidate over baseline: below 1 is less", rank=1)
    table = Table(
        [Column("per call", least=18), *_side_columns(comparison), ratio],
        measured_rows(comparison),
        is_sortable=False,
    )
    cold = "cold caches: flushed before every call, outside of its time"
    said = [*([cold] if comparison.cache == COLD else []), *preparation_lines(comparison)]
    return Section("numbers", "Time, memory, size", (table, Bullets(said)))


def _side_columns(comparison: Comparison) -> list[Column]:
    """Return a column for each side; a long name keeps its end, as that of a path tells more."""
    names = (comparison.baseline_name, comparison.candidate_name)
    short = [x if len(x) <= LONGEST_NAME else f"…{x[1 - LONGEST_NAME :]}" for x in names]
    return [Column(x, "number", name) for x, name in zip(short, names, strict=True)]


def measured_rows(comparison: Comparison) -> list[MeasuredRow]:
    """Return time, throughput, memory, size and energy of both sides, as far as known."""
    return [
        *_time_rows(comparison),
        *_throughput_row(comparison),
        *_size_rows(comparison),
        *_energy_row(comparison),
    ]


def _time_rows(comparison: Comparison) -> Iterator[MeasuredRow]:
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
) -> MeasuredRow:
    sides = ([each.baseline for each in rounds], [each.candidate for each in rounds])
    first, second = (median(value for each in side for value in each) for side in sides)
    return label, write(first), write(second), ratio


def _calls_per_second(seconds: float | None) -> str:
    return UNKNOWN if not seconds else f"{count_text(1 / seconds)}/s"


def _ends_of(comparison: Comparison, name: str) -> str:
    value, low, high = (getattr(comparison, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{ratio_text(value)} ({ratio_text(low)} to {ratio_text(high)})"


def _throughput_row(comparison: Comparison) -> list[MeasuredRow]:
    found = comparison.throughputs
    return [] if found is None else [_row("examples per second", *found, count_text)]


def _size_rows(comparison: Comparison) -> Iterator[MeasuredRow]:
    for field, label in SIZES.items() if comparison.resources else ():
        assert comparison.resources is not None
        first, second = (getattr(each, field) for each in comparison.resources)
        if first is not None or second is not None:
            yield _row(label, first, second, bytes_text)


def _energy_row(comparison: Comparison) -> list[MeasuredRow]:
    if comparison.energy is None:
        return []
    first, second = (samples.median for samples in comparison.energy)
    return [_row("energy per call", first, second, lambda joules: rate_text(joules, "J"))]


def _row(
    label: str, first: float | None, second: float | None, write: Callable[[float | None], str]
) -> MeasuredRow:
    ratio = ratio_text(second / first) if first and second is not None else UNKNOWN
    return label, write(first), write(second), ratio


def preparation_lines(comparison: Comparison) -> Iterator[str]:
    """Say what is no part of the times, a line for each side, and after how many calls it pays."""
    names = (comparison.baseline_name, comparison.candidate_name)
    for name, done in zip(names, comparison.preparations, strict=True):
        if done:
            yield f"{name}: setup time ({', '.join(map(_setup, done))}), not part of the times"
    if (found := comparison.break_even) is not None:
        calls, low, high = (count_text(math.ceil(x)) for x in (found.value, found.low, found.high))
        yield f"{names[1]} breaks even after {calls} calls ({low} to {high})"


def _setup(preparation: Preparation) -> str:
    took = f"{preparation.what} {seconds_text(preparation.seconds)}"
    took += " longer than others" if preparation.is_estimate else ""
    stay = bytes_text(preparation.nbytes)
    return f"{took}, {stay} stay allocated" if preparation.nbytes else took


# ---------------------------------------------------------------- the times


def _times(comparison: Comparison) -> Section:
    names = (comparison.baseline_name, comparison.candidate_name)
    sides = (comparison.baseline, comparison.candidate)
    runs = [Run(name, side.values) for name, side in zip(names, sides, strict=True)]
    breaks = list(accumulate(len(each.baseline) for each in comparison.rounds))[:-1]
    loops = " and ".join(dict.fromkeys(map(str, comparison.pace.loops)))
    calls = "1 call" if loops == "1" else f"{loops} calls"
    turns = f"{comparison.n} rounds with {comparison.pairs} pairs of turns"
    charts = (
        Distribution(runs, "s", title="Distribution.", about="Lines are medians."),
        RunOrder(
            runs,
            "s",
            breaks,
            title="In the order of measuring.",
            about=f"{turns}; a line where a round begins.",
        ),
    )
    about = f"Seconds per call, each value a turn of {calls}; the sides are interleaved."
    return Section("times", "Times of both sides", (Beside(charts),), about)


def _single_calls(comparison: Comparison, tails: tuple[Tail, Tail]) -> Section:
    first, second = _side_columns(comparison)
    interval = Column("95% interval", "number", rank=2)
    columns = [Column("percentile", least=12), first, interval, second, interval]
    rows = [
        (f"p{one.q:g}", *_percentile(tails[0], one), *_percentile(tails[1], other))
        for one, other in zip(tails[0].percentiles, tails[1].percentiles, strict=True)
    ]
    names = (comparison.baseline_name, comparison.candidate_name)
    runs = [Run(name, each.samples.values) for name, each in zip(names, tails, strict=True)]
    order = RunOrder(runs, "s", things="calls", title="Single calls in their order.")
    counts = ", ".join(dict.fromkeys(str(each.samples.count) for each in tails))
    about = f"{counts} calls of each side, one at a time."
    return Section("calls", "Single calls", (Table(columns, rows, is_sortable=False), order), about)


def _percentile(tail: Tail, found: TailPercentile) -> tuple[str, str]:
    """Write a percentile and its interval; an unknown end is a dash, with the calls it takes."""
    ends = (found.interval.low, found.interval.high)
    known = " to ".join(seconds_text(x) if math.isfinite(x) else UNKNOWN for x in ends)
    if not all(map(math.isfinite, ends)):
        known += f", needs {values_needed(found.q, tail.confidence)} calls"
    return seconds_text(found.value), known


# ---------------------------------------------------------------- accuracy


def _accuracy(comparison: Comparison, found: AccuracyComparison) -> Section:
    tone = ACCURACY_TONES[found.verdict]
    blocks: list[Block] = [Paragraph(accuracy_line(found), tone)]
    if math.isfinite(found.difference):
        factor, unit = (100, "points") if found.is_binary else (1, "")
        blocks.append(
            MarginPlot(
                factor * found.difference,
                factor * found.low,
                factor * found.high,
                -factor * found.margin,
                unit,
                tone,
                title="Difference of the mean scores.",
                about=f"Each end holds with {found.confidence:.0%} confidence; not worse means "
                "that the lower one lies right of the margin.",
            )
        )
    blocks.append(Folded("Scores", (_scores(comparison, found),), is_open=True))
    about = f"Both sides are scored on the same {found.n} examples."
    return Section("accuracy", "Accuracy", blocks, about)


def accuracy_line(found: AccuracyComparison) -> str:
    """Say what became of the accuracy."""
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
    return f"{found.metric}: {found.verdict}, {_means(found, ' to ')} ({', '.join(parts)})"


def _means(found: AccuracyComparison, between: str) -> str:
    return between.join(map(score_text(found), (found.baseline_mean, found.candidate_mean)))


def score_text(found: AccuracyComparison) -> Callable[[float], str]:
    """Return what writes a score: shares of right answers in percent, others as they are."""
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


def _scores(comparison: Comparison, found: AccuracyComparison) -> Table:
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
    return Table(columns, rows, is_sortable=False)


# ---------------------------------------------------------------- outputs


def _outputs(found: OutputDifference) -> Section:
    is_far = found.sqnr_db is not None and found.sqnr_db < FAR_OFF_DB
    tone: Tone = "bad" if found.broken else "unknown" if is_far or found.mismatch else ""
    blocks: list[Block] = [Paragraph(_outputs_line(found), tone)]
    if found.outputs and not found.is_identical:
        blocks.append(Folded("Each output", (_outputs_table(found),), is_open=True))
    return Section("outputs", "Outputs", blocks, "The same inputs through both sides.")


def _outputs_line(found: OutputDifference) -> str:
    if found.mismatch:
        return f"outputs: cannot be compared: {found.mismatch}"
    if found.is_identical:
        return "outputs: identical"
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
    return f"outputs: {', '.join(parts)}"


def _outputs_table(found: OutputDifference) -> Table:
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
    return Table(columns, rows, caption, is_sortable=len(rows) > 1)


def _output_row(place: int, each: ArrayDifference) -> list[Cell | str]:
    return [
        Cell(str(place), place),
        "x".join(map(str, each.shape)) or "scalar",
        _number(each.max_error, "{:.3g}"),
        _number(each.max_relative_error, "{:.2g}"),
        _number(each.sqnr_db, "{:.1f} dB"),
        Cell(percent_text(each.top1_agreement), each.top1_agreement),
        Cell(percent_text(each.equal_share), each.equal_share),
        "identical" if each.is_identical else each.note,
    ]


def _number(value: float | None, pattern: str) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(pattern.format(value), value)


# ---------------------------------------------------------------- what is missing, what to doubt


def missing_lines(comparison: Comparison) -> list[str]:
    """Say what could not be measured, and why."""
    reasons = [f"{MISSING.get(name, name)}: {x}" for name, x in comparison.not_measured.items()]
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
    """Yield what to doubt about single calls, unless it was said about the whole already."""
    if comparison.calls is None:
        return
    one, other = comparison.calls
    for note in dict.fromkeys((*one.notes, *other.notes)):
        if note in comparison.notes:
            continue
        sides = [each.name for each in comparison.calls if note in each.notes]
        whose = f" of {sides[0]}" if len(sides) == 1 else ""
        yield f"single calls{whose}: {note}"


# ---------------------------------------------------------------- a against A: what the comparer
# shows where there is nothing to show

BAND = 0.01


def self_check_document(check: SelfCheck) -> Document:
    """Return how often identical code was called different, and what to believe from now on."""
    trials, alarms, floor = len(check.trials), check.false_alarms, _percent(check.floor)
    if alarms:
        verdict = f"{alarms} of {trials} false alarms"
        believe = f"believe only differences of more than {floor} here"
    else:
        verdict, believe = "No false alarm", f"believe differences of {floor} and more here"
    plot = ForestPlot(
        [_trial_row(str(place), each) for place, each in enumerate(check.trials, 1)],
        check.floor,
        max(BAND, check.floor),
    )
    use = "it is not kept, so `tinytorch gate` does not know it"
    if check.is_kept:
        use = "`tinytorch gate` takes no tolerance below it"
    facts = [
        ("trials", f"{trials} comparisons of {check.target} with itself"),
        ("false alarms", f"{alarms} of {trials}"),
        (SAME, f"{trials - alarms - check.undecided} of {trials}"),
        (INCONCLUSIVE, f"{check.undecided} of {trials}"),
        ("largest difference", f"{_percent(check.largest_difference)}, of estimates"),
        ("noise", f"{_percent(check.reach)} from the estimate to the end of its interval"),
        ("floor", f"{floor}; {use}"),
        ("time", f"{seconds_text(check.median_seconds)} for one comparison"),
        ("kept", check.kept or f"no: {check.obstacle or 'it has no name that others know'}"),
    ]
    undecided = f"{check.undecided} of {trials} {INCONCLUSIVE}; " if check.undecided else ""
    banner = Banner(verdict, f"{undecided}{believe}", tone="unknown" if alarms else "good")
    return Document(
        f"Self-check with {check.target}", banner, (plot, Facts(facts)), raw=check.to_dict()
    )


def _trial_row(label: str, trial: Trial) -> ForestRow:
    tone = {SAME: "neutral", INCONCLUSIVE: "unknown"}.get(trial.verdict, "bad")
    # As a speedup: right of 1 is faster.
    found = trial.ratio.inverse
    text = f"{trial.verdict:<12}  {ratio_text(found.low)} to {ratio_text(found.high)}"
    return ForestRow(label, found.value, found.low, found.high, text, tone)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%"
