"""The layer table: the time of every layer and of what is inside of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tinytorch.adapters.adapter import ParameterSpec
from tinytorch.adapters.records import LayerCall, OpRecord

__all__ = ["Layer", "LayerTimes", "build_layers", "group_name", "layer_times"]


@dataclass(frozen=True)
class LayerTimes:
    """Seconds and calls of one layer per call of the model."""

    total_s: float
    self_s: float
    calls: float


@dataclass(frozen=True)
class Layer:
    """One row of the layer table, per call of the model.

    `time_s` has everything inside, `self_s` only what is not spent in a layer below. Costs include
    all layers below but for those called `self_`. `backward_s` is the time of its backward
    operations in the recording pass, which is slower than the model alone.
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
    largest_operation_bytes: int = 0

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

    The own times of all layers add up to the time of the outermost ones, exactly.
    """
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for run in runs:
        for path, inside, own in _own_times(run):
            row = totals[path]
            row[0] += inside
            row[1] += own
            row[2] += 1
    count = max(1, len(runs))
    return {path: LayerTimes(a / count, b / count, c / count) for path, (a, b, c) in totals.items()}


def _own_times(run: Sequence[LayerCall]) -> Iterable[tuple[str, float, float]]:
    """Yield path, time inside and own time of each call.

    Calls are nested or apart. A layer that calls itself counts its time inside once.
    """
    # Calls are listed when they end: where the clock cannot tell two apart, the later is around.
    order = sorted(range(len(run)), key=lambda i: (run[i].start, -run[i].end, -i))
    ordered = [run[index] for index in order]
    stack: list[tuple[LayerCall, list[float]]] = []

    def close() -> tuple[str, float, float]:
        call, below = stack.pop()
        duration = call.end - call.start
        if stack:
            stack[-1][1][0] += duration
        is_inner = any(outer.path == call.path for outer, _ in stack)
        return call.path, 0.0 if is_inner else duration, duration - below[0]

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
    """Make the table: one row per layer that ran, in the order of the model's own tree."""
    containers = {outer for path in kinds for outer in _ancestors(path) if outer != path}
    made, at_peak = _with_insides(made_bytes), _with_insides(peak_bytes)
    inside = _times_of_containers(kinds, times)
    rows = {
        path: Layer(
            path=path,
            kind=kind,
            depth=sum(outer in kinds for outer in _ancestors(path)[1:]),
            is_leaf=path not in containers,
            calls=times[path].calls if path in times else 0.0,
            time_s=times[path].total_s if path in times else inside.get(path, 0.0),
            self_s=times[path].self_s if path in times else 0.0,
            activation_bytes=made.get(path, 0),
            peak_bytes=at_peak.get(path, 0),
        )
        for path, kind in kinds.items()
    }
    for record in operations:
        _add_operation(rows, record)
    for each in parameters:
        for path in _ancestors(each.path):
            row = rows.get(path)
            if row is not None and not each.is_buffer:
                rows[path] = replace(
                    row,
                    parameters=row.parameters + each.size,
                    parameter_bytes=row.parameter_bytes + each.nbytes,
                )
    return tuple(row for row in rows.values() if row.time_s or row.calls or row.bytes_moved)


def _add_operation(rows: dict[str, Layer], record: OpRecord) -> None:
    if record.path is None or record.phase not in ("forward", "backward"):
        return
    for path in _ancestors(record.path):
        row = rows.get(path)
        if row is None:
            continue
        if record.phase == "backward":
            rows[path] = replace(
                row,
                backward_s=row.backward_s + record.duration,
                backward_macs=row.backward_macs + record.macs,
            )
            continue
        is_own = path == record.path
        cost = record.cost
        rows[path] = replace(
            row,
            macs=row.macs + record.macs,
            self_macs=row.self_macs + (record.macs if is_own else 0),
            causal_macs=row.causal_macs + (cost.causal_macs if cost else 0),
            other_flops=row.other_flops + (cost.other_flops if cost else 0),
            bytes_moved=row.bytes_moved + record.bytes_moved,
            self_flops=row.self_flops + (record.all_flops if is_own else 0),
            self_bytes=row.self_bytes + (record.bytes_moved if is_own else 0),
            largest_operation_bytes=max(row.largest_operation_bytes, record.bytes_moved),
        )


def group_name(path: str) -> str:
    """Give the name that repeated layers share: ``h.3.mlp`` and ``h.7.mlp`` are ``h.*.mlp``."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _ancestors(path: str) -> list[str]:
    """Give a path and all that it lies in, down to the model itself."""
    if path.startswith("<"):
        return [path]  # the backward pass and the update lie in no layer
    parts = path.split(".") if path else []
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def _with_insides(totals: Mapping[str | None, int]) -> dict[str, int]:
    """Add to each layer what is inside of it."""
    sums: dict[str, int] = defaultdict(int)
    for path, size in totals.items():
        for outer in _ancestors(path) if path is not None else ():
            sums[outer] += size
    return dict(sums)


def _times_of_containers(
    kinds: Mapping[str, str], times: Mapping[str, LayerTimes]
) -> dict[str, float]:
    """Give lists of layers, which are never called themselves, the time of what is in them."""
    sums: dict[str, float] = defaultdict(float)
    for path, row in times.items():
        for outer in _ancestors(path)[1:]:
            if outer in times:
                break  # a layer that is called has its own time, and so has all around it
            sums[outer] += row.total_s
    return dict(sums)
