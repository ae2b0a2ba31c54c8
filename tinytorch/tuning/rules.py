"""Rules about attention: written out in several operations, and growing with the square."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tinytorch.models.records import Call, TensorSpec
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice, billions, millions
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
    roof_of,
    share_of,
    time_text,
)
from tinytorch.tuning.rules_products import at_most

SOFTMAX = frozenset({"softmax", "aten._softmax", "aten._safe_softmax"})
REACH = 16
"""How many operations away from a softmax its products are looked for: masks, scales, copies."""
IN_ONE_KERNEL = (
    "the two products take as long as now, and all between them as long as the slowest of it; at "
    "best a kernel at the roof, which moves queries, keys, values and outputs, but no scores"
)
FAR = 64
"""A length that is more times longer than the present one is nobody's worry today."""


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
        yield Advice(
            rule="attention written out",
            title="Compute attention in one kernel",
            evidence=(
                f"{counted(len(found), 'attention')} of {named_layers(work)} take {share:.0%} of a "
                f"call in {counted(sum(x.family != 'view' for x in work), 'operation')}",
                f"score matrices of {millions(scores)} MB at a length of {length} are written and "
                "read again; four times as much at twice the length",
                at_most(share),
            ),
            entry=entry.name,
            predicted=_fused_gain(roof, found, facts, entry.name) if roof else None,
            not_predicted="" if roof else NO_CEILINGS,
            share=share,
        )


