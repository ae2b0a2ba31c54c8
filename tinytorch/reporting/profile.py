"""The document of a profile: what a call costs, why it is slow, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from tinytorch.errors import SettingError
from tinytorch.measure.counters import Counters
from tinytorch.measure.samples import Samples
from tinytorch.profiling.hardware import HardwareEstimate
from tinytorch.profiling.layers import operation_spans
from tinytorch.profiling.profile import (
    FACTORS,
    LASTING,
    BottleneckFacts,
    Profile,
    ProfileFacts,
    describe_hotspot,
    find_facts,
)
from tinytorch.profiling.summary import cache_fits
from tinytorch.reporting.advice import advice_section
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
    Item,
    Paragraph,
    Row,
    Run,
    RunOrder,
    Section,
    Strong,
    Table,
)
from tinytorch.reporting.html.flame import FlameGraph, flame_blocks
from tinytorch.reporting.html.timeline import StackedLevels, Timeline
from tinytorch.reporting.layers import layers_section, number_cell, share_cell
from tinytorch.reporting.machine import estimate_section
from tinytorch.reporting.profile_words import (
    caveat_lines,
    doubts,
    head_rows,
    hotspot_label,
    interval_text,
    not_counted_text,
    reasons,
    setting_words,
)
from tinytorch.reporting.quantities import (
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.reporting.roofline import Roofline, RooflinePoint
from tinytorch.tuning.advice import Advice

__all__ = [
    "profile_document",
    "profiles_document",
    "roofline_section",
    "time_section",
]

TOP = 8
"""Rows of the tables beside that of the layers."""
MORE = 12
"""Hotspots that have a row, those after the first ones folded away."""
MOST = 200
"""Kinds of operations that have a row."""


def profile_document(
    profile: Profile,
    *,
    depth: int | None = None,
    top: int = TOP,
    expand: bool = False,
    advice: Sequence[Advice] = (),
    estimate: HardwareEstimate | None = None,
) -> Document:
    """Return what a call costs, the bottleneck, and the views of the recording.

    `depth` limits the levels of the layer tree, `top` the rows of the other tables; `expand` shows
    repeated blocks one by one.
    """
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    facts = find_facts(profile)
    rows = list(head_rows(profile, facts))
    sections = (
        time_section(profile),
        layers_section(profile, depth=depth, expand=expand),
        _amdahl_section(profile, top),
        advice_section(advice) if advice else None,
        roofline_section(profile, top),
        _operations_section(profile, top),
        _timeline_section(profile),
        _memory_section(profile, facts),
        _latency_section(profile),
        _cache_section(profile, top),
        _counter_section(profile.counters) if profile.counters is not None else None,
        estimate_section(estimate) if estimate is not None else None,
        _caveats_section(profile, facts),
    )
    return Document(
        f"Profile of {profile.name}",
        Banner(
            f"{seconds_text(profile.latency.median)} per call",
            " ".join(reasons(profile, facts)),
            tuple((name, value) for name, value, _ in rows),
        ),
        (
            Facts(
                [(name, (Strong(value), f"  {details}".rstrip())) for name, value, details in rows]
            ),
            *(section for section in sections if section is not None),
        ),
        doubts(profile),
        profile.environment,
        profile.to_dict(),
        "profile.json",
        setting_words(profile, facts),
    )


def profiles_document(
    profiles: Sequence[Profile], *, estimates: Sequence[HardwareEstimate] = ()
) -> Document:
    """Return several profiles side by side, one row each."""
    if not profiles:
        raise SettingError("no profiles to show; give at least one")
    columns = [
        Column("model", "code"),
        Column("latency", "number"),
        Column("95% interval", "number", rank=7),
        Column("examples/s", "number", rank=5),
        Column("params", "number", rank=2),
        Column("MACs", "number", rank=1),
        Column("FLOP/B", "number", rank=6),
        Column("peak mem", "number", rank=1),
        Column("bottleneck", rank=2, least=20),
        Column("bound", rank=4),
    ]
    settings = sorted({f"{each.mode} on {each.device}" for each in profiles})
    legend = (
        f"Medians of {' and '.join(settings)}. MACs are multiply-accumulates of contractions; "
        "FLOP/B is all floating-point work over the bytes moved; the bottleneck has the largest "
        "self time, the bound is that of the whole model."
    )
    estimated = [
        Section(f"on-{place}", profile.name, (estimate_section(each),))
        for place, (profile, each) in enumerate(zip(profiles, estimates, strict=False), 1)
    ]
    return Document(
        "",
        None,
        (Table(columns, [_overview(each) for each in profiles]), Paragraph(legend), *estimated),
        [f"{each.name}: {note}" for each in profiles for note in each.notes],
    )


def _overview(profile: Profile) -> list[Cell | str]:
    facts, latency = find_facts(profile), profile.latency
    found = facts.bottleneck
    name = "" if found is None else f"{percent_text(found.share)} {found.name or '(self)'}"
    return [
        profile.name,
        Cell(seconds_text(latency.median), latency.median),
        interval_text(latency.median_interval()),
        number_cell(profile.throughput, count_text),
        number_cell(profile.parameter_count, count_text),
        number_cell(profile.macs, count_text),
        number_cell(facts.intensity, count_text),
        number_cell(facts.peak_bytes, bytes_text),
        name,
        facts.bound or "",
    ]


def _limited(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], top: int, things: str
) -> Iterator[Block]:
    """Yield the first rows, and the others folded away."""
    yield Table(columns, rows[:top])
    if rows[top:]:
        yield Folded(f"{len(rows) - top} more {things}", (Table(columns, rows[top:]),))


# ---------------------------------------------------------------- where the time goes


def time_section(profile: Profile) -> Section:
    """Return the flame graph of the layers."""
    about = (
        "Each box is a layer, as wide as its time in an instrumented call; below it is what it "
        "calls. Where nothing is below, the layer itself computes. Choose a box to zoom in "
        "(Enter), Escape goes back; the arrow keys move."
    )
    return Section(
        "time", "Where the time goes", (FlameGraph(flame_blocks(profile)),), about, is_detail=True
    )


def _amdahl_section(profile: Profile, top: int) -> Section:
    slowest = [hotspot for hotspot in profile.hotspots[: max(top, MORE)] if hotspot.self_s > 0]
    found = [describe_hotspot(profile, hotspot) for hotspot in slowest]
    columns = [
        Column("layer", least=38),
        Column("share", "bar", "of the time of a call"),
        *(Column("inf" if f == FACTORS[-1] else f"{f:g}x", "number", rank=1) for f in FACTORS),
        Column("bound", rank=2),
        Column("attained", "number", "of what its ceiling allows", rank=3),
    ]
    rows: list[list[Cell | str]] = [
        [
            hotspot_label(each),
            share_cell(each.share),
            *(Cell(factor_text(each.speedups[f]), each.speedups[f]) for f in FACTORS),
            each.bound or "",
            number_cell(each.of_attainable, percent_text),
        ]
        for each in found
    ]
    about = "Speedup of the call if these layers alone were 2, 4, 10 times or infinitely faster."
    blocks = [*_limited(columns, rows, top, "layers")] if rows else [Paragraph("No layer ran.")]
    return Section("faster", "Amdahl's law", blocks, about, is_detail=True)


def _operations_section(profile: Profile, top: int) -> Section:
    is_training = profile.mode == "training"
    columns = [
        Column("operation"),
        Column("family", rank=2),
        Column("phase", rank=1),
        Column("calls", "number", rank=3),
        Column("share", "bar", "of the time of all operations"),
        Column("time", "number"),
        Column("MACs", "number", rank=4),
        Column("bytes", "number", "read and written", rank=5),
    ]
    groups = profile.top_operations
    rows: list[list[Cell | str]] = [
        [
            group.kind,
            group.family,
            group.phase if is_training else "",
            Cell(str(group.calls), group.calls),
            share_cell(group.share),
            number_cell(group.seconds, seconds_text),
            number_cell(group.macs, count_text),
            number_cell(group.bytes_moved, bytes_text),
        ]
        for group in groups[:MOST]
    ]
    about = "By kind, in the recorded call, which is slower: compare them with each other only."
    blocks = [*_limited(columns, rows, top, "kinds of operations")]
    if len(groups) > MOST:
        more = f"{len(groups) - MOST} more kinds are only in the raw values."
        blocks.append(Folded("Left out", (Paragraph(more),)))
    if not rows:
        blocks = [Paragraph("No operation was recorded.")]
    return Section("operations", "Operations", blocks, about, is_detail=True)


def _timeline_section(profile: Profile) -> Section | None:
    spans = operation_spans(profile)
    if not spans:
        return None
    about = (
        "The recorded call from left to right: layers, and in the lowest lanes the operations "
        "that they ran. Recording makes a call slower, so this shows the order and the "
        "proportions. Zoom with the buttons, + and -, or the wheel once the picture was "
        "clicked; drag or use the arrow keys to move."
    )
    return Section("timeline", "Timeline", (Timeline(spans),), about, is_detail=True)


# ---------------------------------------------------------------- the roofline

LABELLED = 8
"""Most layers with a letter and a row; the others are small dots."""
MOST_POINTS = 300


def roofline_section(profile: Profile, top: int = LABELLED) -> Section:
    """Return the slowest layers below the roof of the profile's dtype, or why there is none."""
    ceilings = profile.ceilings
    peak = ceilings.peak_flops(profile.dtype) if ceilings else None
    hotspots = (describe_hotspot(profile, hotspot) for hotspot in profile.hotspots)
    # Layers without FLOPs have no place on logarithmic axes.
    found = [each for each in hotspots if each.bound and each.intensity and each.of_peak]
    if ceilings is None or peak is None or not found:
        return Section("roofline", "Roofline", (Paragraph(_no_roofline(profile)),), is_detail=True)
    points = [
        _point(letter, each, peak)
        for letter, each in zip(_letters(min(top, LABELLED)), found[:MOST_POINTS], strict=False)
    ]
    home = ceilings.level(profile.working_set_bytes)
    labelled = sum(bool(point.letter) for point in points)
    blocks: list[Block] = [
        Roofline({profile.dtype: peak}, ceilings.bandwidths, points, home),
        _roofline_table(found[:labelled], points),
    ]
    if len(points) > labelled:
        more = f"The small dots are the {len(points) - labelled} faster groups of layers."
        blocks.append(Folded("More layers", (Paragraph(more),), is_open=True, media=("html",)))
    about = " ".join(_how_to_read(profile, peak, found))
    return Section("roofline", "Roofline", blocks, about, is_detail=True)


