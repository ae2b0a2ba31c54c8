"""The reference backend: every kernel in short, obvious NumPy.

This is the page to read when you want to know what an operation computes, and the oracle that
faster backends are tested against. Kernels take and return plain arrays; a kernel with several
results returns a tuple. ``*_backward`` kernels take the gradient of the output first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from tinytorch.core.kernels import reference_quantized as quantized
from tinytorch.core.kernels import reference_spatial as spatial
from tinytorch.core.kernels.backend import Array, Backend, matmul

GELU_SCALE = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715

# ---------------------------------------------------------------- activations


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def relu_backward(grad: Array, output: Array) -> Array:
    return np.where(output > 0, grad, grad.dtype.type(0))


def sigmoid(x: Array) -> Array:
    # exp of a negative number only, so that nothing overflows
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def sigmoid_backward(grad: Array, output: Array) -> Array:
    return grad * output * (1 - output)


def tanh_backward(grad: Array, output: Array) -> Array:
    return grad * (1 - output**2)


def erf(x: Array) -> Array:
    values = np.array([math.erf(value) for value in x.ravel().tolist()])
    return values.reshape(x.shape).astype(x.dtype)


def gelu(x: Array, *, approximate: str) -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(GELU_SCALE * (x + GELU_CUBIC * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_backward(grad: Array, x: Array, *, approximate: str) -> Array:
    if approximate == "tanh":
        tanh = np.tanh(GELU_SCALE * (x + GELU_CUBIC * x**3))
        slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x**2)
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * slope)
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return grad * (0.5 * (1 + erf(x / math.sqrt(2))) + x * density)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def silu_backward(grad: Array, x: Array) -> Array:
    share = sigmoid(x)
    return grad * share * (1 + x * (1 - share))


def softmax(x: Array, *, axis: int) -> Array:
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def softmax_backward(grad: Array, output: Array, *, axis: int) -> Array:
    return output * (grad - (grad * output).sum(axis=axis, keepdims=True))


def log_softmax(x: Array, *, axis: int) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def log_softmax_backward(grad: Array, output: Array, *, axis: int) -> Array:
    return grad - np.exp(output) * grad.sum(axis=axis, keepdims=True)


# ---------------------------------------------------------------- products


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "gelu": lambda x: gelu(x, approximate="none"),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
}
"""What may follow a product in the same kernel."""


def linear(
    x: Array, weight: Array, bias: Array | None = None, *, activation: str | None = None
) -> Array:
    product = matmul(x, weight)
    if bias is not None:
        product = product + bias
    return product if activation is None else ACTIVATIONS[activation](product)


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
    """Weigh the values (batch, heads, keys, d) by softmax(query key^T scale + bias).

    Returns the mix and, when asked to keep them, the weights (batch, heads, queries, keys). With
    `causal`, the last query sees every key, the one before it all but the last, and so on. A row
    that may see nothing returns zeros.
    """
    scores = scale * matmul(query, np.swapaxes(key, -1, -2))
    if bias is not None:
        scores = scores + bias
    if causal:
        queries, keys = scores.shape[-2:]
        visible = np.tri(queries, keys, keys - queries, dtype=bool)
        scores = np.where(visible, scores, -np.inf)
    highest = scores.max(axis=-1, keepdims=True, initial=np.finfo(scores.dtype).min)
    exponentials = np.exp(scores - highest)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / np.where(total == 0, 1, total)
    weights = weights.astype(query.dtype, copy=False)
    return matmul(weights, value), weights if keep_weights else None


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
    """Return the gradients of query, key and value, from the weights that the forward pass kept.

    Under a `causal` mask the hidden weights are zero already; a kernel may skip them.
    """
    grad_value = matmul(np.swapaxes(weights, -1, -2), grad)
    grad_weights = matmul(grad, np.swapaxes(value, -1, -2))
    grad_scores = scale * softmax_backward(grad_weights, weights, axis=-1)
    grad_query = matmul(grad_scores, key)
    grad_key = matmul(np.swapaxes(grad_scores, -1, -2), query)
    return grad_query, grad_key, grad_value


# ---------------------------------------------------------------- normalisation


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> tuple[Array, Array, Array]:
    """Normalise the last axis. Returns the output, and the mean and 1/deviation of each row."""
    mean = x.mean(axis=-1, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)
    return (x - mean) * inverse * weight + bias, mean, inverse


def add_layer_norm(
    x: Array, residual: Array, weight: Array, bias: Array, *, eps: float
) -> tuple[Array, Array]:
    """Return x + residual, and that sum normalised along the last axis; for inference only."""
    total = x + residual
    return total, layer_norm(total, weight, bias, eps=eps)[0]


def layer_norm_backward(
    grad: Array, x: Array, weight: Array, mean: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    rows = tuple(range(grad.ndim - 1))
    normalised = (x - mean) * inverse
    slope = grad * weight
    projection = (slope * normalised).mean(axis=-1, keepdims=True)
    grad_x = (slope - slope.mean(axis=-1, keepdims=True) - normalised * projection) * inverse
    return grad_x, (grad * normalised).sum(axis=rows), grad.sum(axis=rows)


def rms_norm(x: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
    """Divide rows by their root mean square. Returns the output, and 1/rms of each row."""
    inverse = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return x * inverse * weight, inverse


def rms_norm_backward(grad: Array, x: Array, weight: Array, inverse: Array) -> tuple[Array, Array]:
    rows = tuple(range(grad.ndim - 1))
    normalised = x * inverse
    slope = grad * weight
    projection = (slope * normalised).mean(axis=-1, keepdims=True)
    return (slope - normalised * projection) * inverse, (grad * normalised).sum(axis=rows)


# ---------------------------------------------------------------- positions


def rotary(x: Array, cosines: Array, sines: Array) -> Array:
    """Rotate each pair (j, j + d/2) of x (..., time, d) by its angle, (..., time, d/2)."""
    first, second = np.split(x, 2, axis=-1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return np.concatenate(turned, axis=-1)


# ---------------------------------------------------------------- shapes and indices


def getitem(x: Array, *, index: Any) -> Array:
    return np.asarray(x[index])


def getitem_backward(grad: Array, *, shape: tuple[int, ...], index: Any) -> Array:
    result = np.zeros(shape, grad.dtype)
    np.add.at(result, index, grad)  # an element that was taken twice gets both gradients
    return result


def concatenate(arrays: tuple[Array, ...], *, axis: int) -> Array:
    return np.concatenate(arrays, axis=axis)


def embedding(weight: Array, ids: Array) -> Array:
    return weight[ids]


def embedding_backward(grad: Array, ids: Array, *, count: int) -> Array:
    result = np.zeros((count, grad.shape[-1]), grad.dtype)
    np.add.at(result, ids, grad)
    return result


# ---------------------------------------------------------------- losses


def cross_entropy(logits: Array, targets: Array) -> tuple[Array, Array]:
    """Return the loss of each row of `logits` (rows, classes), and the probabilities."""
    log_probabilities = log_softmax(logits, axis=-1)
    losses = -log_probabilities[np.arange(len(targets)), targets]
    return losses, np.exp(log_probabilities)


def cross_entropy_backward(grad: Array, probabilities: Array, targets: Array) -> Array:
    difference = probabilities.copy()
    difference[np.arange(len(targets)), targets] -= 1
    return difference * grad[:, None]


def binary_cross_entropy(probabilities: Array, targets: Array) -> Array:
    # logarithms are cut at -100, so that a confident mistake costs a finite amount
    with np.errstate(divide="ignore"):
        log_yes = np.maximum(np.log(probabilities), -100)
        log_no = np.maximum(np.log1p(-probabilities), -100)
    return -(targets * log_yes + (1 - targets) * log_no)


def binary_cross_entropy_backward(grad: Array, probabilities: Array, targets: Array) -> Array:
    spread = np.maximum(probabilities * (1 - probabilities), 1e-12)
    return grad * (probabilities - targets) / spread


def binary_cross_entropy_with_logits(logits: Array, targets: Array) -> Array:
    return np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))


def binary_cross_entropy_with_logits_backward(grad: Array, logits: Array, targets: Array) -> Array:
    return grad * (sigmoid(logits) - targets)


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
    step = grad + weight_decay * parameter
    if velocity is not None:
        velocity[...] = momentum * velocity + step
        step = velocity
    parameter -= lr * step


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
    """Take one Adam step; with `decoupled` weight decay it is AdamW."""
    beta1, beta2 = betas
    if decoupled:
        parameter *= 1 - lr * weight_decay
    else:
        grad = grad + weight_decay * parameter
    first[...] = beta1 * first + (1 - beta1) * grad
    second[...] = beta2 * second + (1 - beta2) * grad**2
    mean = first / (1 - beta1**step)
    variance = second / (1 - beta2**step)
    parameter -= lr * mean / (np.sqrt(variance) + eps)


REFERENCE = Backend(
    "reference",
    MappingProxyType(
        {
            # elementwise, with broadcasting
            "add": np.add,
            "subtract": np.subtract,
            "multiply": np.multiply,
            "divide": np.divide,
            "power": np.power,
            "power_scalar": lambda x, *, exponent: x**exponent,
            "negative": np.negative,
            "absolute": np.absolute,
            "sign": np.sign,
            "exp": np.exp,
            "log": np.log,
            "sqrt": np.sqrt,
            "where": np.where,
            "equal": np.equal,
            "not_equal": np.not_equal,
            "less": np.less,
            "less_equal": np.less_equal,
            "greater": np.greater,
            "greater_equal": np.greater_equal,
            # activations
            "relu": relu,
            "relu_backward": relu_backward,
            "sigmoid": sigmoid,
            "sigmoid_backward": sigmoid_backward,
            "tanh": np.tanh,
            "tanh_backward": tanh_backward,
            "gelu": gelu,
            "gelu_backward": gelu_backward,
            "silu": silu,
            "silu_backward": silu_backward,
            "softmax": softmax,
            "softmax_backward": softmax_backward,
            "log_softmax": log_softmax,
            "log_softmax_backward": log_softmax_backward,
            # reductions
            "sum": np.sum,
            "mean": np.mean,
            "max": np.max,
            # products
            "matmul": matmul,
            "linear": linear,
            "attention": attention,
            "attention_backward": attention_backward,
            # products with packed INT8 and INT4 weights
            "int8_matmul": quantized.int8_matmul,
            "int8_linear_weight_only": quantized.int8_linear_weight_only,
            "int8_linear_dynamic": quantized.int8_linear_dynamic,
            "int8_linear_static": quantized.int8_linear_static,
            "int4_linear_weight_only": quantized.int4_linear_weight_only,
            "int8_conv2d_weight_only": quantized.int8_conv2d_weight_only,
            "int8_conv2d_dynamic": quantized.int8_conv2d_dynamic,
            "int8_conv2d_static": quantized.int8_conv2d_static,
            "int8_embedding": quantized.int8_embedding,
            # products with sparse weights
            "sparse_linear": quantized.sparse_linear,
            # normalisation
            "layer_norm": layer_norm,
            "layer_norm_backward": layer_norm_backward,
            "add_layer_norm": add_layer_norm,
            "rms_norm": rms_norm,
            "rms_norm_backward": rms_norm_backward,
            "batch_norm": spatial.batch_norm,
            "batch_norm_backward": spatial.batch_norm_backward,
            # positions
            "rotary": rotary,
            # convolution and pooling
            "conv2d": spatial.conv2d,
            "conv2d_backward_input": spatial.conv2d_backward_input,
            "conv2d_backward_weight": spatial.conv2d_backward_weight,
            "max_pool2d": spatial.max_pool2d,
            "max_pool2d_backward": spatial.max_pool2d_backward,
            "avg_pool2d": spatial.avg_pool2d,
            "avg_pool2d_backward": spatial.avg_pool2d_backward,
            # shapes and indices
            "reshape": lambda x, *, shape: np.reshape(x, shape),
            "transpose": lambda x, *, axes: np.transpose(x, axes),
            "broadcast_to": lambda x, *, shape: np.broadcast_to(x, shape),
            "getitem": getitem,
            "getitem_backward": getitem_backward,
            "concatenate": concatenate,
            "embedding": embedding,
            "embedding_backward": embedding_backward,
            # losses, one value per example
            "cross_entropy": cross_entropy,
            "cross_entropy_backward": cross_entropy_backward,
            "binary_cross_entropy": binary_cross_entropy,
            "binary_cross_entropy_backward": binary_cross_entropy_backward,
            "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
            "binary_cross_entropy_with_logits_backward": binary_cross_entropy_with_logits_backward,
            # optimizer steps, in place
            "sgd_step": sgd_step,
            "adam_step": adam_step,
        }
    ),
)
