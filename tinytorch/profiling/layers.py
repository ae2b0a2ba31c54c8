"""The layer table: the time of every layer and of what is inside of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tinytorch.errors import check_number
from tinytorch.models.adapter import ParameterSpec
from tinytorch.models.records import Argument, LayerCall, OpRecord, TensorSpec

if TYPE_CHECKING:
    from tinytorch.profiling.profile import Profile

# ---------------------------------------------------------------- naming many layers at once:
# ``blocks.{0..3}.mlp`` for four of them that differ in a number

MOST_PIECES = 5
"""Most numbers and ranges that are written out; of more, the middle is left out."""

_Parts = tuple[tuple[str, ...], ...]
"""A path, part by part, each with everything that can stand there."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that one name stands for. It is exact, unless numbers were left out of it (...)."""

    name: str
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class StepGroup:
    """Layers to which a plan does the same for the same reason."""

    layers: LayerGroup
    what: str
    why: str


def group_layers(paths: Iterable[str]) -> tuple[LayerGroup, ...]:
    """Group layers whose paths differ only in numbers, in order of first appearance.

    A group has every combination of its numbers, so its name says exactly which layers it has.

    >>> [group.name for group in group_layers(["h.0.q", "h.1.q", "h.2.q", "h.2.k", "head"])]
    ['h.{0..2}.q', 'h.2.k', 'head']
    """
    groups: dict[_Parts, list[str]] = {
        tuple((part,) for part in path.split(".")): [path] for path in paths
    }
    for place in range(max((len(parts) for parts in groups), default=0)):
        groups = _merged_at(groups, place)
    return tuple(LayerGroup(_name(parts), tuple(found)) for parts, found in groups.items())


def _merged_at(groups: dict[_Parts, list[str]], place: int) -> dict[_Parts, list[str]]:
    """Merge groups that are the same but for the numbers in one place."""
    alike: dict[_Parts, list[_Parts]] = {}
    for parts in groups:
        others = parts
        if place < len(parts) and all(_is_number(text) for text in parts[place]):
            others = (*parts[:place], (), *parts[place + 1 :])
        alike.setdefault(others, []).append(parts)
    merged: dict[_Parts, list[str]] = {}
    for others, members in alike.items():
        parts = members[0]
        if len(members) > 1:
            numbers = tuple(text for each in members for text in each[place])
            parts = (*others[:place], numbers, *others[place + 1 :])
        merged[parts] = [path for each in members for path in groups[each]]
    return merged


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text)) == text


def _name(parts: _Parts) -> str:
    return ".".join(part[0] if len(part) == 1 else _numbers_text(part) for part in parts)


def _numbers_text(numbers: Sequence[str]) -> str:
    """Write numbers in braces, as shells do: ``{0,1}``, ``{0..3}``, ``{0..3,7}``."""
    pieces: list[str] = []
    for run in _runs(sorted(int(text) for text in numbers)):
        pieces += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    if len(pieces) > MOST_PIECES:
        pieces = [*pieces[: MOST_PIECES - 2], "...", pieces[-1]]
    return f"{{{','.join(pieces)}}}"


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


# ---------------------------------------------------------------- the paths of layers: ``h.3.mlp``
# lies in ``h.3``, in ``h`` and in ``""``, which is the model

BACKWARD, UPDATE = "<backward>", "<update>"
"""Rows of a training step that are no layers, and lie in none."""
PHASES = {BACKWARD: "backward", UPDATE: "update"}
"""These rows, and the phase of the operations in them."""


def ancestors(path: str) -> list[str]:
    """Return a path and all of its ancestors, innermost first, up to the model itself."""
    if path in PHASES:
        return [path]
    parts = path.split(".") if path else []
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def layers_around(path: str | None, known: Container[str]) -> list[str]:
    """Return the known layers around an operation, outermost first."""
    if path is None:
        return []
    return [outer for outer in reversed(ancestors(path)) if outer in known]


# ---------------------------------------------------------------- the layer table: the time of
# every layer and of what is inside of it

ROW_OF_PHASE = {phase: path for path, phase in PHASES.items()}


@dataclass(frozen=True)
class LayerTimes:
    """Seconds and calls of one layer per call of the model."""

    total_s: float = 0.0
    self_s: float = 0.0
    calls: float = 0.0


