"""Rules about what stands between products: small operations, norms, the layout of images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tinytorch.tuning.advice import Advice
from tinytorch.tuning.rules_bounds import Change, gain_of
from tinytorch.tuning.rules_facts import (
    LITTLE,
    Facts,
    Work,
    counted,
    inside_share,
    named_layers,
    share_of,
)
from tinytorch.tuning.rules_products import at_most
from tinytorch.tuning.short_numbers import millions
from tinytorch.workloads.plan import Gain
from tinytorch.workloads.profile import Profile

__all__ = ["batch_norms", "convolution_layout", "own_kernels", "small_operations"]

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
    """Give the small operations that follow each other with no product between them."""
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
