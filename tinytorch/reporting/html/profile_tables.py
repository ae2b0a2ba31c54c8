"""The tables of a profile's page beside its layers: hotspots, operations, caches, caveats."""

from __future__ import annotations

from tinytorch.measure.counters import Counters
from tinytorch.perf.profiling.cache import cache_fits
from tinytorch.reporting.hotspot_label import hotspot_label
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.tables import Cell, Column, Row, table
from tinytorch.reporting.profile_words import caveat_lines, doubts, not_counted_text
from tinytorch.reporting.quantities import (
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.profile_facts import FACTORS, ProfileFacts, describe_hotspot

__all__ = [
    "amdahl_section",
    "cache_section",
    "caveats_section",
    "counter_section",
    "operations_section",
]

TOP = 12
"""Rows of the tables of hotspots and operations that are shown at once."""
MOST = 200


def amdahl_section(profile: Profile) -> Section:
    """Give what the whole would gain if its slowest layers were faster, by Amdahl's law."""
    slowest = [hotspot for hotspot in profile.hotspots[:TOP] if hotspot.self_s > 0]
    found = [describe_hotspot(profile, hotspot) for hotspot in slowest]
    title = "If a part were faster"
    if not found:
        return Section("faster", title, element("p", "No layer ran.", class_="note"))
    rows: list[list[Cell | str]] = [
        [
            hotspot_label(each).plain,
            Cell(percent_text(each.share), each.share, bar=each.share),
            *(Cell(factor_text(each.speedups[f]), each.speedups[f]) for f in FACTORS),
            each.bound or "",
            Cell(_attained(each.of_attainable), each.of_attainable),
        ]
        for each in found
    ]
    columns = [
        Column("if it were faster"),
        Column("share", "bar", "of the time of a call"),
        *(Column("inf" if f == FACTORS[-1] else f"{f:g}x", "number") for f in FACTORS),
        Column("bound"),
        Column("attained", "number", "of what its ceiling allows"),
    ]
    about = (
        "What the whole call would gain if these layers alone were 2, 4, 10 times faster, or took "
        "no time at all (Amdahl's law). Nothing done to a layer brings more than its last number."
    )
    return Section("faster", title, table(columns, rows), about=about)


def operations_section(profile: Profile) -> Section:
    """Give the kinds of operations of the recorded call, slowest first."""
    groups = profile.top_operations
    if not groups:
        note = element("p", "No operation was seen.", class_="note")
        return Section("operations", "Operations", note)
    is_training = profile.mode == "training"
    rows = []
    for group in groups[:MOST]:
        cells = [
            Cell(group.kind),
            Cell(group.family),
            *([Cell(group.phase)] if is_training else []),
            Cell(str(group.calls), group.calls),
            Cell(percent_text(group.share), group.share, bar=group.share),
            Cell(seconds_text(group.seconds), group.seconds),
            Cell(count_text(group.macs), group.macs),
            Cell(bytes_text(group.bytes_moved), group.bytes_moved),
        ]
        rows.append(Row(cells))
    columns = [
        Column("operation"),
        Column("family"),
        *([Column("phase")] if is_training else []),
        Column("calls", "number"),
        Column("share", "bar", "of the time of all operations"),
        Column("time", "number"),
        Column("MACs", "number"),
        Column("bytes", "number", "read and written"),
    ]
    shown = table(columns, rows[:TOP])
    rest = rows[TOP:]
    parts = [shown]
    if rest:
        more = f"{len(rest)} more kinds of operations"
        parts.append(element("details", element("summary", more), table(columns, rest)))
    if len(groups) > MOST:
        cut = f"{len(groups) - MOST} more kinds are only in the raw values."
        parts.append(element("p", cut, class_="note"))
    about = "By kind, in the recorded call, which is slower: the times say how they relate."
    return Section("operations", "Operations", joined(parts), about=about)


def cache_section(profile: Profile) -> Section | None:
    """Give caches and memory of the machine, and where what the slowest layers touch fits."""
    ceilings, size = profile.ceilings, profile.working_set_bytes
    if ceilings is None:
        return None
    home = ceilings.level(size)
    rows = []
    for each in ceilings.bandwidths:
        ridge = ceilings.ridge(profile.dtype, each.capacity_bytes)
        is_home = bool(size) and each.level == home
        cells = [
            Cell(each.level),
            Cell("the rest" if each.capacity_bytes is None else bytes_text(each.capacity_bytes)),
            Cell(rate_text(each.ceiling, "B/s"), each.ceiling),
            Cell("-" if ridge is None else f"{count_text(ridge)} FLOP/B", ridge),
            Cell(f"a call touches {bytes_text(size)}" if is_home else ""),
        ]
        rows.append(Row(cells))
    columns = [
        Column("level"),
        Column("holds", "number"),
        Column("bandwidth", "number"),
        Column("compute-bound from", "number"),
        Column(""),
    ]
    body = joined([table(columns, rows, sortable=False), _fit_table(profile)])
    about = "As measured here, all threads together; the largest operation of each layer below."
    return Section("caches", "Caches and memory of this machine", body, about=about)


def _fit_table(profile: Profile) -> Markup:
    found = cache_fits(profile)[:TOP]
    if not found:
        return element("p", "No layer moved bytes that were counted.", class_="note")
    rows = [
        (
            hotspot_label(describe_hotspot(profile, fit.hotspot)).plain,
            Cell(bytes_text(fit.working_set_bytes), fit.working_set_bytes),
            fit.level,
            Cell(rate_text(fit.bandwidth, "B/s"), fit.bandwidth),
            Cell(rate_text(fit.achieved, "B/s"), fit.achieved),
        )
        for fit in found
    ]
    columns = [
        Column("largest operation of"),
        Column("touches", "number"),
        Column("fits in"),
        Column("which gives", "number"),
        Column("layer moves", "number"),
    ]
    return table(columns, rows)


def counter_section(counters: Counters) -> Section:
    """Give what the processor counted per call, and why it did not count the rest."""
    parts = []
    if counters.values:
        rows = [
            (event, Cell(count_text(counters.per_call(event)), counters.per_call(event)))
            for event in counters.values
        ]
        parts.append(table([Column("event"), Column("per call", "number")], rows))
    lines = [
        f"Not available: {', '.join(_unavailable(counters, reason))}: {reason}."
        for reason in dict.fromkeys(counters.unavailable.values())
    ]
    if counters.instructions_per_cycle is not None:
        lines.append(f"{counters.instructions_per_cycle:.2f} instructions per cycle")
    parts += [element("p", line, class_="note") for line in (*lines, *counters.notes)]
    return Section("counters", "Hardware counters", joined(parts))


def caveats_section(profile: Profile, facts: ProfileFacts) -> Section:
    """Say what watching cost, what was not counted, and what speaks against the numbers."""
    lines = [element("li", line) for line in caveat_lines(profile, facts)]
    if profile.not_counted:
        inside = [element("li", not_counted_text(each)) for each in profile.not_counted]
        lines[-1] = element(
            "li", caveat_lines(profile, facts)[-1], element("ul", *inside, class_="notes")
        )
    lines += [element("li", doubt, class_="warn") for doubt in doubts(profile)]
    body = element("ul", *lines, class_="notes")
    return Section("caveats", "What to keep in mind", body)


def _unavailable(counters: Counters, reason: str) -> list[str]:
    return [event for event, why in counters.unavailable.items() if why == reason]


def _attained(share: float | None) -> str:
    return "" if share is None else percent_text(share)
