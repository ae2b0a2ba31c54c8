"""Queries one after the other, and queries all at once: latency and throughput."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from tinytorch.measure.disturbance import observe
from tinytorch.measure.samples import Samples, values_needed
from tinytorch.measure.timing import gc_paused, warm_up
from tinytorch.perf.benchmarking.scenario_settings import Offline, SingleStream

__all__ = ["PERCENTILES", "Query", "measure_offline", "measure_single_stream"]

PERCENTILES = (50.0, 90.0, 99.0)
WARMUP_SHARE = 0.1
"""The part of the budget that warming up may use."""
LEAST_QUERIES = 5
"""So many queries are made even when the budget is used up before."""
ROUNDS, LEAST_ROUNDS = 20, 6
"""Throughput is measured in about so many rounds; an interval of 95% needs six at least."""


@dataclass(frozen=True)
class Query:
    """One query to a model. `send` calls it, `finish` waits until a device has done its part."""

    send: Callable[[], object]
    finish: Callable[[], object]

    def answer(self) -> None:
        """Call the model and wait for the answer."""
        self.send()
        self.finish()


def measure_single_stream(query: Query, settings: SingleStream, *, budget_s: float) -> Samples:
    """Give the seconds of each query, from sending it to its answer.

    The garbage collector is paused, so what it takes is not part of the times.
    """
    times: list[float] = []
    with gc_paused():
        end = perf_counter() + budget_s
        warm_up(query.answer, budget_s=budget_s * WARMUP_SHARE)
        least = min(LEAST_QUERIES, settings.queries)
        before = observe()
        while len(times) < settings.queries:
            start = perf_counter()
            if start >= end and len(times) >= least:
                break
            query.answer()
            times.append(perf_counter() - start)
        after = observe()
    latency = Samples("latency", tuple(times), notes=after.doubts_since(before))
    return latency.with_notes(*_what_is_unknown(latency))


def measure_offline(
    query: Query, settings: Offline, *, budget_s: float, examples: int | None
) -> Samples:
    """Give the examples per second of rounds of queries, sent back to back.

    A device is waited for at the end of a round only. Where nobody knows how many `examples` a
    query has, it is queries per second.
    """
    with gc_paused():
        warm_up(query.answer, budget_s=budget_s * WARMUP_SHARE)
        loops = max(1, int(budget_s / ROUNDS / max(_seconds(query, 1), 1e-9)))
        end = perf_counter() + budget_s
        times: list[float] = []
        before = observe()
        while len(times) < LEAST_ROUNDS or (perf_counter() < end and len(times) < 2 * ROUNDS):
            times.append(_seconds(query, loops))
        after = observe()
    done = loops * (examples or 1)
    unit = "queries/s" if examples is None else "examples/s"
    rates = tuple(done / max(seconds, 1e-9) for seconds in times)
    throughput = Samples("throughput", rates, unit, loops, notes=after.doubts_since(before))
    stability = throughput.stability
    return throughput if stability.is_stable else throughput.with_notes(stability.note)


def _seconds(query: Query, loops: int) -> float:
    start = perf_counter()
    for _ in range(loops):
        query.send()
    query.finish()
    return perf_counter() - start


def _what_is_unknown(latency: Samples) -> list[str]:
    unknown = [q for q in PERCENTILES if latency.count < values_needed(q)]
    if not unknown:
        return []
    needed = ", ".join(f"p{q:g} takes {values_needed(q)}" for q in unknown)
    return [f"{latency.count} queries are too few for both ends of every interval: {needed}"]