@dataclass(frozen=True)
class Layer:
    """One row of the layer table, per call of the model.

    `time_s` has everything inside, `self_s` only what is not spent in a layer below. Costs include
    all layers below but for those called `self_`. They are of the forward pass; those of the
    backward pass and of the update are in the rows of these. `backward_s` is the time of a layer's
    backward operations in the recording pass, which is slower than the model alone.
    """

    path: str
    kind: str
    depth: int
    is_leaf: bool
    calls: float
    time_s: float
    self_s: float
    macs: int = 0
    self_macs: int = 0
    causal_macs: int = 0
    other_flops: int = 0
    bytes_moved: int = 0
    self_flops: int = 0
    self_bytes: int = 0
    backward_s: float = 0.0
    backward_macs: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    activation_bytes: int = 0
    peak_bytes: int = 0
    self_largest_bytes: int = 0

    @property
    def group(self) -> tuple[str, str, int, int]:
        """What repeated layers have in common: name but for numbers, kind and size.

        Neighbours without parameters, such as the activations of a stack, have nothing in common.
        """
        outer, dot, last = self.path.rpartition(".")
        stands_alone = not self.parameters and last.isdecimal()
        name = f"{group_name(outer)}{dot}{last}" if stands_alone else group_name(self.path)
        return name, self.kind, self.parameters, self.macs

    @property
    def flops(self) -> int:
        """FLOPs of contractions, two per multiply-accumulate."""
        return 2 * self.macs

    @property
    def all_flops(self) -> int:
        """Contractions and all other floating-point work."""
        return self.flops + self.other_flops

    @property
    def intensity(self) -> float | None:
        """Floating-point operations per byte moved; None when nothing was counted."""
        return self.all_flops / self.bytes_moved if self.bytes_moved else None

    @property
    def flops_per_s(self) -> float | None:
        return self.all_flops / self.time_s if self.time_s > 0 else None


def layer_times(runs: Sequence[Sequence[LayerCall]]) -> dict[str, LayerTimes]:
    """Average the calls of several runs: per layer the time inside, the own time, the calls.

    The own times of all layers add up to the time of the outermost ones, exactly. What is never
    called itself, such as a list of layers, has the time of what is called in it.
    """
    called = {call.path for run in runs for call in run}
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for run in runs:
        for path, inside, own, callers in _own_times(run):
            row = totals[path]
            row[0] += inside
            row[1] += own
            row[2] += 1
            for container in ancestors(path)[1:]:
                # A member that another member calls is in the time of that one already.
                if container not in called and not _any_inside(container, callers):
                    totals[container][0] += inside
    count = max(1, len(runs))
    return {path: LayerTimes(a / count, b / count, c / count) for path, (a, b, c) in totals.items()}


def _any_inside(container: str, paths: Iterable[str]) -> bool:
    return any(container in ancestors(path) for path in paths)


def _own_times(run: Sequence[LayerCall]) -> Iterable[tuple[str, float, float, list[str]]]:
    """Yield path, time inside and own time of each call, and the paths of the calls around it.

    Calls are nested or apart. A layer that calls itself counts its time inside once.
    """
    # Calls are listed when they end: where the clock cannot tell two apart, the later is around.
    order = sorted(range(len(run)), key=lambda i: (run[i].start, -run[i].end, -i))
    ordered = [run[index] for index in order]
    stack: list[tuple[LayerCall, list[float]]] = []

    def close() -> tuple[str, float, float, list[str]]:
        call, below = stack.pop()
        duration = call.end - call.start
        if stack:
            stack[-1][1][0] += duration
        callers = [outer.path for outer, _ in stack]
        inside = 0.0 if call.path in callers else duration
        return call.path, inside, duration - below[0], callers

    for call in ordered:
        while stack and stack[-1][0].end <= call.start:
            yield close()
        stack.append((call, [0.0]))
    while stack:
        yield close()


def build_layers(
    kinds: Mapping[str, str],
    times: Mapping[str, LayerTimes],
    operations: Iterable[OpRecord],
    parameters: Iterable[ParameterSpec],
    made_bytes: Mapping[str | None, int],
    peak_bytes: Mapping[str | None, int],
) -> tuple[Layer, ...]:
    """Make the table: one row per layer that was timed, in the order of the model's own tree.

    What others did, such as the layers inside of a compiled module, belongs to those around them.
    """
    kinds = {path: kind for path, kind in kinds.items() if path in times}
    containers = {outer for path in kinds for outer in ancestors(path)[1:]}
    made, at_peak = _with_insides(made_bytes), _with_insides(peak_bytes)
    rows = {
        path: Layer(
            path=path,
            kind=kind,
            depth=sum(outer in kinds for outer in ancestors(path)[1:]),
            is_leaf=path not in containers,
            calls=times[path].calls,
            time_s=times[path].total_s,
            self_s=times[path].self_s,
            activation_bytes=made.get(path, 0),
            peak_bytes=at_peak.get(path, 0),
        )
        for path, kind in kinds.items()
    }
    for record in operations:
        _add_operation(rows, record)
    for each in parameters:
        for path in layers_around(each.path, rows) if not each.is_buffer else ():
            row = rows[path]
            rows[path] = replace(
                row,
                parameters=row.parameters + each.size,
                parameter_bytes=row.parameter_bytes + each.nbytes,
            )
    return tuple(rows.values())


