"""Rules about attention: written out in several operations, and growing with the square."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tinytorch.adapters.records import Call, TensorSpec
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.rules_bounds import NO_CEILINGS, Change, Roof, gain_of, roof_of
from tinytorch.tuning.rules_facts import LITTLE, Facts, Work, counted, named_layers, share_of
from tinytorch.tuning.rules_products import at_most
from tinytorch.tuning.short_numbers import millions
from tinytorch.workloads.plan import Gain
from tinytorch.workloads.profile import Profile

__all__ = ["quadratic_attention", "written_out_attention"]

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
    """Give the products that make and use the matrix of a softmax, and all between them."""
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
