"""Rules about attention, fusion, generation, memory and batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tinytorch.models.records import Call, TensorSpec
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice, billions, millions, suggest
from tinytorch.tuning.facts import (
    LITTLE,
    NO_CEILINGS,
    Change,
    Facts,
    Roof,
    Work,
    counted,
    gain_of,
    inside_share,
    named_layers,
    outside_text,
    roof_of,
    share_of,
    time_text,
)
from tinytorch.tuning.rules_products import at_most

SOFTMAX = frozenset({"softmax", "aten._softmax", "aten._safe_softmax"})
REACH = 16
"""How many operations away from a softmax its products may be: masks, scales, copies."""
IN_ONE_KERNEL = (
    "both matmuls unchanged, everything between them in one pass; at best a fused kernel at the "
    "roofline, which moves queries, keys, values and outputs, but no scores"
)
SLOWER = 1.2
"""Fused and compiled operations may take so many times longer than what they replace: a choice."""
PACKED = 0.6
"""A compiled product may take this share of its time: weights are packed, and what follows is fused
into it. So Amdahl's law sets no bound by the operations between products."""
FAR = 64
"""Lengths beyond this multiple of the present one are not reported."""


@dataclass(frozen=True)
class Attention:
    """Attention in the records: its operations, its length, and the bytes of its score matrix."""

    work: tuple[Work, ...]
    queries: int
    keys: int
    score_bytes: int

    @property
    def products(self) -> tuple[Work, ...]:
        return tuple(each for each in self.work if each.is_product)

    @property
    def is_written_out(self) -> bool:
        """Whether the scores are written to memory."""
        return self.score_bytes > 0

    @property
    def fused_bytes(self) -> int:
        """What one kernel would move: all that comes in and goes out, but no scores."""
        first, *_, last = self.products
        specs = [*_inputs(first), *_inputs(last), *last.record.outputs]
        return sum(spec.nbytes for spec in specs if spec.nbytes < self.score_bytes)


