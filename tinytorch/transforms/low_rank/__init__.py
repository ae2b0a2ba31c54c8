"""LowRank: weights as the product of two thin matrices, by truncated singular values.

The best approximation of a matrix of a given rank keeps the largest singular values; its squared
error is the sum of the squares of the others (Eckart and Young, 1936).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.kernels.backend import matmul
from tinytorch.core.module import Module
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.errors import SettingError, ShapeError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload, check_workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Plan, Transform, Variant
from tinytorch.transforms.support.observing import checked_patterns, idle_patterns
from tinytorch.transforms.support.weights import (
    WeightLayer,
    carry_out,
    factored_layer,
    find_weight_layers,
)

__all__ = ["LowRank", "low_rank_approximate", "rank_for_energy"]

NAME = "LowRank"
NO_SPEEDUP = (
    "there are fewer multiply-accumulates, but two kernels in the place of one; compare() "
    "measures what that gives"
)
ROUNDING = 1e-12
"""The share of the energy that may be missing: singular values of zero are not exactly zero."""

Factors = tuple[Array, Array, Array]


def low_rank_approximate(w: Any, rank_ratio: float = 0.5) -> Factors:
    """Give U (m, r), S (r,) and V (r, n) with w ~ U @ diag(S) @ V, the best there is of that rank.

    r is `rank_ratio` of the smaller side of the matrix w (a tensor or an array), at least 1.

    >>> U, S, V = low_rank_approximate(np.outer([1.0, 2.0, 3.0, 4.0], [2.0, 1.0]))
    >>> U.shape, S.shape, V.shape
    ((4, 1), (1,), (1, 2))
    >>> np.round(U @ np.diag(S) @ V, 6)[3].tolist()
    [8.0, 4.0]
    """
    if isinstance(rank_ratio, bool) or not 0 < rank_ratio <= 1:
        raise SettingError(f"rank_ratio is a share of the rank, above 0 up to 1, got {rank_ratio}")
    if hasattr(w, "detach") and not isinstance(w, Tensor):
        w = w.detach().cpu()  # of PyTorch
    matrix = np.asarray(w.data if isinstance(w, Tensor) else w)
    if matrix.ndim != 2 or not matrix.size:
        raise ShapeError(
            f"a matrix is approximated, got the shape {matrix.shape}; reshape the kernels of a "
            "convolution to (out, -1)"
        )
    if matrix.dtype.kind not in "biuf" or not np.isfinite(matrix).all():
        raise SettingError(
            f"a matrix of finite numbers is approximated; this one of {matrix.dtype} holds others"
        )
    rank = max(1, round(rank_ratio * min(matrix.shape)))
    return _factors(matrix, rank)


def rank_for_energy(singular_values: Array, energy: float) -> int:
    """Give the least rank whose squared singular values hold this share of all of them."""
    held = np.cumsum(np.square(singular_values, dtype=np.float64))
    if not held.size or held[-1] == 0:
        return 0
    wanted = (energy - ROUNDING) * held[-1]
    return min(int(np.searchsorted(held, wanted)) + 1, len(held))


@dataclass(frozen=True)
class LowRank(Transform):
    """Replace a layer by two thin ones, at the least rank that holds `energy` of its weight.

    A `Linear` becomes two, a `Conv2d` one to `rank` channels and one of 1x1, inside of a
    `Sequential` that still has a `weight`, their product; each only where that takes fewer weights,
    and so fewer multiply-accumulates. The energy of a weight are its squared singular values: what
    is lost of them is the squared relative error of the weight. keep: patterns of layers that stay.
    """

    variants = (
        Variant("low-rank", "write weights as products of two smaller matrices", {"energy": 0.95}),
    )
    role, place, order = "factors", 3, 60
    may_compete, effect = True, "replaces weights by products of smaller matrices"

    energy: float = 0.9
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.energy, bool) or not 0 < self.energy <= 1:
            raise SettingError(f"energy is a share, above 0 up to 1, got {self.energy!r}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Find the rank of each layer, and where it pays. A copy of the model is called."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.low_rank.torch import plan_torch

            return plan_torch(workload, self)
        layers = find_weight_layers(workload, self.keep, verb="factored")
        layers.choose(self._choose_rank)
        return Plan(
            NAME,
            self.to_dict(),
            layers.steps,
            layers.skipped,
            shrinkage=layers.shrinkage,
            not_predicted={"speedup": NO_SPEEDUP},
            notes=idle_patterns(self.keep, layers.found, change="factored"),
        )

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model with these layers factored."""
        plan.check_made_by(NAME, self.to_dict())
        if adapter_for(workload.model, workload.arguments).name == "pytorch":
            from tinytorch.transforms.low_rank.torch import apply_torch

            return apply_torch(workload, plan, self)
        halves: dict[int, tuple[Parameter, Parameter]] = {}  # of weights that layers share

        def build(layer: Any, settings: Mapping[str, Any]) -> Module:
            weight = layer.weight
            if id(weight) not in halves:
                halves[id(weight)] = _halves(weight, settings["rank"])
            return factored_layer(layer, *halves[id(weight)])

        return carry_out(workload, plan, build)

    def _choose_rank(self, each: WeightLayer) -> None:
        if getattr(each.layer, "groups", 1) > 1:
            each.reason = f"its weight is in {each.layer.groups} groups, which are small already"
            return
        matrix = _as_matrix(each.weight)
        values = np.sqrt(_energies(matrix))
        rank = rank_for_energy(values, self.energy)
        if rank == 0:
            each.reason = "its weight is zero everywhere"
            return
        before, after = matrix.size, rank * sum(matrix.shape)
        if after >= before:
            each.reason = (
                f"rank {rank} of {len(values)} would need {after:,} weights in the place of "
                f"{before:,}"
            )
            return
        total, lost = float(np.sum(values**2)), float(np.sum(values[rank:] ** 2))
        each.what = f"rank {rank} of {len(values)}"
        each.why = f"{1 - lost / total:.1%} of its energy in {after:,} of {before:,} weights"
        each.settings = {
            "rank": rank,
            "full_rank": len(values),
            "energy": 1 - lost / total,
            "relative_error": math.sqrt(lost / total),
        }
        each.new_bytes = after * each.weight.itemsize


