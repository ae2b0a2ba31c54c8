"""The sentences of a profile, which other results repeat."""

from __future__ import annotations

from collections.abc import Iterator

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

USUAL_CONFIDENCE = 0.95
MOSTLY = 0.5
FAR_BELOW = 0.1
"""Work that achieves less of what is attainable is hardly held back by that ceiling."""
PLACES_SHOWN = 3
"""Layers that are named where something was not counted."""


def setting_words(profile: Profile, facts: ProfileFacts) -> str:
    """Say what was run and how: ``GPT, core, cpu, inference, float32, batch 1``."""
    batch = [] if facts.batch is None else [f"batch {facts.batch}"]
    model = profile.kinds.get("", "")
    kind = [] if model == profile.name else [model]
    words = [*kind, profile.framework, profile.device, profile.mode, facts.dtype, *batch]
    return ", ".join(filter(None, words))


def head_rows(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and details of what a call takes, does and holds."""
    yield "latency", seconds_text(profile.latency.median), _latency_details(profile)
    if profile.throughput is not None:
        yield "throughput", f"{count_text(profile.throughput)} examples/s", ""
    if profile.idle_share is not None:
        yield "device idle", percent_text(profile.idle_share), "of a call"
    yield from _work_rows(profile, facts)
    held = bytes_text(profile.parameter_bytes)
    if profile.buffer_bytes:
        held += f", with buffers {bytes_text(profile.parameter_bytes + profile.buffer_bytes)}"
    yield "parameters", count_text(profile.parameter_count), held
    if profile.operations:
        made = f"allocated by the call: {bytes_text(profile.memory.peak_activation_bytes)}"
        yield "peak memory", bytes_text(facts.peak_bytes), made
    elif facts.peak_bytes:
        yield "peak memory", bytes_text(facts.peak_bytes), "allocations by the call not recorded"


def _latency_details(profile: Profile) -> str:
    count = profile.latency.count
    if count == 1:
        return "n=1: variation unknown"
    interval = profile.latency.median_interval(USUAL_CONFIDENCE)
    confidence = min(interval.coverage, USUAL_CONFIDENCE)
    return f"median; {confidence:.0%} interval {interval_text(interval)}, n={count}"


def _work_rows(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str, str]]:
    """Yield what a call computes and how fast, or what it moves if it computes nothing."""
    if not profile.operations:
        yield "work", "unknown", "no operation was recorded"
        return
    if not facts.flops_per_s and profile.bytes_moved:
        yield "work", "0 FLOP", f"{bytes_text(profile.bytes_moved)} moved"
        yield "achieved", *_achieved_bandwidth(profile, facts)
        return
    work = f"{count_text(profile.macs)} MACs of contractions, two FLOP each"
    if profile.causal_macs < profile.macs:
        work += f" ({count_text(profile.causal_macs)} MACs without what causal masks hide)"
    other = f"{rate_text(profile.other_flops, 'FLOP')} other"
    yield "work", rate_text(profile.flops, "FLOP"), f"{work}; and {other}"
    share = f"the {facts.dtype} peak was not measured"
    if facts.of_peak is not None and profile.ceilings is not None:
        peak = rate_text(profile.ceilings.peak_flops(facts.dtype))
        share = f"{percent_text(facts.of_peak)} of the measured {facts.dtype} peak, {peak}"
    yield "achieved", rate_text(facts.flops_per_s), share


def _achieved_bandwidth(profile: Profile, facts: ProfileFacts) -> tuple[str, str]:
    achieved = rate_text(profile.bytes_moved / profile.latency.median, "B/s")
    if facts.of_attainable is None or profile.ceilings is None:
        return achieved, ""
    size = profile.working_set_bytes
    level, most = profile.ceilings.level(size), profile.ceilings.bandwidth(size)
    share = f"{percent_text(facts.of_attainable)} of the measured bandwidth of {level}"
    return achieved, f"{share}, {rate_text(most, 'B/s')}"


def reasons(profile: Profile, facts: ProfileFacts) -> Iterator[str]:
    """Yield the sentences that say why the model takes its time."""
    found = facts.bottleneck
    is_starved = facts.device is not None and mostly_waits(facts.device)
    if is_starved and facts.device is not None:
        yield device_sentence(facts.device)
    yield _bottleneck_sentence(profile, facts)
    if found is not None and found.speedups[2.0] is not None:
        whole = "for the kernels" if is_starved else "overall"
        end = "; a call hardly gains, the device would be idle for longer" if is_starved else ""
        yield (
            f"Amdahl: 2x faster here gives {factor_text(found.speedups[2.0])} {whole}, at most "
            f"{factor_text(found.speedups[FACTORS[-1]])}{end}."
        )
    between = facts.container_share + facts.unattributed_share
    if found is not None and not found.is_model and between > found.share:
        yield (
            f"{percent_text(between)} of the time is between the layers: Python, and what "
            "containers compute (self)."
        )
    if facts.device is not None and not is_starved:
        yield device_sentence(facts.device)


def _bottleneck_sentence(profile: Profile, facts: ProfileFacts) -> str:
    found = facts.bottleneck
    if found is None:
        text = "No layer ran: all of the time is in code outside of layers"
        if facts.bound is None:
            return f"{text}."
        return f"{text}. As a whole {_limit(facts.bound, facts.of_attainable)}."
    start = f"{_place(found)}: {percent_text(found.share)} of the time"
    start += "" if found.is_model and found.is_leaf else " (self)"
    if found.bound is None:
        reason = "no counted cost"
        if profile.ceilings is None:
            reason = "the ceilings of this machine were not measured"
        return f"{start}; bound unknown: {reason}."
    return f"{start}, {_limit(found.bound, found.of_attainable)}."


def _place(found: BottleneckFacts) -> str:
    """Name a bottleneck."""
    if found.layers == (BACKWARD,):
        return "Backward pass"
    if found.layers == (UPDATE,):
        return "Optimizer update"
    many = f"{len(found.layers)}x " if len(found.layers) > 1 else ""
    name = found.name
    if found.is_model:
        name = "The model" if found.is_leaf else "The model outside of its layers"
    return f"{name} ({many}{found.kind})"


def _limit(bound: str, of_attainable: float | None) -> str:
    """Name the ceiling, and whether it is what limits: the end of a sentence."""
    what = "FLOP/s" if bound == "compute" else "bandwidth"
    text = (
        f"{bound}-bound by arithmetic intensity, at {percent_text(of_attainable)} of the "
        f"attainable {what}"
    )
    if of_attainable is not None and of_attainable < FAR_BELOW:
        return f"{text}: overhead dominates (small sizes, calls, Python, a busy machine)"
    return text


def mostly_waits(device: DeviceFacts) -> bool:
    """Return whether a device is idle for most of a call."""
    return (device.idle_share or 0) > MOSTLY


def device_sentence(device: DeviceFacts) -> str:
    """Say how much of a call its kernels need, and how long the device is idle."""
    text = (
        f"Latency (wall clock) {seconds_text(device.wall_s)}, device time (events) "
        f"{seconds_text(device.device_s)}"
    )
    if device.busy_s is None or device.idle_share is None:
        return f"{text}."
    bound = "host-bound, " if mostly_waits(device) else ""
    return (
        f"{text}, kernels {seconds_text(device.busy_s)}: {bound}the device is idle "
        f"{percent_text(device.idle_share)} of the time. Shares of layers are of the kernels' time."
    )


def interval_text(interval: Estimate) -> str:
    """Write both ends: ``2.31 ms to 2.46 ms``."""
    return f"{seconds_text(interval.low)} to {seconds_text(interval.high)}"


def caveat_lines(profile: Profile, facts: ProfileFacts) -> list[str]:
    """Say what the instrumentation cost, and whether all was counted."""
    lines = [
        _overhead_sentence(profile),
        f"The recorded call took {seconds_text(profile.recording.duration)}; times of operations "
        "are from there: compare them with each other only.",
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
    places = ", ".join(path or "the model (self)" for path in each.paths[:PLACES_SHOWN])
    more = len(each.paths) - PLACES_SHOWN
    where = f"{places} and {more} more" if more > 0 else places
    return f"{each.kind}: {calls}, {seconds_text(each.seconds)}, in {where}"


def doubts(profile: Profile) -> list[str]:
    """Say what speaks against the numbers."""
    stability = profile.latency.stability
    unstable = [] if stability.is_stable else [f"The latency is {stability.note}."]
    disturbances = profile.ceilings.disturbances if profile.ceilings else ()
    disturbed = [f"while the ceilings were measured, {'; '.join(disturbances)}"]
    return [*profile.notes, *profile.latency.notes, *unstable, *(disturbed if disturbances else ())]


def _overhead_sentence(profile: Profile) -> str:
    overhead, took = profile.overhead, seconds_text(profile.total_s)
    if overhead is None:
        return (
            f"Layer times are those of kernels in a trace of {profile.watched.count} calls "
            f"({took}), without the overhead of tracing; the latency is of calls without a trace."
        )
    cost = percent_text(overhead) if overhead > 0 else f"not measurable ({overhead:+.1%})"
    return (
        f"Overhead of timing the layers: {cost}. Layer times are of instrumented calls ({took}), "
        "the latency is of calls without instrumentation."
    )


def hotspot_label(found: BottleneckFacts) -> str:
    """Return name, number and kind of the layers of a hotspot: ``h.*.mlp (12x) Linear``."""
    many = f" ({len(found.layers)}x)" if len(found.layers) > 1 else ""
    name = f"({found.kind}, self)" if found.is_model else found.name
    kind = "" if found.is_model or found.kind == name.strip("<>") else f" {found.kind}"
    return f"{name}{many}{kind}"
