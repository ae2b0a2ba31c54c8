"""Profile: what happened when a workload ran. Every view is computed from what was observed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Ceilings
from tinytorch.measure.counters import Counters
from tinytorch.measure.environment import Environment
from tinytorch.measure.roofline import ROUNDING, Bound, amdahl, classify_bound
from tinytorch.measure.samples import Samples
from tinytorch.models.adapter import ParameterSpec
from tinytorch.models.records import Allocation, LayerCall, OpRecord, Recording
from tinytorch.profiling.layers import (
    PHASES,
    Layer,
    build_layers,
    layer_times,
    shared_name,
)
from tinytorch.showing import Shown

# ---------------------------------------------------------------- the few facts of a profile that
# decide what to do next: what is slow, why, and what it holds

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
    """Compute the facts of a profile."""
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
    """Return time, bound and possible speedups of a hotspot."""
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
    """Return the achieved share of the roofline for work of `moved` bytes in `seconds`.

    Where moving bytes is the limit, that is its share of the bandwidth: the same number as the one
    in FLOP/s, and one that work without any FLOPs, such as looking up embeddings, has as well.
    """
    if bound is None:
        return None
    return moved / seconds / bound.bandwidth if bound.is_memory_bound else bound.efficiency


def speedups(hotspot: Hotspot) -> dict[float, float | None]:
    """Return the speedup of the whole model for each factor of `FACTORS` on these layers."""
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
    """Return each part as a share of the total, largest first."""
    whole = sum(totals.values())
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    return {name: value / whole for name, value in ordered if value} if whole else {}


# ---------------------------------------------------------------- memory over time, from the books
# on every buffer

LASTING = ("parameters", "buffers", "inputs", "optimizer state")
"""The categories of what is there for longer than a call."""


@dataclass(frozen=True)
class MemoryTimeline:
    """The buffers of one recorded call. Bytes are those of live buffers, each counted once.

    Scratch memory inside of an operator is not seen. Categories: parameters, buffers, inputs,
    optimizer state, activations (made by the forward pass), gradients (of parameters, kept) and
    temporaries (everything else that the backward pass or an update makes).
    """

    allocations: tuple[Allocation, ...]

    @cached_property
    def _events(self) -> list[tuple[float, int, Allocation]]:
        """Births and deaths in the order of time; at one moment deaths come first."""
        events = [(each.born, 1, each) for each in self.allocations]
        events += [(each.died, -1, each) for each in self.allocations if each.died is not None]
        return sorted(events, key=lambda event: (event[0], event[1]))

    @cached_property
    def points(self) -> tuple[tuple[float, dict[str, int]], ...]:
        """Bytes by category after each change: (seconds, {category: bytes})."""
        held: dict[str, int] = defaultdict(int)
        points = []
        for moment, sign, allocation in self._events:
            held[allocation.category] += sign * allocation.nbytes
            points.append((moment, dict(held)))
        return tuple(points)

    @cached_property
    def peak_time(self) -> float:
        """The moment at which most bytes were alive."""
        moment, _ = max(self.points, key=lambda point: sum(point[1].values()), default=(0.0, {}))
        return moment

    @cached_property
    def peak_bytes(self) -> int:
        """Most bytes alive at once, parameters and inputs included."""
        return max((sum(held.values()) for _, held in self.points), default=0)

    @property
    def peak_activation_bytes(self) -> int:
        """Most bytes alive at once of what the call itself made: no parameters, no inputs."""
        totals = [
            sum(size for category, size in held.items() if category not in LASTING)
            for _, held in self.points
        ]
        return max(totals, default=0)

    @cached_property
    def at_peak(self) -> tuple[Allocation, ...]:
        """The buffers that were alive at the peak."""
        moment = self.peak_time
        return tuple(
            each
            for each in self.allocations
            if each.born <= moment and (each.died is None or each.died > moment)
        )

    @property
    def peak_by_category(self) -> dict[str, int]:
        return _total(self.at_peak, lambda each: each.category)

    @property
    def peak_by_path(self) -> dict[str | None, int]:
        """Bytes alive at the peak by the layer that made or holds them."""
        return _total(self.at_peak, lambda each: each.path)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of everything that the call made, whether it was freed on the way or not."""
        return sum(each.nbytes for each in self.allocations if each.category not in LASTING)

    def allocated_by_path(self) -> dict[str | None, int]:
        """Bytes that each layer made in the forward pass."""
        made = [each for each in self.allocations if each.phase == "forward"]
        return _total(made, lambda each: each.path)

    def series(self, buckets: int = 200, *, from_first_change: bool = False) -> dict[str, Any]:
        """Return the highest level in each of `buckets` spans of time, for charts.

        `seconds` are the ends of the spans. The highest `total` may be less than the sum of the
        `categories`, which peak at different times. `from_first_change` leaves out the time in
        which the recorder itself is starting.
        """
        if not self.points:
            return {"seconds": [], "categories": {}, "total": []}
        latest = dict(self.points)  # of the points of one moment the last, which is the highest
        moments = np.array(list(latest))
        names = sorted({category for held in latest.values() for category in held})
        levels = np.array([[h.get(name, 0) for name in names] for h in latest.values()])
        levels = np.column_stack([levels, levels.sum(axis=1)])  # (moments, categories + 1)
        changes = moments[moments > 0] if from_first_change and moments[-1] > 0 else moments
        edges = np.linspace(changes[0], changes[-1], buckets + 1)
        stops = np.searchsorted(moments, edges)
        stops[-1] = len(moments)
        # A span begins with the level before it.
        highest = np.array(
            [levels[max(begin - 1, 0) : max(end, 1)].max(axis=0) for begin, end in pairwise(stops)]
        )
        columns = highest.T.tolist()
        return {
            "seconds": edges[1:].tolist(),
            "categories": dict(zip(names, columns[:-1], strict=True)),
            "total": columns[-1],
        }


