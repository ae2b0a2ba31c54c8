"""FuseAttention: the transform that computes softmax(q k^T) v in one go where a model does not."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.transforms.plan import TorchTransform, Variant


@dataclass(frozen=True)
class FuseAttention(TorchTransform):
    """Replace attention that a model computes by hand with PyTorch's fused attention.

    By hand, a matrix of scores, queries times keys, is written to memory and read again by each of
    product, scale, mask, softmax and sum; fused attention never holds it. Models of transformers
    are switched from "eager" to "sdpa". In other models the chain of operations is searched in
    graphs of the modules that compute it, and those modules get a derived class with the chain
    replaced; parameters, names, hooks and methods stay. A call of another kind than the one that
    was seen (a mask where there was none, training mode) is computed by hand as before. Outputs
    are the same within rounding.
    """

    variants = (Variant("fused-attention", "fused attention (SDPA) in place of explicit softmax"),)
    role, place, order = "attention", 2, 40
    risk = "exact"
    follows_weights = True

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.fuse_attention import torch as fuse_attention_torch

        return fuse_attention_torch
