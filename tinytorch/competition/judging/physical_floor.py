"""The time below which no honest answer can be given on this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tinytorch.competition.cell.contender import BACKEND
from tinytorch.competition.events import Event
from tinytorch.core.dispatch import use_backend
from tinytorch.measure.matrix_rate import best_matrix_rate
from tinytorch.perf.profiling.flops import count_flops
from tinytorch.workloads.zoo import load_zoo

__all__ = ["FASTER_PRODUCTS", "floor_s"]

SIZES = (64, 256, 512, 1024)
"""The smallest runs on one thread: where others use the machine, threads of a product wait for each
other, and the larger ones show a hundredth of the rate."""
BUDGET_S = 0.5
FASTER_PRODUCTS = 8
"""Products of 8-bit numbers run at most at four times the rate of 32-bit ones, and the clock of a
processor may have been half as fast while its rate was measured."""


def floor_s(event: Event) -> float:
    """Give the seconds that the multiplications of one request take at the best rate there is."""
    workload = load_zoo(event.model)
    inputs = [np.repeat(each.data, event.batch, axis=0) for each in workload.inputs]
    with use_backend(BACKEND):  # another one might first have to be compiled
        flops = count_flops(workload.model, *(type(workload.inputs[0])(each) for each in inputs))
    return flops / (FASTER_PRODUCTS * _best_rate())


@lru_cache(maxsize=1)
def _best_rate() -> float:
    rng = np.random.default_rng(0)

    def product_at(size: int) -> Callable[[], object]:
        left, right = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
        return lambda: left @ right

    rates = best_matrix_rate("float32", product_at, sizes=SIZES, budget_s=BUDGET_S)
    return max(rates.values)
