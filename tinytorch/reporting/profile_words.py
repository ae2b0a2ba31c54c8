"""What a profile says in words: the same sentences in the terminal and on a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from tinytorch.measure.estimate import Estimate
from tinytorch.profiling.layers import BACKWARD, UPDATE
from tinytorch.profiling.profile import (
    FACTORS,
    BottleneckFacts,
    DeviceFacts,
    NotCounted,
    Profile,
    ProfileFacts,
)
from tinytorch.reporting.quantities import (
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)

__all__ = [
    "USUAL_CONFIDENCE",
    "caveat_lines",
    "device_sentence",
    "doubts",
    "head_rows",
    "hotspot_label",
    "interval_text",
    "mostly_waits",
    "not_counted_text",
    "reasons",
    "setting_words",
]


USUAL_CONFIDENCE = 0.95
MOSTLY = 0.5
FAR_BELOW = 0.1
"""Work that reaches less of what its ceiling allows is hardly held back by that ceiling."""
PLACES_SHOWN = 3
"""Of the layers where something was not counted, so many are named."""


def setting_words(profile: Profile, facts: ProfileFacts) -> str:
    """Say what was run and how: ``GPT, core, cpu, inference, float32, batch 1``."""
    batch = [] if facts.batch is None else [f"batch {facts.batch}"]
    model = profile.kinds.get("", "")
    kind = [] if model == profile.name else [model]
    words = [*kind, profile.framework, profile.device, profile.mode, facts.dtype, *batch]
    return ", ".join(filter(None, words))


def head_rows(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str, str]]:
    """Yield name and value of what a call takes, does and holds, and what speaks against it."""
    latency = profile.latency
    interval = latency.median_interval(USUAL_CONFIDENCE)
    confidence = min(interval.coverage, USUAL_CONFIDENCE)
    doubt = f"median; {confidence:.0%} interval {interval_text(interval)}, n={latency.count}"
    if latency.count == 1:
        doubt = "of one call; how much it varies is not known"
    yield "latency", seconds_text(latency.median), doubt
    if profile.throughput is not None:
        yield "throughput", f"{count_text(profile.throughput)} examples/s", ""
    for name, text in _work_rows(profile, facts):
        yield name, text, ""
    held = bytes_text(profile.parameter_bytes)
    if profile.buffer_bytes:
        held += f", with buffers {bytes_text(profile.parameter_bytes + profile.buffer_bytes)}"
    yield "parameters", f"{count_text(profile.parameter_count)}, {held}", ""
    if profile.operations:
        made = f"the call itself made {bytes_text(profile.memory.peak_activation_bytes)}"
        yield "peak memory", f"{bytes_text(facts.peak_bytes)}; {made}", ""
    elif facts.peak_bytes:
        unseen = "what the call itself makes was not seen"
        yield "peak memory", f"{bytes_text(facts.peak_bytes)}; {unseen}", ""


def _work_rows(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str]]:
    """Give what a call computes and how fast, or what it moves if it computes nothing."""
    if not profile.operations:
        yield "work", "not known: no operation was recorded"
        return
    if not facts.flops_per_s and profile.bytes_moved:
        yield "work", f"no FLOP; {bytes_text(profile.bytes_moved)} moved"
        yield "reached", _bandwidth_text(profile, facts)
        return
    yield (
        "work",
        f"{rate_text(profile.flops, 'FLOP')} ({count_text(profile.macs)} multiply-accumulates of "
        f"contractions, two FLOP each) and {rate_text(profile.other_flops, 'FLOP')} of other kinds",
    )
    if profile.causal_macs < profile.macs:
        hidden = f"{count_text(profile.causal_macs)} multiply-accumulates"
        yield "", f"without what causal masks hide {hidden}"
    reached = rate_text(facts.flops_per_s)
    if facts.of_peak is not None and profile.ceilings is not None:
        peak = rate_text(profile.ceilings.peak_flops(facts.dtype))
        share = percent_text(facts.of_peak)
        reached += f", {share} of the {facts.dtype} peak measured here, {peak}"
    yield "reached", reached


def _bandwidth_text(profile: Profile, facts: ProfileFacts) -> str:
    reached = rate_text(profile.bytes_moved / profile.latency.median, "B/s")
    if facts.of_attainable is None or profile.ceilings is None:
        return reached
    size = profile.working_set_bytes
    level, most = profile.ceilings.level(size), profile.ceilings.bandwidth(size)
    share = f"{percent_text(facts.of_attainable)} of the bandwidth of {level}"
    return f"{reached}, {share} measured here, {rate_text(most, 'B/s')}"


def reasons(profile: Profile, facts: ProfileFacts) -> Iterator[str]:
    """Give the sentences that say why the model takes its time."""
    found = facts.bottleneck
    is_starved = facts.device is not None and mostly_waits(facts.device)
    if is_starved and facts.device is not None:
        yield device_sentence(facts.device)
    yield _bottleneck_sentence(profile, facts)
    if found is not None and found.speedups[2.0] is not None:
        whole = "kernels together" if is_starved else "whole"
        end = ", and a call hardly: the device would wait longer" if is_starved else ""
        yield (
            f"Twice as fast, it would make the {whole} {factor_text(found.speedups[2.0])} faster; "
            f"taking no time at all, {factor_text(found.speedups[FACTORS[-1]])}{end}."
        )
    between = facts.container_share + facts.unattributed_share
    if found is not None and not found.is_model and between > found.share:
        yield (
            f"{percent_text(between)} of the time is spent between the layers, "
            "in Python and in what containers compute themselves."
        )
    if facts.device is not None and not is_starved:
        yield device_sentence(facts.device)


def _bottleneck_sentence(profile: Profile, facts: ProfileFacts) -> str:
    found = facts.bottleneck
    if found is None:
        text = "No layer ran: everything that this model does is code outside of layers."
        if facts.bound is None:
            return text
        return f"{text} As a whole it is {_limit(facts.bound, facts.of_attainable)}"
    start = f"{_place(found)} takes {percent_text(found.share)} of the time"
    start += "" if found.is_model and found.is_leaf else " itself"
    if found.bound is None:
        reason = "nothing that it does has a counted cost"
        if profile.ceilings is None:
            reason = "the ceilings of this machine were not measured"
        return f"{start}; what limits it is not known: {reason}."
    return f"{start}. It is {_limit(found.bound, found.of_attainable)}"


def _place(found: BottleneckFacts) -> str:
    """Name a bottleneck as the subject of a sentence."""
    if found.layers == (BACKWARD,):
        return "The whole backward pass"
    if found.layers == (UPDATE,):
        return "The optimizer's update"
    many = f"{len(found.layers)}x " if len(found.layers) > 1 else ""
    name = found.name
    if found.is_model:
        name = "The model itself" if found.is_leaf else "What the model does outside of its layers"
    return f"{name} ({many}{found.kind})"


def _limit(bound: str, of_attainable: float | None) -> str:
    """Say what is in the way, and whether it is: the end of a sentence."""
    limit = "computing" if bound == "compute" else "moving bytes"
    reached = f"{percent_text(of_attainable)} of what this machine allows there"
    text = f"{bound}-bound: {limit} is the limit, and it reaches {reached}"
    if of_attainable is not None and of_attainable < FAR_BELOW:
        others = "small sizes, calls, Python, a busy machine"
        return f"{text}, so something else takes most of its time: {others}."
    return f"{text}."


def mostly_waits(device: DeviceFacts) -> bool:
    """Tell whether waiting for the program is most of what a device does."""
    return (device.idle_share or 0) > MOSTLY


def device_sentence(device: DeviceFacts) -> str:
    """Say how much of a call its kernels need, and how long the device waits."""
    text = (
        f"Latency by the wall clock is {seconds_text(device.wall_s)}, device time by events "
        f"{seconds_text(device.device_s)}"
    )
    if device.busy_s is None or device.idle_share is None:
        return f"{text}."
    return (
        f"{text}, of which its kernels need {seconds_text(device.busy_s)}: the device waits for "
        f"the program in {percent_text(device.idle_share)} of the time. Shares of layers are of "
        "the kernels' time."
    )


def interval_text(interval: Estimate) -> str:
    """Write both ends: ``2.31 ms to 2.46 ms``."""
    return f"{seconds_text(interval.low)} to {seconds_text(interval.high)}"


def caveat_lines(profile: Profile, facts: ProfileFacts) -> list[str]:
    """Say what watching cost, and whether all was counted."""
    lines = [
        _watching_sentence(profile),
        f"The recorded call took {seconds_text(profile.recording.duration)}; times of operations "
        "are from there, and say how these relate to each other.",
    ]
    if profile.not_counted:
        share = percent_text(facts.not_counted_share)
        lines.append(f"Not counted in any total, {share} of the time of operations:")
    elif profile.operations:
        lines.append("Every operation that ran was counted.")
    return lines


def not_counted_text(each: NotCounted) -> str:
    """Say how often and where operations of a kind ran that no total has."""
    calls = "1 call" if each.calls == 1 else f"{each.calls} calls"
    places = ", ".join(path or "the model itself" for path in each.paths[:PLACES_SHOWN])
    more = len(each.paths) - PLACES_SHOWN
    where = f"{places} and {more} more" if more > 0 else places
    return f"{each.kind}: {calls}, {seconds_text(each.seconds)}, in {where}"


def doubts(profile: Profile) -> list[str]:
    """Say what speaks against the numbers."""
    stability = profile.latency.stability
    unstable = [] if stability.is_stable else [f"The latency is {stability.note}."]
    disturbances = profile.ceilings.disturbances if profile.ceilings else ()
    disturbed = [f"While the ceilings were measured, {'; '.join(disturbances)}."]
    return [*profile.notes, *profile.latency.notes, *unstable, *(disturbed if disturbances else ())]


def _watching_sentence(profile: Profile) -> str:
    overhead, took = profile.overhead, seconds_text(profile.total_s)
    if overhead is None:
        return (
            f"The times of layers are those of kernels in a trace of {profile.watched.count} calls "
            f"({took}); what tracing cost is not in them, and the latency is of calls that nobody "
            "traced."
        )
    cost = percent_text(overhead) if overhead > 0 else f"nothing that shows ({overhead:+.1%})"
    return (
        f"Watching the layers cost {cost}: their times are of watched calls ({took}), the latency "
        "is of calls that nobody watched."
    )


# ---------------------------------------------------------------- how tables call a hotspot


def hotspot_label(found: BottleneckFacts) -> Text:
    """Give name, number and kind of the layers of a hotspot: ``h.*.mlp (12x) Linear``."""
    many = f" ({len(found.layers)}x)" if len(found.layers) > 1 else ""
    name = "(the model itself)" if found.is_model else found.name
    kind = "" if found.kind == name.strip("<>") else f" {found.kind}"
    return Text.assemble(name, many, (kind, "dim"))
