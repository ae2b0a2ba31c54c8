"""The page of a profile: what a call costs, why it is slow, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinytorch.reporting.html.advice_cards import advice_section
from tinytorch.reporting.html.appendix import appendix
from tinytorch.reporting.html.distribution import latency_section
from tinytorch.reporting.html.flame import flame_section
from tinytorch.reporting.html.layers import layers_section
from tinytorch.reporting.html.memory import memory_section
from tinytorch.reporting.html.page import Banner, Page
from tinytorch.reporting.html.profile_tables import (
    amdahl_section,
    cache_section,
    caveats_section,
    counter_section,
    operations_section,
)
from tinytorch.reporting.html.roofline import roofline_section
from tinytorch.reporting.html.timeline import timeline_section
from tinytorch.reporting.profile_words import (
    USUAL_CONFIDENCE,
    interval_text,
    reasons,
    setting_words,
)
from tinytorch.reporting.quantities import (
    bytes_text,
    count_text,
    percent_text,
    rate_text,
    seconds_text,
)
from tinytorch.tuning.advice import Advice
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.profile_facts import ProfileFacts, find_facts

__all__ = ["profile_page"]


def profile_page(profile: Profile, *, advice: Sequence[Advice] = ()) -> Page:
    """Lay a profile out on a page, with the words and numbers that the terminal has."""
    facts = find_facts(profile)
    raw = profile.to_dict()
    sections = [
        flame_section(profile),
        layers_section(profile),
        amdahl_section(profile),
        advice_section(advice) if advice else None,
        roofline_section(profile),
        operations_section(profile),
        timeline_section(profile),
        memory_section(profile, facts),
        latency_section(profile, facts),
        cache_section(profile),
        counter_section(profile.counters) if profile.counters is not None else None,
        caveats_section(profile, facts),
        appendix(profile.environment, raw=raw, file_name="profile.json"),
    ]
    shown = [section for section in sections if section is not None]
    return Page(
        title=f"Profile of {profile.name}",
        banner=_banner(profile, facts),
        sections=tuple(shown),
        raw=raw,
        subtitle=setting_words(profile, facts),
    )


def _banner(profile: Profile, facts: ProfileFacts) -> Banner:
    return Banner(
        verdict=f"{seconds_text(profile.latency.median)} per call",
        sentence=" ".join(reasons(profile, facts)),
        facts=tuple(_facts(profile, facts)),
    )


def _facts(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str]]:
    """Yield the numbers that matter, without the words that the terminal has room for."""
    latency = profile.latency
    interval = latency.median_interval(USUAL_CONFIDENCE)
    if latency.count > 1:
        confidence = min(interval.confidence, USUAL_CONFIDENCE)
        yield f"median, {confidence:.0%} interval, n={latency.count:,}", interval_text(interval)
    else:
        yield "calls", "one; how much it varies is not known"
    if profile.throughput is not None:
        yield "throughput", f"{count_text(profile.throughput)} examples/s"
    if profile.idle_share is not None:
        yield "the device waits", percent_text(profile.idle_share)
    yield from _work(profile, facts)
    if facts.peak_bytes:
        yield "peak memory", bytes_text(facts.peak_bytes)
    held = f"{count_text(profile.parameter_count)}, {bytes_text(profile.parameter_bytes)}"
    yield "parameters", held


def _work(profile: Profile, facts: ProfileFacts) -> Iterator[tuple[str, str]]:
    if not profile.operations:
        yield "work", "no operation was recorded"
        return
    yield "multiply-accumulates", count_text(profile.macs)
    if not facts.flops_per_s:
        yield "moved", bytes_text(profile.bytes_moved)
        return
    yield "reached", rate_text(facts.flops_per_s)
    share = "not measured" if facts.of_peak is None else percent_text(facts.of_peak)
    yield f"of the {facts.dtype} peak", share
