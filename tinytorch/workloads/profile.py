"""Profile: what happened when a workload ran. Every view is computed from what was observed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import ParameterSpec
from tinytorch.adapters.records import LayerCall, OpRecord, Recording
from tinytorch.errors import SettingError
from tinytorch.measure.amdahl import amdahl
from tinytorch.measure.ceilings import Ceilings
from tinytorch.measure.counters import Counters
from tinytorch.measure.environment import Environment
from tinytorch.measure.roofline import Bound, classify_bound
from tinytorch.measure.samples import Samples
from tinytorch.showing import Shown
from tinytorch.workloads.layer_paths import BACKWARD, PHASES, UPDATE
from tinytorch.workloads.layers import Layer, build_layers, layer_times
from tinytorch.workloads.memory_timeline import MemoryTimeline

__all__ = ["BACKWARD", "UPDATE", "Hotspot", "NotCounted", "OperationGroup", "Profile"]


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
        """Give the speedup of the whole model if these layers were so many times faster."""
        return amdahl(self.share, factor)


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """Everything observed about one workload on one machine.

    `latency` are calls of the model as it is, `watched` calls with every layer timed, taken in
    turns with them; `turns` says how many calls each turn had. `runs` has the layer calls of each
    watched call. `recording` is one more call, with every operation and buffer. Seconds and bytes.
    On a GPU `latency` is one call by the wall clock with the device synchronised before and after,
    and `device_time` beside it the time between two events. There `busy` are calls whose
    kernels were queued up first and ran without gaps, and watched calls are such calls too: the
    times of layers are those of their kernels, and what `latency` has on top is waiting. A call
    that waits for the device cannot be queued up: where it `is_traced`, both are what a trace says
    of some calls.
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
        """Give one row of the layer table."""
        for layer in self.layers:
            if layer.path == path:
                return layer
        known = ", ".join(repr(layer.path) for layer in self.layers[:8])
        raise SettingError(f"no layer {path!r} ran in {self.name}; there are {known}, ...")

    def share(self, layer: Layer) -> float:
        """Give the part of a call that is spent in a layer and below it."""
        return layer.time_s / self.total_s

    def peak_share(self, layer: Layer) -> float | None:
        """Give the part of the memory at the peak that a layer and those below made or hold."""
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
        """Say which ceiling is above a layer; None where nothing was counted or measured."""
        return self._bound(layer.all_flops, layer.bytes_moved, layer.time_s)

    @property
    def model_bound(self) -> Bound | None:
        """Say which ceiling is above the call as a whole."""
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
        """Give the whole profile, ready for JSON."""
        from tinytorch.workloads.profile_summary import summarise_profile

        return summarise_profile(self)

    def __repr__(self) -> str:
        return (
            f"<Profile of {self.name} on {self.device}, {self.mode}: "
            f"{self.latency.median * 1e3:.3g} ms, {self.flops:,} FLOPs, "
            f"{self.memory.peak_bytes:,} bytes at the peak>"
        )
