"""A cache of keys and values that is allocated once, for the models of transformers.

It speaks transformers' own interface for caches, so any decoder that takes one takes this. All
layers share one position, which lives on the device: a captured step can move it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from tinytorch.transforms.static_generation.operators import attend

KNOWN = (StaticLayer, StaticSlidingWindowLayer)
"""What transformers itself would preallocate for a model. A window is kept by the mask here."""


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of one layer for `length` tokens: first of the whole prompt, then one by one.

    `state` is shared by all layers; its first element is where the next token goes.
    """

    is_compileable = True
    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, length: int, state: torch.Tensor) -> None:
        super().__init__()
        self.length = length
        self.state = state
        self.prompt_length = 0
        """Not zero while a prompt of this length is read."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate, when it is known what there is to hold."""
        for name, states in (("keys", key_states), ("values", value_states)):
            batch, heads, _, width = states.shape  # some models keep other heads of values
            held = states.new_zeros((batch, heads, self.length, width))
            torch._dynamo.mark_static_address(held)
            setattr(self, name, held)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values, and give all that attention is to see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.prompt_length:
            self.keys[:, :, : self.prompt_length].copy_(key_states)
            self.values[:, :, : self.prompt_length].copy_(value_states)
            return key_states, value_states
        self.keys.index_copy_(2, self.state[:1], key_states)
        self.values.index_copy_(2, self.state[:1], value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys attention sees, and where they begin."""
        return self.prompt_length or self.length, 0

    def get_seq_length(self) -> Any:
        """Return how many tokens there are already: a tensor, so that nothing waits for it."""
        return 0 if self.prompt_length else self.state[0]

    def get_max_length(self) -> int:
        """Return how many tokens fit."""
        return self.length


def why_no_cache(model: Any) -> str:
    """Return why a model's keys and values cannot be preallocated, or ""."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "generate"):
        return f"{type(model).__name__} is no model of transformers that generates"
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder with a decoder; only decoders are supported"
    if not _takes(model, "past_key_values"):
        return "its forward takes no past_key_values, so it cannot be given a cache"
    try:
        layers = StaticCache(config=config, max_cache_len=8).layers
    except Exception as error:  # what a config lacks shows in many ways
        return f"transformers has no static cache for it ({type(error).__name__}: {error})"
    other = [type(each).__name__ for each in layers if type(each) not in KNOWN]
    if other:
        return f"some of its layers keep something else than keys and values ({other[0]})"
    return "" if layers else "it has no layers that keep keys and values"


def _takes(model: Any, name: str) -> bool:
    """Return whether a model takes an argument; one behind `**` may be for a model inside."""
    takes = inspect.signature(model.forward).parameters
    is_open = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    return name in takes or (is_open and "input_ids" not in takes)


def preallocated_cache(model: Any, length: int, state: torch.Tensor) -> Any:
    """Make a cache for `length` tokens, with as many layers as transformers would make."""
    count = len(StaticCache(config=model.config, max_cache_len=length).layers)
    return Cache(layers=[PreallocatedLayer(length, state) for _ in range(count)])


# ---------------------------------------------------------------- our attention of one token over
# a preallocated cache, offered to transformers by name

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
    """Return whether this call is the session's: another thread may use the model meanwhile."""
    # A compiler does not follow questions about threads; it traces in the thread of the session.
    return torch.compiler.is_compiling() or threading.get_ident() == _serving.thread


AttentionInterface.register(NAME, _decode_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def decoding_attention(model: Any, state: torch.Tensor) -> Iterator[None]:
    """Use this kernel for a model's attention inside the block, instead of PyTorch's.

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
