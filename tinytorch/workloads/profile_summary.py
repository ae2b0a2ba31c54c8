"""A profile as plain JSON: every view of it, and the facts that advice starts from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tinytorch.measure.counters import Counters
from tinytorch.measure.roofline import Bound
from tinytorch.measure.samples import Samples
from tinytorch.workloads.layer_tree import with_phase_costs
from tinytorch.workloads.layers import Layer
from tinytorch.workloads.memory_timeline import MemoryTimeline
from tinytorch.workloads.profile_facts import (
    DeviceFacts,
    ProfileFacts,
    describe_hotspot,
    find_facts,
)

if TYPE_CHECKING:
    from tinytorch.workloads.profile import Hotspot, Profile

__all__ = ["SCHEMA_VERSION", "memory_levels", "summarise_profile"]

SCHEMA = "tinytorch.profile"
SCHEMA_VERSION = 1
"""Grows when a name changes its meaning or goes; new names alone do not count."""
CONVENTION = "contractions only, dense, two FLOPs per multiply-accumulate; the rest is other_flops"
TIMELINE_BUCKETS = 200
PERCENTILES = (5, 25, 75, 95, 99)


def summarise_profile(profile: Profile) -> dict[str, Any]:
    """Give everything that a profile shows, in dictionaries, lists, numbers, text and None.

    Seconds, bytes, and shares of 1. What is unknown, or no finite number, is None.
    """
    summary = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "name": profile.name,
        "model": profile.kinds.get("", ""),
        "framework": profile.framework,
        "device": profile.device,
        "mode": profile.mode,
        "dtype": profile.dtype,
        "examples": profile.examples,
        "latency": _samples(profile.latency),
        "watched": _samples(profile.watched),
        "wall": _samples(profile.wall) if profile.wall else None,
        "busy": _samples(profile.busy) if profile.busy else None,
        "throughput_per_s": profile.throughput,
        "overhead": profile.overhead,
        "total_s": profile.total_s,
        "unattributed_s": profile.unattributed_s,
        "costs": _costs(profile),
        "layers": [_layer(profile, with_phase_costs(profile, x)) for x in profile.layers],
        "hotspots": [_hotspot(profile, hotspot) for hotspot in profile.hotspots],
        "top_operations": [asdict(group) for group in profile.top_operations],
        "not_counted": [asdict(each) for each in profile.not_counted],
        "roofline": _roofline(profile),
        "memory": _memory(profile),
        "counters": _counters(profile.counters) if profile.counters else None,
        "parameters": _parameters(profile),
        "facts": _facts(find_facts(profile)),
        "ceilings": profile.ceilings.to_dict() if profile.ceilings else None,
        "environment": profile.environment.to_dict(),
        "notes": list(profile.notes),
    }
    plain: dict[str, Any] = _plain(summary)
    return plain


def _samples(samples: Samples) -> dict[str, Any]:
    interval = samples.median_interval()
    return {
        **samples.to_dict(),
        "count": samples.count,
        "median": samples.median,
        "median_interval": asdict(interval),
        "mean": samples.mean,
        "std": samples.std,
        "minimum": samples.minimum,
        "maximum": samples.maximum,
        "percentiles": {str(q): samples.percentile(q) for q in PERCENTILES},
        "outliers": asdict(samples.outliers),
        "stability": asdict(samples.stability),
    }


def _costs(profile: Profile) -> dict[str, Any]:
    phases = sorted({record.phase for record in profile.operations})
    return {
        "convention": CONVENTION,
        "macs": profile.macs,
        "flops": profile.flops,
        "causal_macs": profile.causal_macs,
        "recomputed_macs": profile.recomputed_macs,
        "other_flops": profile.other_flops,
        "bytes_moved": profile.bytes_moved,
        "macs_by_phase": {phase: profile.macs_in(phase) for phase in phases},
        "flops_per_s": profile.flops / profile.latency.median,
        "bound": _bound(profile.model_bound),
    }


def _layer(profile: Profile, layer: Layer) -> dict[str, Any]:
    return {
        **asdict(layer),
        "share": profile.share(layer),
        "flops": layer.flops,
        "all_flops": layer.all_flops,
        "intensity": layer.intensity,
        "flops_per_s": layer.flops_per_s,
        "bound": _bound(profile.bound(layer)),
    }


def _hotspot(profile: Profile, hotspot: Hotspot) -> dict[str, Any]:
    return {**asdict(describe_hotspot(profile, hotspot)), "roofline": _bound(hotspot.bound)}


def _bound(bound: Bound | None) -> dict[str, Any] | None:
    if bound is None:
        return None
    return {
        **asdict(bound),
        "bound": bound.bound,
        "ridge": bound.ridge,
        "attainable": bound.attainable,
        "of_attainable": bound.of_attainable,
        "of_peak": bound.efficiency,
    }


def _roofline(profile: Profile) -> dict[str, Any]:
    """Give the roof, and under it the model and its hotspots by what they do themselves."""
    points = [("model", "", profile.total_s, profile.model_bound)]
    for hotspot in profile.hotspots:
        name = describe_hotspot(profile, hotspot).name
        points.append(("layers", name, hotspot.self_s, hotspot.bound))
    ceilings, size = profile.ceilings, profile.working_set_bytes
    return {
        "dtype": profile.dtype,
        "working_set_bytes": size,
        "level": ceilings.level(size) if ceilings else None,
        "peak_flops": ceilings.peak_flops(profile.dtype) if ceilings else None,
        "bandwidth": ceilings.bandwidth(size) if ceilings else None,
        "ridge": ceilings.ridge(profile.dtype, size) if ceilings else None,
        "points": [
            {"of": of, "name": name, "seconds": seconds, **(_bound(bound) or {})}
            for of, name, seconds, bound in points
            if bound is not None
        ],
    }


def _memory(profile: Profile) -> dict[str, Any]:
    memory = profile.memory
    return {
        "peak_bytes": memory.peak_bytes,
        "peak_time": memory.peak_time,
        "peak_by_category": memory.peak_by_category,
        "peak_activation_bytes": memory.peak_activation_bytes,
        "allocated_bytes": memory.allocated_bytes,
        "working_set_bytes": profile.working_set_bytes,
        "device_peak_bytes": profile.recording.device_peak_bytes,
        "traced_peak_bytes": profile.traced_peak_bytes,
        "timeline": {
            **memory.series(TIMELINE_BUCKETS),
            "total": memory_levels(memory, TIMELINE_BUCKETS),
        },
    }


def _counters(counters: Counters) -> dict[str, Any]:
    return {
        **asdict(counters),
        "per_call": {event: counters.per_call(event) for event in counters.values},
        "instructions_per_cycle": counters.instructions_per_cycle,
    }


def memory_levels(
    memory: MemoryTimeline, buckets: int, *, from_first_change: bool = False
) -> list[int]:
    """Give the most bytes alive in each of so many spans of the recorded call.

    That may be less than the sum of the highest levels of the categories, which peak at different
    times. `from_first_change` leaves out the time in which the recorder itself is starting.
    """
    points = memory.points
    if not points:
        return []
    moments = np.array([moment for moment, _ in points])
    totals = np.array([sum(held.values()) for _, held in points])
    changes = moments[moments > 0] if from_first_change and moments[-1] > 0 else moments
    edges = np.linspace(changes[0], changes[-1], buckets + 1)
    levels = []
    for begin, end in pairwise(edges):
        before = int(np.searchsorted(moments, begin, side="left")) - 1
        until = int(np.searchsorted(moments, end, side="right"))
        levels.append(int(totals[max(before, 0) : max(until, before + 1)].max()))
    return levels


def _parameters(profile: Profile) -> dict[str, Any]:
    trainable = [each for each in profile.parameters if each.is_trainable]
    return {
        "count": profile.parameter_count,
        "bytes": profile.parameter_bytes,
        "trainable_count": sum(each.size for each in trainable),
        "tensors": [asdict(each) for each in profile.parameters],
    }


def _facts(facts: ProfileFacts) -> dict[str, Any]:
    return {**asdict(facts), "device": _device(facts.device) if facts.device else None}


def _device(device: DeviceFacts) -> dict[str, Any]:
    return {
        **asdict(device),
        "wall_share_outside": device.wall_share_outside,
    }


def _plain(value: Any) -> Any:
    """Turn everything into what JSON knows; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def _key(key: Any) -> str:
    """Write a key: factors such as 2.0 as "2", infinity as "inf"."""
    return f"{key:g}" if isinstance(key, float) else str(key)
