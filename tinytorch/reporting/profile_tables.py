"""The tables of a profile below its layers: hotspots, operations, memory, caches, caveats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.measure.counters import Counters
from tinytorch.profiling.layers import LayerRow, layer_rows
from tinytorch.profiling.profile import (
    FACTORS,
    BottleneckFacts,
    Profile,
    ProfileFacts,
    describe_hotspot,
)
from tinytorch.profiling.summary import cache_fits
from tinytorch.reporting.profile_words import caveat_lines, doubts, hotspot_label, not_counted_text
from tinytorch.reporting.quantities import (
    Column,
    FittingTable,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
    share_bar,
    sparkline,
)

__all__ = [
    "amdahl_table",
    "cache_view",
    "caveats",
    "counter_table",
    "layer_table",
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


# ---------------------------------------------------------------- the tree of layers as a table

OF_TIME = ("share", "time", "self")


def layer_table(
    profile: Profile, *, depth: int | None = None, expand: bool = False
) -> FittingTable:
    """Lay out the layers of a profile; the own times (`self`) add up to the call."""
    rows = layer_rows(profile, depth=depth, expand=expand)
    total = seconds_text(profile.total_s)
    sums = {"share": _share_text(1.0), "time": total, "self": total}
    hottest = set(profile.bottleneck.layers) if profile.bottleneck else set()
    return FittingTable(
        "layer",
        [*(_label(row) for row in rows), Text("total")],
        [
            Column(title, [*cells, sums.get(title, "")], rank)
            for title, rank, cells in _columns(profile, rows)
        ],
        [*(_style(row, hottest) for row in rows), "bold"],
    )


def _columns(profile: Profile, rows: Sequence[LayerRow]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield title, rank and cells; what a narrow terminal can do without has a high rank."""
    bounds = [profile.bound(row.layer) for row in rows]

    def each(text: Callable[[LayerRow], str], *, costs: bool = True) -> list[str]:
        # What happens outside of the model has a time, and no costs of its own.
        return ["" if costs and row.role == "unattributed" else text(row) for row in rows]

    yield "share", 0, each(lambda row: _share_text(profile.share(row.layer)), costs=False)
    yield "time", 1, each(lambda row: seconds_text(row.layer.time_s), costs=False)
    yield "self", 2, each(_self_text, costs=False)
    if profile.mode == "training":
        yield "backward", 3, each(_backward_text)
    yield "calls", 12, each(lambda row: count_text(row.layer.calls))
    yield "MACs", 5, each(lambda row: count_text(row.layer.macs))
    yield "FLOP/s", 6, each(lambda row: count_text(row.layer.flops_per_s))
    yield "bytes", 10, each(lambda row: bytes_text(row.layer.bytes_moved))
    yield "FLOP/B", 11, each(lambda row: count_text(row.layer.intensity))
    if profile.ceilings is not None:
        yield "bound", 4, [bound.bound if bound else "" for bound in bounds]
        yield "of peak", 7, [percent_text(b.efficiency) if b else "" for b in bounds]
    yield "params", 8, each(lambda row: count_text(row.layer.parameters))
    yield "activ.", 9, each(lambda row: bytes_text(row.layer.activation_bytes))
    yield "peak mem", 13, each(lambda row: percent_text(profile.peak_share(row.layer)))


def _share_text(share: float) -> str:
    return f"{share_bar(share, BAR_WIDTH)} {percent_text(share):>6}"


def _self_text(row: LayerRow) -> str:
    """Write the time that is in no other row; a container that stands open has none."""
    return seconds_text(row.own_s) if row.own_s else ""


def _backward_text(row: LayerRow) -> str:
    return seconds_text(row.layer.backward_s) if row.layer.backward_s else ""


def _label(row: LayerRow) -> Text:
    label = Text("  " * row.level + row.label)
    if row.hidden:
        label.append(f" +{row.hidden}", style="dim")
    if row.role == "layer" and row.layer.kind != row.label.strip("<>"):
        label.append(f" {row.layer.kind}", style="dim")
    return label


def _style(row: LayerRow, hottest: set[str]) -> str:
    if row.own_s and row.paths and set(row.paths) <= hottest:
        return "yellow"
    return "dim" if row.role != "layer" else ""
