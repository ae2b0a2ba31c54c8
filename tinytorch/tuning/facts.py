"""What rules of advice start from: where the time of a call goes, operation by operation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tinytorch.measure.ceilings import Ceilings
from tinytorch.models.records import Call, OpRecord, TensorSpec
from tinytorch.profiling.layers import PHASES, ancestors, group_layers, layer_times, layers_around
from tinytorch.profiling.profile import Profile, ProfileFacts, find_facts
from tinytorch.transforms.plan import Gain, Plan
from tinytorch.tuning.catalog import CATALOG, Entry

LITTLE = 0.05
"""Smaller shares of a call are not reported: Amdahl's law allows a gain of 5% at most."""
PRODUCTS = "contraction"
FREE = frozenset({"view"})
ROW_OF_PHASE = {phase: path for path, phase in PHASES.items()}
NAMED = 3
CALLS_COMPARED = 50


@dataclass(frozen=True)
class Work:
    """One recorded operation and the part of a call that it takes.

    `seconds` and `share` are the own time of its layer in the watched calls, divided among the
    operations of the layer as they took time in the recording: what the layer table shows, and the
    most that an operation can take. `inside` is the part of that which the operation itself takes;
    the rest is Python. `weight` is the parameter that a product reads, where it reads one.
    """

    record: OpRecord
    layer: str
    seconds: float
    share: float
    inside: float = 1.0
    weight: TensorSpec | None = None

    @property
    def family(self) -> str:
        return self.record.cost.family if self.record.cost else ""

    @property
    def is_product(self) -> bool:
        """Whether it is a sum of products: of matrices, a convolution, attention."""
        return self.family == PRODUCTS

    @property
    def rows(self) -> int:
        """Multiply-accumulates for each number of the weight: how often it is used when read."""
        return self.record.macs // self.weight.size if self.weight and self.weight.size else 0