def written_out_attention(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Attention whose scores are written to memory and read again."""
    found = [each for each in find_attention(facts.work) if each.is_written_out]
    for entry in facts.entries("fused-attention"):
        work = facts.changed_by(entry.name, (x for each in found for x in each.work))
        share = share_of(work)
        if share < LITTLE:
            continue
        roof = roof_of(profile)
        scores = sum(each.score_bytes for each in found)
        length = max(each.keys for each in found)
        yield suggest(
            title="Fuse attention into one kernel",
            evidence=(
                f"{share:.0%} of a call is attention in {named_layers(work)}: "
                f"{counted(sum(x.family != 'view' for x in work), 'operation')}",
                f"{millions(scores)} MB of attention scores are written and read back at length "
                f"{length}, growing quadratically with the length",
                at_most(share),
            ),
            entry=entry.name,
            predicted=_fused_gain(roof, found, facts, entry.name) if roof else None,
            not_predicted="" if roof else NO_CEILINGS,
            share=share,
        )


def quadratic_attention(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """The length at which attention, whose cost is quadratic, exceeds all other products."""
    found = [each for each in find_attention(facts.work) if 1 < each.queries == each.keys]
    inside = {id(x) for each in found for x in each.products}
    attention = sum(x.record.macs for each in found for x in each.products)
    rest = sum(x.record.macs for x in facts.products if id(x) not in inside)
    if not attention or not rest:
        return
    length = max(each.queries for each in found)
    takes_over = math.ceil(length * rest / attention)
    if takes_over > FAR * length:
        return
    share = share_of(x for each in found for x in each.work)
    yield suggest(
        title=f"Attention reaches half of the multiply-accumulates at length {takes_over:,}",
        evidence=(
            f"{share:.0%} of a call is attention at the present length of {length:,}",
            f"{millions(attention)} M multiply-accumulates in attention, {millions(rest)} M in all "
            "other products",
            f"{takes_over / length:.2g}x the present length makes them equal: attention grows "
            "quadratically, the others linearly",
            _score_memory(found),
        ),
        not_predicted="no effect at the present length",
        cost="shorter inputs, sliding-window attention, or a KV cache for generation; "
        "tinytorch advise --sequence measures lengths",
        share=share,
    )


# ---------------------------------------------------------------- finding it


def find_attention(work: Sequence[Work]) -> tuple[Attention, ...]:
    """Find attention among operations: in one kernel, or as a softmax between two products."""
    found = []
    for place, each in enumerate(work):
        if each.record.phase != "forward":
            continue
        if each.is_product and "attention" in each.record.kind:
            shapes = [spec.shape for spec in _inputs(each)[:2]]
            if len(shapes) == 2 and all(len(shape) >= 3 for shape in shapes):
                found.append(Attention((each,), shapes[0][-2], shapes[1][-2], 0))
        elif each.record.kind in SOFTMAX:
            found += _around_softmax(work, place)
    return tuple(found)


def _around_softmax(work: Sequence[Work], place: int) -> Iterable[Attention]:
    """Yield the products before and after a softmax, with all operations between them."""
    scores = work[place].record.outputs[0]
    if len(scores.shape) < 3:
        return
    before = range(place - 1, max(-1, place - REACH), -1)
    after = range(place + 1, min(len(work), place + REACH))
    first = next((at for at in before if work[at].is_product), None)
    last = next((at for at in after if work[at].is_product), None)
    if first is None or last is None:
        return
    makes = any(spec.size == scores.size for spec in work[first].record.outputs)
    uses = any(spec.size == scores.size for spec in _inputs(work[last]))
    if makes and uses:
        queries, keys = scores.shape[-2:]
        yield Attention(tuple(work[first : last + 1]), queries, keys, scores.nbytes)


def _inputs(work: Work) -> tuple[TensorSpec, ...]:
    return Call(work.record.kind, work.record.inputs, (), {}).tensors


# ---------------------------------------------------------------- predicting


def _fused_gain(roof: Roof, found: Sequence[Attention], facts: Facts, entry: str) -> Gain:
    """Predict one pass between the two products; at best, everything at the roofline."""
    changes: list[Change] = []
    for each in found:
        work = facts.changed_by(entry, each.work)
        whole = sum(x.seconds for x in work)
        computing = [roof.seconds(x, moved=0) for x in work if x.is_product]
        if not whole or None in computing:
            continue
        floor = max(sum(x or 0.0 for x in computing), each.fused_bytes / roof.bandwidth)
        others = [x.seconds for x in work if not x.is_product]
        passes = sum(x.seconds for x in work if x.is_product) + max(others, default=0.0)
        left = min(1.0, passes / whole)
        changes += [Change(x, left, min(left, floor / whole), SLOWER) for x in work]
    return gain_of(changes, IN_ONE_KERNEL)


def _score_memory(found: Sequence[Attention]) -> str:
    written = [each.score_bytes for each in found if each.is_written_out]
    if written:
        return f"{millions(max(written))} MB of attention scores, 4x at twice the length"
    return "0 bytes of attention scores: a fused kernel never holds them in memory"


# ---------------------------------------------------------------- rules about operations
# between products: fusion, norms, memory layout

FEW = 0.10
"""A smaller share of a call is not worth compiling for."""
NAMED_KINDS = 4


def small_operations(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Consecutive operations fused into one pass, with less Python between them."""
    small, share = facts.small, inside_share(facts.small)
    outside = facts.outside_share if profile.device == "cpu" else 0.0
    if share + outside < FEW or not small:
        return
    runs = _runs(facts.work)
    # Without a product to fuse with, one pass of each run is left.
    has_products = bool(facts.products)
    calls = len(runs) + len(facts.products)
    evidence = (
        f"{share:.0%} of a call is in {counted(len(small), 'operation')} between products: "
        f"{_kinds(small)}",
        f"{counted(len(runs), 'fusible run')}, {len(small) / len(runs):.2g} operations on average",
        outside_text(profile, outside),
    )
    vanishes = (
        f"at best they take no time, and products {PACKED:.0%} of theirs"
        if has_products
        else "at best as well"
    )
    for entry in facts.entries("compiled"):
        yield suggest(
            title="Fuse the operations between products",
            evidence=evidence,
            entry=entry.name,
            predicted=gain_of(
                [
                    *_as_slowest(runs, vanish=has_products),
                    *(Change(each, 1.0, PACKED, SLOWER) for each in facts.products),
                ],
                "a fused run takes as long as its slowest operation, and the time outside of "
                f"operations scales with the kernel calls, from {len(facts.work)} to {calls}; "
                f"{vanishes}, with no time outside of operations",
                vanishing=outside,
                left=calls / len(facts.work),
            ),
            share=min(1.0, share + outside),
        )
    for entry in facts.entries("fused-layers"):
        yield from _activations(facts, entry.name, evidence[:1])


def own_kernels(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Kernels compiled for this machine instead of NumPy."""
    share = share_of(facts.work)
    if share < LITTLE:
        return
    slowest = max(facts.work, key=lambda each: each.share)
    for entry in facts.entries("compiled-kernels"):
        yield suggest(
            title="Use kernels compiled for this machine",
            evidence=(
                f"{share:.0%} of a call is in {counted(len(facts.work), 'operation')}",
                f"{slowest.share:.0%} of a call is in the slowest one, {slowest.record.kind} in "
                f"{named_layers([slowest])}",
                at_most(share),
            ),
            entry=entry.name,
            not_predicted="kernel times depend on the sizes: OptimizedBackend().tune(workload) "
            "measures them",
            share=share,
        )


def batch_norms(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Batch norms that can be folded into the layer before them."""
    norms = [x for x in facts.work if "batch_norm" in x.record.kind and x.record.phase == "forward"]
    if profile.mode != "inference" or not norms:
        return
    for entry in facts.entries("fold-batch-norm"):
        folded = facts.changed_by(entry.name, norms)
        share = share_of(folded)
        if share < LITTLE:
            continue
        moved = sum(each.record.bytes_moved for each in folded)
        yield suggest(
            title="Fold batch norms into the layers before them",
            evidence=(
                f"{share:.0%} of a call is in {counted(len(folded), 'batch norm')} in "
                f"{named_layers(folded)}",
                f"{millions(moved)} MB moved by them per call; in inference each is an affine map",
                at_most(share),
            ),
            entry=entry.name,
            predicted=gain_of(
                (Change(each, 0.0, 0.0) for each in folded),
                "Amdahl's law: folded layers take no time, if all of them can be folded",
            ),
            share=share,
        )


def convolution_layout(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Convolutions that may be faster in channels-last memory format."""
    found = [each for each in facts.products if "conv" in each.record.kind]
    share = share_of(found)
    if share < LITTLE:
        return
    macs = sum(each.record.macs for each in found)
    for entry in facts.entries("channels-last"):
        yield suggest(
            title="Use the channels-last memory format",
            evidence=(
                f"{share:.0%} of a call is in {counted(len(found), 'convolution')} in "
                f"{named_layers(found)}: {millions(macs)} M multiply-accumulates",
                at_most(share),
            ),
            entry=entry.name,
            not_predicted="depends on the device's kernels; only a measurement tells",
            share=share,
        )


# ---------------------------------------------------------------- runs of neighbours


def _runs(work: Sequence[Work]) -> list[list[Work]]:
    """Return runs of consecutive small operations without a product between them."""
    runs: list[list[Work]] = [[]]
    for each in work:
        if each.is_product:
            runs.append([])
        elif each.family != "view":
            runs[-1].append(each)
    return [run for run in runs if run]


def _as_slowest(runs: Iterable[Sequence[Work]], *, vanish: bool) -> Iterable[Change]:
    for run in runs:
        total = sum(each.seconds for each in run)
        left = max(each.seconds for each in run) / total if total else 1.0
        yield from (Change(each, left, 0.0 if vanish else left, SLOWER) for each in run)


def _activations(facts: Facts, entry: str, evidence: Sequence[str]) -> Iterable[Advice]:
    """Activations right after a product can be fused into it."""
    layers = {layer for plan in facts.plans.get(entry, ()) for layer in plan.layers}
    after = [
        second
        for first, second in pairwise(facts.work)
        if first.weight is not None and second.family == "elementwise"
        if not layers or first.layer in layers
    ]
    share = share_of(after)
    if share < LITTLE:
        return
    gain: Gain = gain_of(
        (Change(each, 0.0, 0.0) for each in after),
        "Amdahl's law: a fused activation takes no time",
    )
    yield suggest(
        title="Fuse activations into the products before them",
        evidence=(
            *evidence,
            f"{share:.0%} of a call is in {counted(len(after), 'activation')} after a product",
            at_most(share),
        ),
        entry=entry,
        predicted=gain,
        share=share,
    )


def _kinds(small: Sequence[Work]) -> str:
    """Return the kinds with the largest shares."""
    shares: dict[str, float] = {}
    for each in small:
        shares[each.record.kind] = shares.get(each.record.kind, 0.0) + each.share
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    names = [f"{kind.removeprefix('aten.')} {share:.1%}" for kind, share in ordered[:NAMED_KINDS]]
    return ", ".join(names)


# ---------------------------------------------------------------- rules about text
# generation


def token_by_token(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """A decoder that runs once per token, with a KV cache that is reallocated."""
    layers = {each.path: each for each in profile.layers}
    kind = profile.kinds.get("")
    decoder = layers.get("model")
    entries = facts.entries("static-generation")
    if not entries or decoder is None or not decoder.calls or kind != entries[0].made_for:
        return
    idle, steps = facts.outside_share, decoder.calls
    share = min(1.0, idle + inside_share(facts.small))
    gain = None
    if profile.device != "cpu":
        gain = gain_of(
            [Change(each, 1.0, 0.0) for each in facts.small],
            "a replayed step has no launch overhead, and its kernels take as long as now; at best "
            "everything between products takes no time",
            vanishing=idle,
            left=0.0,
        )
    yield suggest(
        title="Generate with a static KV cache",
        evidence=(
            f"{steps:.0f} decoder steps per call, {time_text(profile.latency.median / steps)} and "
            f"{counted(round(len(facts.work) / steps), 'operation')} each",
            outside_text(profile, idle),
            f"{share - idle:.0%} of a call is between products",
        ),
        entry=entries[0].name,
        predicted=gain,
        not_predicted="" if gain else "on a CPU, the gain is known only after compilation",
        share=share,
    )


# ---------------------------------------------------------------- rules about bytes: weights
# that dominate the memory, batches that are too small

MOST = 0.5
"""Parameters dominate from this share of the peak memory on."""
MANY = 1 << 16
"""Largest batch that is advised."""
ABOUT_BYTES = "saves memory, not time"


def parameters_dominate(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Parameters that dominate the peak memory: store them in fewer bits."""
    peak = profile.memory.peak_bytes
    held = sum(spec.nbytes for spec in _weights(facts.products))
    share = profile.parameter_bytes / peak if peak else 0.0
    entries = facts.entries("int8-weights", "int8-dynamic", "bfloat16")
    if share < MOST or not entries or not held:
        return
    entry = entries[0]
    bits, rest = (16 if entry.name == "bfloat16" else 8), max(0, peak - held)
    width = 8 * profile.parameter_bytes / max(1, profile.parameter_count)
    smaller = rest + held * min(1.0, bits / width)
    yield suggest(
        title="Store the weights in fewer bits",
        evidence=(
            f"{share:.0%} of the {millions(peak)} MB peak memory are parameters, {width:.3g} bits "
            "each",
            f"{millions(held)} MB of it are weights of products: in {bits} bits the peak is "
            f"{millions(smaller)} MB, without scales, {peak / smaller:.2f}x less",
        ),
        entry=entry.name,
        not_predicted=ABOUT_BYTES,
    )


def small_batch(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Weights that are read for a few examples: a larger batch reuses them."""
    roof, batch = roof_of(profile), profile.examples
    if roof is None or not batch:
        return
    peak = roof.ceilings.peak_flops(profile.dtype)
    bound = [x for x in facts.products if x.weight and roof.is_memory_bound(x)]
    share = share_of(bound)
    if peak is None or share < LITTLE:
        return
    weights = sum(each.weight.nbytes for each in bound if each.weight)
    moved = sum(each.record.bytes_moved for each in bound)
    flops = sum(each.record.flops for each in bound)
    ridge = peak / roof.bandwidth
    # flops * x = ridge * (weights + rest * x), x times the present batch
    spare = flops - ridge * (moved - weights)
    if spare <= 0:
        return
    enough = math.ceil(batch * ridge * weights / spare)
    if not batch < enough <= MANY:
        return
    yield suggest(
        title=f"A batch of {enough:,} instead of {batch:,} is compute-bound",
        evidence=(
            f"{share:.0%} of a call is in {counted(len(bound), 'memory-bound product')}",
            f"{millions(weights)} MB of weights are read for a batch of {batch:,}",
            f"{flops / moved:.3g} FLOP per byte, below the ridge point of {ridge:.3g}",
            f"{billions(peak)} GFLOP/s and {billions(roof.bandwidth)} GB/s measured, for a working "
            f"set of {millions(profile.working_set_bytes)} MB",
        ),
        not_predicted="throughput and latency both grow; tinytorch advise measures both",
        cost="higher latency and activation memory per call",
        share=share,
    )


def _weights(products: Iterable[Work]) -> Iterable[TensorSpec]:
    """Return each weight once per layer, however often the layer is called."""
    found = {(each.record.path, each.weight) for each in products if each.weight is not None}
    return (weight for _, weight in found)
