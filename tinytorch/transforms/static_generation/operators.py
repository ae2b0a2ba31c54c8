"""The operators that a decoding step is rewritten with. Imported after torch.

On CUDA they are kernels of ours in Triton; elsewhere they are what they stand for, so that a
rewritten step can be checked on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


def _normed(x: torch.Tensor, norm: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Scale rows to a mean square of one, and by the weights of a norm, as models do it."""
    if norm is None:
        return x
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return norm * scaled.to(x.dtype)


@torch.library.custom_op("tinytorch::joint_product", mutates_args=())
def joint_product(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    transposed: bool = False,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply rows with several matrices; the results lie side by side in the last axis.

    Rows go through a norm first where its weights are given; `added` is added to the result.
    """
    if x.is_cuda:
        from tinytorch.transforms.static_generation import triton_products as kernels

        return kernels.joint_product(
            x, weights, biases, transposed=transposed, norm=norm, eps=eps, added=added
        )
    matrices = [each.T for each in weights] if transposed else weights
    rows = _normed(x, norm, eps)
    offsets: Sequence[torch.Tensor | None] = biases or [None] * len(matrices)
    products = [F.linear(rows, each, bias) for each, bias in zip(matrices, offsets, strict=True)]
    product = torch.cat(products, -1)
    return product if added is None else product + added


@joint_product.register_fake
def _(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    transposed: bool = False,
    *_: Any,
) -> torch.Tensor:
    outputs = sum(each.shape[1 if transposed else 0] for each in weights)
    return x.new_empty((*x.shape[:-1], outputs))


@torch.library.custom_op("tinytorch::gated_product", mutates_args=())
def gated_product(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: str,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Return activation(x @ gate^T) * (x @ up^T), of normed rows where a norm is given."""
    if x.is_cuda:
        from tinytorch.transforms.static_generation import triton_products as kernels

        return kernels.gated_product(x, gate, up, activation, norm=norm, eps=eps)
    rows = _normed(x, norm, eps)
    return ACTIVATIONS[activation](F.linear(rows, gate)) * F.linear(rows, up)


@gated_product.register_fake
def _(x: torch.Tensor, gate: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], gate.shape[0]))


@torch.library.custom_op("tinytorch::attend", mutates_args=())
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    state: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attend with one query per sequence over a cache; gives (batch, 1, heads, d)."""
    if q.is_cuda:
        from tinytorch.transforms.static_generation import triton_attention as kernels

        return kernels.attend(q, k, v, mask, state, scale)
    written = (torch.arange(k.shape[2], device=k.device) <= state[0])[None, None, None]
    seen = written if mask is None else mask & written
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return y.transpose(1, 2).contiguous()


@attend.register_fake
def _(q: torch.Tensor, *_: Any) -> torch.Tensor:
    batch, heads, d = q.shape[0], q.shape[1], q.shape[3]
    return q.new_empty((batch, 1, heads, d))