@dataclass(frozen=True)
class Facts:
    """The facts of a profile, its work by time, and what may be advised.

    `work` is in the order of execution; `outside_share` is the part of a call in no operation, at
    least, since operations are recorded slower than they are. `offered` are the entries that a rule
    may name; `plans` has what their transforms would do, where that is known. `kinds` are the
    classes of the layers, by path.
    """

    of_profile: ProfileFacts
    work: tuple[Work, ...]
    outside_share: float
    offered: Mapping[str, Entry]
    plans: Mapping[str, tuple[Plan, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    framework: str = ""

    def entries(self, *names: str) -> tuple[Entry, ...]:
        """Return those of these entries that are offered and whose plan is not empty."""
        found = (self.offered[name] for name in names if name in self.offered)
        return tuple(each for each in found if not self.does_nothing(each.name))

    def does_nothing(self, entry: str) -> bool:
        """Return whether a plan is known and one of its parts is empty."""
        plans = self.plans.get(entry)
        return plans is not None and (not plans or any(plan.is_empty for plan in plans))

    def changed_by(self, entry: str, work: Iterable[Work]) -> tuple[Work, ...]:
        """Return the work in the layers that an entry changes.

        They are those of its plan, where there is one, and of the classes that its transform names.
        """
        layers = {layer for plan in self.plans.get(entry, ()) for layer in plan.layers}
        found = tuple(work)
        if layers:
            found = tuple(x for x in found if not layers.isdisjoint(ancestors(x.record.path or "")))
        transforms = self.offered[entry].transforms if entry in self.offered else ()
        kinds = transforms[-1].products_of(self.framework) if transforms else None
        if kinds is None:
            return found
        return tuple(x for x in found if self.kinds.get(x.record.path or "") in kinds)

    @cached_property
    def products(self) -> tuple[Work, ...]:
        """Every sum of products."""
        return tuple(each for each in self.work if each.is_product)

    @cached_property
    def small(self) -> tuple[Work, ...]:
        """Everything else that computes or moves bytes."""
        return tuple(x for x in self.work if not x.is_product and x.family not in FREE)


def gather_facts(
    profile: Profile,
    entries: Sequence[Entry] = (),
    plans: Mapping[str, tuple[Plan, ...]] | None = None,
) -> Facts:
    """Divide the time of a call among its operations, and find out what may be advised.

    Without entries, everything in the catalog that fits the framework and the device may.
    """
    work = tuple(_work(profile))
    return Facts(
        of_profile=find_facts(profile),
        work=work,
        outside_share=_outside_share(profile, work),
        offered={each.name: each for each in entries or _fitting(profile)},
        plans=dict(plans or {}),
        kinds=profile.kinds,
        framework=profile.framework,
    )


def _fitting(profile: Profile) -> Iterable[Entry]:
    device = profile.device.partition(":")[0]
    return (
        each for each in CATALOG if profile.framework in each.frameworks and device in each.devices
    )


# ---------------------------------------------------------------- time by operation


def _busy_share(profile: Profile) -> float:
    """Return the share of a call in which the device computes, where layers are timed."""
    return min(1.0, max(0.0, 1 - (profile.idle_share or 0.0)))


def _outside_share(profile: Profile, work: Sequence[Work]) -> float:
    """Return the share of a call outside of operations; on a GPU, the idle share."""
    if profile.device != "cpu":
        return 1 - _busy_share(profile)
    placed = {id(each.record) for each in work}
    elsewhere = sum(x.duration for x in profile.operations if id(x) not in placed)
    return max(0.0, 1 - inside_share(work) - elsewhere / profile.total_s)


def _work(profile: Profile) -> Iterable[Work]:
    own = {layer.path: layer for layer in profile.layers}
    recorded: dict[str, float] = defaultdict(float)
    places: list[tuple[OpRecord, str]] = []
    for record in profile.operations:
        place = _place(record, own)
        if place is not None:
            places.append((record, place))
            recorded[place] += record.duration
    of_call = _busy_share(profile) / profile.total_s
    calm = _calm_times(profile) if profile.device == "cpu" else {}
    find_weight = _weight_finder(profile)
    for record, place in places:
        spent, taken = max(0.0, own[place].self_s), recorded[place]
        seconds = spent * record.duration / taken if taken > 0 else 0.0
        inside = min(1.0, taken / calm[place]) if calm.get(place) else 1.0
        yield Work(record, place, seconds, seconds * of_call, inside, find_weight(record))


def _calm_times(profile: Profile) -> dict[str, float]:
    """Return the shortest own time of each layer in a watched call.

    The recording is one call, perhaps in a calm moment: only calm calls can be compared with it. It
    is slower than these, so that operations are taken to be longer than they are, never shorter.
    """
    step = max(1, len(profile.runs) // CALLS_COMPARED)
    shortest: dict[str, float] = {}
    for run in profile.runs[::step]:
        for path, times in layer_times([run]).items():
            shortest[path] = min(times.self_s, shortest.get(path, math.inf))
    return shortest


def _place(record: OpRecord, rows: Mapping[str, object]) -> str | None:
    """Return the row of the layer table whose own time includes this operation."""
    if record.phase != "forward":
        row = ROW_OF_PHASE.get(record.phase)
        return row if row in rows else None
    around = layers_around(record.path, rows)
    called = [path for path in around if getattr(rows[path], "calls", 0)]
    return (called or around)[-1] if around else None


def _weight_finder(profile: Profile) -> Callable[[OpRecord], TensorSpec | None]:
    """Make what tells which input of a product is a parameter, by its number of elements.

    A parameter of the layer itself is meant whatever its shape; that of another layer, such as
    tied embeddings, only as a matrix: activations may have as many elements by chance.
    """
    sizes: dict[str, set[int]] = defaultdict(set)
    for each in profile.parameters:
        if not each.is_buffer:
            sizes[each.path].add(each.size)
    everywhere = set().union(*sizes.values()) if sizes else set()

    def find(record: OpRecord) -> TensorSpec | None:
        if record.cost is None or record.cost.family != PRODUCTS:
            return None
        inputs = [x for x in Call(record.kind, record.inputs, (), {}).tensors if len(x.shape) > 1]
        own = sizes.get(record.path or "", set())
        for spec in reversed(inputs):
            if spec.size in own or (len(spec.shape) == 2 and spec.size in everywhere):
                return spec
        return None

    return find


# ---------------------------------------------------------------- words


def named_layers(work: Iterable[Work]) -> str:
    """Return the names of the layers that take most of the time, repeated ones grouped."""
    seconds: dict[str, float] = defaultdict(float)
    for each in work:
        seconds[each.layer] += each.seconds
    kept = [layer for layer in seconds if layer not in PHASES]
    groups = sorted(
        group_layers(kept), key=lambda group: -sum(seconds[path] for path in group.paths)
    )
    names = [group.name or "the model itself" for group in groups[:NAMED]]
    rest = len(groups) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


def share_of(work: Iterable[Work]) -> float:
    """Return the share of a call that some work takes, at most 1."""
    return min(1.0, math.fsum(each.share for each in work))


def inside_share(work: Iterable[Work]) -> float:
    """Return the share of a call that operations take, without the Python around them."""
    return min(1.0, math.fsum(each.share * each.inside for each in work))


def counted(number: int, noun: str) -> str:
    """Write a number of things: ``1 layer``, ``12 layers``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def time_text(seconds: float) -> str:
    """Write a time with three digits: ``8.5 us``, ``2.69 ms``, ``1.2 s``."""
    for limit, unit, name in ((1e-3, 1e-6, "us"), (1.0, 1e-3, "ms")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def outside_text(profile: Profile, share: float) -> str:
    """Describe the share of a call outside of operations; on a GPU, its idle share."""
    if profile.device == "cpu":
        return f"{share:.0%} or more of a call is outside of operations: Python and kernel calls"
    return f"{share:.0%} of a call the device is idle: host-bound"


# ---------------------------------------------------------------- how much faster a call can
# become: the roofline for each operation, Amdahl's law for the whole
#
# Predictions make two assumptions: an operation with fewer bytes or a higher ceiling keeps its
# efficiency, and fused operations take as long as the slowest of them. The upper end is the
# roofline. At the lower end, what changes takes longer. By how much, and how far a call lies beside
# its prediction in any case, are allowances; benchmarks/advice_calibration.py checks them.

SPREAD = 1.05
"""What both ends leave beside the model: shares of time are measured, and calls differ."""
LEAST_GAIN = 1.05
"""Least expected speedup that is advised."""
NO_CEILINGS = "this machine's ceilings were not measured"


@dataclass(frozen=True)
class Roof:
    """The ceilings of a machine for the working set of one profile."""

    ceilings: Ceilings
    bandwidth: float

    def seconds(self, work: Work, *, moved: float | None = None, dtype: str = "") -> float | None:
        """Return the roofline time of an operation, with `moved` bytes and in `dtype`.

        None where the machine's rate for it was not measured.
        """
        record = work.record
        peak = self.ceilings.peak_flops(dtype or record.dtype)
        if record.flops and peak is None:
            return None
        computing = record.flops / peak if record.flops and peak else 0.0
        return max(computing, (record.bytes_moved if moved is None else moved) / self.bandwidth)

    def is_memory_bound(self, work: Work) -> bool | None:
        """Return whether an operation is memory-bound; None if unknown."""
        peak = self.ceilings.peak_flops(work.record.dtype)
        if peak is None or not work.record.bytes_moved:
            return None
        return work.record.all_flops / work.record.bytes_moved < peak / self.bandwidth


def roof_of(profile: Profile) -> Roof | None:
    """Return the roofline of a profile, if the machine was measured.

    A model that is called again and again finds in a cache what fits there as a whole.
    """
    ceilings = profile.ceilings
    if ceilings is None:
        return None
    return Roof(ceilings, ceilings.bandwidth(profile.working_set_bytes))


def missing_rate(profile: Profile, dtype: str) -> str:
    """Return why the rate for products of a dtype is unknown, or "" if it is known."""
    if profile.ceilings is None:
        return NO_CEILINGS
    if profile.ceilings.peak_flops(dtype) is not None:
        return ""
    why = profile.ceilings.not_measured.get(f"{dtype} rate", "not among the measured dtypes")
    return f"this machine's {dtype} rate was not measured: {why}"


@dataclass(frozen=True)
class Change:
    """The remaining share of the time of some work.

    As expected (`left`), at best (`least`), and at worst (`most`), above 1 where it can be slower.
    """

    work: Work
    left: float
    least: float
    most: float = 1.0

    @classmethod
    def under(cls, work: Work, now: float | None, then: float | None) -> Change:
        """Return the change when the roofline time goes from `now` to `then` seconds.

        Work that beats its roof (a cache helped, or the ceiling is too low) keeps its lead.
        """
        if not now or then is None or work.seconds <= 0:
            return cls(work, 1.0, 1.0)
        left = min(1.0, then / now)
        is_below = work.seconds >= now
        return cls(work, left, min(left, then / work.seconds) if is_below else left)


def gain_of(
    changes: Iterable[Change], basis: str, *, vanishing: float = 0.0, left: float = 1.0
) -> Gain:
    """Return the gain of a whole call by Amdahl's law.

    What is expected is saved in the operation itself, at best also in the Python around it, which
    the layer table has in one number with it, and at worst all of that takes longer. `vanishing` is
    the share of the call in no operation, where that can be gone at best, and of which this part is
    `left` as expected.
    """
    every = list(changes)
    saved = math.fsum(x.work.share * x.work.inside * (1 - x.left) for x in every)
    most = math.fsum(
        x.work.share * (x.work.inside if vanishing else 1.0) * (1 - x.least) for x in every
    )
    saved, most = saved + vanishing * (1 - left), most + vanishing
    lost = math.fsum(x.work.share * (x.most - 1) for x in every)
    value, high = _speedup(saved), _speedup(most)
    return Gain(value, 1 / (1 + lost) / SPREAD, max(value, high) * SPREAD, basis=basis)


def _speedup(saved: float) -> float:
    """Return the speedup after removing this share of the time, short of infinity."""
    return 1 / max(1 - saved, 1e-6) if saved > 0 else 1.0
