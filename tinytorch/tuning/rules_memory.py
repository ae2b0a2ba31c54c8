"""Rules about bytes: parameters that fill the memory, batches too small for what is read."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tinytorch.adapters.records import TensorSpec
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.rules_bounds import roof_of
from tinytorch.tuning.rules_facts import LITTLE, Facts, Work, counted, share_of
from tinytorch.tuning.short_numbers import billions, millions
from tinytorch.workloads.profile import Profile

__all__ = ["parameters_dominate", "small_batch"]

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
    """Give each weight once per layer, however often the layer is called."""
    found = {(each.record.path, each.weight) for each in products if each.weight is not None}
    return (weight for _, weight in found)
