"""Transformers: layer norm, the block, and GPT."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import numpy as np

from tinytorch.core.activations import GELU
from tinytorch.core.attention import KVCache, MultiHeadAttention
from tinytorch.core.autograd import no_grad
from tinytorch.core.backends import Array
from tinytorch.core.embeddings import Embedding, PositionalEmbedding, token_ids
from tinytorch.core.gpt2_checkpoint import read_gpt2
from tinytorch.core.layers import Dropout, Linear, Seed, Sequential
from tinytorch.core.module import Module, check_floating_point, entry_point, keeping_modes
from tinytorch.core.operations import normalization, products
from tinytorch.core.sampling import Sampler
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import CheckpointError, SettingError, ShapeError

__all__ = ["GPT", "LayerNorm", "TiedHead", "TinyGPT", "Transformer", "TransformerBlock"]


class LayerNorm(Module):
    """Normalise the last axis to mean 0 and variance 1, then scale and shift."""

    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        if normalized_shape < 1:
            raise SettingError(f"LayerNorm needs a width of at least 1, got {normalized_shape}")
        self.normalized_shape = normalized_shape
        self.eps = eps
        self.weight = Parameter(np.ones(normalized_shape, np.float32))
        self.bias = Parameter(np.zeros(normalized_shape, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.ndim == 0 or x.shape[-1] != self.normalized_shape:
            raise ShapeError(f"{self!r} needs input (..., {self.normalized_shape}), got {x.shape}")
        return apply(normalization.LayerNorm(self.eps), x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class TransformerBlock(Module):
    """Attention, then a small network, each on normalised input and added to what came in."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        eps: float = 1e-5,
        approximate: str = "tanh",
        rng: Seed = None,
    ) -> None:
        rng = np.random.default_rng(rng)
        hidden_dim = 4 * embed_dim if hidden_dim is None else hidden_dim
        self.norm1 = LayerNorm(embed_dim, eps)
        self.attention = MultiHeadAttention(embed_dim, num_heads, causal=causal, rng=rng)
        self.norm2 = LayerNorm(embed_dim, eps)
        self.mlp = Sequential(
            Linear(embed_dim, hidden_dim, rng=rng),
            GELU(approximate),
            Linear(hidden_dim, embed_dim, rng=rng),
        )
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        return x + self.dropout(self.mlp(self.norm2(x)))

    @entry_point
    def forward_with_cache(self, x: Tensor, cache: KVCache, layer_idx: int) -> Tensor:
        attended, _ = self.attention.forward_with_cache(self.norm1(x), cache, layer_idx)
        x = x + attended
        return x + self.mlp(self.norm2(x))


class TiedHead(Module):
    """The output layer of a language model: logits by the matrix of its token embedding."""

    def __init__(self, embedding: Embedding) -> None:
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        return apply(products.Linear(), x, self.embedding.weight.T)