def _total(allocations: Iterable[Allocation], key: Any) -> dict[Any, int]:
    totals: dict[Any, int] = defaultdict(int)
    for each in allocations:
        totals[key(each)] += each.nbytes
    return dict(totals)


# ---------------------------------------------------------------- profile: what happened when a
# workload ran. Every view is computed from what was observed


@dataclass(frozen=True)
class OperationGroup:
    """All operations of one kind in one phase; times are of the recording pass."""

    kind: str
    phase: str
    family: str
    calls: int
    seconds: float
    share: float
    macs: int
    bytes_moved: int


@dataclass(frozen=True)
class NotCounted:
    """A kind of operation without a formula in the cost table.

    The path "" is the model itself.
    """

    kind: str
    calls: int
    seconds: float
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Hotspot:
    """Layers of one name (``h.*.mlp``) and size, and the time that they spend themselves.

    The name "" is the model itself: what it does outside of its layers.
    """

    name: str
    kind: str
    layers: tuple[str, ...]
    self_s: float
    share: float
    bound: Bound | None

    def speedup_if(self, factor: float) -> float:
        """Return the speedup of the whole model if these layers ran `factor` times as fast."""
        return amdahl(self.share, factor)


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """Everything observed about one workload on one machine.

    `latency` are calls of the unmodified model, `watched` calls with every layer timed, taken in
    turns with them; `turns` says how many calls each turn had. `runs` has the layer calls of each
    watched call. `recording` is one more call, with every operation and buffer. Seconds and bytes.
    On a GPU `latency` is one call by the wall clock with the device synchronised before and after,
    and `device_time` beside it the time between two events. There `busy` are calls whose
    kernels were queued up first and ran without gaps, and watched calls are such calls too: the
    times of layers are those of their kernels, and what `latency` has on top is waiting. A call
    that waits for the device cannot be queued up: where it `is_traced`, both are what a trace says
    of some calls. `disturbances` are the notes that name what else the machine was doing.
    """

    name: str
    framework: str
    device: str
    mode: str
    latency: Samples
    watched: Samples
    turns: tuple[int, ...]
    runs: tuple[tuple[LayerCall, ...], ...]
    recording: Recording
    parameters: tuple[ParameterSpec, ...]
    kinds: Mapping[str, str]
    environment: Environment
    ceilings: Ceilings | None = None
    examples: int | None = None
    device_time: Samples | None = None
    busy: Samples | None = None
    traced_peak_bytes: int | None = None
    counters: Counters | None = None
    notes: tuple[str, ...] = ()
    disturbances: tuple[str, ...] = ()
    is_traced: bool = False

    # ------------------------------------------------------------ time

    @cached_property
    def _kept_runs(self) -> tuple[int, ...]:
        """The half of the watched calls nearest to the median: outliers say little of layers."""
        distances = np.abs(np.array(self.watched.values) - self.watched.median)
        nearest = np.argsort(distances, kind="stable")[: (len(distances) + 1) // 2]
        return tuple(sorted(int(index) for index in nearest))

    @cached_property
    def total_s(self) -> float:
        """The time of a watched call, that the times of layers add up to."""
        return float(np.mean([self.watched.values[index] for index in self._kept_runs]))

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table, in the order of the model's own tree."""
        times = layer_times([self.runs[index] for index in self._kept_runs])
        kinds = dict(self.kinds)
        kinds |= {path: phase for path, phase in PHASES.items() if path in times}
        return build_layers(
            kinds,
            times,
            self.operations,
            self.parameters,
            self.memory.allocated_by_path(),
            self.memory.peak_by_path,
        )

    @property
    def unattributed_s(self) -> float:
        """Time of a call outside of every layer: the call itself, losses, Python in between."""
        return self.total_s - sum(layer.self_s for layer in self.layers)

    @property
    def overhead(self) -> float | None:
        """What watching cost: the median ratio of neighbouring turns, minus 1.

        None where it `is_traced`: busy and watched calls are the same then.
        """
        if self.is_traced:
            return None
        unwatched = self.busy or self.latency
        ratios, first = [], 0
        for count in self.turns:
            turn = slice(first, first + count)
            first += count
            ratios.append(np.median(self.watched.values[turn]) / np.median(unwatched.values[turn]))
        return float(np.median(ratios)) - 1

    @property
    def idle_share(self) -> float | None:
        """On a GPU: the part of a call in which the device waits for the program."""
        return 1 - self.busy.median / self.latency.median if self.busy else None

    @property
    def throughput(self) -> float | None:
        """Examples per second, when the first input has a batch axis."""
        return self.examples / self.latency.median if self.examples else None

    def layer(self, path: str) -> Layer:
        """Return one row of the layer table."""
        for layer in self.layers:
            if layer.path == path:
                return layer
        known = ", ".join(repr(layer.path) for layer in self.layers[:8])
        raise SettingError(f"no layer {path!r} ran in {self.name}; there are {known}, ...")

    def share(self, layer: Layer) -> float:
        """Return the share of a call that is spent in a layer and below it."""
        return layer.time_s / self.total_s

    def peak_share(self, layer: Layer) -> float | None:
        """Return the share of the peak memory that a layer and those below allocated or hold."""
        return layer.peak_bytes / self.memory.peak_bytes if self.memory.peak_bytes else None

    @cached_property
    def hotspots(self) -> tuple[Hotspot, ...]:
        """Layers by the time that they spend themselves, repeated ones together, slowest first."""
        groups: dict[tuple[Any, ...], list[Layer]] = defaultdict(list)
        for layer in self.layers:
            groups[layer.group].append(layer)
        found = [
            Hotspot(
                name=members[0].path if len(members) == 1 else members[0].group[0],
                kind=members[0].kind,
                layers=tuple(layer.path for layer in members),
                self_s=(seconds := sum(layer.self_s for layer in members)),
                share=seconds / self.total_s,
                bound=self._bound(
                    sum(layer.self_flops for layer in members),
                    sum(layer.self_bytes for layer in members),
                    seconds,
                ),
            )
            for members in groups.values()
        ]
        return tuple(sorted(found, key=lambda hotspot: -hotspot.self_s))

    @property
    def bottleneck(self) -> Hotspot | None:
        """The layers that take most of the time themselves; None when no layer took any."""
        return next((hotspot for hotspot in self.hotspots if hotspot.self_s > 0), None)

    # ------------------------------------------------------------ costs

    @property
    def operations(self) -> tuple[OpRecord, ...]:
        return self.recording.operations

    def _sum(self, phase: str | None, field: str) -> int:
        return sum(
            getattr(record.cost, field)
            for record in self.operations
            if record.cost is not None and phase in (None, record.phase)
        )

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of contractions in one call, dense."""
        return self._sum(None, "macs")

    @property
    def flops(self) -> int:
        """FLOPs of contractions in one call: two per multiply-accumulate."""
        return 2 * self.macs

    @cached_property
    def causal_macs(self) -> int:
        """The same without what causal masks hide, where an operation says that it has one."""
        return self._sum(None, "causal_macs")

    @cached_property
    def recomputed_macs(self) -> int:
        """Products that fused backward kernels do again; not part of `macs`."""
        return self._sum(None, "recomputed_macs")

    @cached_property
    def other_flops(self) -> int:
        """Elementwise, normalisation and reduction work."""
        return self._sum(None, "other_flops")

    @cached_property
    def bytes_moved(self) -> int:
        return self._sum(None, "bytes_read") + self._sum(None, "bytes_written")

    def macs_in(self, phase: str) -> int:
        """Multiply-accumulates of one phase: `forward`, `backward` or `update`."""
        return self._sum(phase, "macs")

    @cached_property
    def not_counted(self) -> tuple[NotCounted, ...]:
        """Operations without a formula, slowest first. Nothing of theirs is in any total."""
        groups: dict[str, list[OpRecord]] = defaultdict(list)
        for record in self.operations:
            if record.cost is None:
                groups[record.kind].append(record)
        found = [
            NotCounted(
                kind=kind,
                calls=len(records),
                seconds=sum(record.duration for record in records),
                paths=tuple(sorted({"(outside)" if r.path is None else r.path for r in records})),
            )
            for kind, records in groups.items()
        ]
        return tuple(sorted(found, key=lambda each: -each.seconds))

    @cached_property
    def top_operations(self) -> tuple[OperationGroup, ...]:
        """Operations by kind and phase, slowest first, with their share of all operations."""
        groups: dict[tuple[str, str], list[OpRecord]] = defaultdict(list)
        for record in self.operations:
            groups[record.kind, record.phase].append(record)
        total = sum(record.duration for record in self.operations) or 1.0
        found = [
            OperationGroup(
                kind=kind,
                phase=phase,
                family=records[0].cost.family if records[0].cost else "not counted",
                calls=len(records),
                seconds=(seconds := sum(record.duration for record in records)),
                share=seconds / total,
                macs=sum(record.macs for record in records),
                bytes_moved=sum(record.bytes_moved for record in records),
            )
            for (kind, phase), records in groups.items()
        ]
        return tuple(sorted(found, key=lambda group: -group.seconds))

    # ------------------------------------------------------------ memory

    @cached_property
    def memory(self) -> MemoryTimeline:
        return MemoryTimeline(self.recording.allocations)

    @property
    def parameter_count(self) -> int:
        return sum(each.size for each in self.parameters if not each.is_buffer)

    @property
    def parameter_bytes(self) -> int:
        return sum(each.nbytes for each in self.parameters if not each.is_buffer)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of what a model keeps beside its parameters, such as running means."""
        return sum(each.nbytes for each in self.parameters if each.is_buffer)

    @property
    def working_set_bytes(self) -> int:
        """What a call touches: everything alive at the peak."""
        return self.memory.peak_bytes

    # ------------------------------------------------------------ the roofline

    @cached_property
    def dtype(self) -> str:
        """The dtype in which most of the multiply-accumulates are done."""
        weights: Counter[str] = Counter()
        for record in self.operations:
            weights[record.dtype] += record.macs
        return weights.most_common(1)[0][0] if weights and self.macs else "float32"

    def bound(self, layer: Layer) -> Bound | None:
        """Return the roofline bound of a layer; None if costs or ceilings are unknown."""
        return self._bound(layer.all_flops, layer.bytes_moved, layer.time_s)

    @property
    def model_bound(self) -> Bound | None:
        """The roofline bound of the whole call; None if costs or ceilings are unknown."""
        return self._bound(self.flops + self.other_flops, self.bytes_moved, self.latency.median)

    def _bound(self, flops: int, moved: int, seconds: float) -> Bound | None:
        peak = self.ceilings.peak_flops(self.dtype) if self.ceilings else None
        if self.ceilings is None or peak is None or not moved or seconds <= 0:
            return None
        # A model that is called again and again finds in a cache what fits there as a whole.
        bandwidth = self.ceilings.bandwidth(self.working_set_bytes)
        return classify_bound(
            achieved=flops / seconds, peak=peak, bandwidth=bandwidth, intensity=flops / moved
        )

    # ------------------------------------------------------------ handing it on

    def to_dict(self) -> dict[str, Any]:
        """Return the whole profile as plain JSON data."""
        from tinytorch.profiling.summary import summarise_profile

        return summarise_profile(self)

    def __repr__(self) -> str:
        return (
            f"<Profile of {self.name} on {self.device}, {self.mode}: "
            f"{self.latency.median * 1e3:.3g} ms, {self.flops:,} FLOPs, "
            f"{self.memory.peak_bytes:,} bytes at the peak>"
        )
