"""Rules about everything around the operations: Python, launches, waiting, the machine itself."""

from __future__ import annotations

from collections.abc import Iterable

from tinytorch.measure.roofline import amdahl
from tinytorch.profiling.profile import Profile
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.facts import (
    LITTLE,
    Change,
    Facts,
    counted,
    gain_of,
    inside_share,
    named_layers,
    numbers_in,
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
"""Operations of whose result the program has to know something before it goes on."""
BUSY_WORDS = ("busy", "displaced", "steal", "not steady", "other programs", "throttl", "hot")


def launches(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """A device that waits for the program to launch its kernels."""
    idle = facts.outside_share if profile.device != "cpu" else 0.0
    if idle < LITTLE or profile.mode != "inference":
        return
    kernels = [each for each in facts.work if each.seconds > 0]
    evidence = (
        f"the device waits for the program in {idle:.0%} of a call of "
        f"{time_text(profile.latency.median)}, which has {counted(len(kernels), 'kernel')}",
        f"without waiting a call can become {amdahl(min(idle, 1.0)):.2f} times as fast",
    )
    best = "the device waits no longer and the kernels take as long as now"
    for entry in facts.entries("captured"):
        yield Advice(
            rule="launches",
            title="Launch all kernels of a call at once",
            evidence=evidence,
            entry=entry.name,
            predicted=gain_of((), best, vanishing=idle, left=0.0),
            share=idle,
        )
    for entry in facts.entries("compiled-captured"):
        share = min(1.0, idle + inside_share(facts.small))
        fused = [Change(each, 1.0, 0.0) for each in facts.small]
        yield Advice(
            rule="launches",
            title="Fuse operations and launch them at once",
            evidence=(*evidence, f"{share - idle:.0%} of a call is spent between products"),
            entry=entry.name,
            predicted=gain_of(
                fused,
                f"{best}; at best what stands between products takes no time",
                vanishing=idle,
                left=0.0,
            ),
            share=share,
        )


def python_overhead(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """A program that spends its time between operations."""
    share = facts.outside_share
    if share < MUCH:
        return
    count = len(profile.operations)
    where = "the device waits for the program" if profile.device != "cpu" else "no operation runs"
    yield Advice(
        rule="python overhead",
        title="The program around the operations takes much of the time",
        evidence=(
            f"{where} in at least {share:.0%} of a call of {time_text(profile.latency.median)}",
            f"a call has {counted(count, 'operation')} in {counted(len(profile.layers), 'layer')}, "
            f"{time_text(profile.latency.median / max(1, count))} each on average",
        ),
        not_predicted="how much of a program can be left out is for its author to say; "
        f"Amdahl's law allows {amdahl(min(share, 0.999)):.3g} times",
        cost="more work in each call (a larger batch), fewer and larger layers, no Python loops "
        "over parts of tensors",
        share=share,
    )


def book_keeping(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Book-keeping for gradients, and dropout, in calls that need neither."""
    if profile.mode != "inference":
        return
    dropped = [each for each in facts.work if "dropout" in each.record.kind]
    small = [each for each in facts.work if not each.is_product]
    share = share_of(small)
    if share + facts.outside_share < NOTABLE and not dropped:
        return
    evidence = [
        f"a call has {counted(len(facts.work), 'operation')}, with book-keeping in each of them; "
        f"{share:.0%} of its time is in small ones"
    ]
    if dropped:
        evidence.append(
            f"{counted(len(dropped), 'dropout')} of {named_layers(dropped)} run in "
            f"{share_of(dropped):.1%} of a call: the model is not in evaluation mode"
        )
    for entry in facts.entries("inference-mode"):
        yield Advice(
            rule="book-keeping",
            title="Do without the book-keeping for gradients",
            evidence=tuple(evidence),
            entry=entry.name,
            not_predicted="a profile is taken without gradients, so what recording them costs is "
            "not in it",
            share=share_of(dropped) if dropped else min(1.0, facts.outside_share),
        )


def synchronisations(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Operations that make the program wait for the device in the middle of a call."""
    found = [each for each in facts.work if each.record.kind in WAITS]
    if profile.device == "cpu" or not found:
        return
    kinds = ", ".join(sorted({each.record.kind.removeprefix("aten.") for each in found}))
    idle = facts.outside_share
    yield Advice(
        rule="synchronisation",
        title="The program waits for the device in the middle of a call",
        evidence=(
            f"{counted(len(found), 'operation')} ({kinds}) of {named_layers(found)} give numbers "
            "to the program, which waits for them",
            f"the device waits for the program in {idle:.0%} of a call",
        ),
        not_predicted="what the wait costs depends on how far ahead the program was; Amdahl's law "
        f"allows {amdahl(min(idle, 0.999)):.3g} times",
        cost="keep such decisions on the device (torch.where, masks), or make them once",
        share=idle,
    )


def not_counted(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Operations without a formula: what is said about limits leaves them out."""
    missing = profile.not_counted
    share = facts.of_profile.not_counted_share
    if share < NOTABLE:
        return
    names = ", ".join(f"{each.kind} ({each.calls} times)" for each in missing[:3])
    yield Advice(
        rule="not counted",
        title="Some of the time is in operations that nobody has counted",
        evidence=(
            f"{share:.0%} of the time of all recorded operations is in {names}",
            f"what is said about FLOPs, bytes and limits leaves {len(missing)} kinds out",
        ),
        not_predicted="nothing is known about what they compute",
        share=min(1.0, share),
    )


def busy_machine(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Measurements that were disturbed: measure again before believing small differences."""
    notes = [
        note
        for note in dict.fromkeys((*profile.notes, *profile.latency.notes))
        if numbers_in(note) and any(word in note for word in BUSY_WORDS)
    ]
    if not notes:
        return
    yield Advice(
        rule="busy machine",
        title="Something else used the machine: measure again when it is quiet",
        evidence=tuple(notes),
        not_predicted="it changes nothing in the model; shares of time may be off until then",
        cost="ending other programs, or waiting",
    )
