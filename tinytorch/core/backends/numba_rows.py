"""Softmax and cross entropy of the compiled backend: functions of whole rows.

A row is walked over two or three times, but only the first walk fetches it from memory: then it
lies in the nearest cache until it is done. Rows are independent, so cores share them.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from tinytorch.core.backends import numpy as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.numba_arrays import (
    FLOAT32,
    empty_rows,
    has_rows,
    readable,
    rows_of,
    shared_work,
)
from tinytorch.core.backends.numba_compile import compiled
from tinytorch.core.backends.numba_exponential import EXPONENTIAL, exp_of_minus, larger_number
from tinytorch.core.backends.numba_math import ONE, ZERO, exp

__all__ = ["KERNELS"]

NUMPY = plain.NUMPY.kernels
F = np.float32
LOWEST = F(-np.inf)

# ---------------------------------------------------------------- loops


@compiled
def _softmax(x, out, statistics):
    """Write the softmax of each row; and its largest element, and the sum of exp(x - largest)."""
    rows, width = x.shape
    for i in prange(rows):
        top = LOWEST
        for j in range(width):
            top = larger_number(top, x[i, j])
        partition = ZERO
        for j in range(width):
            power = exp_of_minus(top - x[i, j])
            out[i, j] = power
            partition += power
        scale = ONE / partition
        for j in range(width):
            out[i, j] *= scale
        statistics[0, i] = top
        statistics[1, i] = partition


@compiled
def _softmax_backward(grad, output, out):
    rows, width = grad.shape
    for i in prange(rows):
        inner = ZERO
        for j in range(width):
            inner += grad[i, j] * output[i, j]
        for j in range(width):
            out[i, j] = output[i, j] * (grad[i, j] - inner)


@compiled
def _log_softmax(x, out):
    rows, width = x.shape
    for i in prange(rows):
        top = LOWEST
        for j in range(width):
            top = larger_number(top, x[i, j])
        total = ZERO
        for j in range(width):
            total += exp_of_minus(top - x[i, j])
        log_total = F(math.log(total))
        for j in range(width):
            out[i, j] = (x[i, j] - top) - log_total


@compiled
def _log_softmax_backward(grad, output, out):
    rows, width = grad.shape
    for i in prange(rows):
        total = ZERO
        for j in range(width):
            total += grad[i, j]
        for j in range(width):
            out[i, j] = grad[i, j] - exp(output[i, j]) * total


@compiled
def _scale_rows(x, factors, out):
    rows, width = x.shape
    for i in prange(rows):
        factor = factors[i]
        for j in range(width):
            out[i, j] = x[i, j] * factor


# ---------------------------------------------------------------- kernels


def softmax(x: Array, *, axis: int) -> Array:
    if not has_rows(x, axis):
        return NUMPY["softmax"](x, axis=axis)
    rows = rows_of(x)
    result, out = empty_rows(x)
    statistics = np.empty((2, len(rows)), FLOAT32)
    _softmax(rows, out, statistics, work=shared_work(rows, EXPONENTIAL))
    return result


def softmax_backward(grad: Array, output: Array, *, axis: int) -> Array:
    if not (has_rows(output, axis) and grad.dtype == FLOAT32 and grad.shape == output.shape):
        return NUMPY["softmax_backward"](grad, output, axis=axis)
    result, out = empty_rows(output)
    _softmax_backward(rows_of(grad), rows_of(output), out, work=2 * shared_work(out))
    return result


def log_softmax(x: Array, *, axis: int) -> Array:
    if not has_rows(x, axis):
        return NUMPY["log_softmax"](x, axis=axis)
    result, out = empty_rows(x)
    _log_softmax(rows_of(x), out, work=shared_work(out, EXPONENTIAL))
    return result


def log_softmax_backward(grad: Array, output: Array, *, axis: int) -> Array:
    if not (has_rows(output, axis) and grad.dtype == FLOAT32 and grad.shape == output.shape):
        return NUMPY["log_softmax_backward"](grad, output, axis=axis)
    result, out = empty_rows(output)
    _log_softmax_backward(rows_of(grad), rows_of(output), out, work=shared_work(out, EXPONENTIAL))
    return result


def _are_classes_of(rows: Array, targets: Array) -> bool:
    """Tell whether there is one whole number for each row; NumPy checks whether it is a class."""
    return rows.ndim == 2 and targets.shape == rows.shape[:1] and targets.dtype.kind in "iu"


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, Array]:
    if not (has_rows(logits) and _are_classes_of(logits, targets)):
        return NUMPY["cross_entropy"](logits, targets)
    picked = logits[np.arange(len(targets)), targets]  # also checks the targets
    result, out = empty_rows(logits)
    statistics = np.empty((2, len(logits)), FLOAT32)
    _softmax(rows_of(logits), out, statistics, work=shared_work(out, EXPONENTIAL))
    highest, total = statistics
    losses: Array = np.log(total)
    losses -= picked - highest
    return losses, result


def cross_entropy_backward(grad: Array, probabilities: Array, targets: Array) -> Array:
    if not (
        has_rows(probabilities)
        and grad.dtype == FLOAT32
        and grad.shape == targets.shape
        and _are_classes_of(probabilities, targets)
    ):
        return NUMPY["cross_entropy_backward"](grad, probabilities, targets)
    result, out = empty_rows(probabilities)
    _scale_rows(rows_of(probabilities), readable(grad), out, work=shared_work(out))
    result[np.arange(len(targets)), targets] -= grad
    return result


KERNELS: dict[str, Kernel] = {
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": log_softmax_backward,
    "cross_entropy": cross_entropy,
    "cross_entropy_backward": cross_entropy_backward,
}
