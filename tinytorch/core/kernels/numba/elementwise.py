"""Activations of the compiled backend, and the addition of a bias to rows.

NumPy computes GELU in ten walks over the array, on one core. Here each element is read once, goes
through the whole formula in registers, sixteen neighbours at a time, and is written once; cores
share large arrays. Sums and products of equal shapes are not here: they wait for the memory, and so
compiled ones were no faster. Nor is tanh, for which NumPy has vector instructions of its own."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from tinytorch.core.kernels import numpy as plain
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba import simd as fast
from tinytorch.core.kernels.numba.compile import (
    FLOAT32,
    THREADS,
    Compiled,
    compiled,
    empty_rows,
    flat,
    has_rows,
    inlined,
    readable,
    rows_of,
    shared_work,
)
from tinytorch.core.kernels.numba.simd import (
    EXPONENTIAL,
    HALF,
    ONE,
    ZERO,
    exp,
    exp_of_minus,
    exp_without_subnormals,
    larger_number,
)

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


@compiled
def _silu(x, out):
    for i in prange(x.size):
        out[i] = x[i] * _sigmoid_of(x[i])


@compiled
def _silu_backward(grad, x, out):
    for i in prange(x.size):
        share = _sigmoid_of(x[i])
        out[i] = grad[i] * share * (ONE + x[i] * (ONE - share))


@inlined
def _share_by_tanh(x):
    """Return (1 + tanh(u)) / 2 = sigmoid(2 u), where u is about x sqrt(2 / pi)."""
    return _sigmoid_of(TWICE_SCALE * x * (ONE + fast.GELU_CUBIC * x * x))


@inlined
def _share_and_density(x):
    """Return P(Z <= x) for a normal Z, and exp(-x^2 / 2), which both are made of.

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


def silu(x: Array) -> Array:
    return _apply(_silu, x, work=EXPONENTIAL) if _suits(x) else NUMPY["silu"](x)


def silu_backward(grad: Array, x: Array) -> Array:
    if not _suit(grad, x):
        return NUMPY["silu_backward"](grad, x)
    return _apply(_silu_backward, grad, x, work=EXPONENTIAL)


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
    "silu": silu,
    "silu_backward": silu_backward,
    "add": add,
}


# ---------------------------------------------------------------- softmax and cross entropy of the
# compiled backend: functions of whole rows
#
# A row is walked over two or three times, but only the first walk fetches it from memory: then it
# lies in the nearest cache until it is done. Rows are independent, so cores share them.

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
    """Return whether there is one integer for each row; NumPy checks whether it is a class."""
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


ROW_KERNELS: dict[str, Kernel] = {
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": log_softmax_backward,
    "cross_entropy": cross_entropy,
    "cross_entropy_backward": cross_entropy_backward,
}


# ---------------------------------------------------------------- optimizer steps and embeddings
# of the compiled backend: where parameters are read and changed
#
# A step of Adam is a dozen operations for each parameter. Done one after the other they fetch the
# parameters and their state from memory a dozen times; here once.

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
    """Return whether arrays have one shape, and flat views that are no copies: to be changed."""
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
    """Return whether all ids are rows of a table, counted from its start."""
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


STEP_KERNELS: dict[str, Kernel] = {
    "sgd_step": sgd_step,
    "adam_step": adam_step,
    "embedding": embedding,
    "embedding_backward": embedding_backward,
}
