"""The calls of a profile as spans on a time line, each inside of the one that called it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tinytorch.adapters.records import Argument, OpRecord, TensorSpec
from tinytorch.workloads.layer_paths import layers_around

if TYPE_CHECKING:
    from tinytorch.workloads.profile import Profile

__all__ = ["Span", "layer_spans", "operation_spans", "typical_run"]

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
    """Give the index of the watched call whose total is the median (the lower of two)."""
    order = np.argsort(profile.watched.values, kind="stable")
    return int(order[(len(order) - 1) // 2])


def layer_spans(profile: Profile) -> tuple[Span, ...]:
    """Give the layer calls of a typical watched call, outer ones first.

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
    """Give the operations of the recorded call, and around them the layers that ran them.

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
    """Put a span around the operations of each layer, from its first until another has its turn."""
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
