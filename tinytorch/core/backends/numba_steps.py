"""Optimizer steps and embeddings of the compiled backend: where parameters are read and changed.

A step of Adam is a dozen operations for each parameter. Done one after the other they fetch the
parameters and their state from memory a dozen times; here once.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from tinytorch.core.backends import numpy as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.numba_arrays import FLOAT32, flat, readable, rows_of
from tinytorch.core.backends.numba_compile import THREADS, compiled
from tinytorch.core.backends.numba_math import ONE

__all__ = ["KERNELS"]

NUMPY = plain.NUMPY.kernels
F = np.float32

LARGE = 1 << 18
"""Elements to copy from which on two cores are faster than NumPy on one."""

# ---------------------------------------------------------------- loops


@compiled
def _descend(parameter, grad, lr, weight_decay):
    lr, weight_decay = F(lr), F(weight_decay)  # in float64 each element would be converted
    for i in prange(parameter.size):
        parameter[i] -= lr * (grad[i] + weight_decay * parameter[i])


@compiled
def _descend_with_momentum(parameter, grad, velocity, lr, momentum, weight_decay):
    lr, momentum, weight_decay = F(lr), F(momentum), F(weight_decay)
    for i in prange(parameter.size):
        speed = momentum * velocity[i] + (grad[i] + weight_decay * parameter[i])
        velocity[i] = speed
        parameter[i] -= lr * speed


@compiled
def _adam(parameter, grad, first, second, beta1, beta2, rate, correction, eps, shrink, pull):
    """Take one step; weight decay either shrinks the parameters or pulls at their gradient."""
    beta1, beta2, rest1, rest2 = F(beta1), F(beta2), F(ONE - beta1), F(ONE - beta2)
    rate, correction, eps, shrink, pull = F(rate), F(correction), F(eps), F(shrink), F(pull)
    for i in prange(parameter.size):
        weight = shrink * parameter[i]
        slope = grad[i] + pull * weight
        mean = beta1 * first[i] + rest1 * slope
        square = beta2 * second[i] + rest2 * slope * slope
        first[i], second[i] = mean, square
        parameter[i] = weight - rate * mean / (F(math.sqrt(square)) * correction + eps)


@compiled
def _gather(table, ids, out):
    for i in prange(ids.size):
        row = ids[i]
        for j in range(table.shape[1]):
            out[i, j] = table[row, j]


@compiled
def _scatter_add(rows, ids, out, parts):
    """Add each row to out[id]. Threads share the columns, so that no two change one element."""
    count, width = rows.shape
    share = (width + parts - 1) // parts
    for part in prange(parts):
        first = np.int64(part) * share
        for i in range(count):
            source = rows[i, first : first + share]
            target = out[ids[i], first : first + share]
            for j in range(source.size):
                target[j] += source[j]


# ---------------------------------------------------------------- steps, in place


def _are_changeable(*arrays: Array) -> bool:
    """Tell whether arrays have one shape, and flat views that are no copies: to be changed."""
    shape = arrays[0].shape
    return all(
        array.flags.carray and array.dtype == FLOAT32 and array.shape == shape for array in arrays
    )


def sgd_step(
    parameter: Array,
    grad: Array,
    velocity: Array | None,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    state = (parameter,) if velocity is None else (parameter, velocity)
    if not (_are_changeable(*state) and _matches(grad, parameter)):
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        NUMPY["sgd_step"](parameter, grad, velocity, **settings)
    elif velocity is None:
        _descend(parameter.ravel(), flat(grad), float(lr), float(weight_decay), work=2 * grad.size)
    else:
        _descend_with_momentum(
            parameter.ravel(), flat(grad), velocity.ravel(),
            float(lr), float(momentum), float(weight_decay), work=3 * grad.size,
        )  # fmt: skip


def _matches(grad: Array, parameter: Array) -> bool:
    return grad.dtype == FLOAT32 and grad.shape == parameter.shape


def adam_step(
    parameter: Array,
    grad: Array,
    first: Array,
    second: Array,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    if not (_are_changeable(parameter, first, second) and _matches(grad, parameter)):
        NUMPY["adam_step"](
            parameter, grad, first, second,
            step=step, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, decoupled=decoupled,
        )  # fmt: skip
        return
    beta1, beta2 = betas
    rate = lr / (1 - beta1**step)
    correction = 1 / math.sqrt(1 - beta2**step)
    shrink = 1.0 - lr * weight_decay if decoupled else 1.0
    pull = 0.0 if decoupled else float(weight_decay)
    _adam(
        parameter.ravel(), flat(grad), first.ravel(), second.ravel(),
        float(beta1), float(beta2), float(rate), correction, float(eps), float(shrink), pull,
        work=4 * grad.size,
    )  # fmt: skip


# ---------------------------------------------------------------- embeddings


def _are_rows_of(ids: Array, count: int) -> bool:
    """Tell whether all ids are rows of a table, counted from its start."""
    return ids.size > 0 and ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < count


def embedding(weight: Array, ids: Array) -> Array:
    width = weight.shape[1]
    if not (
        THREADS > 1
        and ids.size * width >= LARGE
        and weight.dtype == FLOAT32
        and _are_rows_of(ids, len(weight))
    ):
        return NUMPY["embedding"](weight, ids)
    result = np.empty((*ids.shape, width), FLOAT32)
    numbers = readable(ids.astype(np.int64, copy=False).ravel())
    _gather(readable(weight), numbers, result.reshape(-1, width), work=result.size)
    return result


def embedding_backward(grad: Array, ids: Array, *, count: int) -> Array:
    if not (grad.dtype == FLOAT32 and grad.shape[:-1] == ids.shape and _are_rows_of(ids, count)):
        return NUMPY["embedding_backward"](grad, ids, count=count)
    result = np.zeros((count, grad.shape[-1]), FLOAT32)
    numbers = readable(ids.astype(np.int64, copy=False).ravel())
    _scatter_add(rows_of(grad), numbers, result, THREADS, work=2 * grad.size)
    return result


KERNELS: dict[str, Kernel] = {
    "sgd_step": sgd_step,
    "adam_step": adam_step,
    "embedding": embedding,
    "embedding_backward": embedding_backward,
}