class GPT(Module):
    """A GPT-2 style language model: token ids (batch, time) -> logits (batch, time, vocabulary).

    The token embedding is also the output matrix (tied weights).
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_layers: int,
        num_heads: int,
        max_seq_len: int = 1024,
        *,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        eps: float = 1e-5,
        approximate: str = "tanh",
        rng: Seed = None,
    ) -> None:
        sizes = (vocab_size, embed_dim, num_layers, num_heads, max_seq_len)
        if min(sizes) < 1:
            raise SettingError(f"every size of a GPT must be at least 1, got {sizes}")
        self.vocab_size = vocab_size
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.max_seq_len = max_seq_len
        rng = np.random.default_rng(rng)
        self.token_embedding = Embedding(vocab_size, embed_dim, rng=rng)
        self.position_embedding = PositionalEmbedding(max_seq_len, embed_dim, rng=rng)
        self.dropout = Dropout(dropout, rng=rng)
        self.blocks = [
            TransformerBlock(
                embed_dim,
                num_heads,
                hidden_dim=hidden_dim,
                dropout=dropout,
                causal=True,
                eps=eps,
                approximate=approximate,
                rng=rng,
            )
            for _ in range(num_layers)
        ]
        self.norm = LayerNorm(embed_dim, eps)
        self.head = TiedHead(self.token_embedding)
        self._initialise(rng)

    def _initialise(self, rng: np.random.Generator) -> None:
        """Draw weights as GPT-2 does: small, and smaller where blocks add to the stream."""
        residual_scale = 1 / math.sqrt(2 * len(self.blocks))
        for name, module in self.named_modules():
            if isinstance(module, Linear):
                scale = 0.02 * (
                    residual_scale if name.endswith(("out_proj", "mlp.layers.2")) else 1
                )
                draw = scale * rng.standard_normal(module.weight.shape)
                module.weight.data = draw.astype(np.float32)
                assert module.bias is not None
                module.bias.data = np.zeros_like(module.bias.data)

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    def forward(self, tokens: Any) -> Tensor:
        ids = self._check(tokens, past=0)
        x = self.dropout(self.position_embedding(self.token_embedding(ids)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @entry_point
    def forward_with_cache(
        self, tokens: Any, cache: KVCache | None = None
    ) -> tuple[Tensor, KVCache]:
        """Give the logits of new tokens that follow those in the cache, without a graph."""
        ids = self._check(tokens, past=0 if cache is None else cache.seq_pos)
        batch = ids if ids.ndim == 2 else ids[None]
        if cache is None:
            cache = self.make_cache(len(batch))
        with no_grad():
            x = self.position_embedding(self.token_embedding(batch), cache.seq_pos)
            for index, block in enumerate(self.blocks):
                x = block.forward_with_cache(x, cache, index)
            logits = self.head(self.norm(x))
        cache.advance()
        return logits.reshape(*ids.shape, self.vocab_size), cache

    def make_cache(self, batch_size: int = 1, max_seq_len: int | None = None) -> KVCache:
        """Give an empty cache that fits this model."""
        return KVCache(
            batch_size,
            self.max_seq_len if max_seq_len is None else max_seq_len,
            self.num_layers,
            self.num_heads,
            self.embed_dim // self.num_heads,
            dtype=self.norm.weight.dtype,
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
    ) -> Tensor:
        """Continue prompts (time,) or (batch, time): greedily, or by drawing at a temperature.

        Past `max_seq_len` tokens the model sees the last ones only. Generation ends early when
        every row has produced `stop_token`. Returns prompt and continuation as integers.
        """
        if max_new_tokens < 0:
            raise SettingError(f"max_new_tokens must be at least 0, got {max_new_tokens}")
        sampler = Sampler(temperature, top_k, top_p)
        rng = np.random.default_rng(seed)
        given = token_ids(prompt, self.vocab_size)
        if given.ndim not in (1, 2) or given.shape[-1] == 0:
            raise ShapeError(
                f"a prompt is (time,) or (batch, time) with a token, got {given.shape}"
            )
        ids = given.reshape(-1, given.shape[-1]).astype(np.int64)
        with keeping_modes(self):
            self.eval()
            ids = self._continue(ids, max_new_tokens, sampler, rng, stop_token, use_cache)
        return Tensor(ids if given.ndim == 2 else ids[0])

    def _continue(
        self,
        ids: Array,
        count: int,
        sampler: Sampler,
        rng: np.random.Generator,
        stop_token: int | None,
        use_cache: bool,
    ) -> Array:
        cache: KVCache | None = None
        stopped = np.zeros(len(ids), bool)
        for _ in range(count):
            if use_cache and ids.shape[1] <= self.max_seq_len:
                unseen = ids if cache is None else ids[:, cache.seq_pos :]
                logits, cache = self.forward_with_cache(unseen, cache)
            else:
                with no_grad():
                    logits = self(ids[:, -self.max_seq_len :])
            chosen = sampler.choose(logits.data[:, -1], rng)
            if stop_token is not None:
                chosen = np.where(stopped, stop_token, chosen)
                stopped |= chosen == stop_token
            ids = np.concatenate([ids, chosen[:, None]], axis=1)
            if stopped.all():
                break
        return ids

    def _check(self, tokens: Any, past: int) -> Array:
        ids = token_ids(tokens, self.vocab_size)
        if ids.ndim not in (1, 2):
            raise ShapeError(f"GPT needs token ids (batch, time), got {ids.shape}")
        if past + ids.shape[-1] > self.max_seq_len:
            raise ShapeError(
                f"GPT sees at most {self.max_seq_len} tokens (max_seq_len), "
                f"got {past + ids.shape[-1]}"
            )
        return ids

    @classmethod
    def from_gpt2(cls, folder: str | Path) -> Self:
        """Load a GPT-2 checkpoint in the layout that `transformers` writes."""
        settings, state = read_gpt2(Path(folder))
        model = cls.__new__(cls)
        try:
            GPT.__init__(model, **settings)  # a subclass may name its arguments otherwise
            model.load_state_dict(state)
        except (CheckpointError, SettingError) as error:
            raise CheckpointError(f"{folder}: {error}") from error
        return model.eval()

    def extra_repr(self) -> str:
        return f"vocab_size={self.vocab_size}, max_seq_len={self.max_seq_len}"


TinyGPT = GPT


class Transformer(GPT):
    """GPT with the argument names of the original paper."""

    def __init__(
        self, vocab_size: int, d_model: int, n_heads: int, n_layers: int, **settings: Any
    ) -> None:
        super().__init__(vocab_size, d_model, n_layers, n_heads, **settings)