def quadratic_attention(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """The length from which on attention, that grows with the square, is most of the work."""
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
    yield Advice(
        rule="quadratic attention",
        title=f"Attention is half of all products at a length of {takes_over:,}",
        evidence=(
            f"at the present length of {length:,}, attention has {millions(attention)} M "
            f"multiply-accumulates, all other products {millions(rest)} M, and it takes "
            f"{share:.0%} of a call",
            "attention grows with the square of the length, the others in proportion: it overtakes "
            f"them at {takes_over:,}, {takes_over / length:.2g} times the present length",
            _score_memory(found),
        ),
        not_predicted="it says what happens at other lengths, and changes nothing at this one",
        cost="shorter inputs, a window over the last tokens, or a cache of keys and values where "
        "tokens come one by one; tinytorch advise --sequence measures lengths",
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
    """Let all between the two products be one pass; at best, let everything be at the roof."""
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
        changes += [Change(x, left, min(left, floor / whole)) for x in work]
    return gain_of(changes, IN_ONE_KERNEL)


def _score_memory(found: Sequence[Attention]) -> str:
    written = [each.score_bytes for each in found if each.is_written_out]
    if written:
        return (
            f"its scores take {millions(max(written))} MB now, 4 times as much at twice the length"
        )
    return "its scores are never in memory as a whole: 0 bytes of it grow with the square"


# ---------------------------------------------------------------- rules about what stands between
# products: small operations, norms, the layout of images

FEW = 0.10
"""What fusing is about: a smaller part of a call is not worth a compiler."""
NAMED_KINDS = 4


def small_operations(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Neighbouring operations in one pass, and fewer steps of Python between them."""
    small, share = facts.small, inside_share(facts.small)
    outside = facts.outside_share if profile.device == "cpu" else 0.0
    if share + outside < FEW or not small:
        return
    runs = _runs(facts.work)
    # With no product to be computed along with, one pass is left of a run.
    has_products = bool(facts.products)
    calls = len(runs) + len(facts.products)
    evidence = (
        f"{counted(len(small), 'operation')} besides products take {share:.0%} of a call: "
        f"{_kinds(small)}",
        f"they stand in {counted(len(runs), 'run')} of neighbours, {len(small) / len(runs):.2g} in "
        "each; a fused run passes over its numbers once",
        f"at least {outside:.0%} of a call is in no operation: Python, and calling kernels",
    )
    vanishes = "at best they take no time at all" if has_products else "at best as well"
    for entry in facts.entries("compiled"):
        yield Advice(
            rule="small operations",
            title="Fuse the operations between products",
            evidence=(*evidence, at_most(min(1.0, share + outside))),
            entry=entry.name,
            predicted=gain_of(
                _as_slowest(runs, vanish=has_products),
                "a run of neighbours takes as long as the slowest of them, and the time in no "
                f"operation shrinks with the number of calls, from {len(facts.work)} to {calls}; "
                f"{vanishes}, and nothing is spent outside of operations",
                vanishing=outside,
                left=calls / len(facts.work),
            ),
            share=min(1.0, share + outside),
        )
    for entry in facts.entries("fused-layers"):
        yield from _activations(facts, entry.name, evidence[:1])


def own_kernels(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Kernels compiled for this machine, in the place of those of NumPy."""
    share = share_of(facts.work)
    if share < LITTLE:
        return
    slowest = max(facts.work, key=lambda each: each.share)
    for entry in facts.entries("compiled-kernels"):
        yield Advice(
            rule="own kernels",
            title="Compute with kernels compiled for this machine",
            evidence=(
                f"{counted(len(facts.work), 'operation')} take {share:.0%} of a call; the slowest "
                f"is {slowest.record.kind} in {named_layers([slowest])}, with {slowest.share:.0%}",
                at_most(share),
            ),
            entry=entry.name,
            not_predicted="how fast other kernels are is known only where they were timed for the "
            "same sizes: OptimizedBackend().tune(workload) does that",
            share=share,
        )


def batch_norms(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Batch norms that could be part of the convolution before them."""
    norms = [x for x in facts.work if "batch_norm" in x.record.kind and x.record.phase == "forward"]
    if profile.mode != "inference" or not norms:
        return
    for entry in facts.entries("fold-batch-norm"):
        folded = facts.changed_by(entry.name, norms)
        share = share_of(folded)
        if share < LITTLE:
            continue
        moved = sum(each.record.bytes_moved for each in folded)
        yield Advice(
            rule="batch norms",
            title="Fold batch norms into the layers before them",
            evidence=(
                f"{counted(len(folded), 'batch norm')} of {named_layers(folded)} take {share:.0%} "
                f"of a call and move {millions(moved)} MB; in inference each is a fixed scale",
                at_most(share),
            ),
            entry=entry.name,
            predicted=gain_of(
                (Change(each, 0.0, 0.0) for each in folded),
                "Amdahl's law: what is folded takes no time, if all of these can be folded",
            ),
            share=share,
        )


def convolution_layout(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Convolutions that may be faster with the channels of a pixel together."""
    found = [each for each in facts.products if "conv" in each.record.kind]
    share = share_of(found)
    if share < LITTLE:
        return
    macs = sum(each.record.macs for each in found)
    for entry in facts.entries("channels-last"):
        yield Advice(
            rule="layout of convolutions",
            title="Keep the channels of a pixel together",
            evidence=(
                f"{counted(len(found), 'convolution')} of {named_layers(found)} take {share:.0%} "
                f"of a call, with {millions(macs)} M multiply-accumulates",
                at_most(share),
            ),
            entry=entry.name,
            not_predicted="which layout is faster depends on the kernels of the device; only "
            "trying tells",
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
        yield from (Change(each, left, 0.0 if vanish else left) for each in run)


def _activations(facts: Facts, entry: str, evidence: Sequence[str]) -> Iterable[Advice]:
    """What follows a product directly can be computed while its result is in a cache."""
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
        "Amdahl's law: an activation takes no time in the pass of the product before it",
    )
    yield Advice(
        rule="small operations",
        title="Compute activations with the products before them",
        evidence=(
            *evidence,
            f"{counted(len(after), 'activation')} right after a product take {share:.0%} of a call",
            at_most(share),
        ),
        entry=entry,
        predicted=gain,
        share=share,
    )


def _kinds(small: Sequence[Work]) -> str:
    """Name the kinds that take most of the time, with their shares."""
    shares: dict[str, float] = {}
    for each in small:
        shares[each.record.kind] = shares.get(each.record.kind, 0.0) + each.share
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    names = [f"{kind.removeprefix('aten.')} {share:.1%}" for kind, share in ordered[:NAMED_KINDS]]
    return ", ".join(names)


# ---------------------------------------------------------------- rules about text that is written
# token by token


def token_by_token(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """A decoder that runs once for every token, with a cache that grows and is made anew."""
    layers = {each.path: each for each in profile.layers}
    kind = profile.kinds.get("")
    decoder = layers.get("model")
    entries = facts.entries("static-generation")
    if not entries or decoder is None or not decoder.calls or kind != entries[0].made_for:
        return
    idle, steps = facts.outside_share, decoder.calls
    share = min(1.0, idle + inside_share(facts.small))
    where = "the device waits for the program" if profile.device != "cpu" else "no operation runs"
    gain = None
    if profile.device != "cpu":
        gain = gain_of(
            [Change(each, 1.0, 0.0) for each in facts.small],
            "a step that is replayed does not wait for the program, and its kernels take as long "
            "as now; at best what stands between products takes no time",
            vanishing=idle,
            left=0.0,
        )
    yield Advice(
        rule="token by token",
        title="Generate with a cache that is allocated once",
        evidence=(
            f"a call runs the decoder {steps:.0f} times, once for every token, "
            f"{time_text(profile.latency.median / steps)} each",
            f"a token takes {counted(round(len(facts.work) / steps), 'operation')}, and {where} in "
            f"at least {idle:.0%} of a call; {share - idle:.0%} is spent between products",
        ),
        entry=entries[0].name,
        predicted=gain,
        not_predicted=""
        if gain
        else "how much of a step a compiled one saves on a processor is "
        "known only once it is compiled",
        share=share,
    )


# ---------------------------------------------------------------- rules about bytes: parameters
# that fill the memory, batches too small for what is read

MOST = 0.5
"""More than half of the memory is what it is mostly made of."""
MANY = 1 << 16
"""Batches beyond this are no advice."""
ABOUT_BYTES = "it is about bytes, not about time; the plan counts them"


def parameters_dominate(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Parameters that are most of the memory: hold them in fewer bytes."""
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
    yield Advice(
        rule="parameters dominate",
        title="Hold the weights in fewer bytes",
        evidence=(
            f"parameters are {millions(profile.parameter_bytes)} of the {millions(peak)} MB alive "
            f"at the peak ({share:.0%}), {width:.3g} bits each",
            f"the weights of products are {millions(held)} MB; in {bits} bits the peak would be "
            f"{millions(smaller)} MB, scales not counted: {peak / smaller:.2f} times less",
        ),
        entry=entry.name,
        not_predicted=ABOUT_BYTES,
    )


def small_batch(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Weights that are read for a few examples only: more of them would use what is read."""
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
    yield Advice(
        rule="small batch",
        title=f"A batch of {enough:,} would use the weights that are read for {batch:,}",
        evidence=(
            f"{counted(len(bound), 'product')} that take {share:.0%} of a call read "
            f"{millions(weights)} MB of weights for a batch of {batch:,}: "
            f"{flops / moved:.3g} FLOP per byte, where {ridge:.3g} keep the machine computing",
            f"the weights are read once for any batch: from {enough:,} on these products are "
            f"compute-bound, with {billions(peak)} GFLOP/s and {billions(roof.bandwidth)} GB/s as "
            f"measured for a working set of {millions(profile.working_set_bytes)} MB",
        ),
        not_predicted="examples per second grow, and so does the time of a call; "
        "tinytorch advise measures both",
        cost="a call takes longer and holds more activations; examples have to wait for each other",
        share=share,
    )


def _weights(products: Iterable[Work]) -> Iterable[TensorSpec]:
    """Return each weight once per layer, however often the layer is called."""
    found = {(each.record.path, each.weight) for each in products if each.weight is not None}
    return (weight for _, weight in found)
