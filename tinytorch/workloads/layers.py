"""The layer table: the time of every layer and of what is inside of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tinytorch.adapters.adapter import ParameterSpec
from tinytorch.adapters.records import LayerCall, OpRecord
from tinytorch.workloads.layer_paths import PHASES, ancestors, layers_around

__all__ = ["Layer", "LayerTimes", "build_layers", "group_name", "layer_times"]

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
    """Give the name that repeated layers share: ``h.3.mlp`` and ``h.7.mlp`` are ``h.*.mlp``."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _with_insides(totals: Mapping[str | None, int]) -> dict[str, int]:
    """Add to each layer what is inside of it."""
    sums: dict[str, int] = defaultdict(int)
    for path, size in totals.items():
        for outer in ancestors(path) if path is not None else ():
            sums[outer] += size
    return dict(sums)
