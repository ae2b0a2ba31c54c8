"""The page of a profile: what a call costs, why it is slow, and where to look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tinytorch.measure.counters import Counters
from tinytorch.profiling.layers import Layer, LayerRow, layer_rows, shared_name
from tinytorch.profiling.profile import FACTORS, Profile, ProfileFacts, describe_hotspot, find_facts
from tinytorch.profiling.summary import cache_fits
from tinytorch.reporting.html.advice_cards import advice_section
from tinytorch.reporting.html.distribution import latency_section
from tinytorch.reporting.html.flame import flame_section
from tinytorch.reporting.html.markup import Cell, Column, Markup, Row, element, joined, table
from tinytorch.reporting.html.page import Banner, Page, Section, appendix
from tinytorch.reporting.html.roofline import roofline_section
from tinytorch.reporting.html.timeline import memory_section, timeline_section
from tinytorch.reporting.profile_words import (
    USUAL_CONFIDENCE,
    caveat_lines,
    doubts,
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
from tinytorch.tuning.advice import Advice

__all__ = [
    "amdahl_section",
    "cache_section",
    "caveats_section",
    "counter_section",
    "layers_section",
    "operations_section",
    "profile_page",
]


# ---------------------------------------------------------------- the tables of a profile's page
# beside its layers: hotspots, operations, caches, caveats

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


# ---------------------------------------------------------------- the tree of layers as a table:
# repeated blocks are one row, which opens into its members

MOST_MEMBERS = 400
"""So many single layers of repeated blocks have a row; of more, only the blocks have."""
MOST_ROWS = 600
"""More rows make a page slow; the rest is in the raw values."""


@dataclass(frozen=True)
class _Line:
    """A row before it is written: where it is in the tree, and the layer that it shows."""

    label: str
    kind: str
    path: str | None
    parent: str | None
    layer: Layer
    own_s: float
    has_costs: bool = True
    is_hot: bool = False
    is_aside: bool = False
    is_folded: bool = False
    is_heading: bool = False
    is_member: bool = False


def layers_section(profile: Profile) -> Section:
    """Give the layer table of a profile; the own times (`self`) add up to the call."""
    rows = layer_rows(profile)
    members = sum(len(row.paths) for row in rows if row.role == "layer" and len(row.paths) > 1)
    lines = list(_lines(profile, rows, with_members=members <= MOST_MEMBERS))
    shown = lines if len(lines) <= MOST_ROWS else _largest(lines)
    columns, writers = zip(*_columns(profile), strict=True)
    written = [_row(line, writers) for line in shown]
    total = seconds_text(profile.total_s)
    sums = {"layer": "total", "share": "100.0%", "time": total, "self": total}
    whole = Row([Cell(sums.get(each.title, "")) for each in columns], tone="total")
    notes = []
    if members > MOST_MEMBERS:
        notes.append(
            f"The {members:,} layers of repeated blocks have no rows of their own here; the "
            "picture above and the raw values have each of them."
        )
    if len(shown) < len(lines):
        missing = sum(line.own_s for line in lines) - sum(line.own_s for line in shown)
        notes.append(
            f"{len(lines) - len(shown):,} of {len(lines):,} rows are left out, those with the "
            f"least time: {percent_text(missing / profile.total_s)} of the call. They are in the "
            "raw values."
        )
    body = [table(columns, [*written, whole], class_="layers")]
    body += [element("p", note, class_="note") for note in notes]
    return Section("layers", "Layers", joined(body), about=_about(profile))


def _about(profile: Profile) -> str:
    bound = "bound is the ceiling above a layer"
    if profile.ceilings is None:
        bound = "what bounds a layer is not known: the ceilings of this machine were not measured"
    return (
        "Times are per call of the model. Self is what no other row has, so these add up to the "
        f"call. MACs are multiply-accumulates of contractions, FLOP/s counts all floating-point "
        f"work; {bound}. Repeated blocks are one row each with the sum "
        "of all, and open into their members."
    )


# ---------------------------------------------------------------- the tree


def _lines(profile: Profile, rows: Sequence[LayerRow], *, with_members: bool) -> Iterator[_Line]:
    """Give every row its place in the tree, and open repeated blocks into their members."""
    hottest = set(profile.bottleneck.layers) if profile.bottleneck else set()
    layers = {layer.path: layer for layer in profile.layers}
    around: list[str] = []
    names: set[str] = set()
    waiting: list[tuple[int, list[_Line]]] = []  # members of a container come after what is in it
    for place, row in enumerate(rows):
        while waiting and waiting[-1][0] >= row.level:
            yield from waiting.pop()[1]
        del around[row.level :]
        path = _free_name(row, names)
        parent = around[-1] if around else None
        is_layer = row.role == "layer"
        has_children = place + 1 < len(rows) and rows[place + 1].level > row.level
        is_repeated = with_members and is_layer and len(row.paths) > 1
        yield _Line(
            row.label + (f" +{row.hidden}" if row.hidden else ""),
            row.layer.kind if is_layer and row.layer.kind != row.label.strip("<>") else "",
            path,
            parent,
            row.layer,
            row.own_s,
            has_costs=row.role != "unattributed",
            is_hot=bool(row.own_s and row.paths and set(row.paths) <= hottest),
            is_aside=not is_layer,
            is_folded=is_repeated and not has_children,
        )
        around.append(path)
        if is_repeated:
            members = [layers[each] for each in row.paths]
            if has_children:
                waiting.append((row.level, _one_by_one(row, members, path)))
            else:
                yield from _members(members, path)
    while waiting:
        yield from waiting.pop()[1]


def _free_name(row: LayerRow, taken: set[str]) -> str:
    """Name a row in the tree by the layers that it stands for, like no other row."""
    name = shared_name(row.paths) if row.role == "layer" else row.label
    name = name or row.layer.kind
    number = 1
    while (free := name if number == 1 else f"{name} ({number})") in taken:
        number += 1
    taken.add(free)
    return free


def _one_by_one(row: LayerRow, members: Sequence[Layer], parent: str) -> list[_Line]:
    """Give a row, folded, with the members of a repeated container below it."""
    path = f"{parent}, one by one"
    label = f"one by one ({len(members)})"
    head = _Line(
        label, "", path, parent, row.layer, 0.0, is_aside=True, is_folded=True, is_heading=True
    )
    return [head, *_members(members, path)]


def _members(layers: Sequence[Layer], parent: str) -> Iterator[_Line]:
    for layer in layers:
        # Their time is in the row above already, so that it is not theirs in the sum of rows.
        yield _Line(layer.path, "", None, parent, layer, 0.0, is_aside=True, is_member=True)


def _largest(lines: Sequence[_Line]) -> list[_Line]:
    """Give the rows with most time, in their order, each with those around it."""
    places = {line.path: place for place, line in enumerate(lines) if line.path is not None}
    kept: set[int] = set()
    for place in sorted(range(len(lines)), key=lambda i: -lines[i].layer.time_s):
        chain: list[int] = []
        at: int | None = place
        while at is not None and at not in kept:
            chain.append(at)
            parent = lines[at].parent
            at = None if parent is None else places[parent]
        if len(kept) + len(chain) <= MOST_ROWS:
            kept.update(chain)
    return [lines[place] for place in sorted(kept)]


# ---------------------------------------------------------------- the cells

Writer = Callable[[_Line], Cell]


def _row(line: _Line, writers: Sequence[Writer]) -> Row:
    classes = ["hot" if line.is_hot else "", "faint" if line.is_aside else ""]
    return Row(
        [
            write(line) if place == 0 or not line.is_heading else Cell("")
            for place, write in enumerate(writers)
        ],
        path=line.path,
        parent=line.parent,
        is_folded=line.is_folded,
        tone=" ".join(filter(None, classes)),
    )


def _columns(profile: Profile) -> Iterator[tuple[Column, Writer]]:
    """Yield the columns with what writes their cells."""

    def number(
        read: Callable[[Layer], float | None], write: Callable[[float | None], str]
    ) -> Writer:
        def cell(line: _Line) -> Cell:
            value = read(line.layer) if line.has_costs else None
            return _number_cell(value, write)

        return cell

    yield Column("layer"), lambda line: Cell(f"{line.label} {line.kind}".strip())
    yield Column("share", "bar", "of the time of a call"), _share_writer(profile)
    yield Column("time", "number", "with everything inside"), _time
    yield Column("self", "number", "what no other row has"), _own
    if profile.mode == "training":
        about = "of its backward operations, in the recorded call"
        yield Column("backward", "number", about), number(_backward, seconds_text)
    yield Column("MACs", "number"), _macs
    yield Column("FLOP/s", "number"), number(lambda layer: layer.flops_per_s, count_text)
    yield Column("bytes", "number", "read and written"), number(_moved, bytes_text)
    if profile.ceilings is not None:
        yield Column("bound"), _bound_writer(profile)
    about = "share of what was alive at the peak of memory"
    yield Column("peak mem", "number", about), number(profile.peak_share, percent_text)


def _number_cell(value: float | None, write: Callable[[float | None], str]) -> Cell:
    return Cell("") if value is None else Cell(write(value), _short(value))


def _short(value: float) -> float:
    """Keep the digits that decide about the order: thousands of cells have such a number."""
    return float(f"{value:.4g}")


def _share_writer(profile: Profile) -> Writer:
    def cell(line: _Line) -> Cell:
        share = profile.share(line.layer)
        return Cell(percent_text(share), _short(share), bar=None if line.is_member else share)

    return cell


def _bound_writer(profile: Profile) -> Writer:
    def cell(line: _Line) -> Cell:
        found = profile.bound(line.layer) if line.has_costs else None
        return Cell(found.bound if found else "")

    return cell


def _time(line: _Line) -> Cell:
    return _number_cell(line.layer.time_s, seconds_text)


def _own(line: _Line) -> Cell:
    return _number_cell(line.own_s or None, seconds_text)


def _macs(line: _Line) -> Cell:
    # Blocks are only folded when each member does the same.
    unknown = line.is_member or not line.has_costs
    return Cell("") if unknown else _number_cell(line.layer.macs, count_text)


def _moved(layer: Layer) -> float:
    return layer.bytes_moved


def _backward(layer: Layer) -> float | None:
    return layer.backward_s or None


# ---------------------------------------------------------------- the page of a profile: what a
# call costs, why it is slow, and where to look


def profile_page(profile: Profile, *, advice: Sequence[Advice] = ()) -> Page:
    """Lay a profile out on a page, with the words and numbers that the terminal has."""
    facts = find_facts(profile)
    raw = profile.to_dict()
    sections = [
        flame_section(profile),
        layers_section(profile),
        amdahl_section(profile),
        advice_section(advice) if advice else None,
        roofline_section(profile),
        operations_section(profile),
        timeline_section(profile),
        memory_section(profile, facts),
        latency_section(profile, facts),
        cache_section(profile),
        counter_section(profile.counters) if profile.counters is not None else None,
        caveats_section(profile, facts),
        appendix(profile.environment, raw=raw, file_name="profile.json"),
    ]
    shown = [section for section in sections if section is not None]
    return Page(
        title=f"Profile of {profile.name}",
        banner=_banner(profile, facts),
        sections=tuple(shown),
        raw=raw,
        subtitle=setting_words(profile, facts),
    )


def _banner(profile: Profile, facts: ProfileFacts) -> Banner:
    return Banner(
        verdict=f"{seconds_text(profile.latency.median)} per call",
        sentence=" ".join(reasons(profile, facts)),
        facts=tuple(_facts(profile, facts)),
    )


def _facts(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str]]:
    """Yield the numbers that matter, without the words that the terminal has room for."""
    latency = profile.latency
    interval = latency.median_interval(USUAL_CONFIDENCE)
    if latency.count > 1:
        confidence = min(interval.coverage, USUAL_CONFIDENCE)
        yield f"median, {confidence:.0%} interval, n={latency.count:,}", interval_text(interval)
    else:
        yield "calls", "one; how much it varies is not known"
    if profile.throughput is not None:
        yield "throughput", f"{count_text(profile.throughput)} examples/s"
    if profile.idle_share is not None:
        yield "the device waits", percent_text(profile.idle_share)
    yield from _work(profile, facts)
    if facts.peak_bytes:
        yield "peak memory", bytes_text(facts.peak_bytes)
    held = f"{count_text(profile.parameter_count)}, {bytes_text(profile.parameter_bytes)}"
    yield "parameters", held


def _work(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str]]:
    if not profile.operations:
        yield "work", "no operation was recorded"
        return
    yield "multiply-accumulates", count_text(profile.macs)
    if not facts.flops_per_s:
        yield "moved", bytes_text(profile.bytes_moved)
        return
    yield "reached", rate_text(facts.flops_per_s)
    share = "not measured" if facts.of_peak is None else percent_text(facts.of_peak)
    yield f"of the {facts.dtype} peak", share
