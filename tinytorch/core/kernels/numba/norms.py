"""Layer and batch normalisation of the compiled backend.

Each row, or channel, is walked over three times: for its mean, for the squares of the deviations
from it, and to be normalised. Only the first walk has to fetch it from memory. What is summed over
all rows (the gradients of weight and bias) is summed in a fixed number of parts, so that the result
is the same each time.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from tinytorch.core.kernels import numpy as plain
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba.compile import (
    FLOAT32,
    THREADS,
    compiled,
    empty_rows,
    flat,
    has_rows,
    inlined,
    readable,
    rows_of,
    shared_work,
)
from tinytorch.core.kernels.numba.simd import ONE, ZERO

NUMPY = plain.NUMPY.kernels
F = np.float32

# ---------------------------------------------------------------- loops


@inlined
def mean_and_inverse(x, i, eps):
    """Return the mean of a row and the inverse of its standard deviation.

    The squares of deviations are summed, not those of elements: a large mean would swallow them.
    """
    width = x.shape[1]
    total = ZERO
    for j in range(width):
        total += x[i, j]
    mean = total / F(width)
    squares = ZERO
    for j in range(width):
        deviation = x[i, j] - mean
        squares += deviation * deviation
    return mean, ONE / F(math.sqrt(squares / F(width) + F(eps)))


@compiled
def _layer_norm(x, weight, bias, eps, out, means, inverses):
    rows, width = x.shape
    for i in prange(rows):
        mean, inverse = mean_and_inverse(x, i, eps)
        means[i], inverses[i] = mean, inverse
        for j in range(width):
            out[i, j] = (x[i, j] - mean) * inverse * weight[j] + bias[j]


@compiled
def _add_layer_norm(x, residual, weight, bias, eps, total, out):
    rows, width = x.shape
    for i in prange(rows):
        for j in range(width):
            total[i, j] = x[i, j] + residual[i, j]
        mean, inverse = mean_and_inverse(total, i, eps)
        for j in range(width):
            out[i, j] = (total[i, j] - mean) * inverse * weight[j] + bias[j]


@compiled
def _layer_norm_backward(grad, x, weight, means, inverses, out, sums):
    """Write the gradient of the input; `sums` (parts, 2, width) are those of weight and bias."""
    rows, width = grad.shape
    parts = sums.shape[0]
    share = (rows + parts - 1) // parts
    for part in prange(parts):
        first = np.int64(part) * share
        for i in range(first, min(first + share, rows)):
            mean, inverse = means[i], inverses[i]
            total, projection = ZERO, ZERO
            for j in range(width):
                slope = grad[i, j] * weight[j]
                total += slope
                projection += slope * ((x[i, j] - mean) * inverse)
            total /= F(width)
            projection /= F(width)
            for j in range(width):
                normalised = (x[i, j] - mean) * inverse
                out[i, j] = (grad[i, j] * weight[j] - total - normalised * projection) * inverse
                sums[part, 0, j] += grad[i, j] * normalised
                sums[part, 1, j] += grad[i, j]


@inlined
def inverse_rms(row, eps):
    """Return the inverse of the root mean square of a row."""
    squares = ZERO
    for j in range(row.size):
        squares += row[j] * row[j]
    return ONE / F(math.sqrt(squares / F(row.size) + F(eps)))


@compiled
def _rms_norm(x, weight, eps, out, inverses):
    rows, width = x.shape
    for i in prange(rows):
        inverses[i] = inverse_rms(x[i], eps)
        for j in range(width):
            out[i, j] = x[i, j] * inverses[i] * weight[j]


@compiled
def _batch_norm(x, weight, bias, eps, out, normalised, inverses, means, variances):
    """Normalise each channel of x (batch, channels, places)."""
    batch, channels, places = x.shape
    count = F(batch * places)
    for c in prange(channels):
        total = ZERO
        for b in range(batch):
            for p in range(places):
                total += x[b, c, p]
        mean = total / count
        squares = ZERO
        for b in range(batch):
            for p in range(places):
                deviation = x[b, c, p] - mean
                squares += deviation * deviation
        variance = squares / count
        inverse = ONE / F(math.sqrt(variance + F(eps)))
        for b in range(batch):
            for p in range(places):
                value = (x[b, c, p] - mean) * inverse
                normalised[b, c, p] = value
                out[b, c, p] = value * weight[c] + bias[c]
        inverses[c], means[c], variances[c] = inverse, mean, variance


@compiled
def _batch_norm_backward(grad, weight, normalised, inverses, out, grad_weight, grad_bias):
    batch, channels, places = grad.shape
    count = F(batch * places)
    for c in prange(channels):
        total, projection = ZERO, ZERO
        for b in range(batch):
            for p in range(places):
                total += grad[b, c, p]
                projection += grad[b, c, p] * normalised[b, c, p]
        grad_bias[c], grad_weight[c] = total, projection
        mean, slope = total / count, projection / count
        scale = weight[c] * inverses[c]
        for b in range(batch):
            for p in range(places):
                out[b, c, p] = (grad[b, c, p] - mean - normalised[b, c, p] * slope) * scale


# ---------------------------------------------------------------- kernels


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> tuple[Array, Array, Array]:
    if not (has_rows(x) and _are_vectors(weight, bias, x.shape[-1])):
        return NUMPY["layer_norm"](x, weight, bias, eps=eps)
    result, out = empty_rows(x)
    mean = np.empty((*x.shape[:-1], 1), FLOAT32)
    inverse = np.empty_like(mean)
    _layer_norm(
        rows_of(x), readable(weight), readable(bias), float(eps),
        out, mean.ravel(), inverse.ravel(), work=2 * shared_work(out),
    )  # fmt: skip
    return result, mean, inverse


def _are_vectors(weight: Array, bias: Array, width: int) -> bool:
    return weight.dtype == bias.dtype == FLOAT32 and weight.shape == bias.shape == (width,)


def add_layer_norm(
    x: Array, residual: Array, weight: Array, bias: Array, *, eps: float
) -> tuple[Array, Array]:
    if not (
        has_rows(x)
        and residual.dtype == FLOAT32
        and residual.shape == x.shape
        and _are_vectors(weight, bias, x.shape[-1])
    ):
        return NUMPY["add_layer_norm"](x, residual, weight, bias, eps=eps)
    total, total_rows = empty_rows(x)
    result, out = empty_rows(x)
    _add_layer_norm(
        rows_of(x), rows_of(residual), readable(weight), readable(bias), float(eps),
        total_rows, out, work=2 * shared_work(out),
    )  # fmt: skip
    return total, result


def rms_norm(x: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
    if not (has_rows(x) and weight.dtype == FLOAT32 and weight.shape == x.shape[-1:]):
        return NUMPY["rms_norm"](x, weight, eps=eps)
    result, out = empty_rows(x)
    inverse = np.empty((*x.shape[:-1], 1), FLOAT32)
    _rms_norm(
        rows_of(x), readable(weight), float(eps), out, inverse.ravel(), work=2 * shared_work(out)
    )
    return result, inverse


def layer_norm_backward(
    grad: Array, x: Array, weight: Array, mean: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    if not (
        has_rows(grad)
        and grad.shape == x.shape
        and weight.shape == x.shape[-1:]
        and mean.size == inverse.size == x.size // x.shape[-1]
        and x.dtype == weight.dtype == mean.dtype == inverse.dtype == FLOAT32
    ):
        return NUMPY["layer_norm_backward"](grad, x, weight, mean, inverse)
    result, out = empty_rows(grad)
    sums = np.zeros((THREADS, 2, grad.shape[-1]), FLOAT32)
    _layer_norm_backward(
        rows_of(grad), rows_of(x), readable(weight), flat(mean), flat(inverse), out, sums,
        work=4 * shared_work(out),
    )  # fmt: skip
    return result, sums[:, 0].sum(axis=0), sums[:, 1].sum(axis=0)


def _vectors(count: int, length: int) -> list[Array]:
    """Return memory for several vectors, each of which can live on its own."""
    return [np.empty(length, FLOAT32) for _ in range(count)]


def _is_image(x: Array) -> bool:
    return x.dtype == FLOAT32 and x.size > 0 and x.ndim == 4


def _planes(x: Array) -> Array:
    """Return images as (batch, channels, places)."""
    batch, channels = x.shape[:2]
    return readable(x.reshape(batch, channels, -1))


def batch_norm(
    x: Array, weight: Array, bias: Array, *, eps: float
) -> tuple[Array, Array, Array, Array, Array]:
    if not (_is_image(x) and _are_vectors(weight, bias, x.shape[1])):
        return NUMPY["batch_norm"](x, weight, bias, eps=eps)
    result, normalised = np.empty(x.shape, FLOAT32), np.empty(x.shape, FLOAT32)
    inverse, mean, variance = _vectors(3, x.shape[1])
    _batch_norm(
        _planes(x), readable(weight), readable(bias), float(eps),
        _planes(result), _planes(normalised), inverse, mean, variance, work=2 * x.size,
    )  # fmt: skip
    return result, normalised, inverse, mean, variance


def batch_norm_backward(
    grad: Array, weight: Array, normalised: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    if not (
        _is_image(grad)
        and grad.shape == normalised.shape
        and weight.shape == inverse.shape == grad.shape[1:2]
        and weight.dtype == normalised.dtype == inverse.dtype == FLOAT32
    ):
        return NUMPY["batch_norm_backward"](grad, weight, normalised, inverse)
    result = np.empty(grad.shape, FLOAT32)
    grad_weight, grad_bias = _vectors(2, grad.shape[1])
    _batch_norm_backward(
        _planes(grad), readable(weight), _planes(normalised), readable(inverse), _planes(result),
        grad_weight, grad_bias, work=3 * grad.size,
    )  # fmt: skip
    return result, grad_weight, grad_bias


KERNELS: dict[str, Kernel] = {
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "add_layer_norm": add_layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
}
