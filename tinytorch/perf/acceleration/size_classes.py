"""Size classes: which calls of an operation are alike enough to share a choice.

Calls are alike when their arrays have the same dtypes and numbers of axes, every *work* and every
*row length* the same power of two, and the settings that change what is computed are equal. The
work is the number of elements of the largest array or, for products, of multiply-accumulates; the
row length is the last axis of the first array, along which kernels vectorise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Signature", "arrays_in", "deciding_settings", "signature", "size_class"]

Shape = tuple[int, ...]
Signature = tuple[Any, ...]

# Operation -> its settings that decide about speed. Rates, steps and the like do not.
DECIDING_SETTINGS: dict[str, tuple[str, ...]] = {
    "gelu": ("approximate",),
    "gelu_backward": ("approximate",),
    "softmax": ("axis",),
    "softmax_backward": ("axis",),
    "log_softmax": ("axis",),
    "log_softmax_backward": ("axis",),
    "sum": ("axis",),
    "mean": ("axis",),
    "max": ("axis",),
    "power_scalar": ("exponent",),
    "linear": ("activation",),
    "int8_linear_weight_only": ("activation",),
    "int8_linear_dynamic": ("activation",),
    "int8_linear_static": ("activation",),
    "int4_linear_weight_only": ("group_size", "activation"),
    "sparse_linear": ("activation",),
    "attention": ("causal", "keep_weights"),
    "attention_backward": ("causal",),
    "conv2d": ("stride", "padding", "dilation", "groups"),
    "conv2d_backward_input": ("stride", "padding", "dilation", "groups"),
    "conv2d_backward_weight": ("stride", "padding", "dilation", "groups"),
    **dict.fromkeys(
        ("int8_conv2d_weight_only", "int8_conv2d_dynamic", "int8_conv2d_static"),
        ("kernel_size", "stride", "padding", "dilation", "groups"),
    ),
    "max_pool2d": ("kernel", "stride", "padding"),
    "max_pool2d_backward": ("kernel", "stride", "padding"),
    "avg_pool2d": ("kernel", "stride", "padding"),
    "avg_pool2d_backward": ("kernel", "stride", "padding"),
    "adam_step": ("decoupled",),
    "sgd_step": (),
}


def deciding_settings(kind: str) -> tuple[str, ...]:
    """Give the names of the settings of an operation that decide about speed."""
    return DECIDING_SETTINGS.get(kind, ())


def signature(
    arguments: Sequence[Any], settings: Mapping[str, Any], names: Sequence[str]
) -> Signature:
    """Give a key for exactly these shapes, dtypes and settings, in about a microsecond."""
    key: list[Any] = []
    for value in arguments:
        if isinstance(value, (np.ndarray, np.generic)):
            key.append(value.shape)
            key.append(value.dtype)
        elif isinstance(value, (tuple, list)):
            key.append(tuple((getattr(x, "shape", None), getattr(x, "dtype", None)) for x in value))
        else:
            key.append(type(value))  # None, or a number
    for name in names:
        key.append(settings.get(name))
    return tuple(key)


def size_class(
    kind: str, shapes: Sequence[Shape], dtypes: Sequence[str], settings: Mapping[str, Any]
) -> str:
    """Name the class of a call by the shapes and dtypes of its arrays, those absent left out.

    >>> size_class("matmul", [(128, 768), (768, 768)], ["float32", "float32"], {})
    'float32 2d,2d work 2^26 rows of 2^9'
    """
    ranks = ",".join(f"{len(shape)}d" for shape in shapes)
    weight = settings.get("weight_shape")  # of a weight that is no argument
    work = WORK.get(kind, _elements)(shapes if weight is None else [*shapes[:1], weight])
    row = shapes[0][-1] if shapes and shapes[0] else 1
    words = [
        "/".join(dict.fromkeys(dtypes)) or "no arrays",
        ranks,
        f"work {_power(work)} rows of {_power(row)}",
        *(
            f"{name}={settings[name]}"
            for name in deciding_settings(kind)
            if settings.get(name) is not None
        ),
    ]
    return " ".join(filter(None, words))


def _power(number: int) -> str:
    return f"2^{number.bit_length() - 1}" if number else "0"


def _elements(shapes: Sequence[Shape]) -> int:
    return max((math.prod(shape) for shape in shapes), default=0)


def _of_product(shapes: Sequence[Shape]) -> int:
    """Rows of the first times the matrix that it is multiplied with."""
    first, second = shapes[0], shapes[1]
    return math.prod(first[:-1]) * math.prod(second[-2:])


def _of_attention(shapes: Sequence[Shape]) -> int:
    """Queries times keys, for each of the features."""
    query, key = shapes[0], shapes[1]
    return math.prod(query) * key[-2]


def _of_packed_product(shapes: Sequence[Shape]) -> int:
    """Rows of the first times all that is packed in the second, without zeros if it is sparse."""
    return math.prod(shapes[0][:-1]) * math.prod(shapes[1])


def _of_packed_pairs(shapes: Sequence[Shape]) -> int:
    """The same where each byte holds two weights."""
    return 2 * _of_packed_product(shapes)


def _of_attention_backward(shapes: Sequence[Shape]) -> int:
    """The gradient comes before query and key."""
    grad, _, key = shapes[:3]
    return math.prod(grad) * key[-2]


def _of_convolution(shapes: Sequence[Shape]) -> int:
    """Elements of the images times those of the weights, per input channel."""
    images, weight = shapes[0], shapes[1]
    return math.prod(images) * math.prod(weight) // max(1, weight[1])


def _of_convolution_backward(shapes: Sequence[Shape]) -> int:
    """Elements of the gradient times the weights that reach each of them."""
    grad, weight = shapes[0], shapes[1]
    return math.prod(grad) * math.prod(weight[1:])


def _of_packed_convolution(shapes: Sequence[Shape]) -> int:
    """Positions of the images times all that is packed."""
    images, packed = shapes[0], shapes[1]
    return math.prod(images) // max(1, images[1]) * math.prod(packed)


def _of_packed_embedding(shapes: Sequence[Shape]) -> int:
    """Ids times what is packed for each token."""
    ids, packed, scales = shapes[:3]
    return math.prod(ids) * (math.prod(packed) // max(1, math.prod(scales)))


def _of_embedding(shapes: Sequence[Shape]) -> int:
    """Rows that are looked up; how long the table is says little."""
    table, ids = shapes[0], shapes[1]
    return table[-1] * math.prod(ids)


WORK: dict[str, Callable[[Sequence[Shape]], int]] = {
    "matmul": _of_product,
    "linear": _of_product,
    "attention": _of_attention,
    "attention_backward": _of_attention_backward,
    "int8_matmul": _of_packed_product,
    "int8_linear_weight_only": _of_packed_product,
    "int8_linear_dynamic": _of_packed_product,
    "int8_linear_static": _of_packed_product,
    "int4_linear_weight_only": _of_packed_pairs,
    "sparse_linear": _of_packed_product,
    "conv2d": _of_convolution,
    "conv2d_backward_input": _of_convolution_backward,
    "conv2d_backward_weight": _of_convolution_backward,
    "int8_conv2d_weight_only": _of_packed_convolution,
    "int8_conv2d_dynamic": _of_packed_convolution,
    "int8_conv2d_static": _of_packed_convolution,
    "embedding": _of_embedding,
    "int8_embedding": _of_packed_embedding,
}


def arrays_in(arguments: Sequence[Any]) -> list[Any]:
    """Give the arrays among arguments, also those in a tuple: as a recorder sees them."""
    items = (
        item
        for value in arguments
        for item in (value if isinstance(value, (tuple, list)) else (value,))
    )
    return [item for item in items if isinstance(item, (np.ndarray, np.generic))]
