"""LowRank: weights as the product of two thin matrices, by truncated singular values.

The best approximation of a matrix of a given rank keeps the largest singular values; its squared
error is the sum of the squares of the others (Eckart and Young, 1936).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytorch.core.kernels import Array
from tinytorch.core.kernels.backend import matmul
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, ShapeError
from tinytorch.models.adapter import Adapter, adapter_for, namespace_of
from tinytorch.models.workload import Workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Plan, Transform, Variant
from tinytorch.transforms.prune.layers import kind_of
from tinytorch.transforms.support.observing import checked_patterns, idle_patterns
from tinytorch.transforms.support.weights import (
    KINDS,
    WeightLayer,
    carry_out,
    factored_layer,
    find_weight_layers,
)

NO_SPEEDUP = (
    "there are fewer multiply-accumulates, but two kernels instead of one; compare() "
    "measures what that gives"
)
ROUNDING = 1e-12
"""The share of the energy that may be missing: singular values of zero are not exactly zero."""


def low_rank_approximate(w: Any, rank_ratio: float = 0.5) -> tuple[Any, ...]:
    """Return U (m, r), S (r,) and V (r, n) with w ~ U @ diag(S) @ V, the best of that rank.

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
    """Return the least rank whose squared singular values hold this share of all of them."""
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

    variants = (Variant("low-rank", "low-rank factorization of weights", {"energy": 0.95}),)
    role, place, order = "factors", 3, 60
    may_compete, effect = True, "replaces weights by products of smaller matrices"

    energy: float = 0.9
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.energy, bool) or not 0 < self.energy <= 1:
            raise SettingError(f"energy is a share, above 0 up to 1, got {self.energy!r}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def make_plan(self, workload: Workload, profile: Profile | None) -> Plan:
        """Find the rank of each layer, and where it pays. A copy of the model is called."""
        adapter = adapter_for(workload.model, workload.arguments)
        reason = adapter.why_no_module(workload.model)
        if reason:
            return self.skipping(reason)
        kinds = _kinds_of(adapter)
        layers = find_weight_layers(workload, self.keep, verb="factored", kinds=kinds)
        config: tuple[str, ...] = ()
        if adapter.name == "pytorch":
            from tinytorch.transforms.low_rank.torch import config_notes, leave_needed

            leave_needed(workload, layers)
            config = config_notes(workload.model)
        layers.choose(self._choose_rank)
        notes = idle_patterns(self.keep, layers.found, change="factored")
        return self.planned(
            layers.steps,
            layers.skipped,
            shrinkage=layers.shrinkage,
            not_predicted={"speedup": NO_SPEEDUP},
            notes=(*config, *notes) if layers.steps else notes,
        )

    def change(self, model: Any, workload: Workload, plan: Plan) -> Any:
        """Factor these layers."""
        adapter = adapter_for(model, workload.arguments)
        halves: dict[int, list[Any]] = {}  # of weights that layers share
        factored = _builder_of(adapter)

        def build(layer: Any, settings: Mapping[str, Any]) -> Any:
            weight = layer.weight
            if id(weight) not in halves:
                arrays = _halves(layer, adapter.values(weight), settings["rank"])
                halves[id(weight)] = [adapter.new_parameter(each, weight) for each in arrays]
            return factored(layer, *halves[id(weight)])

        return carry_out(model, plan, build, kinds=_kinds_of(adapter))

    def _choose_rank(self, each: WeightLayer) -> None:
        if getattr(each.layer, "groups", 1) > 1:
            each.reason = f"its weight is in {each.layer.groups} groups, which are small already"
            return
        matrix = _as_matrix(each.layer, each.weight)
        values = np.sqrt(_energies(matrix))
        rank = rank_for_energy(values, self.energy)
        if rank == 0:
            each.reason = "its weight is zero everywhere"
            return
        before, after = math.prod(matrix.shape), rank * sum(matrix.shape)
        if after >= before:
            each.reason = (
                f"rank {rank} of {len(values)} would need {after:,} weights instead of {before:,}"
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


def _kinds_of(adapter: Adapter) -> Collection[type]:
    if adapter.name == "pytorch":
        from tinytorch.transforms.low_rank.torch import kinds

        return kinds()
    return KINDS


def _builder_of(adapter: Adapter) -> Callable[..., Any]:
    if adapter.name == "pytorch":
        from tinytorch.transforms.low_rank.torch import factored_layer as factored_torch

        return factored_torch
    return factored_layer


# ---------------------------------------------------------------- factors, of arrays of NumPy and
# tensors of PyTorch, where they are


def _as_matrix(layer: Any, weight: Any) -> Any:
    """Return a weight as (outputs, inputs of one output)."""
    kind = kind_of(layer)
    assert kind is not None
    outputs = weight.shape[kind.output_axis]
    return namespace_of(weight).moveaxis(weight, kind.output_axis, 0).reshape(outputs, -1)


def _factors(matrix: Any, rank: int) -> tuple[Any, ...]:
    """Compute in float64, and return the dtype of the matrix; integers become float32."""
    xp = namespace_of(matrix)
    dtype = matrix.dtype if matrix.dtype in (xp.float16, xp.float32, xp.float64) else xp.float32
    exact = xp.asarray(matrix, dtype=xp.float64)
    is_wide = matrix.shape[0] < matrix.shape[1]
    left, values, right = _leading(exact.T if is_wide else exact, rank)
    if is_wide:
        left, right = right.T, left.T
    return tuple(xp.asarray(each, dtype=dtype) for each in (left, values, right))


def _leading(tall: Any, rank: int) -> tuple[Any, Any, Any]:
    """Return the largest singular values of a tall matrix, and their vectors on both sides."""
    linalg = namespace_of(tall).linalg
    if 2 * rank > tall.shape[1]:
        left, values, right = linalg.svd(tall, full_matrices=False)
        return left[:, :rank], values[:rank], right[:rank]
    # the products of columns have squares of singular values, so that those below 1e-8 of the first
    # are lost in rounding; what the matrix itself makes of the directions gives most of that back
    directions = linalg.eigh(_product(tall.T, tall))[1][:, -rank:]  # (columns, rank)
    basis = linalg.qr(_product(tall, directions))[0]  # (rows, rank)
    inner, values, right = linalg.svd(_product(basis.T, tall), full_matrices=False)
    return _product(basis, inner), values, right


def _energies(matrix: Any) -> Array:
    """Return the squared singular values, descending.

    They are those of the products of its columns, or of its rows if these are fewer: far less work,
    and of squares it loses no digits that matter.
    """
    xp = namespace_of(matrix)
    exact = xp.asarray(matrix, dtype=xp.float64)
    tall = exact.T if exact.shape[0] < exact.shape[1] else exact
    squares = xp.linalg.eigvalsh(_product(tall.T, tall)).tolist()
    found: Array = np.array(squares)[::-1].clip(min=0)
    return found


def _product(one: Any, other: Any) -> Any:
    return matmul(one, other) if isinstance(one, np.ndarray) else one @ other


def _halves(layer: Any, weight: Any, rank: int) -> tuple[Any, Any]:
    """Return weights of two layers, each with the roots of the singular values: they are alike."""
    xp = namespace_of(weight)
    matrix = xp.asarray(_as_matrix(layer, weight), dtype=xp.float64)
    left, values, right = _factors(matrix, rank)
    first = xp.sqrt(values)[:, None] * right  # (rank, in)
    second = left * xp.sqrt(values)  # (out, rank)
    if weight.ndim > 2:
        ones = [1] * (weight.ndim - 2)
        return first.reshape(rank, *weight.shape[1:]), second.reshape(-1, rank, *ones)
    return (first.T, second.T) if isinstance(layer, Linear) else (first, second)
