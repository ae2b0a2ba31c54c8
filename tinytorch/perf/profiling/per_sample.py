"""FLOPs per sample: what one example of a batch costs, whatever the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinytorch.errors import TinyTorchError
from tinytorch.perf.profiling.example_inputs import shape_of
from tinytorch.perf.profiling.flops import count_flops

__all__ = ["SampleFlops", "flops_per_sample"]


@dataclass(frozen=True)
class SampleFlops:
    """FLOPs of contractions, two per multiply-accumulate.

    `batch_size` is None where the first axis is no batch: a single vector, one image (C, H, W), one
    sequence (T, D) for an attention layer.
    """

    per_sample: int
    per_call: int
    batch_size: int | None


def flops_per_sample(model: Any, inputs: tuple[Any, ...], *, backward: bool = False) -> SampleFlops:
    """Count a call, and find out whether the first axis of its inputs is a batch.

    It is one if the model takes another length there and the cost is a fixed part plus the same
    for each sample. Where that cannot be, the whole call is one sample. The model is run on two or
    three batch sizes, and only counted, not timed.
    """
    whole = count_flops(model, *inputs, backward=backward)
    shape = shape_of(inputs[0]) if inputs else ()
    length = shape[0] if len(shape) > 1 else 1
    if length == 1:
        return SampleFlops(whole, whole, 1 if len(shape) > 1 else None)
    counts = {length: whole}
    # Never a batch of one: some layers refuse it in training mode.
    for other in (length // 2 if length >= 4 else 2 * length, 3 * length):
        try:
            resized = _resized(inputs, length, other)
            counts[other] = count_flops(model, *resized, backward=backward)
        except TinyTorchError:
            return SampleFlops(whole, whole, None)
        if whole * other == counts[other] * length:
            return SampleFlops(whole // length, whole, length)
    return _with_fixed_part(counts, whole, length)


def _with_fixed_part(counts: dict[int, int], whole: int, length: int) -> SampleFlops:
    """Tell a batch with some fixed work apart from an axis along which the cost is no line."""
    (a, at_a), (b, at_b), (c, at_c) = sorted(counts.items())
    if (at_b - at_a) * (c - b) != (at_c - at_b) * (b - a):
        return SampleFlops(whole, whole, None)
    each = (at_b - at_a) // (b - a)
    return SampleFlops(at_a - a * each + each, whole, length)


def _resized(inputs: tuple[Any, ...], length: int, other: int) -> tuple[Any, ...]:
    """Repeat or cut the inputs along their first axis, all that have the same length there."""
    positions = [index % length for index in range(other)]
    return tuple(x[positions] if shape_of(x)[:1] == (length,) else x for x in inputs)
