"""Transformers: layer norm, the block, and GPT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from tinytorch.core import operations
from tinytorch.core.activations import GELU
from tinytorch.core.attention import KVCache, MultiHeadAttention
from tinytorch.core.checkpoints import read_gpt2
from tinytorch.core.decoding import BlockParts, says
from tinytorch.core.dispatch import active_backend, run, state
from tinytorch.core.embeddings import Embedding, PositionalEmbedding
from tinytorch.core.kernels import Array, Kernel
from tinytorch.core.language_model import LanguageModel, TiedHead
from tinytorch.core.layers import Dropout, Linear, Seed, Sequential
from tinytorch.core.module import Module, check_floating_point, entry_point
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

    def forward(self, x: Tensor, added: Tensor | None = None) -> Any:
        """Normalise x; with `added`, return x + added and that sum normalised.

        Without a graph that is one fused kernel.
        """
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.normalized_shape:
            raise ShapeError(f"{self!r} needs input (..., {self.normalized_shape}), got {x.shape}")
        if added is None:
            return apply(operations.LayerNorm(self.eps), x, self.weight, self.bias)
        if state.grad_enabled or x.data.shape != added.data.shape:
            total = x + added
            return total, apply(operations.LayerNorm(self.eps), total, self.weight, self.bias)
        total, output = run(
            "add_layer_norm", x.data, added.data, self.weight.data, self.bias.data, eps=self.eps
        )
        return Tensor(total), Tensor(output)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


class TransformerBlock(Module):
    """Pre-norm transformer block: attention, then a feed-forward network, each with a residual.

    `ff_dim` is the hidden width of the feed-forward network, by default four times `embed_dim`;
    `hidden_dim` is an alias.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        ff_dim: int | None = None,
        *,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        window: int | None = None,
        eps: float = 1e-5,
        approximate: str = "tanh",
        rng: Seed = None,
    ) -> None:
        rng = np.random.default_rng(rng)
        given = hidden_dim if ff_dim is None else ff_dim
        if hidden_dim not in (None, given):
            raise SettingError(
                f"TransformerBlock got {ff_dim=} and {hidden_dim=}, two widths of one layer; "
                "leave one out"
            )
        width = 4 * embed_dim if given is None else given
        self.norm1 = LayerNorm(embed_dim, eps)
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, causal=causal, window=window, rng=rng
        )
        self.norm2 = LayerNorm(embed_dim, eps)
        self.mlp = Sequential(
            Linear(embed_dim, width, rng=rng),
            GELU(approximate),
            Linear(width, embed_dim, rng=rng),
        )
        self.dropout = Dropout(dropout, rng=rng)

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:
        x, normalised = self.norm2(x, self.dropout(self.attention(self.norm1(x), mask)))
        return x + self.dropout(self.mlp(normalised))

    @entry_point
    def forward_with_cache(self, x: Tensor, cache: KVCache, layer_idx: int) -> Tensor:
        if x.data.shape[1] == 1 and cache.padding is None and self._is_plain():
            return Tensor(self._decode(x.data, cache, layer_idx))
        attended, _ = self.attention.forward_with_cache(self.norm1(x), cache, layer_idx)
        x, normalised = self.norm2(x, attended)
        return x + self.mlp(normalised)

    def _is_plain(self) -> bool:
        """Return whether this block is unwatched and has only layers that :meth:`_decode` knows."""
        if state.recorders or state.grad_enabled or self.attention.window is not None:
            return False
        parts = self.parts()
        if parts is None:
            return False
        held = (*parts.norms, *parts.products, *parts.others)
        return not any(layer.is_watched for layer in held if layer is not None)

    def parts(self) -> BlockParts | None:
        """Return what one new token passes through, or None if it is not of the usual layers."""
        attention, layers = self.attention, list(getattr(self.mlp, "layers", ()))
        if len(layers) != 3:
            return None
        up, activation, down = layers
        products: tuple[Any, ...] = (
            attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj,
            up, None, down,
        )  # fmt: skip
        others = (attention, self.mlp, activation)
        if tuple(map(type, (self.norm1, self.norm2, *others))) != DECODED_TYPES or not all(
            says(layer.__class__, "product", "forward") for layer in products if layer is not None
        ):
            return None
        heads = attention.num_heads
        return BlockParts(
            norms=(self.norm1, self.norm2),
            products=products,
            activation="gelu_tanh" if activation.approximate == "tanh" else "gelu",
            heads=heads,
            kv_heads=heads,
            head_dim=attention.head_dim,
            others=others,
        )

    def _decode(self, x: Array, cache: KVCache, layer_idx: int) -> Array:
        """Run :meth:`forward_with_cache` for one new token (batch, 1, width), on plain arrays.

        The work per token is small: the overhead of layers and tensors would be a large share.
        """
        kernels = active_backend().kernels
        attention, (up, activation, down) = self.attention, self.mlp.layers
        normalised = kernels["layer_norm"](
            x, self.norm1.weight.data, self.norm1.bias.data, eps=self.norm1.eps
        )[0]
        split = (len(x), 1, attention.num_heads, attention.head_dim)
        query, key, value = (
            _multiply(kernels, layer, normalised).reshape(split).swapaxes(1, 2)
            for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        keys, values = cache.extend(layer_idx, key, value)
        scale = 1 / math.sqrt(attention.head_dim)
        mix, _ = kernels["attention"](
            query, keys, values, None, scale=scale, causal=False, keep_weights=False
        )
        mix = mix.swapaxes(1, 2).reshape(len(x), 1, -1)
        attended = _multiply(kernels, attention.out_proj, mix)
        total, normalised = kernels["add_layer_norm"](
            x, attended, self.norm2.weight.data, self.norm2.bias.data, eps=self.norm2.eps
        )
        fused = "gelu_tanh" if activation.approximate == "tanh" else "gelu"
        hidden = _multiply(kernels, up, normalised, activation=fused)
        return kernels["add"](total, _multiply(kernels, down, hidden))


DECODED_TYPES = (LayerNorm, LayerNorm, MultiHeadAttention, Sequential, GELU)


def _multiply(kernels: Mapping[str, Kernel], layer: Any, x: Array, **settings: Any) -> Array:
    kind, arrays, own_settings = layer.product()
    return kernels[kind](x, *arrays, **own_settings, **settings)


class GPT(LanguageModel):
    """A GPT-2 style language model: token ids (batch, time) -> logits (batch, time, vocabulary).

    The token embedding is also the output matrix (tied weights). With a `window`, a token sees
    itself and the `window` - 1 tokens before it, in every layer.
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
        window: int | None = None,
        eps: float = 1e-5,
        approximate: str = "tanh",
        rng: Seed = None,
    ) -> None:
        sizes = (vocab_size, embed_dim, num_layers, num_heads, max_seq_len)
        if min(sizes) < 1:
            raise SettingError(f"every size of a GPT must be at least 1, got {sizes}")
        self.vocab_size = vocab_size
        self.embed_dim = embed_dim
        self.max_seq_len = max_seq_len
        self.window = window
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
                window=window,
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

    def embed(self, ids: Array, start: int = 0, padding: Array | None = None) -> Tensor:
        return self.position_embedding(self.token_embedding(ids), start, padding)

    def _input(self, ids: Array) -> Tensor:
        return self.dropout(self.embed(ids))

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
        window = "" if self.window is None else f", window={self.window}"
        return f"vocab_size={self.vocab_size}, max_seq_len={self.max_seq_len}{window}"


TinyGPT = GPT


class Transformer(GPT):
    """GPT with the argument names of the original paper."""

    def __init__(
        self, vocab_size: int, d_model: int, n_heads: int, n_layers: int, **settings: Any
    ) -> None:
        super().__init__(vocab_size, d_model, n_layers, n_heads, **settings)
