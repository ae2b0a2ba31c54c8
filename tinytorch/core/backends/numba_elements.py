"""Activations of the compiled backend, and the addition of a bias to rows.

NumPy computes GELU in ten walks over the array, on one core. Here each element is read once, goes
through the whole formula in registers, sixteen neighbours at a time, and is written once; cores
share large arrays. Sums and products of equal shapes are not here: they wait for the memory, and so
compiled ones were no faster. Nor is tanh, for which NumPy has vector instructions of its own.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from tinytorch.core.backends import numba_math as fast
from tinytorch.core.backends import numpy as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.numba_arrays import FLOAT32, flat, readable, rows_of
from tinytorch.core.backends.numba_compile import Compiled, compiled, inlined
from tinytorch.core.backends.numba_exponential import (
    EXPONENTIAL,
    exp_of_minus,
    exp_without_subnormals,
)
from tinytorch.core.backends.numba_math import HALF, ONE, ZERO

__all__ = ["KERNELS"]

NUMPY = plain.NUMPY.kernels

THREE = np.float32(3)
TWICE_SCALE = np.float32(2) * fast.GELU_SCALE

SIMPLE = 0.25
"""Threads that only add or compare have to be given more elements before waking them up pays."""

SMALL = 1 << 11
"""Elements up to which NumPy has computed something simple before a kernel would have started."""

MANY_ROWS = 1 << 13
"""Elements from which on a row is added to all rows faster than NumPy does it."""

# ---------------------------------------------------------------- loops


@compiled
def _relu(x, out):
    for i in prange(x.size):
        out[i] = fast.larger(x[i], ZERO)


@compiled
def _relu_backward(grad, output, out):
    for i in prange(grad.size):
        out[i] = grad[i] if output[i] > ZERO else ZERO


@inlined
def _sigmoid_of(x):
    return ONE / (ONE + exp_without_subnormals(-x))


@compiled
def _sigmoid(x, out):
    for i in prange(x.size):
        out[i] = _sigmoid_of(x[i])


@compiled
def _sigmoid_backward(grad, output, out):
    for i in prange(grad.size):
        out[i] = grad[i] * output[i] * (ONE - output[i])


@compiled
def _tanh_backward(grad, output, out):
    for i in prange(grad.size):
        out[i] = grad[i] * (ONE - output[i] * output[i])


@inlined
def _share_by_tanh(x):
    """Give (1 + tanh(u)) / 2 = sigmoid(2 u), where u is about x sqrt(2 / pi)."""
    return _sigmoid_of(TWICE_SCALE * x * (ONE + fast.GELU_CUBIC * x * x))


@inlined
def _share_and_density(x):
    """Give P(Z <= x) for a normal Z, and exp(-x^2 / 2), which both are made of.

    The tail beyond |x| is t (E1 + t (E2 + ...)) exp(-x^2 / 2) / 2, the formula of numba_math.erf.
    """
    size = abs(x)
    density = exp_of_minus(HALF * x * x)
    t = ONE / (ONE + fast.E0 * fast.SQRT_HALF * size)
    series = ((((fast.E5 * t + fast.E4) * t + fast.E3) * t + fast.E2) * t + fast.E1) * t
    tail = HALF * series * density
    return ONE - tail if x >= ZERO else tail, density


@compiled
def _gelu_with_tanh(x, out):
    for i in prange(x.size):
        out[i] = x[i] * _share_by_tanh(x[i])


@compiled
def _gelu_exact(x, out):
    for i in prange(x.size):
        share, _ = _share_and_density(x[i])
        out[i] = x[i] * share


@compiled
def _gelu_with_tanh_backward(grad, x, out):
    for i in prange(x.size):
        share = _share_by_tanh(x[i])
        slope = TWICE_SCALE * (ONE + THREE * fast.GELU_CUBIC * x[i] * x[i])
        out[i] = grad[i] * (share + x[i] * share * (ONE - share) * slope)


@compiled
def _gelu_exact_backward(grad, x, out):
    for i in prange(x.size):
        share, density = _share_and_density(x[i])
        out[i] = grad[i] * (share + x[i] * fast.INVERSE_SQRT_TAU * density)


@compiled
def _add_to_rows(x, row, out):
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] + row[j]


# ---------------------------------------------------------------- kernels


def _apply(loop: Compiled, *arrays: Array, work: float = SIMPLE) -> Array:
    """Run a loop over equally large arrays; `work` is what it does for each element."""
    first = arrays[0]
    out = np.empty(first.shape, FLOAT32)
    loop(*[flat(array) for array in arrays], out.ravel(), work=int(work * first.size))
    return out


def _suits(x: Array) -> bool:
    return x.dtype == FLOAT32 and x.size > 0 and x.ndim > 0


def _suit(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype == FLOAT32 and a.shape == b.shape and a.size > 0 and a.ndim > 0


def relu(x: Array) -> Array:
    return _apply(_relu, x) if x.size >= SMALL and _suits(x) else NUMPY["relu"](x)


def relu_backward(grad: Array, output: Array) -> Array:
    if not _suit(grad, output):
        return NUMPY["relu_backward"](grad, output)
    return _apply(_relu_backward, grad, output)


def sigmoid(x: Array) -> Array:
    return _apply(_sigmoid, x, work=EXPONENTIAL) if _suits(x) else NUMPY["sigmoid"](x)


def sigmoid_backward(grad: Array, output: Array) -> Array:
    if grad.size < SMALL or not _suit(grad, output):
        return NUMPY["sigmoid_backward"](grad, output)
    return _apply(_sigmoid_backward, grad, output)


def tanh_backward(grad: Array, output: Array) -> Array:
    if grad.size < SMALL or not _suit(grad, output):
        return NUMPY["tanh_backward"](grad, output)
    return _apply(_tanh_backward, grad, output)


def gelu(x: Array, *, approximate: str) -> Array:
    if not _suits(x):
        return NUMPY["gelu"](x, approximate=approximate)
    loop = _gelu_with_tanh if approximate == "tanh" else _gelu_exact
    return _apply(loop, x, work=EXPONENTIAL)


def gelu_backward(grad: Array, x: Array, *, approximate: str) -> Array:
    if not _suit(grad, x):
        return NUMPY["gelu_backward"](grad, x, approximate=approximate)
    loop = _gelu_with_tanh_backward if approximate == "tanh" else _gelu_exact_backward
    return _apply(loop, grad, x, work=EXPONENTIAL)


def add(a: Array, b: Array) -> Array:
    if np.size(a) < MANY_ROWS or not _is_row_of(b, a):
        return np.add(a, b)
    out = np.empty(a.shape, FLOAT32)
    _add_to_rows(rows_of(a), readable(b), out.reshape(-1, b.size), work=int(SIMPLE * a.size))
    return out


def _is_row_of(row: Array, x: Array) -> bool:
    return row.ndim == 1 and x.dtype == row.dtype == FLOAT32 and x.shape[-1] == row.size > 1


KERNELS: dict[str, Kernel] = {
    "relu": relu,
    "relu_backward": relu_backward,
    "sigmoid": sigmoid,
    "sigmoid_backward": sigmoid_backward,
    "tanh_backward": tanh_backward,
    "gelu": gelu,
    "gelu_backward": gelu_backward,
    "add": add,
}
