"""Giving a whole model a key-value cache, and taking it away again."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import numpy as np

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.autograd import no_grad
from tinytorch.core.backends import Array
from tinytorch.core.embeddings import PositionalEmbedding, SinusoidalEncoding
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import SettingError

__all__ = ["disable_kv_cache", "enable_kv_cache"]

DEFAULT_LENGTH = 1024
"""Tokens of a cache for a model that does not say how many it can see."""


def enable_kv_cache(
    model: Module, *, batch_size: int = 1, max_seq_len: int | None = None
) -> KVCache:
    """Let calls of a model continue where the last one ended, and give the cache that they use.

    From now on `model(new_tokens)` takes the tokens that follow, and gives the outputs of these, as
    if all tokens had come in one call; there is no graph. `cache.reset()` begins a new sequence,
    :func:`disable_kv_cache` gives back the plain model. It works on a GPT, alone or inside of
    another module, and on any module whose attention layers are causal. Layers that add positions
    (`PositionalEmbedding`, `SinusoidalEncoding`) count on; code of yours that does so must add
    `cache.seq_pos` itself. Enabling again replaces the cache. `GPT.generate` does not need this: it
    has a cache of its own.
    """
    if not isinstance(model, Module):
        raise SettingError(
            f"enable_kv_cache takes models of tinytorch.core, got {type(model).__name__}"
        )
    gpts, layers = _find(model)
    if not gpts and not layers:
        raise SettingError(
            f"{type(model).__name__} has no attention layer, so there is nothing to cache"
        )
    if len(gpts) > 1 or (gpts and layers):
        names = ", ".join(repr(name) for name in (*gpts, *layers))
        raise SettingError(
            f"one cache serves one GPT, or attention layers without one; found {names}; "
            "enable it for each of them"
        )
    if gpts:
        (gpt,) = gpts.values()
        cache = gpt.make_cache(batch_size, max_seq_len)
        disable_kv_cache(model)
        _attach(_CachedGPT(gpt, cache))
        return cache
    cache = _cache_for_layers(model, layers, batch_size, max_seq_len)
    disable_kv_cache(model)
    attached = [
        _CachedLayer(name, layer, cache, index)
        for index, (name, layer) in enumerate(layers.items())
    ]
    for each in attached:
        _attach(each)
    for module in model.modules():
        if isinstance(module, PositionalEmbedding | SinusoidalEncoding):
            _attach(_CachedPositions(module, cache))
    if "" not in layers:  # the name of the model itself
        _attach(_CachedRoot(model, cache, attached))
    return cache


def disable_kv_cache(model: Module) -> None:
    """Give back the plain model; nothing happens where no cache is enabled."""
    for module in model.modules():
        attached = vars(module).get("forward")
        if isinstance(attached, _Attached):
            del module.forward
            vars(module).pop("attached_cache", None)
            if attached.previous is not None:
                module.forward = attached.previous  # type: ignore[method-assign]


# ---------------------------------------------------------------- what stands in for `forward`


class _Attached:
    """Stands in for the `forward` of one module.

    An object and no closure, so that a copy of the model gets a copy of it, with a cache of its own
    and its own module.
    """

    def __init__(self, module: Any, cache: KVCache) -> None:
        self.module = module
        self.cache = cache
        self.previous: Any = vars(module).get("forward")

    @property
    def plain_forward(self) -> Any:
        return self.previous or type(self.module).forward.__get__(self.module)


class _CachedGPT(_Attached):
    """A whole model. `GPT.generate` pauses it by the name `attached_cache`, under which it is kept
    because others may put something of theirs around `forward`."""

    is_paused = False

    def __call__(self, tokens: Any) -> Tensor:
        if self.is_paused:
            plain: Tensor = self.plain_forward(tokens)
            return plain
        # The method inside: hooks and recorders already know about this call.
        logits, _ = unwrap(type(self.module).forward_with_cache)(self.module, tokens, self.cache)
        return logits


class _CachedLayer(_Attached):
    """An attention layer. The root of the model moves the cache on, unless it is this layer."""

    def __init__(self, name: str, module: Any, cache: KVCache, index: int) -> None:
        super().__init__(module, cache)
        self.name = name
        self.index = index
        self.has_run = False

    def __call__(self, x: Tensor, mask: Any = None) -> Tensor:
        if mask is not None:
            raise SettingError(
                "with a cache, attention masks what comes later by itself and takes no mask; "
                "disable_kv_cache() gives back the plain layer"
            )
        if self.has_run:
            raise SettingError(
                f"attention {self.name!r} ran twice in one pass, but the cache has one past for "
                "each layer; disable_kv_cache() gives back the plain model"
            )
        output, _ = unwrap(MultiHeadAttention.forward_with_cache)(
            self.module, x, self.cache, self.index
        )
        if self.name:
            self.has_run = True
        else:
            self.cache.advance()
        return output


class _CachedPositions(_Attached):
    """A layer that adds positions: these count on from the tokens in the cache."""

    def __call__(self, x: Tensor, start: int = 0, padding: Array | None = None) -> Tensor:
        padding = self.cache.padding if padding is None else padding
        moved: Tensor = self.plain_forward(x, self.cache.seq_pos + start, padding)
        return moved


class _CachedRoot(_Attached):
    """A model with attention layers: when all of them have run, the cache moves on."""

    def __init__(self, module: Any, cache: KVCache, layers: list[_CachedLayer]) -> None:
        super().__init__(module, cache)
        self.layers = layers

    def __call__(self, *inputs: Any, **settings: Any) -> Any:
        for layer in self.layers:
            layer.has_run = False
        with no_grad():
            output = self.plain_forward(*inputs, **settings)
        idle = [layer.name for layer in self.layers if not layer.has_run]
        if idle:
            raise SettingError(
                f"attention {idle[0]!r} did not run in this pass, so it has no past of these "
                "tokens; a cache needs all layers in every pass"
            )
        self.cache.advance()
        return output


def _attach(attached: _Attached) -> None:
    attached.module.forward = attached
    if isinstance(attached, _CachedGPT):
        attached.module.attached_cache = attached


# ---------------------------------------------------------------- finding attention


def _find(model: Module) -> tuple[dict[str, GPT], dict[str, MultiHeadAttention]]:
    """Give every GPT of a tree, and the attention layers outside of these, by their names."""
    modules = dict(model.named_modules())
    gpts = {name: module for name, module in modules.items() if isinstance(module, GPT)}
    inside = {id(part) for gpt in gpts.values() for part in gpt.modules()}
    layers = {
        name: module
        for name, module in modules.items()
        if isinstance(module, MultiHeadAttention) and id(module) not in inside
    }
    return gpts, layers


def _cache_for_layers(
    model: Module,
    layers: dict[str, MultiHeadAttention],
    batch_size: int,
    max_seq_len: int | None,
) -> KVCache:
    for name, layer in layers.items():
        if not layer.causal:
            raise SettingError(
                f"attention {name!r} is not causal: later tokens change its earlier outputs, which "
                "no cache can take back; build it with causal=True"
            )
    shapes = {(layer.num_heads, layer.head_dim, layer.window) for layer in layers.values()}
    if len(shapes) > 1:
        raise SettingError(
            "one cache needs layers of one shape, but (heads, head_dim, window) are "
            f"{', '.join(map(str, sorted(shapes, key=str)))}; enable it for each of them"
        )
    ((heads, head_dim, window),) = shapes
    dtypes = [each.dtype for each in model.parameters() if each.dtype.kind == "f"]
    return KVCache(
        batch_size,
        DEFAULT_LENGTH if max_seq_len is None else max_seq_len,
        len(layers),
        heads,
        head_dim,
        dtype=dtypes[0] if dtypes else np.float32,
        window=window,
    )
