"""Attention that remembers the tokens of earlier calls by itself."""

from __future__ import annotations

from inspect import unwrap
from typing import Any, Self

from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.layers import Seed
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, ShapeError

__all__ = ["CachedMultiHeadAttention"]


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
        """Give a cached layer that shares the weights of a causal one."""
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
        """Give the number of tokens that are remembered."""
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
