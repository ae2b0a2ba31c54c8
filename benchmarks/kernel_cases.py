"""The kernels that `kernels.py` times: shapes of GPT-2 small and of small convolutional networks.

Each operation draws its inputs and gives two calls on the same numbers, ours and PyTorch's. The
module torch comes as an argument, since it is only imported on its own side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from tinytorch.core.dispatch import run
from tinytorch.core.kernels import Array

HEADS, HEAD_DIM, EMBED_DIM, VOCABULARY, CONTEXT = 12, 64, 768, 50257, 1024
EPS = 1e-5
STEPS_BEFORE = 3  # that an optimizer has taken already

Run = Callable[[], Any]
Draw = Callable[..., Array]
"""Gives normal float32 numbers of a shape."""
Pair = tuple[Run, Callable[[Any], Run]]
"""Our call, and a function of the module torch that gives PyTorch's."""


@dataclass(frozen=True)
class Case:
    """One operation with its sizes."""

    name: str
    group: str
    operation: Callable[..., Pair]
    sizes: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self, draw: Draw) -> Pair:
        return self.operation(draw, *self.sizes, **self.settings)


def softmax(draw: Draw, *shape: int) -> Pair:
    x = draw(*shape)
    return (
        lambda: run("softmax", x, axis=-1),
        lambda torch: partial(torch.softmax, torch.from_numpy(x), -1),
    )


def gelu_after_bias(draw: Draw, *shape: int) -> Pair:
    x, bias = draw(*shape), draw(shape[-1])

    def theirs(torch: Any) -> Run:
        a, b = torch.from_numpy(x), torch.from_numpy(bias)
        return lambda: torch.nn.functional.gelu(a + b, approximate="tanh")

    return lambda: run("gelu", run("add", x, bias), approximate="tanh"), theirs


def layer_norm(draw: Draw, *shape: int) -> Pair:
    arrays = draw(*shape), draw(shape[-1]), draw(shape[-1])

    def theirs(torch: Any) -> Run:
        x, weight, bias = map(torch.from_numpy, arrays)
        return lambda: torch.nn.functional.layer_norm(x, shape[-1:], weight, bias, EPS)

    return lambda: run("layer_norm", *arrays, eps=EPS)[0], theirs


def add_layer_norm(draw: Draw, *shape: int) -> Pair:
    arrays = draw(*shape), draw(*shape), draw(shape[-1]), draw(shape[-1])

    def theirs(torch: Any) -> Run:
        x, residual, weight, bias = map(torch.from_numpy, arrays)

        def add_then_normalise() -> tuple[Any, Any]:
            total = x + residual
            return total, torch.nn.functional.layer_norm(total, shape[-1:], weight, bias, EPS)

        return add_then_normalise

    return lambda: run("add_layer_norm", *arrays, eps=EPS), theirs


def attention(draw: Draw, queries: int, keys: int) -> Pair:
    """Attend in the layouts of a model: heads cut out of rows, and keys in a longer cache."""
    is_decoding = queries < keys
    query = draw(1, queries, HEADS, HEAD_DIM).swapaxes(1, 2)  # (batch, heads, time, head_dim)
    if is_decoding:
        key, value = (draw(1, HEADS, CONTEXT, HEAD_DIM)[:, :, :keys] for _ in range(2))
    else:
        key, value = (draw(1, keys, HEADS, HEAD_DIM).swapaxes(1, 2) for _ in range(2))
    settings = {"scale": HEAD_DIM**-0.5, "causal": not is_decoding, "keep_weights": False}

    def theirs(torch: Any) -> Run:
        tensors = [torch.from_numpy(array) for array in (query, key, value)]
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(*tensors, is_causal=not is_decoding)

    return lambda: run("attention", query, key, value, None, **settings)[0], theirs


