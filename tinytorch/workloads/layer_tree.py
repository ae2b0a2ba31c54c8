"""The layer table as a tree to look at: repeated blocks folded into one, and nothing left out.

What a container does itself, and what no layer did, are rows of their own, so that the own times
of all rows add up to the whole call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Literal

from tinytorch.errors import SettingError
from tinytorch.workloads.layer_paths import ancestors
from tinytorch.workloads.layers import Layer, group_name

if TYPE_CHECKING:
    from tinytorch.workloads.profile import Profile

__all__ = ["LayerRow", "layer_rows", "shared_name"]

LONGEST_PATTERN = 6
"""Repetition is looked for in patterns of up to so many layers (convolution, norm, ReLU, ...)."""
SUMMED = (
    "calls",
    "time_s",
    "self_s",
    "macs",
    "self_macs",
    "causal_macs",
    "other_flops",
    "bytes_moved",
    "self_flops",
    "self_bytes",
    "backward_s",
    "backward_macs",
    "parameters",
    "parameter_bytes",
    "activation_bytes",
    "peak_bytes",
)


@dataclass(frozen=True)
class LayerRow:
    """One row of the tree. `layer` has the sums of all layers in `paths`, which the row stands for.

    `itself` is what a container does outside of its layers, `unattributed` what happens outside
    of the model. `own_s` is the time that is in no other row; that of all rows adds up to the call.
    `hidden` counts the layers inside that have no row of their own.
    """

    label: str
    level: int
    role: Literal["layer", "itself", "unattributed"]
    layer: Layer
    paths: tuple[str, ...]
    own_s: float
    hidden: int = 0


@dataclass(frozen=True)
class _Node:
    label: str
    layer: Layer
    paths: tuple[str, ...]
    children: tuple[_Node, ...]

    @property
    def signature(self) -> tuple[object, ...]:
        """What two blocks have in common when they are the same but for their weights."""
        inner = tuple(child.signature for child in self.children)
        own = (group_name(self.label), self.layer.kind, self.layer.parameters, self.layer.macs)
        return (*own, inner)

    @property
    def below(self) -> Iterator[_Node]:
        for child in self.children:
            yield child
            yield from child.below


def layer_rows(
    profile: Profile, *, depth: int | None = None, expand: bool = False
) -> tuple[LayerRow, ...]:
    """Give the rows of the tree, in the order of the model.

    `depth` is how many levels to go down from the model, which is level 0; all of them if None.
    Repeated blocks are one row each, unless `expand`.
    """
    if depth is not None and depth < 0:
        raise SettingError(f"depth={depth}; it is a number of levels, from 0 on")
    roots = _build(profile.layers)
    if not expand:
        roots = tuple(_fold(root) for root in roots)
    rows = [row for root in roots for row in _rows(root, 0, depth)]
    rest_s = profile.unattributed_s
    rest = Layer("", "", 0, is_leaf=True, calls=0.0, time_s=rest_s, self_s=rest_s)
    return (*rows, LayerRow("(unattributed)", 0, "unattributed", rest, (), rest_s))


def shared_name(paths: Sequence[str]) -> str:
    """Name several layers by what their paths share: ``h.*.mlp.0`` for ``h.0.mlp.0`` and others."""
    split = [path.split(".") for path in paths]
    if len({len(parts) for parts in split}) != 1:
        return ", ".join(paths)
    columns = [set(parts) for parts in zip(*split, strict=True)]
    return ".".join(next(iter(names)) if len(names) == 1 else "*" for names in columns)


# ---------------------------------------------------------------- the tree


def _build(layers: Sequence[Layer]) -> tuple[_Node, ...]:
    known = {layer.path for layer in layers}
    inside: dict[str | None, list[Layer]] = {}
    for layer in layers:
        around = (outer for outer in ancestors(layer.path)[1:] if outer in known)
        inside.setdefault(next(around, None), []).append(layer)

    def node(layer: Layer, parent: str | None) -> _Node:
        label = layer.path.removeprefix(f"{parent}.") if parent else layer.path
        children = tuple(node(child, layer.path) for child in inside.get(layer.path, ()))
        return _Node(label or layer.kind, layer, (layer.path,), children)

    return tuple(node(layer, None) for layer in inside.get(None, ()))


# ---------------------------------------------------------------- folding


def _fold(node: _Node) -> _Node:
    """Make repeated children one; then the same inside of each."""
    children = tuple(_fold(child) for child in _folded(node.children))
    return replace(node, children=children)


def _folded(nodes: Sequence[_Node]) -> Iterator[_Node]:
    signatures = [node.signature for node in nodes]
    index = 0
    while index < len(nodes):
        length, times = _repetition(signatures[index:])
        for offset in range(length):
            stop = index + length * times
            yield _merged(nodes[index + offset : stop : length])
        index += length * times


def _repetition(signatures: Sequence[object]) -> tuple[int, int]:
    """Give the length of the pattern at the beginning, and how many times it stands there."""
    for length in range(1, min(LONGEST_PATTERN, len(signatures) // 2) + 1):
        pattern = signatures[:length]
        times = 1
        while signatures[times * length : (times + 1) * length] == pattern:
            times += 1
        if times > (1 if length == 1 else 2):
            return length, times
    return 1, 1


def _merged(nodes: Sequence[_Node]) -> _Node:
    if len(nodes) == 1:
        return nodes[0]
    children = zip(*(node.children for node in nodes), strict=True)
    return _Node(
        label=_label(nodes),
        layer=_sum([node.layer for node in nodes]),
        paths=tuple(path for node in nodes for path in node.paths),
        children=tuple(_merged(same) for same in children),
    )


def _label(nodes: Sequence[_Node]) -> str:
    """Name what was folded; inside of a folded block all have the same name already."""
    first, last = nodes[0].label, nodes[-1].label
    if first == last:
        return first
    # `blocks.0 ... blocks.3` is shorter as `blocks.0 ... 3`
    before = re.match(r"(.*\.)?", first)
    last = last.removeprefix(before[0]) if before else last
    return f"{first} ... {last} ({len(nodes)}x)"


def _sum(layers: Sequence[Layer]) -> Layer:
    def add(total: Layer, layer: Layer) -> Layer:
        sums = {name: getattr(total, name) + getattr(layer, name) for name in SUMMED}
        largest = max(total.self_largest_bytes, layer.self_largest_bytes)
        return replace(total, **sums, self_largest_bytes=largest)

    return reduce(add, layers)


# ---------------------------------------------------------------- rows


def _rows(node: _Node, level: int, depth: int | None) -> Iterable[LayerRow]:
    if not node.children or (depth is not None and level >= depth):
        inside = tuple(node.below)
        own_s = node.layer.self_s + sum(each.layer.self_s for each in inside)
        hidden = sum(len(each.paths) for each in inside)
        yield LayerRow(node.label, level, "layer", node.layer, node.paths, own_s, hidden)
        return
    yield LayerRow(node.label, level, "layer", node.layer, node.paths, 0.0)
    for child in node.children:
        yield from _rows(child, level + 1, depth)
    own = _own(node)
    if own.self_s:
        label = f"({node.label.partition(' (')[0]} itself)"
        yield LayerRow(label, level + 1, "itself", own, node.paths, own.self_s)


def _own(node: _Node) -> Layer:
    """Give what a container does outside of the layers in it, as a layer of its own."""
    whole = node.layer

    def rest(field: str) -> int:
        return int(getattr(whole, field) - sum(getattr(c.layer, field) for c in node.children))

    return replace(
        whole,
        time_s=whole.self_s,
        macs=whole.self_macs,
        other_flops=whole.self_flops - 2 * whole.self_macs,
        bytes_moved=whole.self_bytes,
        causal_macs=rest("causal_macs"),
        backward_s=whole.backward_s - sum(child.layer.backward_s for child in node.children),
        backward_macs=rest("backward_macs"),
        parameters=rest("parameters"),
        parameter_bytes=rest("parameter_bytes"),
        activation_bytes=rest("activation_bytes"),
        peak_bytes=rest("peak_bytes"),
    )
