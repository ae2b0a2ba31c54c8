"""A profile in the terminal: what it costs, why it is slow, and where to look."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Interval
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.layer_table import layer_table
from tinytorch.reporting.profile_tables import (
    amdahl_table,
    cache_view,
    caveats,
    counter_table,
    memory_view,
    operation_table,
)
from tinytorch.reporting.quantities import (
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.reporting.roofline import roofline_view
from tinytorch.workloads.profile import BACKWARD, UPDATE, Profile
from tinytorch.workloads.profile_facts import (
    FACTORS,
    BottleneckFacts,
    DeviceFacts,
    ProfileFacts,
    find_facts,
)

__all__ = ["profile_html", "render_profile", "render_profiles"]

USUAL_CONFIDENCE = 0.95
HTML = '<pre style="font-family:monospace;line-height:1.2;overflow-x:auto">{code}</pre>'
MOSTLY = 0.5
FAR_BELOW = 0.1
"""Work that reaches less of what its ceiling allows is hardly held back by that ceiling."""


def render_profile(
    profile: Profile, *, depth: int | None = None, top: int = 8, expand: bool = False
) -> RenderableType:
    """Lay a profile out, top to bottom.

    `depth` limits the levels of the layer tree, `top` the rows of the tables of operations and
    hotspots; `expand` shows repeated blocks one by one.
    """
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    facts = find_facts(profile)
    roofline = roofline_view(profile, top)
    sections = [
        _title(profile, facts),
        _headline(profile, facts),
        _section("Why", Text(" ".join(_reasons(profile, facts)))),
        _section("Layers", layer_table(profile, depth=depth, expand=expand)),
        _section("What a faster part would bring (Amdahl's law)", amdahl_table(profile, top)),
        *([] if roofline is None else [_section("Roofline", roofline)]),
        _section("Operations, in the recorded call", operation_table(profile, top)),
        _section("Memory, in the recorded call", memory_view(profile, facts)),
    ]
    if profile.ceilings is not None:
        sections.append(_section("Caches and memory of this machine", cache_view(profile, top)))
    if profile.counters is not None:
        sections.append(_section("Hardware counters", counter_table(profile.counters)))
    sections.append(_section("What to keep in mind", caveats(profile, facts)))
    return Group(*sections)


def profile_html(profile: Profile, *, width: int = 140) -> str:
    """Give a profile as a piece of HTML, for notebooks."""
    console = Console(file=io.StringIO(), width=width, record=True, markup=False)
    console.print(render_profile(profile))
    return console.export_html(inline_styles=True, code_format=HTML)


def render_profiles(profiles: Sequence[Profile]) -> RenderableType:
    """Lay several profiles out side by side, one row each."""
    if not profiles:
        raise SettingError("no profiles to show; give at least one")
    found = [(profile, find_facts(profile)) for profile in profiles]
    settings = sorted({f"{each.mode} on {each.device}" for each in profiles})
    legend = (
        f"Medians of {' and '.join(settings)}. MACs are multiply-accumulates of contractions; "
        "FLOP/B is all floating-point work over the bytes moved; the bottleneck is what takes "
        "most of the time itself, the bound is that of the whole model."
    )
    notes = [f"- {each.name}: {note}" for each in profiles for note in each.notes]
    return Group(
        FittingTable(
            "model",
            [Text(profile.name, style="bold") for profile in profiles],
            [
                Column("latency", [seconds_text(p.latency.median) for p, _ in found]),
                Column(
                    "95% interval",
                    [_interval_text(p.latency.median_interval()) for p, _ in found],
                    7,
                ),
                Column("examples/s", [count_text(p.throughput) for p, _ in found], 5),
                Column("params", [count_text(p.parameter_count) for p, _ in found], 2),
                Column("MACs", [count_text(p.macs) for p, _ in found], 1),
                Column("FLOP/B", [count_text(facts.intensity) for _, facts in found], 6),
                Column("peak mem", [bytes_text(facts.peak_bytes) for _, facts in found], 1),
                Column(
                    "bottleneck", [_bottleneck_words(facts) for _, facts in found], 2, "left", 20
                ),
                Column("bound", [facts.bound or "" for _, facts in found], 4, "left"),
            ],
        ),
        Text(""),
        Text(legend, style="dim"),
        *(Text(note, style="yellow") for note in notes),
    )


# ---------------------------------------------------------------- the head


def _title(profile: Profile, facts: ProfileFacts) -> Text:
    batch = [] if facts.batch is None else [f"batch {facts.batch}"]
    model = profile.kinds.get("", "")
    kind = [] if model == profile.name else [model]
    words = [*kind, profile.framework, profile.device, profile.mode, facts.dtype, *batch]
    return Text.assemble((profile.name, "bold"), "  ", (", ".join(filter(None, words)), "dim"))


def _headline(profile: Profile, facts: ProfileFacts) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in _head_rows(profile, facts):
        grid.add_row(name, text)
    return grid


def _head_rows(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, Text | str]]:
    latency = profile.latency
    interval = latency.median_interval(USUAL_CONFIDENCE)
    confidence = min(interval.confidence, USUAL_CONFIDENCE)
    doubt = f"median; {confidence:.0%} interval {_interval_text(interval)}, n={latency.count}"
    if latency.count == 1:
        doubt = "of one call; how much it varies is not known"
    yield "latency", Text.assemble((seconds_text(latency.median), "bold"), f"  {doubt}")
    if profile.throughput is not None:
        yield "throughput", f"{count_text(profile.throughput)} examples/s"
    yield from _work_rows(profile, facts)
    held = bytes_text(profile.parameter_bytes)
    if profile.buffer_bytes:
        held += f", with buffers {bytes_text(profile.parameter_bytes + profile.buffer_bytes)}"
    yield "parameters", f"{count_text(profile.parameter_count)}, {held}"
    if profile.operations:
        made = f"the call itself made {bytes_text(profile.memory.peak_activation_bytes)}"
        yield "peak memory", f"{bytes_text(facts.peak_bytes)}; {made}"
    elif facts.peak_bytes:
        unseen = "what the call itself makes was not seen"
        yield "peak memory", f"{bytes_text(facts.peak_bytes)}; {unseen}"


def _work_rows(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str]]:
    """Give what a call computes and how fast, or what it moves if it computes nothing."""
    if not profile.operations:
        yield "work", "not known: no operation was recorded"
        return
    if not facts.flops_per_s and profile.bytes_moved:
        yield "work", f"no FLOP; {bytes_text(profile.bytes_moved)} moved"
        yield "reached", _bandwidth_text(profile, facts)
        return
    yield (
        "work",
        f"{rate_text(profile.flops, 'FLOP')} ({count_text(profile.macs)} multiply-accumulates of "
        f"contractions, two FLOP each) and {rate_text(profile.other_flops, 'FLOP')} of other kinds",
    )
    if profile.causal_macs < profile.macs:
        hidden = f"{count_text(profile.causal_macs)} multiply-accumulates"
        yield "", f"without what causal masks hide {hidden}"
    reached = rate_text(facts.flops_per_s)
    if facts.of_peak is not None and profile.ceilings is not None:
        peak = rate_text(profile.ceilings.peak_flops(facts.dtype))
        share = percent_text(facts.of_peak)
        reached += f", {share} of the {facts.dtype} peak measured here, {peak}"
    yield "reached", reached


def _bandwidth_text(profile: Profile, facts: ProfileFacts) -> str:
    reached = rate_text(profile.bytes_moved / profile.latency.median, "B/s")
    if facts.of_attainable is None or profile.ceilings is None:
        return reached
    size = profile.working_set_bytes
    level, most = profile.ceilings.level(size), profile.ceilings.bandwidth(size)
    share = f"{percent_text(facts.of_attainable)} of the bandwidth of {level}"
    return f"{reached}, {share} measured here, {rate_text(most, 'B/s')}"


def _reasons(profile: Profile, facts: ProfileFacts) -> Iterator[str]:
    """Give the sentences that say why the model takes its time."""
    found = facts.bottleneck
    is_starved = facts.device is not None and (facts.device.idle_share or 0) > MOSTLY
    if is_starved and facts.device is not None:
        yield _device_sentence(facts.device)
    yield _bottleneck_sentence(profile, facts)
    if found is not None and found.speedups[2.0] is not None:
        yield (
            f"Twice as fast, it would make the whole {factor_text(found.speedups[2.0])} faster; "
            f"taking no time at all, {factor_text(found.speedups[FACTORS[-1]])}."
        )
    between = facts.container_share + facts.unattributed_share
    if found is not None and not found.is_model and between > found.share:
        yield (
            f"{percent_text(between)} of the time is spent between the layers, "
            "in Python and in what containers compute themselves."
        )
    if facts.device is not None and not is_starved:
        yield _device_sentence(facts.device)


def _bottleneck_sentence(profile: Profile, facts: ProfileFacts) -> str:
    found = facts.bottleneck
    if found is None:
        text = "No layer ran: everything that this model does is code outside of layers."
        if facts.bound is None:
            return text
        return f"{text} As a whole it is {_limit(facts.bound, facts.of_attainable)}"
    start = f"{_place(found)} takes {percent_text(found.share)} of the time"
    start += "" if found.is_model and found.is_leaf else " itself"
    if found.bound is None:
        reason = "nothing that it does has a counted cost"
        if profile.ceilings is None:
            reason = "the ceilings of this machine were not measured"
        return f"{start}; what limits it is not known: {reason}."
    return f"{start}. It is {_limit(found.bound, found.of_attainable)}"


def _place(found: BottleneckFacts) -> str:
    """Name a bottleneck as the subject of a sentence."""
    if found.layers == (BACKWARD,):
        return "The whole backward pass"
    if found.layers == (UPDATE,):
        return "The optimizer's update"
    many = f"{len(found.layers)}x " if len(found.layers) > 1 else ""
    name = found.name
    if found.is_model:
        name = "The model itself" if found.is_leaf else "What the model does outside of its layers"
    return f"{name} ({many}{found.kind})"


def _limit(bound: str, of_attainable: float | None) -> str:
    """Say what is in the way, and whether it is: the end of a sentence."""
    limit = "computing" if bound == "compute" else "moving bytes"
    reached = f"{percent_text(of_attainable)} of what this machine allows there"
    text = f"{bound}-bound: {limit} is the limit, and it reaches {reached}"
    if of_attainable is not None and of_attainable < FAR_BELOW:
        reasons = "small sizes, calls, Python, a busy machine"
        return f"{text}, so something else takes most of its time: {reasons}."
    return f"{text}."


def _device_sentence(device: DeviceFacts) -> str:
    text = (
        f"By the wall clock a call takes {seconds_text(device.wall_s)}, on the device's time line "
        f"{seconds_text(device.device_s)}"
    )
    if device.busy_s is None or device.idle_share is None:
        return f"{text}."
    return (
        f"{text}, of which its kernels need {seconds_text(device.busy_s)}: the device waits for "
        f"the program in {percent_text(device.idle_share)} of the time. Shares of layers are of "
        "the kernels' time."
    )


def _bottleneck_words(facts: ProfileFacts) -> str:
    found = facts.bottleneck
    if found is None:
        return ""
    return f"{percent_text(found.share)} {found.name or 'the model itself'}"


def _interval_text(interval: Interval) -> str:
    return f"{seconds_text(interval.low)} to {seconds_text(interval.high)}"


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, style="bold"), body)