def linear(
    draw: Draw, *shape: int, outputs: int, tied: bool = False, activation: str | None = None
) -> Pair:
    """Apply a layer to x of a shape; a `tied` weight is the transposed matrix of an embedding."""
    x = draw(*shape)
    weight = draw(outputs, shape[-1]).T if tied else draw(shape[-1], outputs)
    arrays = (x, weight) if tied else (x, weight, draw(outputs))
    settings = {"activation": activation} if activation else {}

    def theirs(torch: Any) -> Run:
        F = torch.nn.functional
        rows, matrix, *bias = map(torch.from_numpy, arrays)
        matrix = matrix.T.contiguous()  # (outputs, inputs), as PyTorch's layers hold it
        if activation == "gelu_tanh":
            return lambda: F.gelu(F.linear(rows, matrix, *bias), approximate="tanh")
        return lambda: F.linear(rows, matrix, *bias)

    return lambda: run("linear", *arrays, **settings), theirs


def matmul(
    draw: Draw, a_shape: tuple[int, ...], b_shape: tuple[int, ...], *, turned: str = ""
) -> Pair:
    """Multiply two arrays; `turned` names those that are seen with the last two axes swapped."""
    a, b = draw(*a_shape), draw(*b_shape)
    a = a.swapaxes(-1, -2) if "a" in turned else a
    b = b.swapaxes(-1, -2) if "b" in turned else b
    return (
        lambda: run("matmul", a, b),
        lambda torch: partial(torch.matmul, torch.from_numpy(a), torch.from_numpy(b)),
    )


def some_ids(draw: Draw, size: int) -> Array:
    return np.abs(draw(size) * VOCABULARY).astype(np.int64) % VOCABULARY


def embedding(draw: Draw, tokens: int) -> Pair:
    weight, ids = draw(VOCABULARY, EMBED_DIM), some_ids(draw, tokens)

    def theirs(torch: Any) -> Run:
        return partial(
            torch.nn.functional.embedding, torch.from_numpy(ids), torch.from_numpy(weight)
        )

    return lambda: run("embedding", weight, ids), theirs


def cross_entropy(draw: Draw, rows: int) -> Pair:
    """Give the mean loss and the gradient of the logits."""
    logits, targets = draw(rows, VOCABULARY), some_ids(draw, rows)
    grad = np.full(rows, 1 / rows, np.float32)

    def ours() -> tuple[Array, Array]:
        losses, saved = run("cross_entropy", logits, targets)
        return run("mean", losses), run("cross_entropy_backward", grad, saved, targets)

    def theirs(torch: Any) -> Run:
        leaf, classes = torch.from_numpy(logits).requires_grad_(), torch.from_numpy(targets)

        def forward_and_backward() -> tuple[Any, Any]:
            with torch.enable_grad():
                loss = torch.nn.functional.cross_entropy(leaf, classes)
            return loss, torch.autograd.grad(loss, leaf)[0]

        return forward_and_backward

    return ours, theirs


def adam_step(draw: Draw, size: int, *, fused: bool | None = None) -> Pair:
    """Change a parameter in place; `fused` is PyTorch's option for a kernel of one loop."""
    parameter, grad, first, second = draw(size), draw(size), draw(size), draw(size) ** 2
    settings = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    steps = count(STEPS_BEFORE + 1)

    def ours() -> Array:
        arrays = parameter, grad, first, second
        run("adam_step", *arrays, step=next(steps), decoupled=False, **settings)
        return parameter

    def theirs(torch: Any) -> Run:
        tensor = torch.nn.Parameter(torch.from_numpy(parameter))
        tensor.grad = torch.from_numpy(grad)
        optimizer = torch.optim.Adam([tensor], fused=fused, **settings)
        optimizer.state[tensor] = {
            "step": torch.tensor(float(STEPS_BEFORE)),
            "exp_avg": torch.from_numpy(first),
            "exp_avg_sq": torch.from_numpy(second),
        }

        def step() -> Any:
            optimizer.step()
            return tensor

        return step

    return ours, theirs


