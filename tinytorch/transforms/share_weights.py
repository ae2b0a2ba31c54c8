"""ShareWeights: the transform that lets the weights of a layer share a few values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from tinytorch.core import operations as convolution
from tinytorch.core import operations as products
from tinytorch.core.dispatch import run
from tinytorch.core.kernels import Array
from tinytorch.core.kernels.reference_quantized import (
    LARGEST_CODEBOOK,
    check_codes,
    code_bytes,
    pack_codes,
    unpack_codes,
)
from tinytorch.core.kernels.reference_spatial import output_size
from tinytorch.core.layers import Linear, Product
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.operations import Gradients, Operation
from tinytorch.core.spatial import Conv2d, check_window, on_batch
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import DTypeError, SettingError, ShapeError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload, check_workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Plan, Skipped, Transform
from tinytorch.transforms.support.observing import checked_patterns, idle_patterns
from tinytorch.transforms.support.weights import WeightLayer, carry_out, find_weight_layers

__all__ = [
    "ShareWeights",
    "SharedWeightConv2d",
    "SharedWeightLayer",
    "SharedWeightLinear",
    "codes_for",
    "find_codebook",
]


# ---------------------------------------------------------------- clusters of numbers: k-means in
# one dimension, where it can be solved instead of guessed
#
# Sorted numbers that share a cluster are neighbours, so the best clusters are found by dynamic
# programming over where they end (Wang and Song, 2011). Many numbers are put into groups first,
# fine where clusters will be small, and the ends moved afterwards to where no single one is better
# elsewhere (Lloyd, 1982). There is no randomness in it.

EXACT = 512
"""So many different numbers are clustered exactly, whatever the number of clusters."""
GROUPS_PER_CLUSTER = 8
"""More numbers become groups: so many for each cluster, and at least `EXACT`."""
BLOCK = 64
"""So many ends of clusters are tried at once."""
MOST_ROUNDS = 200


def find_codebook(values: Array, clusters: int) -> Array:
    """Give at most `clusters` numbers, ascending, that stand for `values` with little error.

    The error is the sum of squares. It is the least there is for up to 512 different values, or
    eight for each cluster; with more, the clusters are the best ones of so many groups, from which
    each value has then moved to the nearest mean. If there is a zero among the values, it is an
    entry of its own, the first one, so that what is zero stays so.
    """
    if clusters < 2:
        raise SettingError(f"numbers are put into at least 2 clusters, got {clusters}")
    ordered = np.sort(values.reshape(-1).astype(np.float64))
    rest = ordered[ordered != 0]
    has_zero = rest.size < ordered.size
    found = _means(rest, clusters - has_zero) if rest.size else rest
    codebook = np.concatenate([[0.0], found]) if has_zero else found
    return codebook.astype(values.dtype)


def codes_for(values: Array, codebook: Array) -> Array:
    """Give the number of the nearest entry for each value, as integers of the same shape.

    If there are zeros, an entry of zero in the first place is for them alone, as in
    :func:`find_codebook`.
    """
    zeros = values == 0
    has_zero = bool(codebook[0] == 0 and zeros.any())
    entries = codebook[has_zero:]
    if not entries.size:
        return np.zeros(values.shape, np.int64)
    # in float64, so that the middle between two entries does not fall onto one of them
    middles = (entries[1:].astype(np.float64) + entries[:-1]) / 2
    codes = np.searchsorted(middles, values.astype(np.float64), side="right") + has_zero
    if has_zero:
        codes[zeros] = 0
    return codes


def _means(ordered: Array, clusters: int) -> Array:
    """Give the means of the best clusters of sorted numbers."""
    groups, counts = _groups(ordered, max(EXACT, GROUPS_PER_CLUSTER * clusters))
    if len(groups) <= clusters:
        return groups
    starts = _best_starts(groups, counts, clusters)
    places = np.concatenate([[0], np.cumsum(counts)])[starts]  # in `ordered`
    return _refined(ordered, places)


def _groups(ordered: Array, most: int) -> tuple[Array, Array]:
    """Give the different numbers and how often they occur, or the means of neighbours.

    The best clusters are as dense as the cube root of the density of the numbers (Panter and Dite,
    1951), and so are the groups. The density around a gap between two numbers is one over the gap,
    so that each gap is worth its size to the power of 2/3. Nothing is finer than single numbers:
    a gap that is worth more than a group is between two of them, and the others share the rest.
    """
    different, counts = np.unique(ordered, return_counts=True)
    if len(different) <= most:
        return different, counts
    worth = np.diff(different) ** (2 / 3)
    for _ in range(MOST_ROUNDS):
        share = worth.sum() / most
        if worth.max() <= share * (1 + 1e-6):
            break
        worth = np.minimum(worth, share)
    passed = np.floor(np.cumsum(worth) / share * (1 - 1e-9)).astype(np.int64)  # whole groups
    starts = np.concatenate([[0], 1 + np.flatnonzero(np.diff(passed, prepend=0))])
    sizes = np.add.reduceat(counts, starts)
    return np.add.reduceat(different * counts, starts) / sizes, sizes


def _best_starts(groups: Array, counts: Array, clusters: int) -> Array:
    """Give where each of the best clusters of weighted, sorted numbers begins."""
    number = len(groups)
    error = _errors(groups, counts)
    best, choice = error[:, 0].copy(), np.zeros(number + 1, np.int64)
    choices = []
    for _ in range(clusters - 1):
        before, best = best, np.full(number + 1, np.inf)
        earlier, choice = choice, np.zeros(number + 1, np.int64)
        for first in range(1, number + 1, BLOCK):
            last = min(first + BLOCK, number + 1)
            # with one cluster more, or a later end, the last one does not begin earlier
            least = max(earlier[first], choice[first - 1])
            total = before[least:last] + error[first:last, least:last]
            picked = total.argmin(axis=1)
            choice[first:last] = least + picked
            best[first:last] = total[np.arange(last - first), picked]
        choices.append(choice)
    starts, end = [], number
    for chosen in reversed(choices):
        end = int(chosen[end])
        starts.append(end)
    return np.array([0, *reversed(starts)])


def _errors(groups: Array, counts: Array) -> Array:
    """Give the error [j, i] of a cluster of the groups from i to j, without j; else infinity.

    Distances are those from the first group of a cluster, so that numbers far away from it take no
    digits from it.
    """
    number = len(groups)
    error = np.full((number + 1, number + 1), np.inf)
    for start in range(number):
        distances, weights = groups[start:] - groups[start], counts[start:]
        first = np.cumsum(weights * distances)
        second = np.cumsum(weights * distances**2)
        error[start + 1 :, start] = second - first**2 / np.cumsum(weights)
    return error


def _mean_between(ordered: Array, starts: Array) -> Array:
    sizes = np.diff(np.append(starts, ordered.size))
    means: Array = np.add.reduceat(ordered, starts) / sizes
    return means


def _refined(ordered: Array, starts: Array) -> Array:
    """Move the ends of clusters until each number is in the one whose mean is nearest."""
    for _ in range(MOST_ROUNDS):
        means = _mean_between(ordered, starts)
        moved = np.searchsorted(ordered, (means[1:] + means[:-1]) / 2)
        moved = np.concatenate([[0], moved])
        if np.array_equal(moved, starts):
            break
        starts = np.unique(moved[moved < ordered.size])  # a cluster that lost all is gone
    return _mean_between(ordered, starts)


# ---------------------------------------------------------------- layers whose weights share a few
# values: each weight is a code, the number of a codebook's entry
#
# Codes take four bits for up to 16 entries, and eight for more. Each call looks the weight up and
# forgets it again. The codebook can be trained: the gradient of an entry is the sum of those of all
# weights that share it (Han, Mao and Dally, 2016).


class CodebookLookup(Operation):
    """The entries of a codebook that packed codes mean."""

    def __init__(self, codes: Array, size: int, *, keeps_zero: bool) -> None:
        self.codes = codes
        self.size = size
        self.keeps_zero = keeps_zero

    def forward(self, codebook: Array) -> Array:
        return run("codebook_lookup", self.codes, codebook, size=self.size)

    def backward(self, grad: Array) -> Gradients:
        entries = self.inputs[0].shape[0]
        slopes = run("codebook_lookup_backward", grad, self.codes, entries=entries)
        if self.keeps_zero:
            slopes[0] = 0
        return (slopes,)


class SharedWeightLayer(Module):
    """What these layers have in common. `keeps_zero`: the first entry is zero, and is not learned.

    `values` are the packed codes of `weight_size` weights, and `codebook` what they mean.
    """

    made_from: ClassVar[type[Module]]
    bias: Tensor | None
    _checked: tuple[Array, int] | None = None
    """The codes, and the size of the codebook, that are known to go together."""

    def _hold(self, layer: Any, codebook: Array, *, like: SharedWeightLayer | None) -> None:
        """Make codes, or take those of a layer `like` this one, which has the same weight."""
        is_right = type(layer) is self.made_from  # exactly: others may compute something else
        if not is_right:
            raise DTypeError(
                f"{type(self).__name__} is made from a {self.made_from.__name__}, not from "
                f"{layer!r}"
            )
        weight = layer.weight
        self.weight_shape: tuple[int, ...] = weight.shape
        self.weight_size = weight.size
        if like is None:
            codes = codes_for(weight.data, codebook)
            self.values = Tensor(pack_codes(codes, len(codebook)))
            held = np.array(codebook, weight.dtype)
            self.codebook = Parameter(held, requires_grad=weight.requires_grad)
        else:
            self.values, self.codebook = like.values, like.codebook
        # an entry of zero may also be the mean of numbers around it, which may move
        self.keeps_zero = bool(self.codebook.data[0] == 0 and (weight.data == 0).any())
        self.bias = layer.bias
        self.training = layer.training

    @property
    def codes(self) -> Array:
        """The number of its entry for each weight, one in each uint8; made anew each time."""
        packed, entries = self._codes(), len(self.codebook.data)
        codes = unpack_codes(packed, size=self.weight_size, entries=entries)
        return codes.reshape(self.weight_shape)

    @property
    def weight(self) -> Tensor:
        """The weight as floats, made anew each time: nobody holds it."""
        return Tensor(self._array())

    def dense(self) -> Any:
        """Give the ordinary layer with this weight, which holds it in full."""
        raise NotImplementedError

    def memory_usage(self) -> dict[str, Any]:
        """Give the bytes that the ordinary layer would hold, those held here, and their ratio."""
        held = sum(tensor.data.nbytes for _, tensor in self._named_tensors())
        extra = held - self.values.data.nbytes - self.codebook.data.nbytes
        original = self.weight_size * self.codebook.dtype.itemsize + extra
        return {
            "original_bytes": original,
            "shared_bytes": held,
            "compression_ratio": original / held,
        }

    def _codes(self) -> Array:
        """Give the packed codes; those that came from elsewhere are looked at once."""
        packed, entries = self.values.data, len(self.codebook.data)
        if self._checked is None or self._checked[0] is not packed or self._checked[1] != entries:
            check_codes(packed, size=self.weight_size, entries=entries)
            self._checked = (packed, entries)
        return packed

    def _array(self) -> Array:
        line: Array = run(
            "codebook_lookup", self._codes(), self.codebook.data, size=self.weight_size
        )
        return line.reshape(self.weight_shape)

    def _looked_up(self) -> Tensor:
        """Give the weight, through which gradients reach the codebook."""
        operation = CodebookLookup(self._codes(), self.weight_size, keeps_zero=self.keeps_zero)
        return apply(operation, self.codebook).reshape(self.weight_shape)

    def _into(self, layer: Any) -> Any:
        layer.weight = Parameter(self._array(), requires_grad=self.codebook.requires_grad)
        layer.bias = self.bias
        layer.training = self.training
        return layer

    def _codes_repr(self) -> str:
        return f"entries={len(self.codebook.data)}, bias={self.bias is not None}"


class SharedWeightLinear(SharedWeightLayer):
    """x @ weight + bias with a weight of codes; made from a `Linear`, which stays as it is."""

    made_from = Linear

    def __init__(
        self, linear: Linear, codebook: Array, *, like: SharedWeightLayer | None = None
    ) -> None:
        self._hold(linear, codebook, like=like)
        self.in_features, self.out_features = self.weight_shape

    def forward(self, x: Tensor) -> Tensor:
        check_floating_point(self, x)
        if x.data.ndim == 0 or x.data.shape[-1] != self.in_features:
            raise ShapeError(f"{self!r} needs input (..., {self.in_features}), got {x.shape}")
        bias = () if self.bias is None else (self.bias,)
        return apply(products.Linear(), x, self._looked_up(), *bias)

    def product(self) -> Product:
        """Give the kernel that computes this layer, and what it takes after x."""
        return "linear", (self._array(), None if self.bias is None else self.bias.data), {}

    def dense(self) -> Linear:
        layer: Linear = self._into(Linear(self.in_features, self.out_features, bias=False, rng=0))
        return layer

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self._codes_repr()}"


class SharedWeightConv2d(SharedWeightLayer):
    """A convolution with a weight of codes; made from a `Conv2d`, which stays as it is."""

    made_from = Conv2d

    def __init__(
        self, conv: Conv2d, codebook: Array, *, like: SharedWeightLayer | None = None
    ) -> None:
        self._hold(conv, codebook, like=like)
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.stride, self.padding = conv.kernel_size, conv.stride, conv.padding
        self.dilation, self.groups = conv.dilation, conv.groups

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, self.in_channels, self._convolve)

    def _convolve(self, x: Tensor) -> Tensor:
        size = output_size(x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation)
        check_window(self, x, size)
        operation = convolution.Conv2d(self.stride, self.padding, self.dilation, self.groups)
        bias = () if self.bias is None else (self.bias,)
        return apply(operation, x, self._looked_up(), *bias)

    def dense(self) -> Conv2d:
        layer: Conv2d = self._into(
            Conv2d(
                self.in_channels,
                self.out_channels,
                self.kernel_size,
                self.stride,
                self.padding,
                self.groups,
                self.dilation,
                bias=False,
                rng=0,
            )
        )
        return layer

    def extra_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{sizes}, {self._codes_repr()}"


# ---------------------------------------------------------------- ShareWeights: the transform that
# lets the weights of a layer share a few values

NAME = "ShareWeights"
NO_SPEEDUP = (
    "this saves memory, not time: each call looks its weights up; compare() measures what that "
    "costs"
)

SHARED: dict[type[Module], Any] = {Linear: SharedWeightLinear, Conv2d: SharedWeightConv2d}
"""What a layer becomes, by its exact class."""


@dataclass(frozen=True)
class ShareWeights(Transform):
    """Put the weights of each layer into clusters, and hold codes and a codebook in their place.

    `clusters` is the most different values that a layer has afterwards, 2 to 256: up to 16 take
    four bits for each weight, more take eight. They are those with the least squared error; zeros
    stay zeros. Training such a model moves the values. keep: patterns of layers that stay.
    """

    role, place, order = "numbers", 4, 90
    makes_repeats = True
    may_compete, effect = True, "replaces weights by a few values of its choice"

    clusters: int = 16
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.clusters) is not int or not 2 <= self.clusters <= LARGEST_CODEBOOK:
            raise SettingError(
                f"clusters is a number of values from 2 to {LARGEST_CODEBOOK}, got "
                f"{self.clusters!r}"
            )
        object.__setattr__(self, "keep", checked_patterns(self.keep))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plan(self, workload: Workload, profile: Profile | None = None) -> Plan:
        """Find the clusters of each layer. A copy of the model is called."""
        check_workload(workload)
        if adapter_for(workload.model, workload.arguments).name != "core":
            reason = f"{workload.name} is a model of PyTorch, which has no layer that holds codes"
            return Plan(NAME, self.to_dict(), (), (Skipped("", reason),))
        layers = find_weight_layers(workload, self.keep, verb="clustered")
        layers.choose(self._choose_codebook)
        return Plan(
            NAME,
            self.to_dict(),
            layers.steps,
            layers.skipped,
            shrinkage=layers.shrinkage,
            not_predicted={"speedup": NO_SPEEDUP},
            notes=idle_patterns(self.keep, layers.found, change="clustered"),
        )

    def apply(self, workload: Workload, plan: Plan) -> Any:
        """Give a copy of the model whose layers hold codes; their full weights are gone."""
        plan.check_made_by(NAME, self.to_dict())
        made: dict[int, SharedWeightLayer] = {}  # layers with one weight hold its codes once

        def build(layer: Any, settings: Mapping[str, Any]) -> Module:
            codebook = np.array(settings["codebook"], layer.weight.dtype)
            new: SharedWeightLayer = SHARED[type(layer)](
                layer, codebook, like=made.get(id(layer.weight))
            )
            made.setdefault(id(layer.weight), new)
            return new

        if adapter_for(workload.model, workload.arguments).name != "core":
            return adapter_for(workload.model, workload.arguments).clone(workload.model)
        return carry_out(workload, plan, build)

    def _choose_codebook(self, each: WeightLayer) -> None:
        weight = each.weight
        codebook = find_codebook(weight, self.clusters)
        after = code_bytes(weight.size, len(codebook)) + codebook.nbytes
        if after >= weight.nbytes:
            each.reason = f"it would take {after:,} bytes in the place of {weight.nbytes:,}"
            return
        exact = weight.astype(np.float64)
        lost = float(np.square(codebook[codes_for(weight, codebook)] - exact).sum())
        size = float(np.square(exact).sum())
        error = math.sqrt(lost / size) if size else 0.0
        bits = 8 * code_bytes(2, len(codebook)) // 2
        each.what = f"{len(codebook)} values, codes of {bits} bits"
        each.why = f"{after:,} bytes in the place of {weight.nbytes:,}, relative error {error:.2%}"
        each.settings = {
            "clusters": len(codebook),
            "bits": bits,
            "relative_error": error,
            "codebook": tuple(codebook.tolist()),
        }
        each.new_bytes = after
