"""The backend that is always there: the same kernels as `reference`, made fast with NumPy alone.

The tools are few: matrix products go to BLAS as large two-dimensional products, temporaries are
written in place, long elementwise chains run over blocks that stay in the cache, and reductions of
products use `einsum`, which needs no temporary at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from tinytorch.core.kernels import numpy_quantized as quantized
from tinytorch.core.kernels import numpy_spatial as spatial
from tinytorch.core.kernels import reference
from tinytorch.core.kernels.backend import Array, matmul

BLOCK = 1 << 14
"""Elements per block of an elementwise chain: 64 KiB of float32, so a few blocks fit in L2."""

QUERY_BLOCK = 256
"""Query rows that attention handles at once, so that scores never take time x time memory."""


LARGEST_KEPT_BIAS = 1 << 18
"""Elements of a causal mask that is kept for the next call: 1 MiB of float32."""


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield matching flat pieces of equally large contiguous arrays."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield tuple(array[start : start + BLOCK] for array in flat)


# ---------------------------------------------------------------- activations


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp may overflow to infinity, whose inverse is the right 0
        result: Array = np.exp(-x)
    result += 1
    return np.reciprocal(result, out=result) if result.ndim else 1 / result


def sigmoid_backward(grad: Array, output: Array) -> Array:
    result: Array = 1 - output
    result *= output
    result *= grad
    return result


def tanh_backward(grad: Array, output: Array) -> Array:
    result: Array = output * output
    result = np.subtract(1, result, out=result) if result.ndim else 1 - result
    result *= grad
    return result


def _gelu_tanh(x: Array, out: Array) -> None:
    """Write tanh(sqrt(2/pi) (x + 0.044715 x^3)) into `out`."""
    np.multiply(x, x, out=out)
    out *= reference.GELU_SCALE * reference.GELU_CUBIC
    out += reference.GELU_SCALE
    out *= x
    np.tanh(out, out=out)


def _erf32(x: Array) -> Array:
    """Approximate erf to 2e-7, as exact as float32 needs (Abramowitz and Stegun, 7.1.26)."""
    magnitude = np.abs(x)
    t = 1 / (1 + 0.3275911 * magnitude)
    result: Array = t * 1.061405429
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        result += coefficient
        result *= t
    result *= np.exp(-magnitude * magnitude)
    return np.copysign(1 - result, x)


def gelu(x: Array, *, approximate: str) -> Array:
    if x.dtype != np.float32:
        return reference.gelu(x, approximate=approximate)
    x = np.asarray(x, order="C")
    result = np.empty_like(x)
    for source, out in _blocks(x, result):
        if approximate == "tanh":
            _gelu_tanh(source, out)
        else:
            out[...] = _erf32(source * math.sqrt(0.5))
        out += 1
        out *= source
        out *= 0.5
    return result


def gelu_backward(grad: Array, x: Array, *, approximate: str) -> Array:
    if x.dtype != np.float32:
        return reference.gelu_backward(grad, x, approximate=approximate)
    if approximate == "none":
        density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (0.5 * (1 + _erf32(x * math.sqrt(0.5))) + x * density)
    grad, x = np.asarray(grad, order="C"), np.asarray(x, order="C")
    result = np.empty_like(x)
    tanh_buffer = np.empty(min(BLOCK, x.size), x.dtype)
    for source, incoming, out in _blocks(x, grad, result):
        tanh = tanh_buffer[: len(source)]
        _gelu_tanh(source, tanh)
        # derivative / 0.5 = (1 + tanh) (1 + x (1 - tanh) (scale + 3 scale cubic x^2))
        np.multiply(source, source, out=out)
        out *= 3 * reference.GELU_SCALE * reference.GELU_CUBIC
        out += reference.GELU_SCALE
        out *= source
        out -= out * tanh
        out += 1
        tanh += 1
        out *= tanh
        out *= incoming
        out *= 0.5
    return result


def _exponentiate(scores: Array, axis: int) -> Array:
    """Turn scores into exp(score - largest), in place. Returns their sums."""
    highest = scores.max(axis=axis, keepdims=True, initial=np.finfo(scores.dtype).min)
    scores -= highest
    np.exp(scores, out=scores)
    total: Array = scores.sum(axis=axis, keepdims=True)
    return total


def softmax(x: Array, *, axis: int) -> Array:
    if x.ndim == 0 or x.dtype.kind != "f":
        return reference.softmax(x, axis=axis)
    result = x.copy()
    result /= _exponentiate(result, axis)
    return result


def softmax_backward(grad: Array, output: Array, *, axis: int) -> Array:
    if output.ndim == 0 or axis not in (-1, output.ndim - 1):
        return reference.softmax_backward(grad, output, axis=axis)
    inner = np.einsum("...i,...i->...", grad, output)[..., None]
    result: Array = grad - inner
    result *= output
    return result


# ---------------------------------------------------------------- products


ACTIVATIONS = {
    **reference.ACTIVATIONS,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "gelu": lambda x: gelu(x, approximate="none"),
    "sigmoid": sigmoid,
}


def linear(
    x: Array, weight: Array, bias: Array | None = None, *, activation: str | None = None
) -> Array:
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    result: Array = matmul(rows, weight)
    if bias is not None:
        result += bias
    if activation is not None:
        result = ACTIVATIONS[activation](result)
    return result if x.ndim == 2 else result.reshape(*x.shape[:-1], weight.shape[1])


def _causal_bias(queries: int, keys: int, dtype: np.dtype[Any]) -> Array:
    """Return 0 where a query may look and -inf where it may not."""
    if queries * keys > LARGEST_KEPT_BIAS:
        return _make_causal_bias(queries, keys, dtype)
    return _kept_causal_bias(queries, keys, dtype)


def _make_causal_bias(queries: int, keys: int, dtype: np.dtype[Any]) -> Array:
    visible = np.tri(queries, keys, keys - queries, dtype=bool)
    bias = np.where(visible, 0, -np.inf).astype(dtype)
    bias.flags.writeable = False
    return bias


_kept_causal_bias = lru_cache(maxsize=16)(_make_causal_bias)


def _attend(
    query: Array, key: Array, value: Array, bias: Array | None, *, scale: float, causal: bool
) -> tuple[Array, Array, Array]:
    """Attend with one block of queries: (mix, exponentials, their sums), not yet divided."""
    exponentials = matmul(query * scale, np.swapaxes(key, -1, -2))
    if bias is not None:
        exponentials = np.add(exponentials, bias, dtype=exponentials.dtype)
    queries, keys = exponentials.shape[-2:]
    if causal and queries > 1:
        exponentials += _causal_bias(queries, keys, exponentials.dtype)
    total = _exponentiate(exponentials, -1)
    total[total == 0] = 1  # a query that may see nothing
    return matmul(exponentials, value), exponentials, total


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    *,
    scale: float,
    causal: bool,
    keep_weights: bool,
) -> tuple[Array, Array | None]:
    queries, keys = query.shape[-2], key.shape[-2]
    if bias is not None:
        bias = np.atleast_2d(bias)
    if keep_weights or queries <= QUERY_BLOCK:
        mix, weights, total = _attend(query, key, value, bias, scale=scale, causal=causal)
        mix /= total
        if keep_weights:
            weights /= total
        return mix, weights if keep_weights else None
    pieces = []
    for start in range(0, queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries)
        visible = max(keys - queries + stop, 0) if causal else keys
        piece_bias = None
        if bias is not None:
            rows = slice(start, stop) if bias.shape[-2] > 1 else slice(None)
            piece_bias = bias[..., rows, :visible] if bias.shape[-1] > 1 else bias[..., rows, :]
        mix, _, total = _attend(
            query[..., start:stop, :],
            key[..., :visible, :],
            value[..., :visible, :],
            piece_bias,
            scale=scale,
            causal=causal,
        )
        mix /= total
        pieces.append(mix)
    return np.concatenate(pieces, axis=-2), None


def attention_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    weights: Array,
    *,
    scale: float,
    causal: bool = False,
) -> tuple[Array, Array, Array]:
    grad_value = matmul(np.swapaxes(weights, -1, -2), grad)
    grad_scores = matmul(grad, np.swapaxes(value, -1, -2))
    grad_scores -= np.einsum("...i,...i->...", grad_scores, weights)[..., None]
    grad_scores *= weights
    grad_query = matmul(grad_scores, key)
    grad_query *= scale
    grad_key = matmul(np.swapaxes(grad_scores, -1, -2), query)
    grad_key *= scale
    return grad_query, grad_key, grad_value


# ---------------------------------------------------------------- normalisation


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> tuple[Array, Array, Array]:
    mean: Array = x.mean(axis=-1, keepdims=True)
    output: Array = x - mean
    variance = np.einsum("...i,...i->...", output, output)[..., None] / x.shape[-1]
    inverse: Array = 1 / np.sqrt(variance + eps)
    output *= inverse
    output *= weight
    output += bias
    return output, mean, inverse


def add_layer_norm(
    x: Array, residual: Array, weight: Array, bias: Array, *, eps: float
) -> tuple[Array, Array]:
    total: Array = x + residual
    return total, layer_norm(total, weight, bias, eps=eps)[0]


def layer_norm_backward(
    grad: Array, x: Array, weight: Array, mean: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    width = grad.shape[-1]
    normalised: Array = x - mean
    normalised *= inverse
    flat_grad = grad.reshape(-1, width)
    flat_normalised = normalised.reshape(-1, width)
    grad_weight = np.einsum("ij,ij->j", flat_grad, flat_normalised)
    result: Array = grad * weight
    projection = np.einsum("...i,...i->...", result, normalised)[..., None] / width
    result -= result.mean(axis=-1, keepdims=True)
    normalised *= projection
    result -= normalised
    result *= inverse
    return result, grad_weight, flat_grad.sum(axis=0)


# ---------------------------------------------------------------- indices and losses


def getitem_backward(grad: Array, *, shape: tuple[int, ...], index: Any) -> Array:
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or isinstance(part, (int, slice, type(...))) for part in parts):
        result = np.zeros(shape, grad.dtype)
        result[index] = grad  # slices take no element twice
        return result
    return reference.getitem_backward(grad, shape=shape, index=index)


def embedding(weight: Array, ids: Array) -> Array:
    return weight.take(ids, axis=0)


def embedding_backward(grad: Array, ids: Array, *, count: int) -> Array:
    """Sum the rows of each id: sort by id, then add up runs (deterministic, unlike atomics)."""
    rows = grad.reshape(-1, grad.shape[-1])
    flat = ids.reshape(-1)
    result = np.zeros((count, rows.shape[1]), grad.dtype)
    if flat.size:
        order = np.argsort(flat, kind="stable")
        ordered = flat[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        result[ordered[starts]] = np.add.reduceat(rows[order], starts, axis=0)
    return result


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, Array]:
    rows = np.arange(len(targets))
    probabilities: Array = logits - logits.max(axis=-1, keepdims=True)
    wanted = probabilities[rows, targets]
    np.exp(probabilities, out=probabilities)
    total: Array = probabilities.sum(axis=-1, keepdims=True)
    losses: Array = np.log(total[:, 0])
    losses -= wanted
    probabilities /= total
    return losses, probabilities


def cross_entropy_backward(grad: Array, probabilities: Array, targets: Array) -> Array:
    result: Array = probabilities * grad[:, None]
    result[np.arange(len(targets)), targets] -= grad
    return result


# ---------------------------------------------------------------- optimizer steps, in place


def sgd_step(
    parameter: Array,
    grad: Array,
    velocity: Array | None,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    step = grad
    if weight_decay:
        step = parameter * weight_decay
        step += grad
    if velocity is not None:
        velocity *= momentum
        velocity += step
        step = velocity
    parameter -= step * lr


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
    beta1, beta2 = betas
    rate = lr / (1 - beta1**step)
    correction = 1 / math.sqrt(1 - beta2**step)
    if weight_decay and decoupled:
        parameter *= 1 - lr * weight_decay
    elif weight_decay:
        grad = grad + parameter * weight_decay
    arrays = (parameter, grad, first, second)
    # a flat piece of an array that is not contiguous would be a copy, and its update lost
    can_be_cut = all(array.flags.c_contiguous for array in arrays)
    for weight, slope, mean, square in _blocks(*arrays) if can_be_cut else [arrays]:
        scratch = slope * (1 - beta1)
        mean *= beta1
        mean += scratch
        np.multiply(slope, slope, out=scratch)
        scratch *= 1 - beta2
        square *= beta2
        square += scratch
        np.sqrt(square, out=scratch)
        scratch *= correction
        scratch += eps
        np.divide(mean, scratch, out=scratch)
        scratch *= rate
        weight -= scratch


NUMPY = reference.REFERENCE.extended(
    "numpy",
    {
        "sigmoid": sigmoid,
        "sigmoid_backward": sigmoid_backward,
        "tanh_backward": tanh_backward,
        "gelu": gelu,
        "gelu_backward": gelu_backward,
        "softmax": softmax,
        "softmax_backward": softmax_backward,
        "linear": linear,
        "attention": attention,
        "attention_backward": attention_backward,
        "layer_norm": layer_norm,
        "layer_norm_backward": layer_norm_backward,
        "add_layer_norm": add_layer_norm,
        "batch_norm": spatial.batch_norm,
        "batch_norm_backward": spatial.batch_norm_backward,
        "conv2d": spatial.conv2d,
        "conv2d_backward_input": spatial.conv2d_backward_input,
        "conv2d_backward_weight": spatial.conv2d_backward_weight,
        "max_pool2d": spatial.max_pool2d,
        "max_pool2d_backward": spatial.max_pool2d_backward,
        "avg_pool2d": spatial.avg_pool2d,
        "avg_pool2d_backward": spatial.avg_pool2d_backward,
        "getitem_backward": getitem_backward,
        "embedding": embedding,
        "embedding_backward": embedding_backward,
        "cross_entropy": cross_entropy,
        "cross_entropy_backward": cross_entropy_backward,
        "sgd_step": sgd_step,
        "adam_step": adam_step,
        **quantized.KERNELS,
        **quantized.CONVOLUTION_KERNELS,
        **quantized.EMBEDDING_KERNELS,
        **spatial.KERNELS,
    },
)
