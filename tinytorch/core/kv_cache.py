"""A key-value cache: what attention has already computed for earlier tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CacheFullError, SettingError, ShapeError

__all__ = ["KVCache"]


class KVCache:
    """Keys and values of all layers, in arrays that are allocated once.

    Each layer calls :meth:`update` with the keys and values of the new tokens and attends to what
    it returns; after the last layer, :meth:`advance` makes the tokens part of the past.

    With a `window`, only that many tokens are held: each one sees itself and the `window` - 1
    before it. The memory is then a ring buffer, in which a token overwrites the one that has left
    the window. `max_seq_len` still limits the total number of tokens.

    Rows of a batch may begin at different times: :meth:`reset` takes how many positions on the left
    of each row are `padding`, which :meth:`mask` hides.
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
        window: int | None = None,
    ) -> None:
        sizes = (batch_size, max_seq_len, num_layers, num_heads, head_dim)
        if min(sizes) < 1:
            raise SettingError(f"every size of a cache must be at least 1, got {sizes}")
        if window is not None and window < 1:
            raise SettingError(f"a window must be at least 1 token, got {window}")
        self.batch_size = batch_size
        self.max_seq_len = max_seq_len
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.window = window
        self.slots = max_seq_len if window is None else min(window, max_seq_len)
        shape = (num_layers, batch_size, num_heads, self.slots, head_dim)
        self._keys = np.zeros(shape, dtype)
        self._values = np.zeros(shape, dtype)
        self._overwritten: set[int] = set()  # layers whose past an unfinished pass has reached
        self._mask: tuple[tuple[int, int], Array | None] | None = None
        self.reset()

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._keys.dtype

    # ------------------------------------------------------------ writing

    def update(self, layer_idx: int, key: Any, value: Any) -> tuple[Tensor, Tensor]:
        """Write (batch, heads, time, head_dim) after the past of a layer.

        Returns the keys and values that the new tokens may look at: the past and themselves, as
        views of the cache. In a window that has been filled, a single new token gets them in the
        order of the ring, several get a copy in the order of time; :meth:`mask` fits both.
        """
        keys, values = self.extend(layer_idx, _array(key), _array(value))
        return Tensor(keys), Tensor(values)

    def extend(self, layer_idx: int, key: Array, value: Array) -> tuple[Array, Array]:
        """Do what :meth:`update` does, on arrays."""
        shape = key.shape
        # Written out, because every layer comes by here for every token.
        if (
            len(shape) != 4
            or shape[0] != self.batch_size
            or shape[1] != self.num_heads
            or shape[3] != self.head_dim
            or value.shape != shape
        ):
            raise self._misfit(key, value)
        if not 0 <= layer_idx < self.num_layers:
            raise self._unknown_layer(layer_idx)
        start, time = self.seq_pos, shape[2]
        stop = start + time
        if stop > self.max_seq_len:
            raise CacheFullError(
                f"the cache is full: at position {start} of {self.max_seq_len}, "
                f"no room for {time} more; reset() it or make a longer one"
            )
        if self._overwritten and layer_idx in self._overwritten:
            raise SettingError(
                f"layer {layer_idx} got tokens at position {start} twice, and the first ones have "
                "taken the place of older ones; after an interrupted pass reset() the cache"
            )
        self._pending = time
        if stop > self.slots:
            return self._extend_ring(layer_idx, key, value)
        self._keys[layer_idx, :, :, start:stop] = key
        self._values[layer_idx, :, :, start:stop] = value
        return self._keys[layer_idx, :, :, :stop], self._values[layer_idx, :, :, :stop]

    def _extend_ring(self, layer_idx: int, key: Array, value: Array) -> tuple[Array, Array]:
        """Write where the tokens stand that no one sees any more."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        start, time, slots = self.seq_pos, key.shape[2], self.slots
        if time == 1:
            keys[:, :, start % slots] = key[:, :, 0]
            values[:, :, start % slots] = value[:, :, 0]
            return keys, values
        if start > 0:
            self._overwritten.add(layer_idx)
        past = self._past_positions(time) % slots
        seen = tuple(
            np.concatenate([held[:, :, past], new], axis=2)
            for held, new in ((keys, key), (values, value))
        )
        kept = np.arange(max(start, start + time - slots), start + time)  # the last that fit
        keys[:, :, kept % slots] = key[:, :, kept - start]
        values[:, :, kept % slots] = value[:, :, kept - start]
        return seen[0], seen[1]

    def _past_positions(self, time: int) -> Array:
        """Return the positions of the past that `time` new tokens may see, in order."""
        first = 0 if self.seq_pos + time <= self.slots else self.seq_pos - self.slots + 1
        return np.arange(max(0, first), self.seq_pos)

    def memory(self) -> tuple[Array, Array]:
        """Return keys and values (layers, batch, heads, slots, head_dim) in a row, to write."""
        return self._keys.reshape(-1), self._values.reshape(-1)

    def note_written(self, time: int) -> None:
        """Note that so many new tokens were written to :meth:`memory`, of all layers."""
        self._pending = time

    def advance(self) -> None:
        """Move past the tokens of the last update."""
        self.seq_pos += self._pending
        self._pending = 0
        if self._overwritten:
            self._overwritten = set()

    def reset(self, padding: Sequence[int] | Array | None = None) -> None:
        """Forget all tokens and keep the memory.

        `padding` says for each row how many of the positions to come, from the left, are empty.
        """
        self.padding = self._checked_padding(padding)
        self.seq_pos = 0
        self._pending = 0
        self._overwritten = set()
        self._mask = None

    # ------------------------------------------------------------ reading

    def mask(self, time: int) -> Array | None:
        """Return what to add to the scores of `time` new tokens, beside a causal mask, or None.

        It is 0, or -inf for padding and for what lies before the window; it broadcasts to (batch,
        heads, time, keys), with the keys as :meth:`update` gives them.
        """
        if self.padding is None and (time == 1 or self.seq_pos + time <= self.slots):
            return None
        place = (self.seq_pos, time)
        if self._mask is None or self._mask[0] != place:  # the same for every layer
            self._mask = (place, self._new_mask(time))
        return self._mask[1]

    def _new_mask(self, time: int) -> Array | None:
        new = np.arange(self.seq_pos, self.seq_pos + time)
        if time == 1 and self.seq_pos >= self.slots:  # the order of the ring
            keys = new - (new - np.arange(self.slots)) % self.slots
        else:
            keys = np.concatenate([self._past_positions(time), new])
        hidden = np.zeros((1, 1, 1, len(keys)), bool)
        if self.padding is not None:
            hidden = keys < self.padding[:, None, None, None]  # (batch, 1, 1, keys)
        if self.window is not None and len(keys) > self.window:
            hidden = hidden | (keys <= new[:, None] - self.window)  # (..., time, keys)
        return np.where(hidden, -np.inf, 0).astype(self.dtype) if hidden.any() else None

    def get(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first `seq_pos` tokens, as views of the cache.

        From a window, they are those of the last tokens that it holds, in order, and copied once it
        has been filled.
        """
        if not 0 <= layer_idx < self.num_layers:
            raise self._unknown_layer(layer_idx)
        held: Any = slice(0, self.seq_pos)
        if self.seq_pos > self.slots:
            held = np.arange(self.seq_pos - self.slots, self.seq_pos) % self.slots
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        return Tensor(keys[:, :, held]), Tensor(values[:, :, held])

    def grown(self, max_seq_len: int) -> KVCache:
        """Return a copy with room for `max_seq_len` tokens."""
        if max_seq_len < self.seq_pos:
            raise SettingError(
                f"the cache holds {self.seq_pos} tokens; it cannot shrink to {max_seq_len}"
            )
        twin = KVCache(
            self.batch_size,
            max_seq_len,
            self.num_layers,
            self.num_heads,
            self.head_dim,
            dtype=self.dtype,
            window=self.window,
        )
        twin.reset(self.padding)
        twin.seq_pos = self.seq_pos
        positions = np.arange(max(0, self.seq_pos - self.slots), self.seq_pos)
        to, source = positions % twin.slots, positions % self.slots
        twin._keys[:, :, :, to] = self._keys[:, :, :, source]
        twin._values[:, :, :, to] = self._values[:, :, :, source]
        return twin

    def get_memory_usage(self) -> dict[str, float]:
        """Return `total_mb`, `per_layer_mb`, `cache_tensors` and `total_elements` really held."""
        total = self._keys.nbytes + self._values.nbytes
        return {
            "total_mb": total / 2**20,
            "per_layer_mb": total / 2**20 / self.num_layers,
            "cache_tensors": 2 * self.num_layers,
            "total_elements": self._keys.size + self._values.size,
        }

    def __repr__(self) -> str:
        window = "" if self.window is None else f", window={self.window}"
        return (
            f"KVCache(batch_size={self.batch_size}, max_seq_len={self.max_seq_len}, "
            f"num_layers={self.num_layers}, num_heads={self.num_heads}, "
            f"head_dim={self.head_dim}{window}) at position {self.seq_pos}"
        )

    # ------------------------------------------------------------ bad input

    def _checked_padding(self, padding: Sequence[int] | Array | None) -> Array | None:
        if padding is None:
            return None
        counts = np.asarray(padding)
        if counts.shape != (self.batch_size,) or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise SettingError(
                f"padding is one number of empty positions for each of the {self.batch_size} rows, "
                f"got {padding!r}"
            )
        return counts.astype(np.int64) if counts.any() else None

    def _misfit(self, key: Array, value: Array) -> ShapeError:
        return ShapeError(
            f"the cache holds (batch, heads, time, head_dim) = ({self.batch_size}, "
            f"{self.num_heads}, time, {self.head_dim}), got key {key.shape} "
            f"and value {value.shape}"
        )

    def _unknown_layer(self, layer_idx: int) -> SettingError:
        return SettingError(
            f"layer index {layer_idx} is outside of 0..{self.num_layers - 1} of this cache"
        )


def _array(value: Any) -> Array:
    return value.data if isinstance(value, Tensor) else np.asarray(value)
