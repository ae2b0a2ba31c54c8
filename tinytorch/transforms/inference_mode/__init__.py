"""InferenceMode: the transform that calls a model without anything that only training needs."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.transforms.plan import TorchTransform, Variant

INFERENCE_MODE = "inference-mode"
"""What a user gets by calling a model in another way; results show what it brings alone."""


@dataclass(frozen=True)
class InferenceMode(TorchTransform):
    """Call a PyTorch model in evaluation mode and inside of `torch.inference_mode()`.

    Nothing is recorded for a backward pass, and parameters ask for no gradients. The outputs are
    inference tensors: they cannot take part in a graph, and not be written to elsewhere; `clone()`
    gives ordinary ones. A model whose call computes gradients itself, or whose inputs ask for some,
    is left alone, and so is one in training mode that gives other outputs there.
    """

    variants = (
        Variant(
            INFERENCE_MODE,
            "disable autograd (torch.inference_mode)",
            cost="outputs cannot take part in a graph",
        ),
    )
    role, place, order = "calling", 8, 150
    risk = "exact"
    follows_weights = True

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.inference_mode import torch as inference_mode_torch

        return inference_mode_torch
