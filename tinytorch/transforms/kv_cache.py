"""The key-value cache of a model: attached, detached, and what it costs and saves."""

from __future__ import annotations

from inspect import unwrap
from typing import Any, Self

import numpy as np

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.autograd import no_grad
from tinytorch.core.embeddings import PositionalEmbedding, SinusoidalEncoding
from tinytorch.core.kernels import Array
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.language_model import LanguageModel
from tinytorch.core.layers import Seed
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, ShapeError

# ---------------------------------------------------------------- giving a whole model a key-value
# cache, and taking it away again

DEFAULT_LENGTH = 1024
"""Tokens of a cache for a model that does not say how many it can see."""


def enable_kv_cache(
    model: Module, *, batch_size: int = 1, max_seq_len: int | None = None
) -> KVCache:
    """Make calls of a model continue where the last one ended, and return the cache that they use.

    From now on `model(new_tokens)` takes the tokens that follow, and returns their outputs, as
    if all tokens had come in one call; there is no graph. `cache.reset()` begins a new sequence,
    :func:`disable_kv_cache` gives back the plain model. It works on a GPT or a Llama, alone or
    inside of another module, and on any module whose attention layers are causal. Layers that add
    positions (`PositionalEmbedding`, `SinusoidalEncoding`) count on; code of yours that does so
    must add `cache.seq_pos` itself. Enabling again replaces the cache. `GPT.generate` does not need
    this: it has its own cache.
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
    """Return the plain model; nothing happens where no cache is enabled."""
    for module in model.modules():
        attached = vars(module).get("forward")
        if isinstance(attached, _Attached):
            del module.forward
            vars(module).pop("attached_cache", None)
            if attached.previous is not None:
                module.forward = attached.previous  # type: ignore[method-assign]


# ---------------------------------------------------------------- what stands in for `forward`


class _Attached:
    """Replaces the `forward` of one module.

    An object and not a closure, so that a copy of the model gets a copy of it, with its own cache
    and module.
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


def _find(model: Module) -> tuple[dict[str, LanguageModel], dict[str, MultiHeadAttention]]:
    """Return every GPT of a tree, and the attention layers outside of these, by their names."""
    modules = dict(model.named_modules())
    gpts = {name: module for name, module in modules.items() if isinstance(module, LanguageModel)}
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


# ---------------------------------------------------------------- attention that remembers the
# tokens of earlier calls by itself


class CachedMultiHeadAttention(MultiHeadAttention):
    """Causal self-attention that owns a cache: each call brings new tokens, which see all earlier.

    Calls together give what one call of :class:`MultiHeadAttention` gives for all tokens at once.
    :meth:`reset` begins a new sequence. There is no graph; to train, use the plain layer. The cache
    grows as needed, or is full at `max_seq_len`, if given.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        max_seq_len: int | None = None,
        window: int | None = None,
        bias: bool = True,
        rng: Seed = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, causal=True, window=window, bias=bias, rng=rng)
        self.max_seq_len = _checked_length(max_seq_len)
        self.cache: KVCache | None = None

    @classmethod
    def of(cls, attention: MultiHeadAttention, *, max_seq_len: int | None = None) -> Self:
        """Return a cached layer that shares the weights of a causal one."""
        if not attention.causal:
            raise SettingError(
                f"{attention.extra_repr()}: only causal attention can be cached, because without "
                "it later tokens change the outputs of earlier ones; build it with causal=True"
            )
        layer = cls.__new__(cls)
        vars(layer).update(
            (name, value)
            for name, value in vars(attention).items()
            if name not in ("_hooks", "_pre_hooks", "forward")  # those watch the original
        )
        layer.max_seq_len = _checked_length(max_seq_len)
        layer.cache = None
        return layer

    @property
    def seq_pos(self) -> int:
        """Return the number of tokens that are remembered."""
        return 0 if self.cache is None else self.cache.seq_pos

    def reset(self) -> None:
        """Forget all tokens and keep the memory."""
        if self.cache is not None:
            self.cache.reset()

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        """Attend from new tokens (batch, time, embed_dim) to the past and themselves."""
        if mask is not None:
            raise SettingError(
                "a cached layer masks what comes later by itself and takes no mask; "
                "use MultiHeadAttention for other masks"
            )
        self._check_input(x)
        batch, time = (1, *x.shape[:-1])[-2:]
        if self.cache is not None and self.cache.seq_pos == 0 and self.cache.batch_size != batch:
            self.cache = None  # a new sequence may have another batch
        if self.cache is None and self.max_seq_len is not None:
            self.cache = self._own_cache(batch, time, dtype=x.dtype)
        if self.cache is not None and self.cache.batch_size != batch:
            raise ShapeError(
                f"the {self.cache.seq_pos} remembered tokens are of {self.cache.batch_size} "
                f"sequences, the new ones of {batch}; reset() begins anew"
            )
        # The method inside: hooks and recorders already know about this call.
        attend = unwrap(MultiHeadAttention.forward_with_cache)
        if self.max_seq_len is None:
            output, self.cache = attend(self, x, self.cache)
            return output
        output, cache = attend(self, x, self.cache, 0)
        cache.advance()
        return output

    def _own_cache(self, batch: int, time: int, *, dtype: Any) -> KVCache:
        if self.max_seq_len is None:
            return super()._own_cache(batch, time, dtype=dtype)
        return KVCache(
            batch,
            self.max_seq_len,
            1,
            self.num_heads,
            self.head_dim,
            dtype=dtype,
            window=self.window,
        )


def _checked_length(max_seq_len: int | None) -> int | None:
    if max_seq_len is not None and max_seq_len < 1:
        raise SettingError(f"max_seq_len must be at least 1, got {max_seq_len}")
    return max_seq_len
