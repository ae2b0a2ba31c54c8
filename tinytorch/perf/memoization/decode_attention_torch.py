"""Our attention of one token over a preallocated cache, offered to transformers by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from tinytorch.perf.memoization.decode_operators_torch import attend

__all__ = ["decoding_attention"]

NAME = "tinytorch_decode"
REPLACED = "sdpa"
UNLIKE = ("position_bias", "softcap", "s_aux", "cache")
"""Arguments that make attention something else than what our kernel computes."""


class _Serving:
    """The state of the session whose step is being run, traced or captured, and by which thread."""

    state: torch.Tensor | None = None
    thread = 0


_serving = _Serving()
_turn = threading.RLock()
"""One session at a time: models that share a config would switch each other's attention."""


def _decode_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Attend by our kernel where each sequence has one query, else as transformers does."""
    state = _serving.state
    is_ours = (
        state is not None
        and _is_served()
        and query.shape[2] == 1
        and key.shape == value.shape
        and key.stride() == value.stride()  # the kernel walks through both with the same steps
        and key.stride(-1) == 1
        and key.shape[0] * key.shape[1] < state.shape[0]
        and (attention_mask is None or attention_mask.dtype == torch.bool)
        and all(settings.get(name) is None for name in UNLIKE)
    )
    if not is_ours:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **settings
        )
        return attended
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    assert state is not None
    return attend(query, key, value, attention_mask, state, scale), None


def _is_served() -> bool:
    """Tell whether this call is one of the session: another thread may use the model meanwhile."""
    # A compiler does not follow questions about threads; it traces in the thread of the session.
    return torch.compiler.is_compiling() or threading.get_ident() == _serving.thread


AttentionInterface.register(NAME, _decode_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def decoding_attention(model: Any, state: torch.Tensor) -> Iterator[None]:
    """Let a model attend by our kernel inside of the block, where it uses PyTorch's otherwise.

    Blocks of several threads wait for each other.
    """
    with _turn:
        yield from _switched(model, state)


def _switched(model: Any, state: torch.Tensor) -> Iterator[None]:
    held: list[Any] = [getattr(each, "config", None) for each in model.modules()]
    changed = [
        each
        for each in {id(each): each for each in held}.values()
        if getattr(each, "_attn_implementation", "") == REPLACED
    ]
    before = _serving.state, _serving.thread
    try:
        _serving.state, _serving.thread = state, threading.get_ident()
        for config in changed:
            config._attn_implementation = NAME
        yield
    finally:
        _serving.state, _serving.thread = before
        for config in changed:
            config._attn_implementation = REPLACED
