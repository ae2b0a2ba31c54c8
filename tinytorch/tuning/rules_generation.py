"""Rules about text that is written token by token."""

from __future__ import annotations

from collections.abc import Iterable

from tinytorch.tuning.advice import Advice
from tinytorch.tuning.rules_bounds import Change, gain_of
from tinytorch.tuning.rules_facts import Facts, counted, inside_share, time_text
from tinytorch.workloads.profile import Profile

__all__ = ["token_by_token"]


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
