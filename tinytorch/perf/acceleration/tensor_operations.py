"""Operations on tensors by their kind: what :class:`OptimizedBackend` calls, with gradients.

Each function takes what the kernel of its kind takes, with the usual defaults, and gives one
tensor. Kinds that are missing here (derivatives, comparisons, optimizer steps) run as plain
kernels, without a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinytorch.core.operations import (
    activations,
    convolution,
    elementwise,
    losses,
    normalization,
    products,
    reductions,
    shaping,
)
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import SettingError

__all__ = ["TENSOR_OPERATIONS"]

Pair = int | tuple[int, int]
Axes = int | tuple[int, ...] | None


def where(condition: Any, a: Tensor, b: Tensor) -> Tensor:
    return apply(elementwise.Where(_array(condition).astype(bool)), a, b)


def power_scalar(x: Tensor, *, exponent: float) -> Tensor:
    return apply(elementwise.ScalarPower(exponent), x)


def gelu(x: Tensor, *, approximate: str = "tanh") -> Tensor:
    return apply(activations.GELU(approximate), x)


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return apply(activations.Softmax(axis), x)


def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return apply(activations.LogSoftmax(axis), x)


def sum(x: Tensor, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return apply(reductions.Sum(axis, keepdims), x)


def mean(x: Tensor, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return apply(reductions.Mean(axis, keepdims), x)


def max(x: Tensor, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return apply(reductions.Max(axis, keepdims), x)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
) -> Tensor:
    if not (activation is None or activation in products.ACTIVATION_KINDS):
        known = ", ".join(products.ACTIVATION_KINDS)
        raise SettingError(f"activation must be one of {known}, got {activation!r}")
    return apply(products.Linear(activation), *_present(x, weight, bias))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Any = None,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    usual = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = None if bias is None else _array(bias)
    return apply(products.Attention(mask, usual, causal), query, key, value)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    return apply(normalization.LayerNorm(eps), x, weight, bias)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    return apply(normalization.BatchNorm(eps), x, weight, bias)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    settings = (_pair(stride), _pair(padding), _pair(dilation), groups)
    return apply(convolution.Conv2d(*settings), *_present(x, weight, bias))


def max_pool2d(x: Tensor, *, kernel: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    step = kernel if stride is None else stride
    return apply(convolution.MaxPool2d(_pair(kernel), _pair(step), _pair(padding)), x)


def avg_pool2d(x: Tensor, *, kernel: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    step = kernel if stride is None else stride
    return apply(convolution.AvgPool2d(_pair(kernel), _pair(step), _pair(padding)), x)


def reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return apply(shaping.Reshape(shape), x)


def transpose(x: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    return apply(shaping.Transpose(tuple(range(x.ndim))[::-1] if axes is None else axes), x)


def broadcast_to(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return apply(shaping.BroadcastTo(shape), x)


def getitem(x: Tensor, *, index: Any) -> Tensor:
    return apply(shaping.GetItem(index), x)


def concatenate(tensors: Sequence[Tensor], *, axis: int = 0) -> Tensor:
    return apply(shaping.Concatenate(axis), *tensors)


def embedding(weight: Tensor, ids: Any) -> Tensor:
    return apply(shaping.Embedding(_array(ids)), weight)


def cross_entropy(logits: Tensor, targets: Any) -> Tensor:
    return apply(losses.CrossEntropy(_array(targets)), logits)


def binary_cross_entropy(probabilities: Tensor, targets: Any) -> Tensor:
    return apply(losses.BinaryCrossEntropy(_array(targets)), probabilities)


def binary_cross_entropy_with_logits(logits: Tensor, targets: Any) -> Tensor:
    return apply(losses.BinaryCrossEntropyWithLogits(_array(targets)), logits)


def _of_one(operation: type[Any]) -> Callable[[Tensor], Tensor]:
    def compute(x: Tensor) -> Tensor:
        return apply(operation(), x)

    return compute


def _of_two(operation: type[Any]) -> Callable[[Tensor, Tensor], Tensor]:
    def compute(a: Tensor, b: Tensor) -> Tensor:
        return apply(operation(), a, b)

    return compute


TENSOR_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": _of_two(elementwise.Add),
    "subtract": _of_two(elementwise.Subtract),
    "multiply": _of_two(elementwise.Multiply),
    "divide": _of_two(elementwise.Divide),
    "power": _of_two(elementwise.Power),
    "power_scalar": power_scalar,
    "negative": _of_one(elementwise.Negative),
    "absolute": _of_one(elementwise.Absolute),
    "exp": _of_one(elementwise.Exp),
    "log": _of_one(elementwise.Log),
    "sqrt": _of_one(elementwise.Sqrt),
    "where": where,
    "relu": _of_one(activations.ReLU),
    "sigmoid": _of_one(activations.Sigmoid),
    "tanh": _of_one(activations.Tanh),
    "gelu": gelu,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "sum": sum,
    "mean": mean,
    "max": max,
    "matmul": _of_two(products.Matmul),
    "linear": linear,
    "attention": attention,
    "layer_norm": layer_norm,
    "batch_norm": batch_norm,
    "conv2d": conv2d,
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "reshape": reshape,
    "transpose": transpose,
    "broadcast_to": broadcast_to,
    "getitem": getitem,
    "concatenate": concatenate,
    "embedding": embedding,
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
}


def _array(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else np.asarray(value)


def _present(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
