"""A profile as plain JSON: every view of it, and the facts that advice starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinytorch.codec import encode
from tinytorch.errors import SettingError
from tinytorch.measure.counters import Counters
from tinytorch.measure.roofline import Bound
from tinytorch.measure.samples import Samples
from tinytorch.profiling.layers import Layer
from tinytorch.profiling.profile import (
    DeviceFacts,
    Hotspot,
    Profile,
    ProfileFacts,
    describe_hotspot,
    find_facts,
    share_of_possible,
)

SCHEMA = "tinytorch.profile"
SCHEMA_VERSION = 1
"""Grows when a name changes its meaning or goes; new names alone do not count."""
CONVENTION = "contractions only, dense, two FLOPs per multiply-accumulate; the rest is other_flops"
TIMELINE_BUCKETS = 200
PERCENTILES = (5, 25, 75, 95, 99)


def summarise_profile(profile: Profile) -> dict[str, Any]:
    """Return everything that a profile shows, as dictionaries, lists, numbers, strings and None.

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
        "device_time": _samples(profile.device_time) if profile.device_time else None,
        "busy": _samples(profile.busy) if profile.busy else None,
        "throughput_per_s": profile.throughput,
        "overhead": profile.overhead,
        "total_s": profile.total_s,
        "unattributed_s": profile.unattributed_s,
        "costs": _costs(profile),
        "layers": [_layer(profile, layer) for layer in profile.layers],
        "hotspots": [_hotspot(profile, hotspot) for hotspot in profile.hotspots],
        "top_operations": profile.top_operations,
        "not_counted": profile.not_counted,
        "roofline": _roofline(profile),
        "memory": _memory(profile),
        "counters": _counters(profile.counters) if profile.counters else None,
        "parameters": _parameters(profile),
        "facts": _facts(find_facts(profile)),
        "ceilings": profile.ceilings,
        "environment": profile.environment,
        "notes": profile.notes,
    }
    plain: dict[str, Any] = encode(summary)
    return plain


def _samples(samples: Samples) -> dict[str, Any]:
    interval = samples.median_interval()
    return {
        **samples.to_dict(),
        "count": samples.count,
        "median": samples.median,
        "median_interval": interval.ends,
        "mean": samples.mean,
        "std": samples.std,
        "minimum": samples.minimum,
        "maximum": samples.maximum,
        "percentiles": {str(q): samples.percentile(q) for q in PERCENTILES},
        "outliers": samples.outliers,
        "stability": samples.stability,
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
        "contraction_flops_per_s": profile.flops / profile.latency.median,
        "bound": _bound(profile.model_bound, profile.bytes_moved, profile.latency.median),
    }


def _layer(profile: Profile, layer: Layer) -> dict[str, Any]:
    return {
        **encode(layer),
        "share": profile.share(layer),
        "peak_share": profile.peak_share(layer),
        "flops": layer.flops,
        "all_flops": layer.all_flops,
        "intensity": layer.intensity,
        "flops_per_s": layer.flops_per_s,
        "bound": _bound(profile.bound(layer), layer.bytes_moved, layer.time_s),
    }


def _hotspot(profile: Profile, hotspot: Hotspot) -> dict[str, Any]:
    found = describe_hotspot(profile, hotspot)
    roofline = _bound(hotspot.bound, found.bytes_moved, hotspot.self_s)
    return {**encode(found), "roofline": roofline}


def _bound(bound: Bound | None, moved: int, seconds: float) -> dict[str, Any] | None:
    if bound is None:
        return None
    return {
        **encode(bound),
        "bound": bound.bound,
        "ridge": bound.ridge,
        "attainable": bound.attainable,
        "of_attainable": share_of_possible(bound, moved, seconds),
        "of_peak": bound.efficiency,
    }


def _roofline(profile: Profile) -> dict[str, Any]:
    """Return the roofline, with the model and the own work of its hotspots as points.

    Its axes are logarithmic: what has no FLOPs, and so is limited by the bandwidth alone, has no
    place there.
    """
    points = [("model", "", profile.latency.median, _costs(profile)["bound"])]
    points += [
        ("layers", each["name"], each["self_s"], each["roofline"])
        for each in (_hotspot(profile, hotspot) for hotspot in profile.hotspots)
    ]
    ceilings, size = profile.ceilings, profile.working_set_bytes
    return {
        "dtype": profile.dtype,
        "working_set_bytes": size,
        "level": ceilings.level(size) if ceilings else None,
        "peak_flops": ceilings.peak_flops(profile.dtype) if ceilings else None,
        "bandwidth": ceilings.bandwidth(size) if ceilings else None,
        "ridge": ceilings.ridge(profile.dtype, size) if ceilings else None,
        "points": [
            {"of": of, "name": name, "seconds": seconds, **bound}
            for of, name, seconds, bound in points
            if bound is not None and bound["intensity"] > 0
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
        "timeline": memory.series(TIMELINE_BUCKETS),
    }


def _counters(counters: Counters) -> dict[str, Any]:
    return {
        **encode(counters),
        "per_call": {event: counters.per_call(event) for event in counters.values},
        "instructions_per_cycle": counters.instructions_per_cycle,
    }


def _parameters(profile: Profile) -> dict[str, Any]:
    trainable = [each for each in profile.parameters if each.is_trainable]
    return {
        "count": profile.parameter_count,
        "bytes": profile.parameter_bytes,
        "buffer_bytes": profile.buffer_bytes,
        "trainable_count": sum(each.size for each in trainable),
        "tensors": profile.parameters,
    }


def _facts(facts: ProfileFacts) -> dict[str, Any]:
    return {**encode(facts), "device": _device(facts.device) if facts.device else None}


def _device(device: DeviceFacts) -> dict[str, Any]:
    return {
        **encode(device),
        "wall_share_outside": device.wall_share_outside,
    }


# ---------------------------------------------------------------- does it fit? The working set of
# each layer against the caches of the machine


@dataclass(frozen=True)
class CacheFit:
    """Where the data of the largest operation of some layers fits, and how fast that level is.

    `bandwidth` was measured at that level on this machine; `achieved` is what the layers moved per
    second, all their own operations together. They can be faster than memory only out of a cache.
    """

    hotspot: Hotspot
    working_set_bytes: int
    level: str
    level_bytes: int | None
    bandwidth: float
    achieved: float | None


def cache_fits(profile: Profile) -> tuple[CacheFit, ...]:
    """Place the layers that have operations, in the order of the hotspots."""
    ceilings = profile.ceilings
    if ceilings is None:
        raise SettingError("this profile was taken without ceilings; profile with ceilings=True")
    layers = {layer.path: layer for layer in profile.layers}
    fits = []
    for hotspot in profile.hotspots:
        members = [layers[path] for path in hotspot.layers]
        moved = sum(layer.self_bytes for layer in members)
        if not moved:
            continue
        largest = max(layer.self_largest_bytes for layer in members)
        level = ceilings.level(largest)
        fits.append(
            CacheFit(
                hotspot=hotspot,
                working_set_bytes=largest,
                level=level,
                level_bytes=ceilings.cache_bytes.get(level),
                bandwidth=ceilings.bandwidth(largest),
                achieved=moved / hotspot.self_s if hotspot.self_s > 0 else None,
            )
        )
    return tuple(fits)
