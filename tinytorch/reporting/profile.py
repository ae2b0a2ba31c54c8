"""The document of a profile: what a call costs, why it is slow, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_uppercase
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Bandwidth
from tinytorch.measure.counters import Counters
from tinytorch.measure.samples import Samples
from tinytorch.profiling.generation_speed import GenerationSpeed
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
from tinytorch.profiling.summary import CacheFit, cache_fits
from tinytorch.reporting import document as doc
from tinytorch.reporting.advice import advice_section, suggestion_lines
from tinytorch.reporting.html.flame import FlameGraph, flame_blocks
from tinytorch.reporting.html.timeline import StackedLevels, Timeline
from tinytorch.reporting.layers import known_number, layers_section, share_of
from tinytorch.reporting.machine import bandwidth_text, estimate_section, level_text
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

TOP = 8
"""Rows of the tables beside that of the layers."""
MORE = 12
"""Hotspots that have a row, those after the first ones folded away."""
MOST = 200
"""Kinds of operations that have a row."""
MOVED = "read and written"


def profile_document(
    profile: Profile,
    *,
    depth: int | None = None,
    top: int = TOP,
    expand: bool = False,
    advice: Sequence[Advice] = (),
    estimate: HardwareEstimate | None = None,
    generation: Sequence[GenerationSpeed] = (),
) -> doc.Document:
    """Return what a call costs, the bottleneck, and the views of the recording.

    `depth` limits the levels of the layer tree, `top` the rows of the other tables; `expand` shows
    repeated blocks one by one.
    """
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    facts = find_facts(profile)
    costs = tuple(
        (name, (doc.Strong(value), f"  {details}".rstrip()))
        for name, value, details in head_rows(profile, facts)
    )
    speeds = generation_section(generation) if generation else None
    sections = (
        speeds,
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
    return doc.Document(
        f"Profile of {profile.name}",
        doc.Banner(
            f"{seconds_text(profile.latency.median)} per call",
            " ".join(reasons(profile, facts)),
            costs,
        ),
        (
            doc.Only(("terminal", "markdown"), (doc.Facts(costs),)),
            *(section for section in sections if section is not None),
        ),
        doubts(profile),
        profile.environment,
        profile.to_dict(),
        "profile.json",
        setting_words(profile, facts),
        brief=[*([speeds] if speeds else []), *_brief(profile, facts, advice, estimate)],
    )


BRIEF = 5
"""Rows of the table in brief, and suggestions that are named."""
LONGEST_LAYER = 60
"""Letters of a layer's name that stay whole in brief."""
FASTER = "speedup of the call if these layers took half the time"
ATTAINED = "of what its ceiling allows"
BRIEF_FACTS = ("latency", "achieved", "device idle", "peak memory")


def _brief(
    profile: Profile,
    facts: ProfileFacts,
    advice: Sequence[Advice],
    estimate: HardwareEstimate | None,
) -> Iterator[doc.Block]:
    """Yield what a call takes, its slowest layers, and what may make it faster."""
    rows = [row for row in head_rows(profile, facts) if row[0] in BRIEF_FACTS]
    yield doc.Facts([(name, f"{value}  {details}".rstrip()) for name, value, details in rows])
    yield _brief_layers(profile)
    if profile.counters is not None:
        yield _counter_section(profile.counters)
    if estimate is not None:
        yield estimate_section(estimate)
    yield doc.Facts([*suggestion_lines(advice)])


def _brief_layers(profile: Profile) -> doc.Table:
    """Return the slowest layers, and what could be gained there."""
    slowest = [hotspot for hotspot in profile.hotspots[:BRIEF] if hotspot.self_s > 0]
    return doc.table_of(
        [describe_hotspot(profile, hotspot) for hotspot in slowest],
        doc.column("layer", hotspot_label, least=LONGEST_LAYER),
        doc.number("share", lambda each: each.share, percent_text),
        doc.number("2x faster", lambda each: each.speedups[2.0], factor_text, FASTER),
        doc.column("bound", lambda each: each.bound or "", rank=1),
        doc.number("attained", lambda each: each.of_attainable, percent_text, ATTAINED, rank=2),
    )


