"""FoldBatchNorm: the transform that puts a batch norm into the weights of the layer before it."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.transforms.plan import TorchTransform, Variant


@dataclass(frozen=True)
class FoldBatchNorm(TorchTransform):
    """Fold batch norms into the convolution or linear layer whose output they normalise.

    In evaluation mode a batch norm multiplies each channel by a number and adds another one; both
    go into the weight and the bias of the layer before. Which layer that is, is seen in a call of
    the model: its output is what the norm gets, and nothing else reads it. The code of the module
    around both must prove that this holds for every call (torch.fx traces it). An empty layer stays
    instead of the norm, so that names stay. The copy is for evaluation: calling it in
    training mode is an error.
    """

    variants = (
        Variant(
            "fold-batch-norm",
            "fold batch norms into the convolutions before them",
            cost="the copy cannot be trained further",
        ),
    )
    role, place, order = "norms", 2, 30
    risk = "exact"

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.fold_batch_norm import torch as fold_batch_norm_torch

        return fold_batch_norm_torch
