"""The tree of layers as a section: repeated blocks are one row, which opens on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinytorch.profiling.layers import Layer, LayerRow, layer_rows, shared_name
from tinytorch.profiling.profile import Profile
from tinytorch.reporting.document import (
    Block,
    Cell,
    Column,
    Field,
    Folded,
    Paragraph,
    Row,
    Section,
    Table,
)
from tinytorch.reporting.quantities import bytes_text, count_text, percent_text, seconds_text

MOST_MEMBERS = 400
"""Most single layers of repeated blocks with a row; of more, only the blocks have one."""
MOST_ROWS = 600
"""More rows make a page slow; the rest is in the raw values."""


@dataclass(frozen=True)
class _Line:
    """A row before it is written: where it is in the tree, and the layer that it shows."""

    label: str
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


def number_cell(value: float | None, write: Callable[[float | None], str]) -> Cell:
    """Return a cell whose number keeps the digits that decide about the order."""
    return Cell("") if value is None else Cell(write(value), float(f"{value:.4g}"))


def share_cell(share: float) -> Cell:
    return Cell(percent_text(share), float(f"{share:.4g}"), bar=share)


def known_number(
    title: str,
    read: Callable[[Any], float | None],
    write: Callable[[Any], str],
    about: str = "",
    **rest: Any,
) -> Field:
    """Return a column of numbers that stays blank where one is unknown."""
    return Column(title, "number", about, **rest), lambda item: number_cell(read(item), write)


def share_of(title: str, read: Callable[[Any], float], about: str = "", **rest: Any) -> Field:
    """Return a column of shares with a bar each."""
    return Column(title, "bar", about, **rest), lambda item: share_cell(read(item))


def layers_section(profile: Profile, *, depth: int | None = None, expand: bool = False) -> Section:
    """Return the layers of a profile; the own times (`self`) add up to the call."""
    rows = layer_rows(profile, depth=depth, expand=expand)
    members = sum(len(row.paths) for row in rows if row.role == "layer" and len(row.paths) > 1)
    lines = list(_lines(profile, rows, with_members=members <= MOST_MEMBERS))
    shown = lines if len(lines) <= MOST_ROWS else _largest(lines)
    columns, writers = zip(*_columns(profile), strict=True)
    total = seconds_text(profile.total_s)
    sums = {
        "layer": Cell("total"),
        "share": share_cell(1.0),
        "time": Cell(total),
        "self": Cell(total),
    }
    whole = Row([sums.get(each.title, Cell("")) for each in columns], tone="total")
    blocks: list[Block] = [Table(columns, [*(_row(line, writers) for line in shown), whole])]
    if members > MOST_MEMBERS:
        words = (
            f"The {members:,} layers of repeated blocks have no rows of their own here; the "
            "flame graph and the raw values have each of them."
        )
        blocks.append(Folded("Repeated blocks", (Paragraph(words, "faint"),), is_open=True))
    if len(shown) < len(lines):
        missing = sum(line.own_s for line in lines) - sum(line.own_s for line in shown)
        words = (
            f"{len(lines) - len(shown):,} of {len(lines):,} rows are left out, those with the "
            f"least time: {percent_text(missing / profile.total_s)} of the call. They are in the "
            "raw values."
        )
        blocks.append(Paragraph(words, "faint"))
    return Section("layers", "Layers", blocks, _layers_about(profile), is_detail=True)


def _layers_about(profile: Profile) -> str:
    bound = "bound is the ceiling above a layer"
    if profile.ceilings is None:
        bound = "bounds are unknown: the ceilings of this machine were not measured"
    return (
        "Times are per call of the model; self is in no other row, so these add up to the call. "
        "MACs are multiply-accumulates of contractions, FLOP/s counts all floating-point work; "
        f"{bound}. Repeated blocks are one row each with their sum."
    )


def _lines(profile: Profile, rows: Sequence[LayerRow], *, with_members: bool) -> Iterator[_Line]:
    """Set the place of every row in the tree, and expand repeated blocks into their members."""
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
            _label(row),
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


def _label(row: LayerRow) -> str:
    kind = row.layer.kind if row.role == "layer" else ""
    hidden = f"+{row.hidden}" if row.hidden else ""
    return " ".join(
        filter(None, (row.label, hidden, "" if kind == row.label.strip("<>") else kind))
    )


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
    """Return a row, folded, with the members of a repeated container below it."""
    path = f"{parent}, one by one"
    label = f"one by one ({len(members)})"
    head = _Line(
        label, path, parent, row.layer, 0.0, is_aside=True, is_folded=True, is_heading=True
    )
    return [head, *_members(members, path)]


def _members(layers: Sequence[Layer], parent: str) -> Iterator[_Line]:
    for layer in layers:
        # Their time is in the row above already, so that it is not theirs in the sum of rows.
        yield _Line(layer.path, None, parent, layer, 0.0, is_aside=True, is_member=True)


def _largest(lines: Sequence[_Line]) -> list[_Line]:
    """Return the rows with most time, in their order, each with those around it."""
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


Writer = Callable[[_Line], Cell]


def _row(line: _Line, writers: Sequence[Writer]) -> Row:
    return Row(
        [
            write(line) if place == 0 or not line.is_heading else Cell("")
            for place, write in enumerate(writers)
        ],
        path=line.path,
        parent=line.parent,
        is_folded=line.is_folded,
        tone="hot" if line.is_hot else "faint" if line.is_aside else "",
    )


def _columns(profile: Profile) -> Iterator[tuple[Column, Writer]]:
    """Yield the columns with what writes their cells; a narrow terminal drops high ranks."""

    def number(
        title: str,
        rank: int,
        read: Callable[[Layer], float | None],
        write: Callable[[float | None], str],
        about: str = "",
        *,
        is_shared: bool = False,
    ) -> tuple[Column, Writer]:
        def cell(line: _Line) -> Cell:
            # Outside of the model is no cost; members of a block do the same each.
            is_blank = not line.has_costs or (is_shared and line.is_member)
            return number_cell(None if is_blank else read(line.layer), write)

        return Column(title, "number", about, rank), cell

    def share(line: _Line) -> Cell:
        found = share_cell(profile.share(line.layer))
        return Cell(found.text, found.sort) if line.is_member else found

    yield Column("layer"), lambda line: Cell(line.label)
    yield Column("share", "bar", "of the time of a call"), share
    time = Column("time", "number", "with everything inside", rank=1)
    yield time, lambda line: number_cell(line.layer.time_s, seconds_text)
    own = Column("self", "number", "what no other row has", rank=2)
    yield own, lambda line: number_cell(line.own_s or None, seconds_text)
    if profile.mode == "training":
        about = "of its backward operations, in the recorded call"
        yield number("backward", 3, lambda layer: layer.backward_s or None, seconds_text, about)
    yield number("calls", 12, lambda layer: layer.calls, count_text, is_shared=True)
    yield number("MACs", 5, lambda layer: layer.macs, count_text, is_shared=True)
    yield number("FLOP/s", 6, lambda layer: layer.flops_per_s, count_text)
    about = "read and written"
    yield number("bytes", 10, lambda layer: layer.bytes_moved, bytes_text, about, is_shared=True)
    yield number("FLOP/B", 11, lambda layer: layer.intensity, count_text, is_shared=True)
    if profile.ceilings is not None:
        yield Column("bound", rank=4), lambda line: Cell(_bound(profile, line))
        about = "of the peak of its ceiling"
        yield number("of peak", 7, lambda layer: _of_peak(profile, layer), percent_text, about)
    yield number("params", 8, lambda layer: layer.parameters, count_text, is_shared=True)
    yield number("activ.", 9, lambda layer: layer.activation_bytes, bytes_text, is_shared=True)
    about = "share of what was alive at the peak of memory"
    yield number("peak mem", 13, profile.peak_share, percent_text, about)


def _bound(profile: Profile, line: _Line) -> str:
    found = profile.bound(line.layer) if line.has_costs else None
    return found.bound if found else ""


def _of_peak(profile: Profile, layer: Layer) -> float | None:
    found = profile.bound(layer)
    return found.efficiency if found else None
