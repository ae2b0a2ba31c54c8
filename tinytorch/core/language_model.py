"""What language models share: logits of tokens, with a key-value cache or without, and text."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.core import generation, operations
from tinytorch.core.autograd import no_grad
from tinytorch.core.decoding import decode_token
from tinytorch.core.embeddings import CheckedIds, Embedding, token_ids
from tinytorch.core.kernels import Array
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.layers import Product
from tinytorch.core.module import Module, entry_point, keeping_modes
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import SettingError, ShapeError

__all__ = ["LanguageModel", "TiedHead"]


class TiedHead(Module):
    """The output layer of a language model: logits by the matrix of its token embedding."""

    def __init__(self, embedding: Embedding) -> None:
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        return apply(operations.Linear(), x, self.embedding.weight.T)

    def product(self) -> Product:
        """Return the kernel that computes this layer, and what it takes after x."""
        return "linear", (self.embedding.weight.data.T, None), {}


class LanguageModel(Module):
    """Token ids (batch, time) -> logits (batch, time, vocabulary), and what continues a prompt.

    A subclass embeds tokens, and has `blocks`, a last `norm` and a `head`.
    """

    vocab_size: int
    max_seq_len: int
    window: int | None = None
    blocks: list[Any]
    norm: Any
    head: Any

    def embed(self, ids: Array, start: int = 0, padding: Array | None = None) -> Tensor:
        """Return the vectors (batch, time, width) of tokens at the positions from `start` on."""
        raise NotImplementedError(f"{type(self).__name__} does not define embed()")

    def _input(self, ids: Array) -> Tensor:
        """Return what the first block gets in a call without a cache."""
        return self.embed(ids)

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    @property
    def num_heads(self) -> int:
        """Attention heads per layer."""
        return int(self.blocks[0].attention.num_heads)

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values per layer, which a cache holds."""
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return int(self.blocks[0].attention.head_dim)

    def forward(self, tokens: Any) -> Tensor:
        ids = CheckedIds.of(self._check(tokens, past=0), self.vocab_size)
        # Embedded here and held by one name: a caller's reference would outlast the first block.
        x = self._input(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @entry_point
    def forward_with_cache(
        self, tokens: Any, cache: KVCache | None = None, *, last_only: bool = False
    ) -> tuple[Tensor, KVCache]:
        """Return the logits of new tokens that follow those in the cache, without a graph.

        `last_only` returns those of the last token alone, (batch, 1, vocabulary), which is all that
        generation needs.
        """
        ids = self._check(tokens, past=0 if cache is None else cache.seq_pos)
        batch = ids if ids.ndim == 2 else ids[None]
        if cache is None:
            cache = self.make_cache(len(batch))
        else:
            self.check_cache(cache, len(batch))
        with no_grad():
            ids_in = CheckedIds.of(batch, self.vocab_size)
            x = self.embed(ids_in, cache.seq_pos, cache.padding)
            decoded = decode_token(self, x.data, cache) if batch.shape == (1, 1) else None
            if decoded is not None:
                logits = Tensor(decoded)
            else:
                for index, block in enumerate(self.blocks):
                    x = block.forward_with_cache(x, cache, index)
                if last_only and x.data.shape[1] > 1:
                    x = x[:, -1:]
                logits = self.head(self.norm(x))
            if ids.ndim == 1:
                logits = logits[0]
        cache.advance()
        return logits, cache

    def make_cache(self, batch_size: int = 1, max_seq_len: int | None = None) -> KVCache:
        """Return an empty cache that fits this model."""
        return KVCache(
            batch_size,
            self.max_seq_len if max_seq_len is None else max_seq_len,
            self.num_layers,
            self.num_kv_heads,
            self.head_dim,
            dtype=self.norm.weight.dtype,
            window=self.window,
        )

    def check_cache(self, cache: KVCache, batch_size: int) -> None:
        """Raise unless a cache fits this model and this number of sequences."""
        names = ("batch_size", "num_layers", "num_heads", "head_dim", "window")
        wanted = (batch_size, len(self.blocks), self.num_kv_heads, self.head_dim, self.window)
        found = (
            cache.batch_size,
            cache.num_layers,
            cache.num_heads,
            cache.head_dim,
            cache.window,
        )
        if found == wanted:
            return
        wrong = [
            f"{name}={seen} instead of {needed}"
            for name, seen, needed in zip(names, found, wanted, strict=True)
            if seen != needed
        ]
        raise ShapeError(
            f"the cache does not fit: {', '.join(wrong)}; make_cache({batch_size}) returns one "
            "that does"
        )

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 50,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | np.random.Generator | None = None,
        stop_token: int | None = None,
        use_cache: bool = True,
        cache: KVCache | None = None,
        on_token: generation.OnToken | None = None,
    ) -> Any:
        """Continue prompts: greedily, or by drawing at a temperature.

        A prompt (time,) or prompts (batch, time) give prompt and continuation as an integer tensor
        with the same axes; rows that have produced `stop_token` are filled up with it. A list of
        prompts of different lengths gives a list of tensors (time,), each up to its own end.

        Past `max_seq_len` tokens the model sees the last ones only. Generation ends early when
        every row has produced `stop_token`. `cache` brings memory to use again (it is reset);
        `on_token` is called with each new token of all rows, an array (batch,).
        """
        generation.check_count(max_new_tokens)
        sampler = generation.Sampler(temperature, top_k, top_p)
        prompts = generation.read_prompts(prompt, self.vocab_size)
        if stop_token is not None:
            token_ids(stop_token, self.vocab_size)
        if cache is not None and not use_cache:
            raise SettingError("a cache was given with use_cache=False; leave out one of them")
        if use_cache:
            cache = generation.cache_for(self, prompts, max_new_tokens, cache)
        with keeping_modes(self), generation.without_attached_cache(self):
            self.eval()
            return generation.continue_prompts(
                self,
                prompts,
                max_new_tokens,
                sampler=sampler,
                rng=np.random.default_rng(seed),
                stop_token=stop_token,
                cache=cache,
                on_token=on_token,
            )

    def _check(self, tokens: Any, past: int) -> Array:
        ids = token_ids(tokens, self.vocab_size)
        if ids.ndim not in (1, 2):
            raise ShapeError(
                f"{type(self).__name__} needs token ids (batch, time), got {ids.shape}"
            )
        if past + ids.shape[-1] > self.max_seq_len:
            raise ShapeError(
                f"{type(self).__name__} sees at most {self.max_seq_len} tokens (max_seq_len), "
                f"got {past + ids.shape[-1]}"
            )
        return ids
