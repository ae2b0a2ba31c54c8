"""The heads of attention layers as transformers writes them, to be removed whole. After torch.

torch-pruning takes a head for so many channels, which it would remove one by one. Here a unit is a
head with its queries, keys, values and its inputs of the projection after it; where several heads
share keys and values, they are one unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from tinytorch.perf.compression.channel_groups_torch import ChannelGroup, Indices
from tinytorch.perf.compression.models_torch import is_transposed_linear, owners_of_tensors
from tinytorch.perf.compression.trimming_torch import Place

__all__ = ["find_heads"]

SEPARATE = (
    ("q_proj", "k_proj", "v_proj", ("o_proj", "out_proj")),
    ("query", "key", "value", ()),
)
"""Queries, keys, values, and what comes after them; nothing: the layer `output.dense` beside."""
FUSED = ("c_attn", "c_proj")
HEAD_SIZES = ("head_dim", "attention_head_size")
QUERY_COUNTS = ("num_heads", "num_attention_heads", "n_heads")
KEY_COUNTS = ("num_key_value_heads", "num_kv_heads")
WIDTHS = ("all_head_size", "split_size")
"""Numbers that an attention layer may keep, for its heads and for the channels of all of them."""


@dataclass(frozen=True)
class _Attention:
    """An attention layer: the layers that make queries, keys and values, and the one after them."""

    path: str
    makers: tuple[tuple[str, nn.Module], ...]
    after: tuple[str, nn.Module]
    head_size: int
    sizes: Mapping[str, int]
    """How many heads, or channels, of a unit the layer counts, by its own names for them."""
    units: int

    def group(self) -> ChannelGroup:
        places: dict[Place, Indices] = {}
        for path, layer in self.makers:
            is_fused = len(self.makers) == 1
            total = int(layer.nf if is_transposed_linear(layer) else layer.out_features)  # type: ignore[arg-type]
            indices = _rows(total // 3 if is_fused else total, self.units)
            if is_fused:
                indices = np.concatenate([indices + part * total // 3 for part in range(3)], 1)
            axis = 1 if is_transposed_linear(layer) else 0
            places[Place(f"{path}.weight", axis)] = indices
            if layer.bias is not None:
                places[Place(f"{path}.bias", 0)] = indices
        path, layer = self.after
        is_turned = is_transposed_linear(layer)
        taken = Place(f"{path}.weight", 0 if is_turned else 1)
        inputs = int(layer.nx if is_turned else layer.in_features)  # type: ignore[arg-type]
        places[taken] = _rows(inputs, self.units)
        return ChannelGroup(
            (self.path, *(path for path, _ in self.makers)),
            "heads",
            places,
            frozenset({taken}),
            {self.path: self.sizes},
        )


def find_heads(model: nn.Module) -> list[ChannelGroup]:
    """Give a group of heads for each attention layer whose parts are known."""
    owners = owners_of_tensors(model)
    groups = []
    for path, module in model.named_modules():
        attention = _separate(model, path, module) or _fused(path, module)
        if attention is None:
            continue
        group = attention.group()
        shared = [
            name
            for _, layer in (*attention.makers, attention.after)
            for name in owners[id(layer.weight)][1:]
        ]
        if shared:
            group.reason = f"its weights are shared under the name {shared[0]!r}"
        groups.append(group)
    return groups


def _rows(total: int, units: int) -> Indices:
    """Split indices evenly: those of each unit lie side by side."""
    return np.arange(total).reshape(units, -1)


def _number(module: nn.Module, names: tuple[str, ...]) -> int:
    """Give the first of some numbers that a layer keeps, 0 if it keeps none."""
    found = (getattr(module, name, None) for name in names)
    return next((each for each in found if isinstance(each, int) and each > 0), 0)


def _separate(model: nn.Module, path: str, module: nn.Module) -> _Attention | None:
    for query, key, value, after in SEPARATE:
        makers = tuple(
            (f"{path}.{name}", getattr(module, name))
            for name in (query, key, value)
            if type(getattr(module, name, None)) is nn.Linear
        )
        last = _after(model, path, module, after)
        size = _number(module, HEAD_SIZES)
        if len(makers) < 3 or last is None or not size:
            continue
        queries, keys, values = (layer.out_features // size for _, layer in makers)
        is_even = all(layer.out_features % size == 0 for _, layer in makers)
        fits = last[1].in_features == queries * size and keys == values
        if is_even and fits and keys and queries % keys == 0:
            sizes = _sizes(module, queries // keys, size)
            return _Attention(path, makers, last, size, sizes, keys)
    return None


def _after(
    model: nn.Module, path: str, module: nn.Module, names: tuple[str, ...]
) -> tuple[str, Any] | None:
    """Find the linear layer that takes what the heads give, with its path."""
    for name in names:
        if type(getattr(module, name, None)) is nn.Linear:
            return f"{path}.{name}", getattr(module, name)
    parent = path.rpartition(".")[0]
    found = getattr(getattr(model.get_submodule(parent), "output", None), "dense", None)
    beside = f"{parent}.output.dense" if parent else "output.dense"
    return (beside, found) if not names and type(found) is nn.Linear else None


def _fused(path: str, module: nn.Module) -> _Attention | None:
    """Find GPT-2's attention: queries, keys and values of one layer, split by `split_size`."""
    made, last = (getattr(module, name, None) for name in FUSED)
    size = _number(module, HEAD_SIZES)
    if not (is_transposed_linear(made) and is_transposed_linear(last)) or not size:
        return None
    assert isinstance(made, nn.Module)
    assert isinstance(last, nn.Module)
    width = int(last.nx)  # type: ignore[arg-type]
    if made.nf != 3 * width or getattr(module, "split_size", None) != width or width % size:
        return None
    sizes = _sizes(module, 1, size)
    parts = ((f"{path}.{FUSED[0]}", made),)
    return _Attention(path, parts, (f"{path}.{FUSED[1]}", last), size, sizes, width // size)


def _sizes(module: nn.Module, per_unit: int, head_size: int) -> dict[str, int]:
    """Say what each number that the layer keeps counts in a unit of some heads."""
    counts = dict.fromkeys(QUERY_COUNTS, per_unit) | dict.fromkeys(KEY_COUNTS, 1)
    counts |= dict.fromkeys(WIDTHS, per_unit * head_size)
    return {
        name: each for name, each in counts.items() if isinstance(getattr(module, name, None), int)
    }
