"""How many of a model's weights are zero."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.core.tensor import Parameter, Tensor

__all__ = ["count_weights", "sparsity_of", "weights_of"]


def weights_of(model: Any) -> dict[str, Any]:
    """Give the parameters with two or more axes by name, each once.

    These are the weights of linear layers and convolutions, and the tables of embeddings; biases,
    norms and buffers are not among them.
    """
    if adapter_for(model).name == "pytorch":
        from tinytorch.perf.compression.masks_torch import named_weights

        return {name: each for name, each in named_weights(model).items() if each.dim() >= 2}
    tensors = named_tensors(model)
    if not any(map(_is_learned, tensors.values())) and hasattr(model, "parameters"):
        tensors = {str(number): each for number, each in enumerate(model.parameters())}
        return {name: each for name, each in tensors.items() if np.ndim(each.data) >= 2}
    return {
        name: each for name, each in tensors.items() if each.data.ndim >= 2 and _is_learned(each)
    }


def sparsity_of(model: Any) -> float:
    """Give the share of the weights, those with two or more axes, that are zero; 0 for none.

    Layers that hold a weight in another form (sparse, shared, quantized) count as the weight that
    they stand for. Packed layers of PyTorch are not counted: no tensor shows what they hold.
    """
    size, zeros = count_weights(model)
    return zeros / size if size else 0.0


def count_weights(model: Any) -> tuple[int, int]:
    """Give how many numbers are in the weights that `sparsity_of` counts, and how many are 0."""
    size = zeros = 0
    for weight in chain(weights_of(model).values(), _weights_in_other_forms(model)):
        if isinstance(weight, Tensor):
            size += weight.data.size
            zeros += weight.data.size - int(np.count_nonzero(weight.data))
        else:
            size += weight.numel()
            zeros += int((weight.detach() == 0).sum())
    return size, zeros


def _weights_in_other_forms(model: Any) -> Iterator[Tensor]:
    """Yield the weights that layers stand for whose `values` are something else, each once.

    They are made one after the other, so that only one of them is there in full.
    """
    seen: set[int] = set()
    for module in adapter_for(model).modules(model).values():
        values = getattr(module, "values", None)
        if not isinstance(values, Tensor) or not hasattr(module, "weight_size"):
            continue
        if id(values) not in seen and hasattr(module, "weight"):
            seen.add(id(values))
            yield module.weight


def _is_learned(tensor: Tensor) -> bool:
    return isinstance(tensor, Parameter) or tensor.requires_grad
