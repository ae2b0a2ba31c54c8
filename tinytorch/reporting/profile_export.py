"""A profile for other viewers: chrome://tracing, Perfetto and speedscope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tinytorch import __version__
from tinytorch.profiling.layers import Span, layer_spans, layers_around, operation_spans
from tinytorch.profiling.profile import Profile

# ---------------------------------------------------------------- a profile for chrome://tracing
# and Perfetto: layers, operations and memory over time
#
# The format is the Trace Event Format, with times in microseconds.

LAYERS, OPERATIONS = 1, 2
"""Process ids. The layers are of a watched call, operations and memory of the recorded one."""
NS_PER_US = 1000
US_PER_S = 1e6


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace as a dictionary, ready for JSON."""
    layers, operations = layer_spans(profile), operation_spans(profile)
    tracks = {span.track: 0 for span in operations}
    threads = {track: number for number, track in enumerate(tracks, start=1)}
    events = [
        _named("process_name", LAYERS, 0, "layers, in a watched call"),
        _named("thread_name", LAYERS, 1, "layers"),
        _named("process_name", OPERATIONS, 0, "operations and memory, in the recorded call"),
        *(_named("thread_name", OPERATIONS, thread, name) for name, thread in threads.items()),
        *(_complete(span, LAYERS, 1) for span in layers),
        *(_complete(span, OPERATIONS, threads[span.track]) for span in operations),
        *_memory(profile),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "model": profile.name,
            "framework": profile.framework,
            "device": profile.device,
            "mode": profile.mode,
            "latency_s": profile.latency.median,
            "recorded_call_s": profile.recording.duration,
        },
    }


def _complete(span: Span, process: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": "layer" if process == LAYERS else "operation",
        "pid": process,
        "tid": thread,
        "ts": span.begin_ns / NS_PER_US,
        "dur": (span.end_ns - span.begin_ns) / NS_PER_US,
        "args": dict(span.facts),
    }


def _memory(profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield the bytes of every category after each change."""
    points = profile.memory.points
    empty = dict.fromkeys(sorted({category for _, held in points for category in held}), 0)
    for moment, held in points:
        yield {
            "ph": "C",
            "name": "memory by category, bytes",
            "pid": OPERATIONS,
            "tid": 0,
            "ts": moment * US_PER_S,
            "args": {**empty, **held},
        }


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


# ---------------------------------------------------------------- a profile for speedscope.app:
# flame graphs of time, multiply-accumulates and memory

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
NANOSECOND = 1e-9


class _Frames:
    """The names in use, each with its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


def speedscope(profile: Profile) -> dict[str, Any]:
    """Return the file as a dictionary, ready for JSON: profiles of time, MACs and bytes.

    Times are of a typical watched call; MACs and bytes of the recorded one.
    """
    frames = _Frames()
    profiles = [
        _evented(f"{profile.name}: time of a watched call", layer_spans(profile), frames),
        _weighed(f"{profile.name}: multiply-accumulates", "none", _macs(profile), frames),
        _weighed(f"{profile.name}: bytes at the peak", "bytes", _peak(profile), frames),
    ]
    return {
        "$schema": SCHEMA,
        "name": profile.name,
        "exporter": f"tinytorch {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames.numbers]},
        "profiles": profiles,
    }


def _evented(title: str, spans: Sequence[Span], frames: _Frames) -> dict[str, Any]:
    """Turn spans, outer ones first, into the moments at which they open and close."""
    events: list[dict[str, Any]] = []
    opened: list[Span] = []

    def close() -> None:
        span = opened.pop()
        events.append(_event("C", frames.number(span.name), span.end_ns))

    for span in spans:
        while len(opened) > span.depth:
            close()
        events.append(_event("O", frames.number(span.name), span.begin_ns))
        opened.append(span)
    while opened:
        close()
    return {
        "type": "evented",
        "name": title,
        "unit": "seconds",
        "startValue": 0.0,
        "endValue": max((span.end_ns for span in spans), default=0) * NANOSECOND,
        "events": events,
    }


def _event(kind: str, frame: int, moment_ns: int) -> dict[str, Any]:
    return {"type": kind, "frame": frame, "at": moment_ns * NANOSECOND}


def _weighed(
    title: str, unit: str, weights: Mapping[tuple[str, ...], int], frames: _Frames
) -> dict[str, Any]:
    """Turn stacks with a weight each into a profile of samples."""
    stacks = {stack: weight for stack, weight in weights.items() if weight}
    return {
        "type": "sampled",
        "name": title,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(stacks.values()),
        "samples": [[frames.number(name) for name in stack] for stack in stacks],
        "weights": list(stacks.values()),
    }


def _macs(profile: Profile) -> dict[tuple[str, ...], int]:
    weights: dict[tuple[str, ...], int] = {}
    for record in profile.operations:
        stack = (record.phase, *_stack(profile, record.path), record.kind)
        weights[stack] = weights.get(stack, 0) + record.macs
    return weights


def _peak(profile: Profile) -> dict[tuple[str, ...], int]:
    weights: dict[tuple[str, ...], int] = {}
    for each in profile.memory.at_peak:
        stack = (each.category, *_stack(profile, each.path))
        weights[stack] = weights.get(stack, 0) + each.nbytes
    return weights


def _stack(profile: Profile, path: str | None) -> tuple[str, ...]:
    """Return the names of the layers around something, the outermost first."""
    return tuple(
        layer or profile.kinds.get("", "model") for layer in layers_around(path, profile.kinds)
    )
