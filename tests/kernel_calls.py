"""Arguments for every kernel, so that backends can be compared kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from oracles import laid_out

from tinytorch.core.kernels.packing import PackedInt8, pack_int4, pack_int8
from tinytorch.core.kernels.reference_quantized import pack_sparse

IN_PLACE = {"sgd_step": (0, 2), "adam_step": (0, 2, 3)}
"""Kernels that change arguments, and which."""


@dataclass(frozen=True)
class Call:
    """Arguments of one call of a kernel; ``terms`` is the length of the longest sum in it."""

    arguments: tuple[Any, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    terms: int = 1

    def copied(self, layout: str) -> Call:
        """Give the same call on copies of its arrays that lie in memory in another way."""
        return replace(self, arguments=tuple(_copied(value, layout) for value in self.arguments))


def _copied(value: Any, layout: str) -> Any:
    if isinstance(value, np.ndarray):
        return laid_out(value.copy(), layout)
    return tuple(_copied(item, layout) for item in value) if isinstance(value, tuple) else value


WINDOWS = [
    {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)},
    {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 1)},
]
CONVOLUTIONS = [
    {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1},
    {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2},
]
INDICES = [
    1,
    (slice(None, None, -2), None),
    (..., np.array([1, 1, 0])),
    np.arange(15).reshape(3, 5) % 2 == 0,
]
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
EXPONENTS = (2, 3, 0.5, -1, 0)


def kernel_calls(dtype: Any) -> dict[str, list[Call]]:
    """Give calls for each kind of kernel, with floating-point arrays of `dtype`."""
    rng = np.random.default_rng(20260)

    def normal(*shape: int) -> np.ndarray:
        return np.asarray(rng.normal(size=shape), dtype)

    def positive(*shape: int) -> np.ndarray:
        return np.asarray(rng.uniform(0.1, 0.9, shape), dtype)

    calls = _elementwise(normal, positive)
    calls |= _activations(normal, positive)
    calls |= _reductions_and_products(normal, positive)
    calls |= _int8_products(normal)
    calls |= _int8_convolutions(normal)
    calls |= _normalisations(normal, positive)
    calls |= _spatial(normal)
    calls |= _shapes(normal)
    calls |= _sparse_products(normal)
    calls |= _losses(normal, positive)
    calls |= _steps(normal, positive)
    return calls


Draw = Callable[..., np.ndarray]


def _elementwise(normal: Draw, positive: Draw) -> dict[str, list[Call]]:
    pairs = [(normal(3, 5), normal(3, 5)), (normal(2, 1, 5), normal(4, 1)), (normal(), normal(3))]
    both_positive = [(positive(3, 5), positive(3, 5)), (positive(2, 1, 5), positive(4, 1))]
    single = [Call((normal(3, 5),)), Call((normal(),)), Call((normal(0, 2),))]
    single_positive = [Call((positive(3, 5),)), Call((positive(),))]
    condition = np.array([[True], [False], [True]])
    return {
        **{
            kind: [Call(pair) for pair in pairs]
            for kind in ("add", "subtract", "multiply", *COMPARISONS)
        },
        **{kind: [Call(pair) for pair in both_positive] for kind in ("divide", "power")},
        **dict.fromkeys(("negative", "absolute", "sign", "exp"), single),
        **dict.fromkeys(("log", "sqrt"), single_positive),
        "power_scalar": [Call((positive(3, 5),), {"exponent": exponent}) for exponent in EXPONENTS],
        "where": [
            Call((condition, normal(3, 5), normal(5))),
            Call((condition, normal(), normal(1))),
        ],
    }


def _activations(normal: Draw, positive: Draw) -> dict[str, list[Call]]:
    shapes = [(3, 5), (2, 3, 5), (7,), (), (0, 4), (70_001,)]
    calls: dict[str, list[Call]] = {}
    for kind in ("relu", "sigmoid", "tanh"):
        calls[kind] = [Call((4 * normal(*shape),)) for shape in shapes]
        calls[f"{kind}_backward"] = [Call((normal(*shape), positive(*shape))) for shape in shapes]
    forms = [{"approximate": "tanh"}, {"approximate": "none"}]
    calls["gelu"] = [Call((3 * normal(*shape),), form) for shape in shapes for form in forms]
    calls["gelu_backward"] = [
        Call((normal(*shape), 3 * normal(*shape)), form) for shape in shapes for form in forms
    ]
    calls["silu"] = [Call((3 * normal(*shape),)) for shape in shapes]
    calls["silu_backward"] = [Call((normal(*shape), 3 * normal(*shape))) for shape in shapes]
    axes = [((3, 5), -1), ((3, 5), 0), ((2, 3, 5), 1), ((2, 3, 5), 2), ((0, 4), -1), ((), -1)]
    for kind in ("softmax", "log_softmax"):
        calls[kind] = [Call((5 * normal(*shape),), {"axis": axis}, 5) for shape, axis in axes]
        calls[f"{kind}_backward"] = [
            Call((normal(*shape), positive(*shape)), {"axis": axis}, 5) for shape, axis in axes
        ]
    return calls


def _reductions_and_products(normal: Draw, positive: Draw) -> dict[str, list[Call]]:
    reduced = [{"axis": None}, {"axis": -1, "keepdims": True}, {"axis": (0, 2)}, {"axis": 1}]
    factors = [
        ((3,), (3,)),
        ((2, 3), (3, 5)),
        ((4, 2, 3), (3, 5)),
        ((4, 1, 2, 3), (6, 3, 5)),
        ((0, 3), (3, 5)),
    ]
    rows = [(2, 3), (3,), (4, 2, 3), (0, 3), (2, 0, 3)]
    attended = [
        ((2, 3, 7, 4), (2, 3, 7, 4)),
        ((3, 4), (5, 4)),
        ((2, 1, 4), (2, 5, 4)),
        ((6, 4), (2, 4)),
    ]
    options = [{"scale": 0.5, "causal": causal, "keep_weights": True} for causal in (False, True)]
    blind = np.where(np.arange(5) < np.array([[3], [0], [5]]), 0.0, -np.inf)
    return {
        **{k: [Call((normal(2, 3, 5),), s, 30) for s in reduced] for k in ("sum", "mean", "max")},
        "matmul": [Call((normal(*a), normal(*b)), terms=3) for a, b in factors],
        "linear": [Call((normal(*shape), normal(3, 5), normal(5)), terms=3) for shape in rows]
        + [Call((normal(*shape), normal(3, 5)), terms=3) for shape in rows],
        "attention": [
            Call((normal(*a), normal(*b), normal(*b), None), option, 28)
            for a, b in attended
            for option in options
        ]
        + [
            Call((normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 6), bias), option, 20)
            for bias in (blind, normal(3, 5), normal(2, 3, 5), normal(1, 5), normal(3, 1))
            for option in options
        ],
        "attention_backward": [
            Call(
                (normal(2, 3, 6), normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 6), w),
                {"scale": 0.5},
                30,
            )
            for w in (positive(2, 3, 5), positive(2, 3, 5) * 0)
        ],
    }


def _int8_products(normal: Draw) -> dict[str, list[Call]]:
    rng = np.random.default_rng(8)

    def packed(inputs: int, outputs: int) -> tuple[np.ndarray, ...]:
        weight = rng.integers(-128, 128, (inputs, outputs)).astype(np.int8)
        return pack_int8(weight, rng.uniform(0.001, 0.01, outputs).astype(np.float32)).arrays

    shapes = [((2, 5), 7), ((5,), 7), ((4, 2, 8), 64), ((0, 5), 7), ((9, 130), 70)]
    layers = [(shape, packed(shape[-1], outputs)) for shape, outputs in shapes]
    some = [(normal(*shape), weight, normal(weight[1].size)) for shape, weight in layers]
    plain = [Call((x, *weight), terms=130) for x, weight, _ in some]
    full = [
        Call((x, *weight, bias), {"activation": activation}, 130)
        for x, weight, bias in some
        for activation in (None, "gelu_tanh")
    ]
    given = {"scale": 0.02, "zero_point": 7}
    whole = [
        (rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind), weight)
        for shape, weight in layers
        for kind in (np.int8, np.uint8)
    ]
    grouped = [
        pack_int4(
            rng.integers(-8, 8, (inputs, 70)).astype(np.int8),
            rng.uniform(0.01, 0.1, (-(-inputs // 16), 70)).astype(np.float32),
            group_size=16,
        )
        for inputs in (130, 32, 5)
    ]
    whole_bias = [rng.integers(-999, 999, weight[1].size).astype(np.int32) for _, weight in whole]
    return {
        "int8_matmul": [Call((x, weight[0], weight[2])) for x, weight in whole],
        "int8_linear_weight_only": plain + full,
        "int8_linear_dynamic": plain + full,
        "int4_linear_weight_only": [
            Call((normal(*rows, weight.shape[0]), *weight.arrays, bias), settings, 130)
            for weight in grouped
            for rows in ((), (1,), (2, 3), (0,))
            for bias, settings in (
                (None, {"group_size": 16}),
                (normal(70), {"group_size": 16, "activation": "relu"}),
            )
        ],
        "int8_linear_static": [
            *(replace(call, settings={**call.settings, **given}) for call in plain + full),
            *(
                Call((x, *weight, bias), given, 130)
                for (x, weight), bias in zip(whole, whole_bias, strict=True)
            ),
        ],
    }


def _int8_convolutions(normal: Draw) -> dict[str, list[Call]]:
    rng = np.random.default_rng(8)

    def packed(inputs: int, outputs: int) -> PackedInt8:
        weight = rng.integers(-128, 128, (inputs, outputs)).astype(np.int8)
        return pack_int8(weight, rng.uniform(0.001, 0.01, outputs).astype(np.float32))

    plain, odd = CONVOLUTIONS
    shapes = [  # images, output channels, kernel and settings
        ((2, 4, 6, 5), 6, (3, 2), plain),
        ((2, 4, 6, 5), 6, (3, 2), odd),
        ((1, 5, 3, 3), 3, (1, 1), plain),
        ((2, 9, 8, 9), 70, (3, 3), {**plain, "padding": (1, 1)}),
        ((0, 4, 6, 5), 6, (3, 2), plain),
    ]
    calls = []
    for images, outputs, kernel, settings in shapes:
        inputs = images[1] // settings["groups"] * kernel[0] * kernel[1]
        arguments = (normal(*images), *packed(inputs, outputs).arrays)
        settings = {"kernel_size": kernel, **settings}
        calls += [Call((*arguments, bias), settings, inputs) for bias in (None, normal(outputs))]
    given = {"scale": 0.03, "zero_point": -9}
    static = [replace(call, settings={**call.settings, **given}) for call in calls]
    whole = rng.integers(-999, 999, 6).astype(np.int32)
    static.append(replace(static[0], arguments=(*static[0].arguments[:4], whole)))
    table = packed(9, 70)
    ids = [np.array(69), np.array([[3, 0, 69], [64, 63, 3]], np.int32), np.zeros((0, 2), np.int64)]
    return {
        "int8_conv2d_weight_only": calls,
        "int8_conv2d_dynamic": calls,
        "int8_conv2d_static": static,
        "int8_embedding": [Call((each, table.values, table.scales), {"width": 9}) for each in ids],
    }


def _normalisations(normal: Draw, positive: Draw) -> dict[str, list[Call]]:
    eps = {"eps": 1e-5}
    rows = [(3, 5), (2, 3, 5), (5,), (0, 5)]
    images = [(2, 3, 4, 5), (4, 3, 1, 1), (1, 3, 7, 2)]
    return {
        "layer_norm": [Call((normal(*shape), normal(5), normal(5)), eps, 10) for shape in rows],
        "add_layer_norm": [
            Call((normal(*shape), normal(*shape), normal(5), normal(5)), eps, 10) for shape in rows
        ],
        "layer_norm_backward": [
            Call(
                (normal(*s), normal(*s), normal(5), normal(*s[:-1], 1), positive(*s[:-1], 1)),
                terms=30,
            )
            for s in rows
        ],
        "rms_norm": [Call((normal(*shape), normal(5)), eps, 10) for shape in rows],
        "rms_norm_backward": [
            Call((normal(*s), normal(*s), normal(5), positive(*s[:-1], 1)), terms=30) for s in rows
        ],
        "rotary": [
            Call((normal(2, 3, 4, 6), normal(4, 3), normal(4, 3)), terms=2),
            Call((normal(2, 3, 1, 8), normal(2, 1, 1, 4), normal(2, 1, 1, 4)), terms=2),
        ],
        "batch_norm": [Call((normal(*shape), normal(3), normal(3)), eps, 40) for shape in images],
        "batch_norm_backward": [
            Call((normal(*shape), normal(3), normal(*shape), positive(3)), terms=40)
            for shape in images
        ],
    }


def _spatial(normal: Draw) -> dict[str, list[Call]]:
    plain, odd = CONVOLUTIONS
    images, weights, grouped = normal(2, 4, 6, 5), normal(6, 4, 3, 2), normal(6, 2, 3, 2)
    grad, odd_grad = normal(2, 6, 4, 4), normal(2, 6, 3, 7)
    pooled = [(2, 4, 3, 2), (2, 4, 6, 3)]
    ties = np.round(images)  # windows with several largest elements
    calls: dict[str, list[Call]] = {
        "conv2d": [
            Call((images, weights, normal(6)), plain, 24),
            Call((images, weights), plain, 24),
            Call((images, grouped, normal(6)), odd, 12),
            Call((images, normal(3, 4, 1, 1), None), plain, 4),
            Call((normal(0, 4, 6, 5), weights, normal(6)), plain, 24),
        ],
        "conv2d_backward_input": [
            Call((grad, weights), {"input_shape": (2, 4, 6, 5), **plain}, 36),
            Call((odd_grad, grouped), {"input_shape": (2, 4, 6, 5), **odd}, 36),
            Call((grad[:0], weights), {"input_shape": (0, 4, 6, 5), **plain}, 36),
        ],
        "conv2d_backward_weight": [
            Call((grad, images), {"weight_shape": (6, 4, 3, 2), **plain}, 32),
            Call((odd_grad, images), {"weight_shape": (6, 2, 3, 2), **odd}, 42),
            Call((grad[:0], images[:0]), {"weight_shape": (6, 4, 3, 2), **plain}, 32),
        ],
    }
    for kind in ("max_pool2d", "avg_pool2d"):
        calls[kind] = [
            Call((x,), window, 6) for x in (images, ties, images[:0]) for window in WINDOWS
        ]
    calls["avg_pool2d_backward"] = [
        Call((normal(*shape),), {"input_shape": (2, 4, 6, 5), **window}, 6)
        for shape, window in zip(pooled, WINDOWS, strict=True)
    ]
    calls["max_pool2d_backward"] = [
        Call((normal(*shape), x, _pooled(x, shape, window)), window, 6)
        for shape, window in zip(pooled, WINDOWS, strict=True)
        for x in (images, ties)
    ]
    return calls


def _pooled(x: np.ndarray, shape: tuple[int, ...], window: dict[str, Any]) -> np.ndarray:
    """Compute a max pool element by element."""
    (kh, kw), (down, right), (top, left) = window["kernel"], window["stride"], window["padding"]
    result = np.empty(shape, x.dtype)
    for row, column in np.ndindex(shape[2:]):
        rows = slice(max(row * down - top, 0), row * down - top + kh)
        columns = slice(max(column * right - left, 0), column * right - left + kw)
        result[..., row, column] = x[:, :, rows, columns].max(axis=(2, 3))
    return result


def _shapes(normal: Draw) -> dict[str, list[Call]]:
    x, ids = normal(3, 5), np.array([[3, 0, 3], [1, 3, 3]])
    taken = [np.asarray(x[index]) for index in INDICES]
    return {
        "reshape": [Call((x,), {"shape": (5, 3)}), Call((x,), {"shape": (-1,)})],
        "transpose": [Call((normal(2, 3, 5),), {"axes": (2, 0, 1)})],
        "broadcast_to": [Call((normal(3, 1),), {"shape": (2, 3, 5)})],
        "getitem": [Call((x,), {"index": index}) for index in INDICES],
        "getitem_backward": [
            Call((normal(*part.shape),), {"shape": (3, 5), "index": index}, 3)
            for part, index in zip(taken, INDICES, strict=True)
        ],
        "concatenate": [Call(((x, normal(2, 5), normal(0, 5)),), {"axis": 0})],
        "embedding": [Call((normal(4, 5), ids)), Call((normal(4, 5), ids[:0]))],
        "embedding_backward": [
            Call((normal(2, 3, 5), ids), {"count": 4}, 6),
            Call((normal(0, 3, 5), ids[:0]), {"count": 4}),
        ],
    }


def _sparse_products(normal: Draw) -> dict[str, list[Call]]:
    rng = np.random.default_rng(8)

    def packed(inputs: int, outputs: int, sparsity: float) -> tuple[np.ndarray, ...]:
        weight = rng.normal(size=(inputs, outputs)).astype(np.float32)
        weight[rng.random(weight.shape) < sparsity] = 0
        return pack_sparse(weight)

    shapes = [((2, 5), 7), ((5,), 7), ((4, 2, 8), 64), ((0, 5), 7), ((9, 130), 70), ((70, 300), 33)]
    some = [
        (normal(*shape), packed(shape[-1], outputs, sparsity), normal(outputs))
        for shape, outputs in shapes
        for sparsity in (0.0, 0.8, 1.0)
    ]
    return {
        "sparse_linear": [Call((x, *weight), terms=300) for x, weight, _ in some]
        + [
            Call((x, *weight, bias), {"activation": activation}, 300)
            for x, weight, bias in some
            for activation in (None, "gelu_tanh")
        ]
    }


def _losses(normal: Draw, positive: Draw) -> dict[str, list[Call]]:
    classes = np.array([4, 0, 2])
    pairs = [(3, 5), (), (0, 2)]
    calls: dict[str, list[Call]] = {
        "cross_entropy": [
            Call((5 * normal(3, 5), classes), terms=5),
            Call((1e4 * normal(3, 5), classes), terms=5),
            Call((normal(0, 5), classes[:0])),
        ],
        "cross_entropy_backward": [
            Call((normal(3), positive(3, 5), classes)),
            Call((normal(0), positive(0, 5), classes[:0])),
        ],
    }
    for kind, draw in (("", positive), ("_with_logits", normal)):
        name = f"binary_cross_entropy{kind}"
        calls[name] = [Call((draw(*shape), positive(*shape))) for shape in pairs]
        calls[f"{name}_backward"] = [
            Call((normal(*shape), draw(*shape), positive(*shape))) for shape in pairs
        ]
    return calls


def _steps(normal: Draw, positive: Draw) -> dict[str, list[Call]]:
    adam = {"step": 3, "lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}
    shapes = [(3, 5), (), (20_001,)]
    return {
        "sgd_step": [
            Call(
                (normal(*shape), normal(*shape), velocity),
                {"lr": 0.1, "momentum": 0.9, "weight_decay": decay},
            )
            for shape in shapes
            for velocity in (None, normal(*shape))
            for decay in (0.0, 0.01)
        ],
        "adam_step": [
            Call(
                (normal(*shape), normal(*shape), normal(*shape), positive(*shape)),
                {**adam, "weight_decay": decay, "decoupled": decoupled},
            )
            for shape in shapes
            for decay in (0.0, 0.1)
            for decoupled in (False, True)
        ],
    }