def profiles_document(
    profiles: Sequence[Profile], *, estimates: Sequence[HardwareEstimate] = ()
) -> doc.Document:
    """Return several profiles side by side, one row each."""
    if not profiles:
        raise SettingError("no profiles to show; give at least one")
    settings = sorted({f"{each.mode} on {each.device}" for each in profiles})
    legend = (
        f"Medians of {' and '.join(settings)}. MACs are multiply-accumulates of contractions; "
        "FLOP/B is all floating-point work over the bytes moved; the bottleneck has the largest "
        "self time, the bound is that of the whole model."
    )
    estimated = [
        doc.Section(f"on-{place}", profile.name, (estimate_section(each),))
        for place, (profile, each) in enumerate(zip(profiles, estimates, strict=False), 1)
    ]
    return doc.Document(
        "",
        None,
        (
            _overview(profiles),
            doc.Paragraph(legend),
            *estimated,
        ),
        [f"{each.name}: {note}" for each in profiles for note in each.notes],
    )


def _overview(profiles: Sequence[Profile]) -> doc.Table:
    def found(profile: Profile) -> str:
        name = find_facts(profile).bottleneck
        return "" if name is None else f"{percent_text(name.share)} {name.name or '(self)'}"

    return doc.table_of(
        profiles,
        doc.column("model", lambda each: each.name, "code"),
        doc.number("latency", lambda each: each.latency.median, seconds_text),
        (
            doc.Column("95% interval", "number", rank=7),
            lambda each: interval_text(each.latency.median_interval()),
        ),
        known_number("examples/s", lambda each: each.throughput, count_text, rank=5),
        known_number("params", lambda each: each.parameter_count, count_text, rank=2),
        known_number("MACs", lambda each: each.macs, count_text, rank=1),
        known_number("FLOP/B", lambda each: find_facts(each).intensity, count_text, rank=6),
        known_number("peak mem", lambda each: find_facts(each).peak_bytes, bytes_text, rank=1),
        doc.column("bottleneck", found, rank=2, least=20),
        doc.column("bound", lambda each: find_facts(each).bound or "", rank=4),
    )


def _limited(
    items: Sequence[Any], *fields: doc.Field, top: int, things: str
) -> Iterator[doc.Block]:
    """Yield the first rows, and the others folded away."""
    yield doc.table_of(items[:top], *fields)
    if items[top:]:
        rest = doc.table_of(items[top:], *fields)
        yield doc.Folded(f"{len(items) - top} more {things}", (rest,))


# ---------------------------------------------------------------- where the time goes


def time_section(profile: Profile) -> doc.Section:
    """Return the flame graph of the layers."""
    about = (
        "Each box is a layer, as wide as its time in an instrumented call; below it is what it "
        "calls. Where nothing is below, the layer itself computes. Choose a box to zoom in "
        "(Enter), Escape goes back; the arrow keys move."
    )
    return doc.Section(
        "time", "Where the time goes", (FlameGraph(flame_blocks(profile)),), about, is_detail=True
    )


def _amdahl_section(profile: Profile, top: int) -> doc.Section:
    slowest = [hotspot for hotspot in profile.hotspots[: max(top, MORE)] if hotspot.self_s > 0]
    found = [describe_hotspot(profile, hotspot) for hotspot in slowest]

    def sped_up(factor: float) -> doc.Field:
        title = "inf" if factor == FACTORS[-1] else f"{factor:g}x"
        return doc.number(title, lambda each: each.speedups[factor], factor_text, rank=1)

    rows = _limited(
        found,
        doc.column("layer", hotspot_label, least=38),
        share_of("share", lambda each: each.share, "of the time of a call"),
        *map(sped_up, FACTORS),
        doc.column("bound", lambda each: each.bound or "", rank=2),
        known_number("attained", lambda each: each.of_attainable, percent_text, ATTAINED, rank=3),
        top=top,
        things="layers",
    )
    about = "Speedup of the call if these layers alone were 2, 4, 10 times or infinitely faster."
    blocks = [*rows] if found else [doc.Paragraph("No layer ran.")]
    return doc.Section("faster", "Amdahl's law", blocks, about, is_detail=True)


def _operations_section(profile: Profile, top: int) -> doc.Section:
    is_training = profile.mode == "training"
    groups = profile.top_operations
    rows = _limited(
        groups[:MOST],
        doc.column("operation", lambda each: each.kind),
        doc.column("family", lambda each: each.family, rank=2),
        doc.column("phase", lambda each: each.phase if is_training else "", rank=1),
        doc.number("calls", lambda each: each.calls, str, rank=3),
        share_of("share", lambda each: each.share, "of the time of all operations"),
        known_number("time", lambda each: each.seconds, seconds_text),
        known_number("MACs", lambda each: each.macs, count_text, rank=4),
        known_number("bytes", lambda each: each.bytes_moved, bytes_text, MOVED, rank=5),
        top=top,
        things="kinds of operations",
    )
    about = "By kind, in the recorded call, which is slower: compare them with each other only."
    blocks = [*rows]
    if len(groups) > MOST:
        more = f"{len(groups) - MOST} more kinds are only in the raw values."
        blocks.append(doc.Folded("Left out", (doc.Paragraph(more),)))
    if not groups:
        blocks = [doc.Paragraph("No operation was recorded.")]
    return doc.Section("operations", "Operations", blocks, about, is_detail=True)


