"""From the answers of both sides to the values of the measures of an event; less is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tinytorch.competition.events import Event
from tinytorch.competition.judgement import Heat
from tinytorch.competition.judging.courses import WRITTEN, Purpose
from tinytorch.competition.judging.heats import Leg

__all__ = ["Times", "charge_s", "heat_of", "times_of", "without_postponed"]

UNNOTICED_S = 3e-6
"""The gap between two clocks differs by so much between honest processes."""
PAGE_BYTES = 4096
LEAST_CALL_S, LEAST_CPU_S = 1e-9, 1e-6
"""What a clock can tell: nothing takes no time, and a ratio needs a number above zero."""

Times = Mapping[Purpose, npt.NDArray[np.float64]]
"""Seconds of each call, by what it was made for."""


def charge_s(leg: Leg, other: Leg, purpose: Purpose) -> npt.NDArray[np.float64]:
    """Give what the judge's clock shows of each call beyond the contender's own account.

    Sending a question and its answer takes what it takes the `other`, whose clock is ours: the
    longest gap is held against its longest, and so on. Messages that had to wait, as on a busy
    machine, are thus no hidden time; against the typical gap, measured, honest code that was 1.87
    times as fast came to 1.5 to 2.3. It is charged call by call, so that hiding some of them is of
    no use either.
    """
    gaps_s = leg.gaps_s(purpose)
    usual_s = np.empty_like(gaps_s)
    usual_s[np.argsort(gaps_s)] = np.sort(other.gaps_s(purpose))
    return np.maximum(0.0, gaps_s - usual_s - UNNOTICED_S)


def times_of(leg: Leg, *, charged_against: Leg | None = None) -> Times:
    """Give the seconds of all calls of a leg.

    A contender with code of its own may have changed its clock, or go on working after it was
    stopped: what the judge's clock shows beyond is added.
    """
    purposes = dict.fromkeys(each.ask.purpose for each in leg.given)
    found = {}
    for purpose in purposes:
        found[purpose] = leg.inner_s(purpose)
        if charged_against is not None:
            found[purpose] = found[purpose] + charge_s(leg, charged_against, purpose)
        found[purpose] = np.maximum(LEAST_CALL_S, found[purpose])
    return found


def without_postponed(leg: Leg, other: Leg) -> Leg:
    """Give a leg of code whose loading has what was put off, and whose memory is that of a model.

    Code may say that it is loaded and load later: what the first answer, or telling its size, takes
    longer than the `other` is loading. It may also give back memory that it found, and grow by
    nothing; a model takes what it takes on disk.
    """
    late_s = leg.loading.describing_s - other.loading.describing_s
    later_s = leg.cold.round_trip_s - other.cold.round_trip_s
    seconds = leg.loading.seconds + max(0.0, late_s) + max(0.0, later_s)
    peak_bytes = max(leg.usage.peak_bytes, leg.loading.file_bytes)
    return replace(
        leg,
        loading=replace(leg.loading, seconds=seconds),
        usage=replace(leg.usage, peak_bytes=peak_bytes),
    )


def heat_of(
    event: Event, legs: tuple[Leg, Leg], scores: tuple[float, float], *, has_own_code: bool
) -> Heat:
    """Give the values of one heat; `scores` are the mean scores of the answers of both sides."""
    reference, entry = legs
    charged_against = reference if has_own_code else None
    times = times_of(reference), times_of(entry, charged_against=charged_against)
    if has_own_code:
        entry = without_postponed(entry, reference)
    sides = zip((reference, entry), times, scores, strict=True)
    values = [
        {each.name: MEASURES[each.name](leg, taken, score) for each in event.measures}
        for leg, taken, score in sides
    ]
    return Heat(reference=values[0], entry=values[1])


Value = Callable[[Leg, Times, float], float]

MEASURES: dict[str, Value] = {
    "p90 latency": lambda leg, times, score: _percentile(times["timed"], 90),
    "time per image": lambda leg, times, score: float(times["timed"].sum()) / len(leg.outputs),
    # With scaling it makes the time for the long text: to be slow with short ones gains nothing.
    "prefill": lambda leg, times, score: _percentile(times["short"], 50),
    "decode": lambda leg, times, score: _percentile(times["write"], 50) / WRITTEN,
    "p99": lambda leg, times, score: _percentile(times["timed"], 99),
    "peak memory": lambda leg, times, score: float(max(PAGE_BYTES, leg.usage.peak_bytes)),
    "size": lambda leg, times, score: float(max(1, leg.loading.file_bytes)),
    "load time": lambda leg, times, score: leg.loading.seconds,
    "cold start": lambda leg, times, score: leg.cold.round_trip_s,
    "perplexity": lambda leg, times, score: float(np.exp(-score)),
    "scaling": lambda leg, times, score: (
        _percentile(times["timed"], 50) / _percentile(times["short"], 50)
    ),
    "CPU time": lambda leg, times, score: max(LEAST_CPU_S, leg.usage.cpu_s),
}
"""The measures of all events, by name."""


def _percentile(values: npt.NDArray[np.float64], share: float) -> float:
    return float(np.percentile(values, share))