def _add_operation(rows: dict[str, Layer], record: OpRecord) -> None:
    """Add a forward operation to the layers around it, another to the row of its phase."""
    around = layers_around(record.path, rows)
    phase_row = ROW_OF_PHASE.get(record.phase)
    if record.phase == "forward":
        # Lists of layers do nothing themselves; a function around layers does, and is not watched.
        called = [path for path in around if rows[path].calls]
        owner = (called or around)[-1] if around else None
        for path in around:
            rows[path] = _with_cost(rows[path], record, is_own=path == owner)
    elif phase_row in rows:
        rows[phase_row] = _with_cost(rows[phase_row], record, is_own=True)
    for path in around if record.phase == "backward" else ():
        row = rows[path]
        rows[path] = replace(
            row,
            backward_s=row.backward_s + record.duration,
            backward_macs=row.backward_macs + record.macs,
        )


def _with_cost(row: Layer, record: OpRecord, *, is_own: bool) -> Layer:
    cost = record.cost
    if cost is None:
        return row
    return replace(
        row,
        macs=row.macs + cost.macs,
        self_macs=row.self_macs + (cost.macs if is_own else 0),
        causal_macs=row.causal_macs + cost.causal_macs,
        other_flops=row.other_flops + cost.other_flops,
        bytes_moved=row.bytes_moved + record.bytes_moved,
        self_flops=row.self_flops + (record.all_flops if is_own else 0),
        self_bytes=row.self_bytes + (record.bytes_moved if is_own else 0),
        self_largest_bytes=max(row.self_largest_bytes, record.bytes_moved if is_own else 0),
    )


def group_name(path: str) -> str:
    """Return the name that repeated layers share: ``h.3.mlp`` and ``h.7.mlp`` are ``h.*.mlp``."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _with_insides(totals: Mapping[str | None, int]) -> dict[str, int]:
    """Add to each layer what is inside of it."""
    sums: dict[str, int] = defaultdict(int)
    for path, size in totals.items():
        for outer in ancestors(path) if path is not None else ():
            sums[outer] += size
    return dict(sums)


# ---------------------------------------------------------------- the layer table as a tree to
# look at: repeated blocks folded into one, and nothing left out
#
# What a container does itself, and what no layer did, are rows of their own, so that the own times
# of all rows add up to the whole call.

LONGEST_PATTERN = 6
"""Longest pattern of repeated layers (convolution, norm, ReLU, ...)."""
NOT_SUMMED = frozenset({"path", "kind", "depth", "is_leaf", "self_largest_bytes"})
SUMMED = tuple(each.name for each in fields(Layer) if each.name not in NOT_SUMMED)


@dataclass(frozen=True)
class LayerRow:
    """One row of the tree. `layer` has the sums of all layers in `paths`, which the row stands for.

    `itself` is what a container does outside of its layers, `unattributed` what happens outside
    of the model. `own_s` is the time that is in no other row; that of all rows adds up to the call.
    `hidden` counts the layers inside that have no row.
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
    """Return the rows of the tree, in the order of the model.

    `depth` is how many levels to go down from the model, which is level 0; all of them if None.
    Repeated blocks are one row each, unless `expand`.
    """
    check_number("depth", depth or 0, least=0)
    roots = _build(profile.layers)
    if not expand:
        roots = tuple(_fold(root) for root in roots)
    rows = [row for root in roots for row in _rows(root, 0, depth)]
    rest_s = profile.unattributed_s
    rest = Layer("", "", 0, is_leaf=True, calls=0.0, time_s=rest_s, self_s=rest_s)
    return (*rows, LayerRow("(unattributed)", 0, "unattributed", rest, (), rest_s))


def shared_name(paths: Sequence[str]) -> str:
    """Return the common name of several layers: ``h.*.mlp.0`` for ``h.0.mlp.0`` and others."""
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
    """Return the length of the leading pattern, and the number of its repetitions."""
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
    """Return the label of folded nodes; inside of a folded block all share one already."""
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
        label = f"({node.label.partition(' (')[0]}, self)"
        yield LayerRow(label, level + 1, "itself", own, node.paths, own.self_s)


def _own(node: _Node) -> Layer:
    """Return the own work of a container, outside of its layers, as a layer."""
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


# ---------------------------------------------------------------- the calls of a profile as spans
# on a time line, each inside of the one that called it

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Span:
    """Something that ran from `begin_ns` until `end_ns`, in nanoseconds since the call began.

    Whole numbers keep spans inside of each other, whatever they are converted to. `depth` counts
    the spans around it on the same `track`.
    """

    name: str
    begin_ns: int
    end_ns: int
    depth: int
    track: str
    facts: Mapping[str, Any]


