"""Rules about everything around operations: Python, launch overhead, synchronisation, noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tinytorch.measure.roofline import amdahl
from tinytorch.profiling.profile import Profile
from tinytorch.tuning.advice import Advice, suggest
from tinytorch.tuning.facts import (
    LITTLE,
    Change,
    Facts,
    Work,
    counted,
    gain_of,
    inside_share,
    named_layers,
    outside_text,
    share_of,
    time_text,
)

MUCH = 0.3
NOTABLE = 0.1
WAITS = frozenset(
    {
        "aten._local_scalar_dense",
        "aten.item",
        "aten.nonzero",
        "aten.is_nonzero",
        "aten.equal",
        "aten.masked_select",
        "aten._unique2",
        "aten.unique_consecutive",
        "aten.repeat_interleave",
    }
)
"""Operations whose result the host waits for."""


def launches(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Launch overhead that leaves the device idle."""
    idle = facts.outside_share if profile.device != "cpu" else 0.0
    if idle < LITTLE or profile.mode != "inference":
        return
    kernels = [each for each in facts.work if each.seconds > 0]
    evidence = (
        outside_text(profile, idle),
        f"{counted(len(kernels), 'kernel')} in a call of {time_text(profile.latency.median)}",
        f"{amdahl(min(idle, 1.0)):.2f}x speedup at most without launch overhead",
    )
    best = "no launch overhead, and the kernels take as long as now"
    for entry in facts.entries("captured"):
        yield suggest(
            title="Capture the call as a CUDA graph",
            evidence=evidence,
            entry=entry.name,
            predicted=gain_of((), best, vanishing=idle, left=0.0),
            share=idle,
        )
    for entry in facts.entries("compiled-captured"):
        share = min(1.0, idle + inside_share(facts.small))
        fused = [Change(each, 1.0, 0.0) for each in facts.small]
        yield suggest(
            title="Compile the model and capture it as a CUDA graph",
            evidence=(*evidence, f"{share - idle:.0%} of a call is between products"),
            entry=entry.name,
            predicted=gain_of(
                fused,
                f"{best}; at best everything between products takes no time",
                vanishing=idle,
                left=0.0,
            ),
            share=share,
        )


def python_overhead(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Time that is spent between operations."""
    share = facts.outside_share
    if share < MUCH:
        return
    count = len(profile.operations)
    yield suggest(
        title="Python overhead dominates",
        evidence=(
            outside_text(profile, share),
            f"{counted(count, 'operation')} in {counted(len(profile.layers), 'layer')}, "
            f"{time_text(profile.latency.median / max(1, count))} per operation on average",
        ),
        not_predicted=f"depends on the code; {amdahl(min(share, 0.999)):.3g}x at most (Amdahl)",
        cost="larger batches, fewer and larger layers, no Python loops over parts of tensors",
        share=share,
    )


def book_keeping(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Autograd overhead and dropout in inference."""
    if profile.mode != "inference":
        return
    dropped = [each for each in facts.work if "dropout" in each.record.kind]
    small = [each for each in facts.work if not each.is_product]
    share = share_of(small)
    if share + facts.outside_share < NOTABLE and not dropped:
        return
    evidence = [
        f"{counted(len(facts.work), 'operation')} per call, each with autograd overhead",
        f"{share:.0%} of a call is in small operations",
    ]
    if dropped:
        evidence.append(
            f"{share_of(dropped):.1%} of a call is in {counted(len(dropped), 'dropout')} in "
            f"{named_layers(dropped)}: the model is not in evaluation mode"
        )
    for entry in facts.entries("inference-mode"):
        yield suggest(
            title="Run in inference mode",
            evidence=tuple(evidence),
            entry=entry.name,
            not_predicted="the profile was taken without gradients, so it lacks their overhead",
            share=share_of(dropped) if dropped else min(1.0, facts.outside_share),
        )


def repeated_calls(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Layers that are called several times on the same input, such as once for each head."""
    found = [each for each in _repeats(facts.products) if len(each) > 1]
    again = [work for each in found for work in each[1:]]
    share = share_of(again)
    if share < LITTLE:
        return
    times = sorted({len(each) for each in found})
    often = f"{times[0]}" if len(times) == 1 else f"{times[0]} to {times[-1]}"
    yield suggest(
        title="Compute once what is computed repeatedly",
        evidence=(
            f"{named_layers(again)}: called {often} times on the same input",
            f"{share:.0%} of a call is in {counted(len(again), 'product')} computed before",
            f"{amdahl(min(share, 0.999)):.2f}x speedup at most from computing each once",
        ),
        predicted=gain_of(
            [Change(each, 0.0, 0.0) for each in again],
            "Amdahl's law: what was computed before takes no time",
        ),
        cost="call the layer once and take the parts that are needed from its output",
        share=share,
    )


def _repeats(products: Iterable[Work]) -> Iterable[Sequence[Work]]:
    """Yield the products of one layer that read the same values, its weight among them."""
    groups: dict[tuple[object, ...], list[Work]] = defaultdict(list)
    for each in products:
        record = each.record
        if each.weight is not None and record.reads and record.phase == "forward":
            groups[record.path, record.kind, record.reads].append(each)
    return groups.values()


def synchronisations(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Synchronisations of host and device in the middle of a call."""
    found = [each for each in facts.work if each.record.kind in WAITS]
    if profile.device == "cpu" or not found:
        return
    kinds = ", ".join(sorted({each.record.kind.removeprefix("aten.") for each in found}))
    idle = facts.outside_share
    yield suggest(
        title="Host and device synchronise in the middle of a call",
        evidence=(
            f"{counted(len(found), 'operation')} in {named_layers(found)} return values to the "
            f"host: {kinds}",
            outside_text(profile, idle),
        ),
        not_predicted="depends on how far the host runs ahead; "
        f"{amdahl(min(idle, 0.999)):.3g}x at most (Amdahl)",
        cost="keep decisions on the device (torch.where, masks), or make them once",
        share=idle,
    )


def not_counted(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Operations without a cost formula, which bounds leave out."""
    missing = profile.not_counted
    share = facts.of_profile.not_counted_share
    if share < NOTABLE:
        return
    names = ", ".join(f"{each.kind} ({each.calls} times)" for each in missing[:3])
    yield suggest(
        title="Some operations have no cost formula",
        evidence=(
            f"{share:.0%} of the time of all recorded operations is in {names}",
            f"{counted(len(missing), 'kind')} of operations missing in FLOPs, bytes and bounds",
        ),
        not_predicted="their FLOPs and bytes are unknown",
        share=min(1.0, share),
    )


def busy_machine(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Measurements that were disturbed by other processes."""
    if not profile.disturbances:
        return
    yield suggest(
        title="The machine was not idle: measure again",
        evidence=profile.disturbances,
        not_predicted="the model is unchanged; shares of time may be off",
        cost="stop other processes first",
    )
