"""A key-value cache: what attention has already computed for earlier tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.core.backends import Array
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CacheFullError, SettingError, ShapeError

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of all layers, in arrays that are allocated once.

    Each layer calls :meth:`update` with the keys and values of the new tokens and attends to what
    it gives back; after the last layer, :meth:`advance` makes the tokens part of the past.
    """

    def __init__(
        self,
        batch_size: int,
        max_seq_len: int,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        *,
        dtype: Any = np.float32,
    ) -> None:
        sizes = (batch_size, max_seq_len, num_layers, num_heads, head_dim)
        if min(sizes) < 1:
            raise SettingError(f"every size of a cache must be at least 1, got {sizes}")
        self.batch_size = batch_size
        self.max_seq_len = max_seq_len
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.seq_pos = 0
        self._pending = 0
        shape = (num_layers, batch_size, num_heads, max_seq_len, head_dim)
        self._keys = np.zeros(shape, dtype)
        self._values = np.zeros(shape, dtype)

    def update(self, layer_idx: int, key: Any, value: Any) -> tuple[Tensor, Tensor]:
        """Write (batch, heads, time, head_dim) after the past of a layer.

        Returns keys and values of the past and the new tokens together, as views of the cache.
        """
        self._check_layer(layer_idx)
        new_key, new_value = _array(key), _array(value)
        time = new_key.shape[-2] if new_key.ndim == 4 else 0
        wanted = (self.batch_size, self.num_heads, time, self.head_dim)
        if new_key.shape != wanted or new_value.shape != wanted:
            raise ShapeError(
                f"the cache holds (batch, heads, time, head_dim) = ({self.batch_size}, "
                f"{self.num_heads}, time, {self.head_dim}), got key {new_key.shape} "
                f"and value {new_value.shape}"
            )
        stop = self.seq_pos + time
        if stop > self.max_seq_len:
            raise CacheFullError(
                f"the cache is full: at position {self.seq_pos} of {self.max_seq_len}, "
                f"no room for {time} more; reset() it or make a longer one"
            )
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[:, :, self.seq_pos : stop] = new_key
        values[:, :, self.seq_pos : stop] = new_value
        self._pending = time
        return Tensor(keys[:, :, :stop]), Tensor(values[:, :, :stop])

    def advance(self) -> None:
        """Move past the tokens of the last update."""
        self.seq_pos += self._pending
        self._pending = 0

    def get(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Give keys and values of the first `seq_pos` tokens, as views of the cache."""
        self._check_layer(layer_idx)
        past = slice(0, self.seq_pos)
        return Tensor(self._keys[layer_idx][:, :, past]), Tensor(
            self._values[layer_idx][:, :, past]
        )

    def reset(self) -> None:
        """Forget all tokens and keep the memory."""
        self.seq_pos = 0
        self._pending = 0

    def grown(self, max_seq_len: int) -> KVCache:
        """Give a copy with room for `max_seq_len` tokens."""
        twin = KVCache(
            self.batch_size,
            max_seq_len,
            self.num_layers,
            self.num_heads,
            self.head_dim,
            dtype=self._keys.dtype,
        )
        twin.seq_pos = self.seq_pos
        past = slice(0, self.seq_pos)
        twin._keys[:, :, :, past] = self._keys[:, :, :, past]
        twin._values[:, :, :, past] = self._values[:, :, :, past]
        return twin

    def get_memory_usage(self) -> dict[str, float]:
        """Give `total_mb`, `per_layer_mb`, `cache_tensors` and `total_elements` really held."""
        total = self._keys.nbytes + self._values.nbytes
        return {
            "total_mb": total / 2**20,
            "per_layer_mb": total / 2**20 / self.num_layers,
            "cache_tensors": 2 * self.num_layers,
            "total_elements": self._keys.size + self._values.size,
        }

    def _check_layer(self, layer_idx: int) -> None:
        if not 0 <= layer_idx < self.num_layers:
            raise SettingError(
                f"layer index {layer_idx} is outside of 0..{self.num_layers - 1} of this cache"
            )


def _array(value: Any) -> Array:
    return value.data if isinstance(value, Tensor) else np.asarray(value)