def _as_matrix(weight: Array) -> Array:
    """Give a weight (in, out), or the kernels (out, in, height, width) as (in * patch, out)."""
    return weight if weight.ndim == 2 else weight.reshape(len(weight), -1).T


def _factors(matrix: Array, rank: int) -> Factors:
    """Compute in float64, and give the dtype of the matrix; integers become float32."""
    dtype = matrix.dtype if matrix.dtype.kind == "f" else np.dtype(np.float32)
    exact = matrix.astype(np.float64)
    is_wide = matrix.shape[0] < matrix.shape[1]
    left, values, right = _leading(exact.T if is_wide else exact, rank)
    if is_wide:
        left, right = right.T, left.T
    return left.astype(dtype), values.astype(dtype), right.astype(dtype)


def _leading(tall: Array, rank: int) -> Factors:
    """Give the largest singular values of a tall matrix, and their vectors on both sides."""
    if 2 * rank > tall.shape[1]:
        left, values, right = np.linalg.svd(tall, full_matrices=False)
        return left[:, :rank], values[:rank], right[:rank]
    # the products of columns have squares of singular values, so that those below 1e-8 of the first
    # are lost in rounding; what the matrix itself makes of the directions gives most of that back
    directions = np.linalg.eigh(matmul(tall.T, tall))[1][:, -rank:]  # (columns, rank)
    basis = np.linalg.qr(matmul(tall, directions))[0]  # (rows, rank)
    inner, values, right = np.linalg.svd(matmul(basis.T, tall), full_matrices=False)
    return matmul(basis, inner), values, right


def _energies(matrix: Array) -> Array:
    """Give the squared singular values, descending.

    They are those of the products of its columns, or of its rows if these are fewer: far less work,
    and of squares it loses no digits that matter.
    """
    exact = matrix.astype(np.float64)
    tall = exact.T if exact.shape[0] < exact.shape[1] else exact
    squares: Array = np.linalg.eigvalsh(matmul(tall.T, tall))[::-1].clip(min=0)
    return squares


def _halves(weight: Tensor, rank: int) -> tuple[Parameter, Parameter]:
    """Give weights of two layers; each gets the root of the singular values, so both are alike."""
    left, values, right = _factors(_as_matrix(weight.data).astype(np.float64), rank)
    first, second = left * np.sqrt(values), np.sqrt(values)[:, None] * right  # (in, r), (r, out)
    if weight.ndim == 4:
        first = first.T.reshape(rank, *weight.shape[1:])
        second = second.T.reshape(-1, rank, 1, 1)
    dtype, is_learned = weight.dtype, weight.requires_grad
    halves = (np.ascontiguousarray(each, dtype) for each in (first, second))
    one, other = (Parameter(each, requires_grad=is_learned) for each in halves)
    return one, other
