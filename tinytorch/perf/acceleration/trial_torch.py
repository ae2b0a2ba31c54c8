"""Check, then time: a change is tried on a copy of a model before a plan names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.values import Array
from tinytorch.comparison.outputs import OutputDifference, attention_mask_of, compare_outputs
from tinytorch.comparison.time_limit import time_limit
from tinytorch.errors import first_line
from tinytorch.workloads.workload import Workload, call_model

__all__ = [
    "ROUNDING",
    "SEED",
    "Trial",
    "copied_arguments",
    "first_line",
    "run_once",
    "try_change",
    "why_unlike",
]

ROUNDING = 1e-4
"""Outputs of the same arithmetic in another order differ by less, relative to the largest one."""
CALLS = 3
"""The first call may prepare something; the later ones show that the state stays in order."""
LONG_CALL_S, CALLS_IF_LONG = 1.0, 2
"""Where a call takes longer, as those of long texts do, one later call has to show that."""
SEED = 0

Outputs = tuple[Array, ...]
Change = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Trial:
    """How a change went: why it cannot be, or how far outputs moved, its time and its memory.

    `seconds` is the time for changing and for the first call. `nbytes` is the memory of the device
    that stayed taken on top of the copy, None on a processor, where nobody counts it.
    """

    reason: str = ""
    difference: OutputDifference | None = None
    seconds: float = 0.0
    nbytes: int | None = None

    @property
    def works(self) -> bool:
        return not self.reason

    @property
    def is_idle(self) -> bool:
        """Whether fractions stayed as they were, bit for bit: nothing was rounded."""
        seen = self.difference
        return seen is not None and seen.max_relative_error is not None and seen.is_identical


def try_change(
    workload: Workload, change: Change, *, tolerance: float = ROUNDING, limit_s: float | None = None
) -> Trial:
    """Carry out a change on a copy of the model, call it, and compare its outputs.

    Nothing is left behind: neither the workload nor random state change, memory is freed.
    """
    adapter = TorchAdapter()
    try:
        with adapter.preserving(workload.model), time_limit(limit_s, workload.name):
            expected = _run_often(adapter, workload)
            seconds, nbytes, outputs = _carry_out(adapter, workload, change, len(expected))
    except Exception as error:  # a compiler, a device or the model may raise anything
        return Trial(reason=first_line(error))
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    pairs = zip(expected, outputs, strict=True)
    mask = attention_mask_of(workload)
    differences = [compare_outputs(before, after, mask=mask) for before, after in pairs]
    worst = max(differences, key=lambda each: _rank(each, tolerance))
    return Trial(why_unlike(worst, tolerance), worst, seconds, nbytes)


def _rank(difference: OutputDifference, tolerance: float) -> tuple[bool, bool, float]:
    is_unlike = bool(why_unlike(difference, tolerance))
    return bool(difference.broken), is_unlike, difference.max_relative_error or 0.0


def _run_often(adapter: TorchAdapter, workload: Workload) -> list[Outputs]:
    """Call a copy of the model as it is, fewer times where that takes long."""
    copy = adapter.clone(workload.model)
    started = perf_counter()
    outputs = _run(adapter, workload, copy, 1)
    calls = CALLS if perf_counter() - started <= LONG_CALL_S else CALLS_IF_LONG
    return outputs + _run(adapter, workload, copy, calls - 1)


def _carry_out(
    adapter: TorchAdapter, workload: Workload, change: Change, calls: int
) -> tuple[float, int | None, list[Outputs]]:
    place = torch.device(adapter.device(workload.model, workload.arguments))
    copy = adapter.clone(workload.model)
    before = _allocated(place)
    started = perf_counter()
    changed = change(copy)
    outputs = _run(adapter, workload, changed, 1)
    seconds = perf_counter() - started
    outputs += _run(adapter, workload, changed, calls - 1)
    after = _allocated(place)
    nbytes = None if before is None or after is None else after - before
    return seconds, nbytes, outputs


def _run(adapter: TorchAdapter, workload: Workload, model: Any, calls: int) -> list[Outputs]:
    return [run_once(adapter, workload, model) for _ in range(calls)]


def run_once(adapter: TorchAdapter, workload: Workload, model: Any) -> Outputs:
    """Call a model on fresh copies of the inputs, and with one seed; give its outputs."""
    inputs, keywords = copied_arguments(adapter, workload)
    torch.manual_seed(SEED)
    with adapter.without_gradients():
        return adapter.arrays(call_model(model, *inputs, **keywords))


def copied_arguments(
    adapter: TorchAdapter, workload: Workload
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give copies of what a model is called with, by place and by name."""
    inputs = adapter.copy_inputs(workload.inputs)
    values = adapter.copy_inputs(tuple(workload.keywords.values()))
    return inputs, dict(zip(workload.keywords, values, strict=True))


def why_unlike(difference: OutputDifference, tolerance: float) -> str:
    """Say why outputs are not the same within a tolerance, or nothing."""
    if difference.broken:
        return f"its outputs would be wrong: {difference.broken}"
    error = difference.max_relative_error
    if error is not None and error > tolerance:
        return (
            f"its outputs would change by {error:.2g} of the largest one, "
            f"more than the {tolerance:.2g} that are allowed"
        )
    if difference.equal_share is not None and difference.equal_share < 1:
        share = f"{difference.equal_share:.1%}"
        return f"only {share} of the whole numbers in its outputs would be the same"
    return ""


def _allocated(place: torch.device) -> int | None:
    return torch.cuda.memory_allocated(place) if place.type == "cuda" else None