def typical_run(profile: Profile) -> int:
    """Return the index of the watched call whose total is the lower median."""
    order = np.argsort(profile.watched.values, kind="stable")
    return int(order[(len(order) - 1) // 2])


def layer_spans(profile: Profile) -> tuple[Span, ...]:
    """Return the layer calls of a typical watched call, outer ones first.

    The first span is the call itself; what is in it and in no layer is unattributed.
    """
    index = typical_run(profile)
    whole = profile.watched.values[index]
    facts = _facts_of_layers(profile)
    # Calls stand in the order in which they ended; of two with the same times the last is outside.
    last_first = profile.runs[index][::-1]
    calls = sorted(last_first, key=lambda call: (call.start, -call.end))
    spans = [Span(profile.name, 0, _ns(whole), 0, "layers", {"mode": profile.mode})]
    ends = [spans[0].end_ns]
    for call in calls:
        begin, end = _ns(call.start), _ns(call.end)
        while len(ends) > 1 and ends[-1] <= begin:
            ends.pop()
        # Clocks of a GPU are coarse: what a layer seems to do after its caller is cut off.
        end = min(end, ends[-1])
        begin = min(begin, end)
        name = call.path or profile.kinds.get("", "model")
        spans.append(Span(name, begin, end, len(ends), "layers", facts.get(call.path, {})))
        ends.append(end)
    return tuple(spans)


def operation_spans(profile: Profile) -> tuple[Span, ...]:
    """Return the operations of the recorded call, inside of the layers that ran them.

    There is a track for each phase. A layer reaches from its first operation to its last. On a
    GPU an operation begins when the program has started it and all before it are done.
    """
    tracks: dict[str, list[tuple[OpRecord, int, int]]] = {}
    free = 0
    for record in sorted(profile.operations, key=lambda each: each.start):
        begin = max(_ns(record.start), free)
        free = max(begin, begin + _ns(record.duration))
        tracks.setdefault(record.phase, []).append((record, begin, free))
    kinds = profile.kinds
    return tuple(span for phase, timed in tracks.items() for span in _nested(phase, timed, kinds))


def _nested(
    phase: str, timed: Sequence[tuple[OpRecord, int, int]], kinds: Mapping[str, str]
) -> list[Span]:
    """Nest the operations of each layer in a span, from its first to its last."""
    spans: list[Span] = []
    opened: list[tuple[str, int]] = []  # the layers around the latest operation, and their spans
    for record, begin, end in timed:
        around = layers_around(record.path, kinds)
        pairs = enumerate(zip(opened, around, strict=False))
        shared = next((depth for depth, ((path, _), other) in pairs if path != other), None)
        del opened[min(len(opened), len(around)) if shared is None else shared :]
        for path in around[len(opened) :]:
            name = path or kinds.get("", "model")
            opened.append((path, len(spans)))
            facts = {"kind": kinds.get(path, "")}
            spans.append(Span(name, begin, end, len(opened) - 1, phase, facts))
        for _, index in opened:
            spans[index] = replace(spans[index], end_ns=end)
        facts = _facts_of_operation(record)
        spans.append(Span(record.kind, begin, end, len(opened), phase, facts))
    return spans


def _facts_of_layers(profile: Profile) -> dict[str, dict[str, Any]]:
    shapes: dict[str, Any] = {}
    for record in profile.operations:
        for path in layers_around(record.path, profile.kinds) if record.phase == "forward" else ():
            shapes.setdefault(path, _shapes(record.inputs[:1]))
    return {
        layer.path: {
            "kind": layer.kind,
            "macs per model call": layer.macs,
            "bytes moved per model call": layer.bytes_moved,
            "parameters": layer.parameters,
            "first input": shapes.get(layer.path, []),
        }
        for layer in profile.layers
    }


def _facts_of_operation(record: OpRecord) -> dict[str, Any]:
    return {
        "layer": record.path,
        "family": record.cost.family if record.cost else "not counted",
        "macs": record.macs,
        "bytes moved": record.bytes_moved,
        "inputs": _shapes(record.inputs),
        "outputs": _shapes(record.outputs),
    }


def _shapes(arguments: Sequence[Argument]) -> list[str]:
    """Write tensors as ``float32 (1, 64, 128)``."""
    found: list[str] = []
    for argument in arguments:
        for spec in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(spec, TensorSpec):
                found.append(f"{spec.dtype} {spec.shape}")
    return found


def _ns(seconds: float) -> int:
    return round(seconds * NANOSECONDS)
