"""The rate of square matrix products, at a size where it is highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tinytorch.errors import SettingError
from tinytorch.measure.clocks import WALL, Clock
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import measure_time

__all__ = ["best_matrix_rate"]

TOO_LONG = 0.6
"""The part of the budget that one product may take; larger ones are not tried."""
TRIES = 3
TRIES_SHARE = 0.1
"""How often a size is tried, and the part of the budget after which once is enough."""
ALIKE = 0.95
"""Of two sizes whose rates are alike the larger one is taken: disturbances matter less there."""


def best_matrix_rate(
    name: str,
    product_at: Callable[[int], Callable[[], object]],
    *,
    sizes: Sequence[int],
    budget_s: float,
    clock: Clock = WALL,
) -> Samples:
    """Give the FLOP/s of the fastest size, two per multiply-accumulate, value by value.

    `product_at(n)` gives a function that multiplies two n x n matrices. Sizes grow, and the search
    ends where one product takes too much of the budget.
    """
    if not sizes:
        raise SettingError("no sizes to try; give at least one")
    best_rate, best_size = 0.0, 0
    for size in sizes:
        if best_rate and 2 * size**3 / best_rate > TOO_LONG * budget_s:
            break
        rate = 2 * size**3 / _shortest(product_at(size), clock, TRIES_SHARE * budget_s)
        if rate >= ALIKE * best_rate:
            best_size = size
        best_rate = max(best_rate, rate)
    times = measure_time(
        product_at(best_size),
        name=f"{name} matrix product, n={best_size}",
        warmup=1,
        budget_s=budget_s / 2,
        clock=clock,
        inner_loops=1,
        max_runs=200,
    )
    rates = tuple(2 * best_size**3 / seconds for seconds in times.values)
    return replace(times, values=rates, unit="FLOP/s")


def _shortest(product: Callable[[], object], clock: Clock, enough_s: float) -> float:
    """Give the shortest of a few times."""
    clock.time(product, 1)  # This one may have to load a library, or take memory: it says nothing.
    times = [clock.time(product, 1)]
    while len(times) < TRIES and sum(times) < enough_s:
        times.append(clock.time(product, 1))
    return min(times)