def _letters(count: int) -> Iterator[str]:
    yield from ascii_uppercase[:count]
    while True:
        yield ""


def _point(letter: str, each: BottleneckFacts, peak: float) -> RooflinePoint:
    intensity, achieved = each.intensity or 0.0, (each.of_peak or 0.0) * peak
    title = (
        f"{hotspot_label(each)}: {percent_text(each.share)} of the time, "
        f"{count_text(intensity)} FLOP/B, {rate_text(achieved)}, "
        f"{percent_text(each.of_attainable)} of attainable"
    )
    return RooflinePoint(letter, intensity, achieved, each.share, title)


def _roofline_table(found: Sequence[BottleneckFacts], points: Sequence[RooflinePoint]) -> Table:
    columns = [
        Column("layers"),
        Column("time", "bar", "share of a call"),
        Column("bound", rank=3),
        Column("FLOP/B", "number", "floating-point operations per byte moved", rank=2),
        Column("achieved", "number", rank=1),
        Column("of attainable", "number", "of what the roof allows at this intensity"),
    ]
    rows: list[list[Cell | str]] = [
        [
            f"{point.letter}  {hotspot_label(each)}",
            share_cell(each.share),
            each.bound or "",
            number_cell(point.intensity, count_text),
            number_cell(point.flops_per_s, rate_text),
            number_cell(each.of_attainable, percent_text),
        ]
        for each, point in zip(found, points, strict=False)
    ]
    return Table(columns, rows)