def _timeline_section(profile: Profile) -> doc.Section | None:
    spans = operation_spans(profile)
    if not spans:
        return None
    about = (
        "The recorded call from left to right: layers, and in the lowest lanes the operations "
        "that they ran. Recording makes a call slower, so this shows the order and the "
        "proportions. Zoom with the buttons, + and -, or the wheel once the picture was "
        "clicked; drag or use the arrow keys to move."
    )
    return doc.Section("timeline", "Timeline", (Timeline(spans),), about, is_detail=True)


# ---------------------------------------------------------------- the roofline

LABELLED = 8
"""Most layers with a letter and a row; the others are small dots."""
MOST_POINTS = 300
OF_INTENSITY = "floating-point operations per byte moved"
ALLOWED = "of what the roof allows at this intensity"


def roofline_section(profile: Profile, top: int = LABELLED) -> doc.Section:
    """Return the slowest layers below the roof of the profile's dtype, or why there is none."""
    ceilings = profile.ceilings
    peak = ceilings.peak_flops(profile.dtype) if ceilings else None
    hotspots = (describe_hotspot(profile, hotspot) for hotspot in profile.hotspots)
    # Layers without FLOPs have no place on logarithmic axes.
    found = [each for each in hotspots if each.bound and each.intensity and each.of_peak]
    if ceilings is None or peak is None or not found:
        return doc.Section(
            "roofline", "Roofline", (doc.Paragraph(_no_roofline(profile)),), is_detail=True
        )
    points = [
        _point(letter, each, peak)
        for letter, each in zip(_letters(min(top, LABELLED)), found[:MOST_POINTS], strict=False)
    ]
    home = ceilings.level(profile.working_set_bytes)
    labelled = sum(bool(point.letter) for point in points)
    blocks: list[doc.Block] = [
        Roofline({profile.dtype: peak}, ceilings.bandwidths, points, home),
        _roofline_table(found[:labelled], points),
    ]
    if len(points) > labelled:
        more = f"The small dots are the {len(points) - labelled} faster groups of layers."
        blocks.append(
            doc.Folded("More layers", (doc.Paragraph(more),), is_open=True, media=("html",))
        )
    about = " ".join(_how_to_read(profile, peak, found))
    return doc.Section("roofline", "Roofline", blocks, about, is_detail=True)


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


def _roofline_table(found: Sequence[BottleneckFacts], points: Sequence[RooflinePoint]) -> doc.Table:
    return doc.table_of(
        zip(found, points, strict=False),
        doc.column("layers", lambda pair: f"{pair[1].letter}  {hotspot_label(pair[0])}"),
        share_of("time", lambda pair: pair[0].share, "share of a call"),
        doc.column("bound", lambda pair: pair[0].bound or "", rank=3),
        known_number("FLOP/B", lambda pair: pair[1].intensity, count_text, OF_INTENSITY, rank=2),
        known_number("achieved", lambda pair: pair[1].flops_per_s, rate_text, rank=1),
        known_number("of attainable", lambda pair: pair[0].of_attainable, percent_text, ALLOWED),
    )


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


