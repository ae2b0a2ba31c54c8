"""The layers of a PyTorch model that quantizers know, and putting others into their places."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

__all__ = ["QuantizedEmbedding", "as_linear", "kind_of", "weights_of"]

KINDS: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv2d: "convolution",
    nn.Embedding: "embedding",
    nn.LSTM: "recurrent",
    nn.GRU: "recurrent",
}
"""Layers by their exact class: a subclass may compute something else."""


def kind_of(module: nn.Module) -> str | None:
    """Name the kind of a layer: linear, convolution, embedding, recurrent; None for others."""
    return "linear" if _is_transposed(module) else KINDS.get(type(module))


def weights_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """Give the weights that a quantizer replaces, by name; biases are not among them.

    None where a hook computes the weight anew before each call, as weight normalisation does.
    """
    own = dict(module.named_parameters(recurse=False))
    if KINDS.get(type(module)) == "recurrent":
        return {name: tensor for name, tensor in own.items() if name.startswith("weight_")}
    return {"weight": own["weight"]} if "weight" in own else {}


def as_linear(module: nn.Module) -> nn.Module:
    """Give the `Linear` that computes the same as a `Conv1D` of transformers; others as they are.

    GPT-2 and its kin hold (inputs, outputs), where `Linear` and all quantizers want the transposed
    matrix. No number is copied: the weight is a view.
    """
    if not _is_transposed(module):
        return module
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    inputs, outputs = weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = nn.Parameter(weight.detach().T, requires_grad=False)
    linear.bias = module.bias  # type: ignore[assignment]
    return linear


def _is_transposed(module: nn.Module) -> bool:
    source = sys.modules.get("transformers.pytorch_utils")
    return source is not None and type(module) is getattr(source, "Conv1D", None)


class QuantizedEmbedding(nn.Embedding):
    """Look up rows of an INT8 table of torchao and turn only these into floats.

    torchao itself would turn the whole table into floats at every call.
    """

    def __init__(self, embedding: nn.Embedding, weight: nn.Parameter) -> None:
        super().__init__(
            embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx, device="meta"
        )
        self.weight = weight

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Give the rows of the ids, in the dtype of the table before."""
        table: Any = self.weight
        rows = nn.functional.embedding(input, table.qdata)
        scale = nn.functional.embedding(input, table.scale)
        return (rows * scale).to(table.dtype)
