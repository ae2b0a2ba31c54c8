"""The few facts of a profile that decide what to do next: what is slow, why, and what it holds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytorch.measure.amdahl import ROUNDING
from tinytorch.measure.roofline import Bound
from tinytorch.workloads.layer_tree import shared_name

if TYPE_CHECKING:
    from tinytorch.workloads.profile import Hotspot, Profile

__all__ = [
    "FACTORS",
    "BottleneckFacts",
    "DeviceFacts",
    "ProfileFacts",
    "describe_hotspot",
    "find_facts",
    "share_of_possible",
    "speedups",
]

FACTORS = (2.0, 4.0, 10.0, math.inf)
"""How many times faster a part might become, for Amdahl's law."""


@dataclass(frozen=True)
class BottleneckFacts:
    """Layers of one name and size: what they cost themselves and what limits them.

    `of_attainable` is the share of what the roofline allows at their intensity, which is that of
    the bandwidth where moving bytes is the limit; `of_peak` is the share of the machine's peak.
    None where nothing was counted or the machine was not measured. `is_leaf` says that no layer was
    timed inside of them. `speedups` maps a factor to what the whole would gain if they were so
    many times faster.
    """

    name: str
    kind: str
    layers: tuple[str, ...]
    is_leaf: bool
    self_s: float
    share: float
    bytes_moved: int
    bound: str | None
    intensity: float | None
    of_attainable: float | None
    of_peak: float | None
    speedups: Mapping[float, float | None]

    @property
    def is_model(self) -> bool:
        """Whether it is the model itself: its code outside of all layers, if it has any."""
        return self.layers == ("",)


@dataclass(frozen=True)
class DeviceFacts:
    """A GPU's part in the time of a call, as medians per call.

    `device_s` runs from the begin to the end of a call on the device's time line, gaps included;
    `busy_s` is what its kernels take without gaps; `wall_s` ends when the host knows. Layers are
    timed without gaps, so the device is what they are shares of; `idle_share` comes on top.
    """

    wall_s: float
    device_s: float
    busy_s: float | None
    idle_share: float | None

    @property
    def wall_share_outside(self) -> float:
        """The part of the wall time before and after the device's work: starting and waiting."""
        return 1 - self.device_s / self.wall_s


@dataclass(frozen=True)
class ProfileFacts:
    """Everything that advice starts from. Shares are of a call's time unless they say otherwise.

    `flops_per_s`, `intensity` and `of_peak` are of all floating-point work, not of products only.
    `container_share` is what containers spend outside of their layers: functional code and Python.
    `outside_operations_share` is time in no operation: Python, and launching. Operations are timed
    in the recording pass, which is slower, so it is at least that; None where the recorded
    operations took longer than a whole call does and nothing can be said. `families` are shares of
    the time of all recorded operations. There is no `bottleneck` when no layer ran.
    """

    bottleneck: BottleneckFacts | None
    flops_per_s: float
    intensity: float | None
    bound: str | None
    of_attainable: float | None
    of_peak: float | None
    unattributed_share: float
    container_share: float
    outside_operations_share: float | None
    device: DeviceFacts | None
    peak_bytes: int
    peak_composition: Mapping[str, float]
    families: Mapping[str, float]
    dtype: str
    batch: int | None
    not_counted_share: float


def find_facts(profile: Profile) -> ProfileFacts:
    """Draw the facts from a profile."""
    latency = profile.latency.median
    model = profile.model_bound
    memory = profile.memory
    work = profile.flops + profile.other_flops
    spent = sum(record.duration for record in profile.operations)
    outside = 1 - spent / latency
    missed = sum(each.seconds for each in profile.not_counted)
    slowest = profile.bottleneck
    return ProfileFacts(
        bottleneck=describe_hotspot(profile, slowest) if slowest else None,
        flops_per_s=work / latency,
        intensity=work / profile.bytes_moved if profile.bytes_moved else None,
        bound=model.bound if model else None,
        of_attainable=share_of_possible(model, profile.bytes_moved, latency),
        of_peak=model.efficiency if model else None,
        unattributed_share=profile.unattributed_s / profile.total_s,
        container_share=sum(x.self_s for x in profile.layers if not x.is_leaf) / profile.total_s,
        # On a GPU operations wait for each other, so that their times say nothing of the host's.
        outside_operations_share=outside if outside > 0 and profile.device == "cpu" else None,
        device=_device(profile),
        peak_bytes=memory.peak_bytes,
        peak_composition=_shares(memory.peak_by_category),
        families=_families(profile),
        dtype=profile.dtype,
        batch=profile.examples,
        not_counted_share=missed / spent if spent else 0.0,
    )


def describe_hotspot(profile: Profile, hotspot: Hotspot) -> BottleneckFacts:
    """Give what a row of the hotspots says about time, limits and possible gains."""
    paths = set(hotspot.layers)
    members = [layer for layer in profile.layers if layer.path in paths]
    bound = hotspot.bound
    moved = sum(layer.self_bytes for layer in members)
    return BottleneckFacts(
        name=shared_name(hotspot.layers),
        kind=hotspot.kind,
        layers=hotspot.layers,
        is_leaf=all(layer.is_leaf for layer in members),
        self_s=hotspot.self_s,
        share=hotspot.share,
        bytes_moved=moved,
        bound=bound.bound if bound else None,
        intensity=sum(layer.self_flops for layer in members) / moved if moved else None,
        of_attainable=share_of_possible(bound, moved, hotspot.self_s),
        of_peak=bound.efficiency if bound else None,
        speedups=speedups(hotspot),
    )


def share_of_possible(bound: Bound | None, moved: int, seconds: float) -> float | None:
    """Give the share of what the roof allows that work of so many bytes and seconds reached.

    Where moving bytes is the limit, that is its share of the bandwidth: the same number as the one
    in FLOP/s, and one that work without any FLOPs, such as looking up embeddings, has as well.
    """
    if bound is None:
        return None
    return moved / seconds / bound.bandwidth if bound.is_memory_bound else bound.efficiency


def speedups(hotspot: Hotspot) -> dict[float, float | None]:
    """Give the speedup of the whole for each factor by which these layers might become faster."""
    # Clocks of a GPU are coarse: a share may come out below 0, and then there is nothing to say.
    if not 0 <= hotspot.share <= 1 + ROUNDING:
        return dict.fromkeys(FACTORS)
    return {factor: hotspot.speedup_if(factor) for factor in FACTORS}


def _device(profile: Profile) -> DeviceFacts | None:
    if profile.device == "cpu" or profile.device_time is None:
        return None
    return DeviceFacts(
        wall_s=profile.latency.median,
        device_s=profile.device_time.median,
        busy_s=profile.busy.median if profile.busy else None,
        idle_share=profile.idle_share,
    )


def _families(profile: Profile) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for group in profile.top_operations:
        totals[group.family] += group.seconds
    return _shares(totals)


def _shares(totals: Mapping[str, float]) -> dict[str, float]:
    """Give each part of a whole as a share of it, the largest first."""
    whole = sum(totals.values())
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    return {name: value / whole for name, value in ordered if value} if whole else {}