def _no_roofline(profile: Profile) -> str:
    if profile.ceilings is None:
        return "Not measured: the ceilings of this machine are unknown."
    if profile.ceilings.peak_flops(profile.dtype) is None:
        return f"Not measured: there is no peak for {profile.dtype} on this machine."
    return "No layer with counted operations has a place below the roof."


def _how_to_read(profile: Profile, peak: float, found: Sequence[BottleneckFacts]) -> Iterator[str]:
    assert profile.ceilings is not None
    size = profile.working_set_bytes
    level, bandwidth = profile.ceilings.level(size), profile.ceilings.bandwidth(size)
    assert bandwidth is not None
    yield (
        f"The line is the attainable performance: the bandwidth of {level}, "
        f"{rate_text(bandwidth, 'B/s')}, which holds the {bytes_text(size)} that a call touches, "
        f"up to the {profile.dtype} peak. The mark on the axis is the ridge point, "
        f"{count_text(peak / bandwidth)} FLOP per byte: memory-bound left of it, compute-bound "
        "right of it. The further a layer is below the line, the faster it could be."
    )
    others = sorted(profile.ceilings.bandwidths, key=lambda each: -each.ceiling)
    named = [f"{x.level} {rate_text(x.ceiling, 'B/s')}" for x in others if x.level != level]
    if named:
        yield f"Dotted, left to right: {', '.join(named)}."
    if any((each.of_attainable or 0) > 1 for each in found):
        yield "Above the line: its bytes were in a faster level, or a ceiling or a count is wrong."


