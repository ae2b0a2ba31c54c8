"""The tables of a profile below its layers: hotspots, operations, memory, caches, caveats."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.measure.counters import Counters
from tinytorch.perf.profiling.cache import cache_fits
from tinytorch.reporting.bars import share_bar
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.hotspot_label import hotspot_label
from tinytorch.reporting.profile_words import caveat_lines, doubts, not_counted_text
from tinytorch.reporting.quantities import (
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.reporting.text_graphics import sparkline
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.profile_facts import (
    FACTORS,
    BottleneckFacts,
    ProfileFacts,
    describe_hotspot,
)

__all__ = [
    "amdahl_table",
    "cache_view",
    "caveats",
    "counter_table",
    "memory_view",
    "operation_table",
]

BAR_WIDTH = 6
TIMELINE_WIDTH = 40


def amdahl_table(profile: Profile, top: int) -> RenderableType:
    """Lay out what the whole would gain if its slowest layers were faster, by Amdahl's law."""
    slowest = [hotspot for hotspot in profile.hotspots[:top] if hotspot.self_s > 0]
    found = [describe_hotspot(profile, hotspot) for hotspot in slowest]
    if not found:
        return Text("no layer ran", style="dim")
    gains = [
        Column(
            "inf" if factor == FACTORS[-1] else f"{factor:g}x",
            [factor_text(each.speedups[factor]) for each in found],
            rank=1,
        )
        for factor in FACTORS
    ]
    return FittingTable(
        "if it were faster",
        [hotspot_label(each) for each in found],
        [
            Column("share", [percent_text(each.share) for each in found]),
            *gains,
            Column("bound", [each.bound or "" for each in found], 2, "left"),
            Column("attained", [_attained(each) for each in found], 3),
        ],
        label_least=38,
    )


def operation_table(profile: Profile, top: int) -> RenderableType:
    """Lay out the kinds of operations that took most of the recorded call."""
    groups = profile.top_operations[:top]
    if not groups:
        return Text("no operation was seen", style="dim")
    is_training = profile.mode == "training"
    return FittingTable(
        "operation",
        [Text(group.kind) for group in groups],
        [
            Column("family", [group.family for group in groups], 2, "left"),
            Column("phase", [group.phase if is_training else "" for group in groups], 1, "left"),
            Column("calls", [str(group.calls) for group in groups], 3),
            Column(
                "share",
                [f"{share_bar(g.share, BAR_WIDTH)} {percent_text(g.share):>6}" for g in groups],
            ),
            Column("time", [seconds_text(group.seconds) for group in groups]),
            Column("MACs", [count_text(group.macs) for group in groups], 4),
            Column("bytes", [bytes_text(group.bytes_moved) for group in groups], 5),
        ],
    )


def memory_view(profile: Profile, facts: ProfileFacts) -> RenderableType:
    """Show what was alive at the peak, and the level over the recorded call."""
    levels = profile.memory.series(TIMELINE_WIDTH, from_first_change=True)["total"]
    if not levels:
        return Text("no buffer was seen", style="dim")
    shares = facts.peak_composition
    held = profile.memory.peak_by_category
    table = FittingTable(
        "at the peak",
        [Text(category) for category in shares],
        [
            Column("bytes", [bytes_text(held[category]) for category in shares]),
            Column(
                "share",
                [f"{share_bar(s, BAR_WIDTH)} {percent_text(s):>6}" for s in shares.values()],
            ),
        ],
    )
    line = Text.assemble(
        ("over the call ", "dim"),
        sparkline(levels, TIMELINE_WIDTH),
        (f" {bytes_text(min(levels))} to {bytes_text(max(levels))}", "dim"),
    )
    return Group(table, line)


def cache_view(profile: Profile, top: int) -> RenderableType:
    """Show the caches and the memory, and where what the slowest layers touch has its place."""
    ceilings, size = profile.ceilings, profile.working_set_bytes
    if ceilings is None:
        return Text("the ceilings of this machine were not measured", style="dim")
    levels, home = ceilings.bandwidths, ceilings.level(size)
    ridges = [ceilings.ridge(profile.dtype, each.capacity_bytes) for each in levels]
    here = f"<- a call touches {bytes_text(size)}" if size else ""
    table = FittingTable(
        "level",
        [Text(each.level) for each in levels],
        [
            Column("holds", [_capacity(each.capacity_bytes) for each in levels]),
            Column("bandwidth", [rate_text(each.ceiling, "B/s") for each in levels]),
            Column("compute-bound from", [_ridge_text(ridge) for ridge in ridges], 1),
            Column("", [here if each.level == home else "" for each in levels], 2, "left"),
        ],
        ["yellow" if here and each.level == home else "" for each in levels],
    )
    return Group(table, Text(""), _fit_table(profile, top))


def _fit_table(profile: Profile, top: int) -> RenderableType:
    """Lay out the largest operation of each of the slowest layers: where it fits, what it moves."""
    found = cache_fits(profile)[:top]
    if not found:
        return Text("no layer moved bytes that were counted", style="dim")
    return FittingTable(
        "largest operation of",
        [hotspot_label(describe_hotspot(profile, fit.hotspot)) for fit in found],
        [
            Column("touches", [bytes_text(fit.working_set_bytes) for fit in found]),
            Column("fits in", [fit.level for fit in found], 1, "left"),
            Column("which gives", [rate_text(fit.bandwidth, "B/s") for fit in found], 3),
            Column("layer moves", [rate_text(fit.achieved, "B/s") for fit in found], 2),
        ],
    )


def counter_table(counters: Counters) -> RenderableType:
    """Show what the processor counted per call, and why it did not count the rest."""
    lines: list[RenderableType] = []
    if counters.values:
        table = Table(box=None, pad_edge=False)
        table.add_column("event")
        table.add_column("per call", justify="right")
        for event in counters.values:
            table.add_row(event, count_text(counters.per_call(event)))
        lines.append(table)
    for reason in dict.fromkeys(counters.unavailable.values()):
        events = [event for event, why in counters.unavailable.items() if why == reason]
        lines.append(Text(f"Not available: {', '.join(events)}: {reason}.", style="dim"))
    if counters.instructions_per_cycle is not None:
        lines.append(Text(f"{counters.instructions_per_cycle:.2f} instructions per cycle"))
    lines += [Text(f"- {note}", style="yellow") for note in counters.notes]
    return Group(*lines)


def caveats(profile: Profile, facts: ProfileFacts) -> RenderableType:
    """Say what watching cost, what was not counted, and what speaks against the numbers."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column()
    for line in caveat_lines(profile, facts):
        grid.add_row("-", line, style="dim")
    for each in profile.not_counted:
        grid.add_row("", f"  {not_counted_text(each)}")
    for doubt in doubts(profile):
        grid.add_row("-", doubt, style="yellow")
    return grid


def _attained(found: BottleneckFacts) -> str:
    return "" if found.of_attainable is None else percent_text(found.of_attainable)


def _capacity(size: int | None) -> str:
    return "the rest" if size is None else bytes_text(size)


def _ridge_text(ridge: float | None) -> str:
    return "-" if ridge is None else f"{count_text(ridge)} FLOP/B"
