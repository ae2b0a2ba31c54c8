"""The layer tree by time: as wide as it is slow, what is inside of a layer below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinytorch.profiling.layers import LayerRow, layer_rows
from tinytorch.profiling.profile import Profile
from tinytorch.reporting.document import Chart
from tinytorch.reporting.html.markup import Markup, element, joined, packed
from tinytorch.reporting.html.plot import cell, legend
from tinytorch.reporting.quantities import count_text, percent_text, seconds_text

ROW = 22
GAP = 1
LEAST = 0.001
"""What is narrower than this share of the call is left out of the still picture."""
MOST_KINDS = 7
"""Kinds of layers with a colour of their own; the last colour is for the others."""
OTHERS = f"series-{MOST_KINDS + 1}"
CONTAINER, SHORT = "container", "short"
POINT = "Point at a box to read about it."


@dataclass(frozen=True)
class Block:
    """One layer in the picture. `start` and `width` are shares of the call; `parent` is a place
    in the list of blocks, None for the call itself, which is the first."""

    name: str
    label: str
    kind: str
    depth: int
    start: float
    width: float
    share: float
    parent: int | None
    is_leaf: bool
    about: str


@dataclass(frozen=True)
class FlameGraph(Chart):
    """Layers by their time: the call first, parents before their children."""

    blocks: Sequence[Block]


def flame_graph(chart: FlameGraph) -> Markup:
    """Draw the layers of a call, for a script that zooms and searches."""
    blocks = chart.blocks
    colours = _colours(blocks)
    drawn = [each for each in blocks if each.width >= LEAST]
    picture = _picture(blocks, drawn, colours)
    parts = [_tools(), element("div", picture, class_="flame", id="flame")]
    parts.append(element("output", POINT, id="flame-about", class_="about-part tools"))
    if len(blocks) == 1:
        parts = [picture, element("p", "No layer was timed in this call.", class_="note")]
    if len(drawn) < len(blocks):
        parts.append(element("p", _left_out(blocks, drawn), class_="note"))
    if len(blocks) > 1:
        parts.append(legend(_legend(blocks, colours)))
    return joined([*parts, packed(_columns(blocks, colours), "flame-blocks")])


def flame_blocks(profile: Profile) -> tuple[Block, ...]:
    """Lay out the layers: the call itself first, parents before their children."""
    rows = [row for row in layer_rows(profile, expand=True) if row.role == "layer"]
    rows = [row for row in rows if row.layer.time_s > 0]
    parents = _parents(rows)
    widths = _widths(rows, parents)
    # Layers that are called from elsewhere can take longer than what they are listed in.
    inside = sum(width for width, parent in zip(widths, parents, strict=True) if parent is None)
    whole = max(profile.total_s, inside)
    call = Block(
        profile.name,
        "the whole call",
        profile.mode,
        0,
        0.0,
        1.0,
        1.0,
        None,
        not rows,
        f"the whole call, {seconds_text(profile.total_s)}",
    )
    blocks = [call]
    free = defaultdict[int, float](float)  # where the next child of a block begins
    for row, parent, width in zip(rows, parents, widths, strict=True):
        above = 0 if parent is None else parent + 1
        start = free.get(above, blocks[above].start)
        free[above] = start + width / whole
        blocks.append(_block(profile, row, above, start, width / whole))
    return tuple(blocks)


def _parents(rows: Sequence[LayerRow]) -> list[int | None]:
    """Return the place of the row around each row."""
    around: list[int] = []
    parents: list[int | None] = []
    for place, row in enumerate(rows):
        while around and rows[around[-1]].level >= row.level:
            around.pop()
        parents.append(around[-1] if around else None)
        around.append(place)
    return parents


def _widths(rows: Sequence[LayerRow], parents: Sequence[int | None]) -> list[float]:
    """Return the seconds of each row, or of what is in it where that is more."""
    inside = [0.0] * len(rows)
    widths = [row.layer.time_s for row in rows]
    for place in reversed(range(len(rows))):
        widths[place] = max(widths[place], inside[place])
        parent = parents[place]
        if parent is not None:
            inside[parent] += widths[place]
    return widths


def _block(profile: Profile, row: LayerRow, above: int, start: float, width: float) -> Block:
    layer = row.layer
    share = profile.share(layer)
    facts = [f"{percent_text(share)} of the call", seconds_text(layer.time_s)]
    if not layer.is_leaf:
        facts.append(f"self {seconds_text(max(0.0, layer.self_s))}")
    if layer.macs:
        facts.append(f"{count_text(layer.macs)} MACs")
    return Block(
        name=layer.path or layer.kind,
        label=row.label,
        kind=layer.kind,
        depth=row.level + 1,
        start=start,
        width=width,
        share=share,
        parent=above,
        is_leaf=layer.is_leaf,
        about=", ".join(facts),
    )


def _colours(blocks: Sequence[Block]) -> dict[str, str]:
    """Return the kinds of layers that have nothing inside a colour each, the slowest first."""
    times: dict[str, float] = defaultdict(float)
    for each in blocks:
        if each.is_leaf:
            times[each.kind] += each.share
    ordered = sorted(times, key=lambda kind: -times[kind])
    return {
        kind: f"series-{place}" if place <= MOST_KINDS else OTHERS
        for place, kind in enumerate(ordered, start=1)
    }


def _class(block: Block, colours: dict[str, str]) -> str:
    return colours[block.kind] if block.is_leaf else CONTAINER


def _legend(blocks: Sequence[Block], colours: dict[str, str]) -> Iterator[tuple[str, str]]:
    kinds: dict[str, list[str]] = defaultdict(list)
    shares: dict[str, float] = defaultdict(float)
    for kind, colour in colours.items():
        kinds[colour].append(kind)
    for each in blocks:
        if each.is_leaf:
            shares[colours[each.kind]] += each.share
    for colour, found in kinds.items():
        name = found[0] if len(found) == 1 else f"{len(found)} other kinds"
        yield colour, f"{name} {percent_text(shares[colour])}"
    if any(not each.is_leaf for each in blocks):
        yield CONTAINER, "layers that call others"


def _picture(blocks: Sequence[Block], drawn: Sequence[Block], colours: dict[str, str]) -> Markup:
    height = (1 + max(each.depth for each in blocks)) * ROW
    cells = [
        cell(
            each.start * 100,
            each.width * 100,
            each.depth * ROW,
            ROW - GAP,
            name=each.label,
            title=f"{each.name} {each.kind}: {each.about}",
            class_=_class(each, colours),
        )
        for each in drawn
    ]
    cells += [
        cell(
            start * 100,
            width * 100,
            depth * ROW,
            ROW - GAP,
            name=f"{count} narrow ones",
            title=f"{count} narrow ones, {percent_text(width)} of the call",
            class_=SHORT,
        )
        for start, width, depth, count in _strips(blocks)
    ]
    return element(
        "svg",
        element("title", f"The {len(blocks) - 1} layers of {blocks[0].name} by their time"),
        *cells,
        role="img",
        class_="fluid cells",
        style=f"height:{height}px",
    )


def _strips(blocks: Sequence[Block]) -> Iterator[tuple[float, float, int, int]]:
    """Yield start, width, depth and number of narrow neighbours that are wide together."""
    waiting: dict[int, tuple[float, float, int]] = {}  # depth -> start, end, number
    for each in blocks:
        start, end, count = waiting.get(each.depth, (0.0, -1.0, 0))
        is_narrow = each.width < LEAST
        if is_narrow and each.start - end <= LEAST:
            waiting[each.depth] = start, each.start + each.width, count + 1
            continue
        if end - start >= LEAST:
            yield start, end - start, each.depth, count
        waiting.pop(each.depth, None)
        if is_narrow:
            waiting[each.depth] = each.start, each.start + each.width, 1
    for depth, (start, end, count) in waiting.items():
        if end - start >= LEAST:
            yield start, end - start, depth, count


def _left_out(blocks: Sequence[Block], drawn: Sequence[Block]) -> str:
    missing = len(blocks) - len(drawn)
    return (
        f"{missing} of {len(blocks) - 1} layers take less than {percent_text(LEAST)} of the call "
        "each. They are too narrow to be drawn, or are grey together, until you zoom in."
    )


def _tools() -> Markup:
    return element(
        "p",
        element(
            "input",
            type="search",
            id="flame-search",
            placeholder="Find layers or kinds",
            aria_label="Find layers or kinds by name",
            autocomplete="off",
        ),
        element("button", "Whole call", type="button", id="flame-whole", disabled=True),
        element("span", "", id="flame-found", class_="note", role="status"),
        class_="tools",
    )


def _columns(blocks: Sequence[Block], colours: dict[str, str]) -> dict[str, object]:
    """Return the blocks as columns, which pack well."""
    return {
        "row": ROW,
        "gap": GAP,
        "least": LEAST,
        "name": [each.name for each in blocks],
        "label": [each.label for each in blocks],
        "kind": [each.kind for each in blocks],
        "depth": [each.depth for each in blocks],
        "start": [round(each.start, 7) for each in blocks],
        "width": [round(each.width, 7) for each in blocks],
        "parent": [each.parent for each in blocks],
        "colour": [_class(each, colours) for each in blocks],
        "about": [each.about for each in blocks],
    }