def _memory_section(profile: Profile, facts: ProfileFacts) -> doc.Section:
    points = profile.memory.points
    if not points:
        return doc.Section(
            "memory", "Memory", (doc.Paragraph("No buffer was seen."),), is_detail=True
        )
    seen = {name for _, held in points for name in held if held[name]}
    names = [name for name in ORDER if name in seen]
    names += sorted(seen - set(names))
    series = {name: place for place, name in enumerate(names, 1)}
    made = {name: place for name, place in series.items() if name not in LASTING}
    lasting = sum(share for name, share in facts.peak_composition.items() if name in LASTING)
    has_two = bool(made) and lasting > MOSTLY
    title = "Live buffers"
    blocks: list[doc.Block] = [
        StackedLevels(points, series, HEIGHT // 2 if has_two else HEIGHT, title=title)
    ]
    if has_two:
        blocks.append(StackedLevels(points, made, HEIGHT, title="Of these, allocated by the call"))
    blocks += [_peak_table(profile, facts), *_holders(profile)]
    about = " ".join(_memory_sentences(profile, facts))
    return doc.Section("memory", "Memory", blocks, about, is_detail=True)


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


def _peak_table(profile: Profile, facts: ProfileFacts) -> doc.Table:
    held = profile.memory.peak_by_category
    course = profile.memory.series(BUCKETS, from_first_change=True)
    shares = {**facts.peak_composition, "total": 1.0}
    sizes = {**held, "total": profile.memory.peak_bytes}
    levels = {**course["categories"], "total": course["total"]}
    return doc.table_of(
        shares,
        doc.column("at the peak", str),
        known_number("bytes", lambda name: sizes[name], bytes_text),
        share_of("share", lambda name: shares[name]),
        doc.column("over the call", lambda name: doc.Cell("", trend=levels.get(name, ())), rank=1),
        known_number(
            "lowest", lambda name: min(levels.get(name, ()), default=None), bytes_text, rank=2
        ),
        tone=lambda name: "total" if name == "total" else "",
    )


def _holders(profile: Profile) -> Iterator[doc.Block]:
    """Yield the layers that made or hold most of what was alive at the peak."""
    whole = profile.memory.peak_bytes
    held = sorted(profile.memory.peak_by_path.items(), key=lambda item: -item[1])
    shown = [(path, size) for path, size in held[:LARGEST] if size]
    if len(shown) < 2:
        return
    table = doc.table_of(
        shown,
        doc.column("made or held by", lambda each: _holder(profile, each[0])),
        known_number("bytes", lambda each: each[1], bytes_text),
        share_of("share", lambda each: each[1] / whole),
    )
    blocks: list[doc.Block] = [table]
    if len(held) > len(shown):
        more = f"The {len(shown)} largest; {len(held) - len(shown)} more hold the rest."
        blocks.append(doc.Paragraph(more, "faint"))
    yield doc.Folded("By layer", blocks)


def _holder(profile: Profile, path: str | None) -> str:
    if path is None:
        return "outside of the model"
    return f"{path} {profile.kinds.get(path, '')}".strip() or "the model (self)"


# ---------------------------------------------------------------- latency

PERCENTILES = (5, 25, 50, 75, 95, 99)


def _latency_section(profile: Profile) -> doc.Section:
    latency = profile.latency
    if latency.count == 1:
        text = f"n=1: {seconds_text(latency.median)}; variation unknown."
        return doc.Section("latency", "Latency", (doc.Paragraph(text),), is_detail=True)
    interval = latency.median_interval()
    run = doc.Run(profile.name, latency.values, (interval.low, interval.high))
    charts = (
        doc.Distribution([run], "s", title="Distribution"),
        doc.RunOrder([run], "s", things="calls", title="In the order of the run"),
    )
    loops = "" if latency.loops == 1 else f" Each value is the mean of {latency.loops} calls."
    stability = latency.stability.note
    about = (
        f"{latency.count:,} calls without instrumentation.{loops} The line is the median, "
        f"{seconds_text(latency.median)}, shaded its {min(interval.coverage, 0.95):.0%} "
        f"interval, {interval_text(interval)}. {stability[:1].upper()}{stability[1:]}."
    )
    blocks: list[doc.Block] = [doc.Beside(charts), _percentiles(latency), *_device_times(profile)]
    return doc.Section("latency", "Latency", blocks, about, is_detail=True)


def _percentiles(latency: Samples) -> doc.Table:
    values = {
        "min": latency.minimum,
        **{"median" if q == 50 else f"p{q}": latency.percentile(q) for q in PERCENTILES},
        "max": latency.maximum,
        "mean": latency.mean,
    }
    about = "outside of Tukey's fences; they are counted, not dropped"
    columns = [
        doc.Column("latency", least=8),
        *(doc.Column(name, "number", rank=name != "median") for name in values),
        doc.Column("outliers", "number", about, rank=2),
    ]
    texts = [seconds_text(value) for value in values.values()]
    row = [f"n={latency.count:,}", *texts, str(latency.outliers.total)]
    return doc.Table(columns, [row], is_sortable=False)


def _device_times(profile: Profile) -> Iterator[doc.Table]:
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
        columns = [doc.Column("a call"), doc.Column("median", "number"), doc.Column("95% interval")]
        yield doc.Table(columns, rows, is_sortable=False)


# ---------------------------------------------------------------- caches, counters, caveats


def _cache_section(profile: Profile, top: int) -> doc.Section | None:
    """Return the caches and memory, and where what the slowest layers touch fits."""
    ceilings, size = profile.ceilings, profile.working_set_bytes
    if ceilings is None:
        return None
    home = ceilings.level(size)

    def is_home(each: Bandwidth) -> bool:
        return bool(size) and each.level == home

    def ridge(each: Bandwidth) -> float | None:
        return ceilings.ridge(profile.dtype, each.capacity_bytes)

    def note(each: Bandwidth) -> str:
        return f"<- a call touches {bytes_text(size)}" if is_home(each) else ""

    levels = doc.table_of(
        ceilings.bandwidths,
        doc.column("level", lambda each: each.level),
        (doc.Column("holds", "number"), level_text),
        known_number("bandwidth", lambda each: each.ceiling, bandwidth_text),
        doc.number("compute-bound from", ridge, lambda at: f"{count_text(at)} FLOP/B", rank=1),
        doc.column("", note, rank=2),
        is_sortable=False,
        tone=lambda each: "hot" if is_home(each) else "",
    )
    about = "Measured here, all threads together; below, the largest operation of each layer."
    blocks = (levels, *_cache_fits(profile, top))
    return doc.Section("caches", "Caches and memory of this machine", blocks, about, is_detail=True)


def _cache_fits(profile: Profile, top: int) -> Iterator[doc.Block]:
    def label(fit: CacheFit) -> str:
        return hotspot_label(describe_hotspot(profile, fit.hotspot))

    fits = cache_fits(profile)[: max(top, MORE)]
    if not fits:
        yield doc.Paragraph("No layer moved bytes that were counted.")
        return
    yield from _limited(
        fits,
        doc.column("largest operation of", label),
        known_number("touches", lambda fit: fit.working_set_bytes, bytes_text),
        doc.column("fits in", lambda fit: fit.level, rank=1),
        known_number("bandwidth there", lambda fit: fit.bandwidth, bandwidth_text, rank=3),
        known_number("layer moves", lambda fit: fit.achieved, bandwidth_text, rank=2),
        top=top,
        things="layers",
    )


def _counter_section(counters: Counters) -> doc.Section:
    """Return what the processor counted per call, and why it did not count the rest."""
    blocks: list[doc.Block] = []
    if counters.values:
        event = doc.column("event", str)
        blocks.append(
            doc.table_of(
                counters.values, event, known_number("per call", counters.per_call, count_text)
            )
        )
    for reason in dict.fromkeys(counters.unavailable.values()):
        events = [event for event, why in counters.unavailable.items() if why == reason]
        blocks.append(doc.Paragraph(f"Not available: {', '.join(events)}: {reason}.", "faint"))
    if counters.instructions_per_cycle is not None:
        words = f"{counters.instructions_per_cycle:.2f} instructions per cycle"
        blocks.append(doc.Paragraph(words))
    blocks.append(doc.Bullets(counters.notes, tone="unknown"))
    return doc.Section("counters", "Hardware counters", blocks, is_detail=True)


def _caveats_section(profile: Profile, facts: ProfileFacts) -> doc.Section:
    """Say what the instrumentation cost, and what was not counted."""
    *lines, last = caveat_lines(profile, facts)
    missing = [not_counted_text(each) for each in profile.not_counted]
    bullets = doc.Bullets([*lines, doc.Item(last, missing)], tone="faint")
    return doc.Section("caveats", "Caveats", (bullets,), is_detail=True)


# ---------------------------------------------------------------- how fast a model generates


def generation_section(speeds: Sequence[GenerationSpeed]) -> doc.Section:
    """Return the times of tokens at each batch size."""
    first = speeds[0]
    table = doc.table_of(
        speeds,
        doc.number("batch", lambda each: each.batch, str),
        doc.number("time to first token", lambda each: each.first_token_s, seconds_text),
        doc.number("time per output token", lambda each: each.per_token_s, seconds_text),
        doc.number("tokens per second", lambda each: each.tokens_per_s, "{:.1f}".format),
        doc.number("calls", lambda each: each.whole.count, str),
    )
    about = f"Prompts of {first.prompt_tokens} tokens, {first.new_tokens} new ones each. Medians."
    return doc.Section("generation", "Generation", (table,), about=about)