# ---------------------------------------------------------------- memory

ORDER = (*LASTING, "gradients", "activations", "temporaries")
"""From the bottom up: what lasts, then what a call makes."""
MOSTLY = 0.6
"""When this much of the peak was there before, what the call makes has a picture of its own."""
HEIGHT = 200
BUCKETS = 40
LARGEST = 8


def _memory_section(profile: Profile, facts: ProfileFacts) -> Section:
    points = profile.memory.points
    if not points:
        return Section("memory", "Memory", (Paragraph("No buffer was seen."),), is_detail=True)
    seen = {name for _, held in points for name in held if held[name]}
    names = [name for name in ORDER if name in seen]
    names += sorted(seen - set(names))
    series = {name: place for place, name in enumerate(names, 1)}
    made = {name: place for name, place in series.items() if name not in LASTING}
    lasting = sum(share for name, share in facts.peak_composition.items() if name in LASTING)
    has_two = bool(made) and lasting > MOSTLY
    title = "Live buffers"
    blocks: list[Block] = [
        StackedLevels(points, series, HEIGHT // 2 if has_two else HEIGHT, title=title)
    ]
    if has_two:
        blocks.append(StackedLevels(points, made, HEIGHT, title="Of these, allocated by the call"))
    blocks += [_peak_table(profile, facts), *_holders(profile)]
    about = " ".join(_memory_sentences(profile, facts))
    return Section("memory", "Memory", blocks, about, is_detail=True)


def _memory_sentences(profile: Profile, facts: ProfileFacts) -> Iterator[str]:
    yield (
        "Bytes of live buffers in the recorded call, each counted once: "
        f"{bytes_text(facts.peak_bytes)} at the peak."
    )
    made = profile.memory.peak_activation_bytes
    if made:
        yield f"Allocated by the call, at most at once: {bytes_text(made)}."
    if profile.traced_peak_bytes is not None:
        scratch = bytes_text(profile.traced_peak_bytes)
        yield f"With scratch memory inside of operations, Python saw {scratch} allocated."
    if profile.recording.device_peak_bytes is not None:
        device = bytes_text(profile.recording.device_peak_bytes)
        yield f"The device's own allocator held {device} at most."


def _peak_table(profile: Profile, facts: ProfileFacts) -> Table:
    held = profile.memory.peak_by_category
    course = profile.memory.series(BUCKETS, from_first_change=True)
    columns = [
        Column("at the peak"),
        Column("bytes", "number"),
        Column("share", "bar"),
        Column("over the call", rank=1),
        Column("lowest", "number", rank=2),
    ]

    def row(name: str, size: float, share: float, levels: Sequence[float]) -> list[Cell | str]:
        lowest = number_cell(min(levels, default=None), bytes_text)
        return [
            name,
            number_cell(size, bytes_text),
            share_cell(share),
            Cell("", trend=levels),
            lowest,
        ]

    rows = [
        row(name, held[name], share, course["categories"].get(name, ()))
        for name, share in facts.peak_composition.items()
    ]
    total = row("total", profile.memory.peak_bytes, 1.0, course["total"])
    return Table(columns, [*rows, Row(total, tone="total")])


def _holders(profile: Profile) -> Iterator[Block]:
    """Yield the layers that made or hold most of what was alive at the peak."""
    whole = profile.memory.peak_bytes
    held = sorted(profile.memory.peak_by_path.items(), key=lambda item: -item[1])
    shown = [(path, size) for path, size in held[:LARGEST] if size]
    if len(shown) < 2:
        return
    rows: list[list[Cell | str]] = [
        [_holder(profile, path), number_cell(size, bytes_text), share_cell(size / whole)]
        for path, size in shown
    ]
    columns = [Column("made or held by"), Column("bytes", "number"), Column("share", "bar")]
    blocks: list[Block] = [Table(columns, rows)]
    if len(held) > len(shown):
        more = f"The {len(shown)} largest; {len(held) - len(shown)} more hold the rest."
        blocks.append(Paragraph(more, "faint"))
    yield Folded("By layer", blocks)


def _holder(profile: Profile, path: str | None) -> str:
    if path is None:
        return "outside of the model"
    return f"{path} {profile.kinds.get(path, '')}".strip() or "the model (self)"


# ---------------------------------------------------------------- latency

PERCENTILES = (5, 25, 50, 75, 95, 99)


def _latency_section(profile: Profile) -> Section:
    latency = profile.latency
    if latency.count == 1:
        text = f"n=1: {seconds_text(latency.median)}; variation unknown."
        return Section("latency", "Latency", (Paragraph(text),), is_detail=True)
    interval = latency.median_interval()
    run = Run(profile.name, latency.values, (interval.low, interval.high))
    charts = (
        Distribution([run], "s", title="Distribution"),
        RunOrder([run], "s", things="calls", title="In the order of the run"),
    )
    loops = "" if latency.loops == 1 else f" Each value is the mean of {latency.loops} calls."
    stability = latency.stability.note
    about = (
        f"{latency.count:,} calls without instrumentation.{loops} The line is the median, "
        f"{seconds_text(latency.median)}, the band its {min(interval.coverage, 0.95):.0%} "
        f"interval, {interval_text(interval)}. {stability[:1].upper()}{stability[1:]}."
    )
    blocks: list[Block] = [Beside(charts), _percentiles(latency), *_device_times(profile)]
    return Section("latency", "Latency", blocks, about, is_detail=True)


def _percentiles(latency: Samples) -> Table:
    values = {
        "min": latency.minimum,
        **{"median" if q == 50 else f"p{q}": latency.percentile(q) for q in PERCENTILES},
        "max": latency.maximum,
        "mean": latency.mean,
    }
    about = "outside of Tukey's fences; they are counted, not dropped"
    columns = [
        Column("latency", least=8),
        *(Column(name, "number", rank=name != "median") for name in values),
        Column("outliers", "number", about, rank=2),
    ]
    texts = [seconds_text(value) for value in values.values()]
    row = [f"n={latency.count:,}", *texts, str(latency.outliers.total)]
    return Table(columns, [row], is_sortable=False)


def _device_times(profile: Profile) -> Iterator[Table]:
    """Yield the times of a call on a GPU: by the wall clock, by events, in its kernels."""
    times = {
        "latency (wall clock)": profile.latency,
        "device time (events)": profile.device_time,
        "kernels, without gaps": profile.busy,
    }
    rows = [
        [name, seconds_text(of.median), interval_text(of.median_interval())]
        for name, of in times.items()
        if of is not None
    ]
    if profile.idle_share is not None:
        rows.append(["device idle", percent_text(profile.idle_share), ""])
    if len(rows) > 1:
        columns = [Column("a call"), Column("median", "number"), Column("95% interval")]
        yield Table(columns, rows, is_sortable=False)


# ---------------------------------------------------------------- caches, counters, caveats


def _cache_section(profile: Profile, top: int) -> Section | None:
    """Return the caches and memory, and where what the slowest layers touch fits."""
    ceilings, size = profile.ceilings, profile.working_set_bytes
    if ceilings is None:
        return None
    home = ceilings.level(size)
    columns = [
        Column("level"),
        Column("holds", "number"),
        Column("bandwidth", "number"),
        Column("compute-bound from", "number", rank=1),
        Column("", rank=2),
    ]
    rows = []
    for each in ceilings.bandwidths:
        ridge = ceilings.ridge(profile.dtype, each.capacity_bytes)
        is_home = bool(size) and each.level == home
        cells: list[Cell | str] = [
            each.level,
            "the rest" if each.capacity_bytes is None else bytes_text(each.capacity_bytes),
            number_cell(each.ceiling, lambda rate: rate_text(rate, "B/s")),
            Cell("-" if ridge is None else f"{count_text(ridge)} FLOP/B", ridge),
            f"<- a call touches {bytes_text(size)}" if is_home else "",
        ]
        rows.append(Row(cells, tone="hot" if is_home else ""))
    levels = Table(columns, rows, is_sortable=False)
    about = "Measured here, all threads together; below, the largest operation of each layer."
    blocks = (levels, *_cache_fits(profile, top))
    return Section("caches", "Caches and memory of this machine", blocks, about, is_detail=True)


def _cache_fits(profile: Profile, top: int) -> Iterator[Block]:
    columns = [
        Column("largest operation of"),
        Column("touches", "number"),
        Column("fits in", rank=1),
        Column("bandwidth there", "number", rank=3),
        Column("layer moves", "number", rank=2),
    ]
    rows: list[list[Cell | str]] = [
        [
            hotspot_label(describe_hotspot(profile, fit.hotspot)),
            number_cell(fit.working_set_bytes, bytes_text),
            fit.level,
            number_cell(fit.bandwidth, lambda rate: rate_text(rate, "B/s")),
            number_cell(fit.achieved, lambda rate: rate_text(rate, "B/s")),
        ]
        for fit in cache_fits(profile)[: max(top, MORE)]
    ]
    if rows:
        yield from _limited(columns, rows, top, "layers")
    else:
        yield Paragraph("No layer moved bytes that were counted.")


def _counter_section(counters: Counters) -> Section:
    """Return what the processor counted per call, and why it did not count the rest."""
    blocks: list[Block] = []
    if counters.values:
        rows = [
            (event, number_cell(counters.per_call(event), count_text)) for event in counters.values
        ]
        blocks.append(Table([Column("event"), Column("per call", "number")], rows))
    for reason in dict.fromkeys(counters.unavailable.values()):
        events = [event for event, why in counters.unavailable.items() if why == reason]
        blocks.append(Paragraph(f"Not available: {', '.join(events)}: {reason}.", "faint"))
    if counters.instructions_per_cycle is not None:
        words = f"{counters.instructions_per_cycle:.2f} instructions per cycle"
        blocks.append(Paragraph(words))
    blocks.append(Bullets(counters.notes, tone="unknown"))
    return Section("counters", "Hardware counters", blocks, is_detail=True)


def _caveats_section(profile: Profile, facts: ProfileFacts) -> Section:
    """Say what the instrumentation cost, and what was not counted."""
    *lines, last = caveat_lines(profile, facts)
    missing = [not_counted_text(each) for each in profile.not_counted]
    bullets = Bullets([*lines, Item(last, missing)], tone="faint")
    return Section("caveats", "Caveats", (bullets,), is_detail=True)
