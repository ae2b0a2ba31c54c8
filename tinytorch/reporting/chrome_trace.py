"""A profile for chrome://tracing and Perfetto: layers, operations and memory over time.

The format is the Trace Event Format, with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinytorch.workloads.call_stack import Span, layer_spans, operation_spans
from tinytorch.workloads.profile import Profile

__all__ = ["chrome_trace"]

LAYERS, OPERATIONS = 1, 2
"""Process ids. The layers are of a watched call, operations and memory of the recorded one."""
NS_PER_US = 1000
US_PER_S = 1e6


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Give the trace as a dictionary, ready for JSON."""
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
