"""The tree of layers as a table: repeated blocks are one row, which opens into its members."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tinytorch.reporting.html.markup import element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.tables import Cell, Column, Row, table
from tinytorch.reporting.quantities import bytes_text, count_text, percent_text, seconds_text
from tinytorch.workloads.layer_tree import LayerRow, layer_rows, shared_name
from tinytorch.workloads.layers import Layer
from tinytorch.workloads.profile import Profile

__all__ = ["layers_section"]

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
    whole = Row([Cell(sums.get(each.title, "")) for each in columns], class_="total")
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
        class_=" ".join(filter(None, classes)),
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
