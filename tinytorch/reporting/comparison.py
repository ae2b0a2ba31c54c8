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
from tinytorch.comparison.evidence import PERCENTILES
from tinytorch.comparison.outputs import OutputDifference
from tinytorch.comparison.self_check import SelfCheck, Trial
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER
from tinytorch.measure.interleaving import LATENCY, THROUGHPUT, Round
from tinytorch.measure.samples import Samples, values_needed
from tinytorch.measure.timing import COLD
from tinytorch.models.workload import Preparation
from tinytorch.reporting import document as doc
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    percent_text,
    range_text,
    rate_text,
    ratio_text,
    seconds_text,
    without_numbers,
)

TONES: dict[str, doc.Tone] = {
    FASTER: "good",
    SLOWER: "bad",
    SAME: "neutral",
    INCONCLUSIVE: "unknown",
}
ACCURACY_TONES: dict[str, doc.Tone] = {
    accuracies.NOT_WORSE: "good",
    accuracies.WORSE: "bad",
    INCONCLUSIVE: "unknown",
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
LEFT_OUT = ("examples per second", "parameters")
"""Rows of the table that follow from others: not in brief."""
MORE_TIME, MOST_TIME = 4, 30
"""Times as much of a budget as is proposed where an interval is open, and at most."""
LONGEST_NAME = 20
MOST_OUTPUTS = 50
OF_NOISE = "signal over noise: the larger, the closer"
SAME_PLACE = "rows whose largest value is in the same place"
FAR_OFF_DB = 20.0
"""Outputs with less signal over noise than this are hardly the same computation."""
MeasuredRow = tuple[str, str, str, str]
"""What is compared, the baseline's value, the candidate's, and their ratio."""


def comparison_document(comparison: Comparison, *, about: Sequence[str] = ()) -> doc.Document:
    """Return a comparison; lines in `about` say what the two sides are."""
    return doc.Document(
        f"{comparison.candidate_name} against {comparison.baseline_name}",
        _banner(comparison),
        list(_sections(comparison)),
        note_lines(comparison),
        comparison.environment,
        comparison.to_dict(),
        "tinytorch-comparison.json",
        "; ".join(about),
        brief=list(_brief(comparison)),
    )


def _brief(comparison: Comparison) -> Iterator[doc.Block]:
    """Yield the picture, what was measured of both sides, and what would decide."""
    yield _plot(comparison)
    ratio = doc.Column("ratio", "number", rank=1)
    rows = [each for each in measured_rows(comparison) if each[0] not in LEFT_OUT]
    found = comparison.accuracy
    if found is not None:
        text = score_text(found)
        before, after = text(found.baseline_mean), text(found.candidate_mean)
        rows.append((found.metric, before, after, found.verdict))
    columns = [doc.Column("per call", least=18), *_side_columns(comparison), ratio]
    yield doc.Table(columns, rows, is_sortable=False)
    facts: list[tuple[str, str]] = [("setup", each) for each in preparation_lines(comparison)]
    facts += [("next", each) for each in _next_steps(comparison)]
    yield doc.Facts(facts)


def _next_steps(comparison: Comparison) -> Iterator[str]:
    """Yield what would decide where something is inconclusive."""
    found = comparison.accuracy
    if found is not None and found.verdict == INCONCLUSIVE and found.remedy:
        yield found.remedy


def _budget(comparison: Comparison) -> str:
    """Return seconds that narrow the interval enough, as it narrows with the root of rounds."""
    reach = math.log(comparison.speedup_high / comparison.speedup_low) / 2
    wanted = math.log1p(comparison.rule.band) / 2
    if not 0 < reach < math.inf:
        return f"{MORE_TIME * comparison.seconds_used:.0f}"
    return f"{comparison.seconds_used * min(max((reach / wanted) ** 2, 2), MOST_TIME):.0f}"


def comparisons_document(comparisons: Sequence[Comparison]) -> doc.Document:
    """Return several comparisons as one forest plot, a row for each."""
    if not comparisons:
        return doc.Document("", None, (doc.Paragraph("no comparisons"),))
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
    return doc.Document(
        "", None, (plot, doc.Bullets([*doubts, *_quality_notes(comparisons)], tone="unknown"))
    )


def _sections(comparison: Comparison) -> Iterator[doc.Block]:
    yield _speedup(comparison)
    yield _numbers(comparison)
    yield _times(comparison)
    if comparison.calls is not None:
        yield _single_calls(comparison, comparison.calls)
    if comparison.accuracy is not None:
        yield _accuracy(comparison, comparison.accuracy)
    if comparison.outputs is not None:
        yield _outputs(comparison.outputs)
    if missing := missing_lines(comparison):
        yield doc.Section("missing", "Not measured", (doc.Bullets(missing),))


# ---------------------------------------------------------------- the verdict


def _banner(comparison: Comparison) -> doc.Banner:
    """Return the verdict: a loss of quality comes before any gain of speed."""
    loss, doubt, verdict = quality_loss(comparison), quality_doubt(comparison), comparison.verdict
    tone = TONES[verdict]
    if loss:
        tone = "bad"
    elif doubt and verdict != SLOWER:
        tone = "unknown"
    said = [_quality(comparison), verdict_text(comparison)]
    return doc.Banner(
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
    ends = range_text((comparison.time_ratio_low, comparison.time_ratio_high), ratio_text)
    if verdict == FASTER:
        found = f"{name} is faster{than}: {speedup_text(comparison)}"
    elif verdict == SLOWER:
        time = f"{ratio_text(comparison.time_ratio)} the time ({ends})"
        found = f"{name} is slower{than}: {time}"
    elif verdict == SAME:
        found = f"same: within {100 * comparison.rule.band:.3g}% ({ends} the time)"
    elif comparison.contradiction:
        found = f"{verdict}: typical calls and the mean disagree, see the notes"
    else:
        ends = speedup_ends(comparison)
        budget = _budget(comparison)
        found = f"{verdict} (interval {ends}): a time budget of {budget} s may decide"
    # On a processor there is one kind of calls.
    calls = CALLS.get(comparison.timing, "") if comparison.is_on_device else ""
    spent = f"n={comparison.n} rounds, {seconds_text(comparison.seconds_used)}"
    return ", ".join(filter(None, (found, calls, spent)))


def speedup_text(comparison: Comparison) -> str:
    """Write the speedup with its interval: ``1.31x (1.28x to 1.35x)``."""
    return f"{ratio_text(comparison.speedup)} ({speedup_ends(comparison)})"


def speedup_ends(comparison: Comparison) -> str:
    """Write the interval of the speedup alone: ``1.28x to 1.35x``."""
    return f"{ratio_text(comparison.speedup_low)} to {ratio_text(comparison.speedup_high)}"


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


def _speedup(comparison: Comparison) -> doc.Section:
    about = (
        f"Baseline time over candidate time, its {comparison.rule.confidence:.0%} interval and "
        "every round. Faster: all of it beyond the minimum effect; same: all of it inside of the "
        "equivalence band."
    )
    return doc.Section("speedup", "Speedup", (_plot(comparison),), about)


def _plot(comparison: Comparison) -> ForestPlot:
    row = speedup_row("speedup", comparison, "", TONES[comparison.verdict])
    rounds = [math.exp(-each.log_ratio) for each in comparison.rounds]
    return ForestPlot([row], comparison.floor, comparison.rule.band, rounds)


def speedup_row(label: str, comparison: Comparison, text: str, tone: str) -> ForestRow:
    """Return the speedup with its interval as a row of a forest plot."""
    ends = (comparison.speedup_low, comparison.speedup_high)
    return ForestRow(label, comparison.speedup, *ends, text, tone)


def shared_plot(
    rows: Sequence[ForestRow], comparisons: Sequence[Comparison], *, title: str = ""
) -> ForestPlot:
    """Return rows over one axis.

    The widest minimum effect and equivalence band are shown: what lies inside of the smallest may
    be a difference elsewhere.
    """
    floor, band = max(e.floor for e in comparisons), max(e.rule.band for e in comparisons)
    return ForestPlot(rows, floor, band, title=title)


# ---------------------------------------------------------------- the numbers


def _numbers(comparison: Comparison) -> doc.Section:
    ratio = doc.Column("ratio", "number", "candidate over baseline: below 1 is less", rank=1)
    table = doc.Table(
        [doc.Column("per call", least=18), *_side_columns(comparison), ratio],
        measured_rows(comparison),
        is_sortable=False,
    )
    cold = "cold caches: flushed before every call, outside of its time"
    said = [*([cold] if comparison.cache == COLD else []), *preparation_lines(comparison)]
    return doc.Section("numbers", "Time, memory, size", (table, doc.Bullets(said)))


def _side_columns(comparison: Comparison) -> list[doc.Column]:
    """Return a column for each side; a long name keeps its end, as that of a path tells more."""
    names = (comparison.baseline_name, comparison.candidate_name)
    short = [x if len(x) <= LONGEST_NAME else f"…{x[1 - LONGEST_NAME :]}" for x in names]
    return [doc.Column(x, "number", name) for x, name in zip(short, names, strict=True)]


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


def _times(comparison: Comparison) -> doc.Section:
    names = (comparison.baseline_name, comparison.candidate_name)
    sides = (comparison.baseline, comparison.candidate)
    runs = [doc.Run(name, side.values) for name, side in zip(names, sides, strict=True)]
    breaks = list(accumulate(len(each.baseline) for each in comparison.rounds))[:-1]
    loops = " and ".join(dict.fromkeys(map(str, comparison.pace.loops)))
    calls = "1 call" if loops == "1" else f"{loops} calls"
    turns = f"{comparison.n} rounds with {comparison.pairs} pairs of turns"
    charts = (
        doc.Distribution(runs, "s", title="Distribution.", about="Lines are medians."),
        doc.RunOrder(
            runs,
            "s",
            breaks,
            title="In the order of measuring.",
            about=f"{turns}; a line where a round begins.",
        ),
    )
    about = f"Seconds per call, each value a turn of {calls}; the sides are interleaved."
    return doc.Section("times", "Times of both sides", (doc.Beside(charts),), about)


def _single_calls(comparison: Comparison, calls: tuple[Samples, Samples]) -> doc.Section:
    first, second = _side_columns(comparison)
    interval = doc.Column("95% interval", "number", rank=2)
    columns = [doc.Column("percentile", least=12), first, interval, second, interval]
    rows = [
        (f"p{q:g}", *(cell for samples in calls for cell in _percentile(samples, q)))
        for q in PERCENTILES
    ]
    names = (comparison.baseline_name, comparison.candidate_name)
    runs = [doc.Run(name, each.values) for name, each in zip(names, calls, strict=True)]
    order = doc.RunOrder(runs, "s", things="calls", title="Single calls in their order.")
    counts = ", ".join(dict.fromkeys(str(each.count) for each in calls))
    about = f"{counts} calls of each side, one at a time."
    return doc.Section(
        "calls", "Single calls", (doc.Table(columns, rows, is_sortable=False), order), about
    )


def _percentile(samples: Samples, q: float) -> tuple[str, str]:
    """Write a percentile and its interval; an unknown end is a dash, with the calls it takes."""
    ends = tuple(samples.percentile_interval(q))
    known = range_text(ends, seconds_text)
    if not all(map(math.isfinite, ends)):
        known += f", needs {values_needed(q)} calls"
    return seconds_text(samples.percentile(q)), known


# ---------------------------------------------------------------- accuracy


def _accuracy(comparison: Comparison, found: AccuracyComparison) -> doc.Section:
    tone = ACCURACY_TONES[found.verdict]
    blocks: list[doc.Block] = [doc.Paragraph(accuracy_line(found), tone)]
    if math.isfinite(found.difference):
        factor, unit = (100, "points") if found.is_binary else (1, "")
        blocks.append(
            doc.MarginPlot(
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
    blocks.append(doc.Folded("Scores", (_scores(comparison, found),), is_open=True))
    about = f"Both sides are scored on the same {found.n} examples."
    return doc.Section("accuracy", "Accuracy", blocks, about)


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


def _scores(comparison: Comparison, found: AccuracyComparison) -> doc.Table:
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
    columns = [doc.Column(found.metric), doc.Column("mean score", "number")]
    return doc.Table(columns, rows, is_sortable=False)


# ---------------------------------------------------------------- outputs


def _outputs(found: OutputDifference) -> doc.Section:
    is_far = found.sqnr_db is not None and found.sqnr_db < FAR_OFF_DB
    tone: doc.Tone = "bad" if found.broken else "unknown" if is_far or found.mismatch else ""
    blocks: list[doc.Block] = [doc.Paragraph(_outputs_line(found), tone)]
    if found.outputs and not found.is_identical:
        blocks.append(doc.Folded("Each output", (_outputs_table(found),), is_open=True))
    return doc.Section("outputs", "Outputs", blocks, "The same inputs through both sides.")


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


def _outputs_table(found: OutputDifference) -> doc.Table:
    shown = list(enumerate(found.outputs[:MOST_OUTPUTS]))
    rest = len(found.outputs) - len(shown)
    return doc.table_of(
        shown,
        doc.column("output", lambda x: doc.Cell(str(x[0]), x[0])),
        doc.column("shape", lambda x: "x".join(map(str, x[1].shape)) or "scalar"),
        doc.number("largest error", lambda x: x[1].max_error, "{:.3g}".format),
        doc.number("of the largest value", lambda x: x[1].max_relative_error, "{:.2g}".format),
        doc.number("SQNR", lambda x: x[1].sqnr_db, "{:.1f} dB".format, OF_NOISE),
        doc.number("top-1 agreement", lambda x: x[1].top1_agreement, percent_text, SAME_PLACE),
        doc.number("equal whole numbers", lambda x: x[1].equal_share, percent_text),
        doc.column("note", lambda x: "identical" if x[1].is_identical else x[1].note),
        caption=f"{rest} more outputs are in the raw data" if rest else "",
        is_sortable=len(shown) > 1,
    )


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
    known = set(map(without_numbers, comparison.notes))
    for note in dict.fromkeys(note for each in comparison.calls for note in each.notes):
        if without_numbers(note) in known:
            continue
        known.add(without_numbers(note))
        sides = [each.name for each in comparison.calls if note in each.notes]
        whose = f" of {sides[0]}" if len(sides) == 1 else ""
        yield f"single calls{whose}: {note}"


# ---------------------------------------------------------------- a against A: what the comparer
# shows where there is nothing to show

BAND = 0.01


def self_check_document(check: SelfCheck) -> doc.Document:
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
        ("minimum effect", f"{floor}; {use}"),
        ("time", f"{seconds_text(check.median_seconds)} for one comparison"),
        ("kept", check.kept or f"no: {check.obstacle or 'it has no name that others know'}"),
    ]
    undecided = f"{check.undecided} of {trials} {INCONCLUSIVE}; " if check.undecided else ""
    banner = doc.Banner(verdict, f"{undecided}{believe}", tone="unknown" if alarms else "good")
    return doc.Document(
        f"Self-check with {check.target}", banner, (plot, doc.Facts(facts)), raw=check.to_dict()
    )


def _trial_row(label: str, trial: Trial) -> ForestRow:
    tone = {SAME: "neutral", INCONCLUSIVE: "unknown"}.get(trial.verdict, "bad")
    # As a speedup: right of 1 is faster.
    found = trial.ratio.inverse
    text = f"{trial.verdict:<12}  {ratio_text(found.low)} to {ratio_text(found.high)}"
    return ForestRow(label, found.value, found.low, found.high, text, tone)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%"