def conv3x3(draw: Draw, batch: int, inputs: int, outputs: int, *, size: int) -> Pair:
    arrays = draw(batch, inputs, size, size), draw(outputs, inputs, 3, 3), draw(outputs)
    settings = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}

    def theirs(torch: Any) -> Run:
        tensors = [torch.from_numpy(array) for array in arrays]
        return lambda: torch.nn.functional.conv2d(*tensors, padding=1)

    return lambda: run("conv2d", *arrays, **settings), theirs


def max_pool2x2(draw: Draw, *shape: int) -> Pair:
    x = draw(*shape)
    settings = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    return (
        lambda: run("max_pool2d", x, **settings),
        lambda torch: partial(torch.nn.functional.max_pool2d, torch.from_numpy(x), 2),
    )


FUSED = (
    ("softmax (1536, 128)", softmax, (1536, 128)),
    ("softmax (6144, 512)", softmax, (6144, 512)),
    ("bias and GELU (128, 3072)", gelu_after_bias, (128, 3072)),
    ("layer norm (512, 768)", layer_norm, (512, 768)),
    ("sum and layer norm (512, 768)", add_layer_norm, (512, 768)),
    ("attention, 128 tokens", attention, (128, 128)),
    ("attention, 512 tokens", attention, (512, 512)),
    ("attention, 1 token, context 256", attention, (1, 256)),
    ("attention, 1 token, context 1000", attention, (1, 1000)),
)
CONVOLUTIONS = (
    ("conv 3x3, 64 to 64, 56x56, batch 1", conv3x3, (1, 64, 64), {"size": 56}),
    ("conv 3x3, 256 to 256, 14x14, batch 1", conv3x3, (1, 256, 256), {"size": 14}),
    ("conv 3x3, 3 to 16, 32x32, batch 32", conv3x3, (32, 3, 16), {"size": 32}),
    ("conv 3x3, 16 to 32, 32x32, batch 32", conv3x3, (32, 16, 32), {"size": 32}),
)
STACK = (HEADS, 128, 64)
PRODUCTS = (
    ("linear 128 x 768 x 768", linear, (128, 768), {"outputs": 768}),
    ("linear 128 x 768 x 3072", linear, (128, 768), {"outputs": 3072}),
    ("linear 128 x 3072 x 768", linear, (128, 3072), {"outputs": 768}),
    ("linear 8 of 128 x 256 x 256", linear, (8, 128, 256), {"outputs": 256}),
    ("linear 1 x 768 x 768", linear, (1, 768), {"outputs": 768}),
    ("linear 1 x 768 x 3072", linear, (1, 768), {"outputs": 3072}),
    ("linear 1 x 768 x 50257, tied", linear, (1, 768), {"outputs": VOCABULARY, "tied": True}),
    ("matmul 12 of 128 x 64 x 128", matmul, (STACK, (HEADS, 64, 128))),
    ("matmul 12 of 128 x 64 x 128, b turned", matmul, (STACK, STACK), {"turned": "b"}),
    ("matmul 128 x 3072 x 768, b turned", matmul, ((128, 3072), (768, 3072)), {"turned": "b"}),
    ("matmul 768 x 128 x 3072, a turned", matmul, ((128, 768), (128, 3072)), {"turned": "a"}),
)
GELU = {"outputs": 3072, "activation": "gelu_tanh"}
OTHERS = (
    ("linear and GELU 128 x 768 x 3072", linear, (128, 768), GELU),
    ("embedding, 128 tokens", embedding, (128,)),
    ("cross entropy (128, 50257), forward and backward", cross_entropy, (128,)),
    ("Adam, 1M parameters", adam_step, (1 << 20,)),
    ("Adam, 1M parameters, PyTorch's fused", adam_step, (1 << 20,), {"fused": True}),
    ("max pool 2x2 (32, 16, 32, 32)", max_pool2x2, (32, 16, 32, 32)),
)
GROUPS = {"fused": FUSED, "convolution": CONVOLUTIONS, "products": PRODUCTS, "others": OTHERS}
CASES = tuple(
    Case(name, group, *details) for group, rows in GROUPS.items() for name, *details in rows
)
