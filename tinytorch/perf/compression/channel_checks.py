"""Does a model without some of its channels compute what it should? Tried on copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import Adapter, adapter_for
from tinytorch.adapters.values import leaves, plain_arrays
from tinytorch.core.backends import Array
from tinytorch.perf.compression.channel_graph import Family, Unit
from tinytorch.perf.compression.trimming import joined, trim, zero_out
from tinytorch.workloads.observing import calling_plainly, switch_to_eval
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["why_broken"]

LARGEST_ERROR = 1e-3
"""Sums in another order differ by some 1e-6 per layer; channels that are missed, by far more."""
SMALLEST_ERROR = 1e-6


def why_broken(workload: Workload, choice: Sequence[tuple[Family, Sequence[Unit]]]) -> str:
    """Remove units, and compare with weights of zero for what they feed."""
    feeds = [
        {place: unit[place] for place in family.consumers}
        for family, units in choice
        for unit in units
    ]
    adapter = adapter_for(workload.model, workload.arguments)
    zeroed, trimmed = adapter.clone(workload.model), adapter.clone(workload.model)
    zero_out(zeroed, joined(feeds))
    trim(trimmed, joined(unit for _, units in choice for unit in units))
    expected = _outputs(adapter, zeroed, workload)
    try:
        found = _outputs(adapter, trimmed, workload)
    except Exception as error:  # the code of a model raises whatever it likes
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return f"the model does not compute without channels of it: {first_line}"
    if [each.shape for each in found] != [each.shape for each in expected]:
        return "the outputs of the model have another shape without channels of it"
    if not all(map(_are_alike, found, expected)):
        return "the model computes something else without channels of it"
    return ""


def _are_alike(found: Array, expected: Array) -> bool:
    """Tell whether outputs differ by rounding alone; what is not finite must be the same."""
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        return False
    one, other = found[finite].astype(np.float64), expected[finite].astype(np.float64)
    error = float(np.linalg.norm(one - other))
    return error <= LARGEST_ERROR * float(np.linalg.norm(other)) + SMALLEST_ERROR


def _outputs(adapter: Adapter, model: Any, workload: Workload) -> list[Array]:
    switch_to_eval(adapter.modules(model))
    with calling_plainly(model):
        result = call_model(model, *workload.inputs, **workload.keywords)
    return [array for leaf in leaves(result) for array in plain_arrays(leaf)]
