"""How channels pass through each operation: one rule for each row of the table `RULES`.

A rule gets the trace and an operation that ran, ties the labels of its inputs where they must stay
the same, and gives the labels of its output, an entry for each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tinytorch.core import operations
from tinytorch.core.autograd import topological_order
from tinytorch.core.dispatch import state
from tinytorch.core.operations import Operation
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError
from tinytorch.models.adapter import adapter_for, leaves
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Workload, call_model

# ---------------------------------------------------------------- labels: which indices of which
# axes stand for the same channel
#
# Every index of every axis of a weight begins with a label of its own. Operations that a model runs
# tie labels together: what is added is the same channel, and so is an output of one layer and the
# input of the next. In the end indices with the same label can only be removed together.

AxisLabels = npt.NDArray[np.int64] | None
"""A label for each index of an axis; None for an axis whose length has nothing to do with weights,
such as the batch, and which must stay as long as it is."""


class Labels:
    """Which labels are the same (a union-find), and which must stay, with the reason."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._reasons: dict[int, str] = {}

    def fresh(self, count: int) -> npt.NDArray[np.int64]:
        """Return new labels."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return np.arange(first, first + count)

    def find(self, label: int) -> int:
        """Return the label that represents all that are the same as this one."""
        parents, root = self._parents, label
        while parents[root] != root:
            root = parents[root]
        while parents[label] != root:  # the next search is short
            parents[label], label = root, parents[label]
        return root

    def roots(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.array([self.find(label) for label in labels.tolist()], np.int64)

    def tie(self, first: AxisLabels, second: AxisLabels, why_fixed: str) -> AxisLabels:
        """Make the labels of two axes the same, index by index, and give them.

        An axis without labels keeps its length, so the labels of the other one stay for the reason
        that is given.
        """
        if first is None or second is None:
            known = second if first is None else first
            self.freeze(known, why_fixed)
            return known
        if first is not second:
            for one, other in zip(first.tolist(), second.tolist(), strict=True):
                self._tie_two(one, other)
        return first

    def tie_together(self, labels: npt.NDArray[Any]) -> int:
        """Make all these labels the same, and give one of them."""
        chosen, *others = dict.fromkeys(labels.reshape(-1).tolist())
        for other in others:
            self._tie_two(chosen, other)
        return int(chosen)

    def freeze(self, labels: AxisLabels, reason: str) -> None:
        """Mark channels as fixed, with the reason."""
        if labels is not None:
            for root in {self.find(label) for label in labels.tolist()}:
                self._reasons.setdefault(root, reason)

    def freeze_all(self, axes: Sequence[AxisLabels], reason: str) -> None:
        for labels in axes:
            self.freeze(labels, reason)

    def reason(self, label: int) -> str:
        """Return why a channel is fixed, or ""."""
        return self._reasons.get(self.find(label), "")

    def _tie_two(self, one: int, other: int) -> None:
        one, other = self.find(one), self.find(other)
        if one == other:
            return
        self._parents[other] = one
        if other in self._reasons:
            self._reasons.setdefault(one, self._reasons.pop(other))


# ---------------------------------------------------------------- how channels pass through each
# operation: one rule for each row of the table `RULES`

Axes = list[AxisLabels]
Shape = tuple[int, ...]

FIXED = "it meets something that does not shrink with the model"


class Trace(Protocol):
    """What a rule may ask and say."""

    labels: Labels

    def axes(self, tensor: Tensor) -> Axes:
        """Return the labels of a tensor that existed before this operation."""

    def consume(self, tensor: Tensor, axis: int) -> None:
        """Mark the end of channels: a product sums over them with these weights."""


Rule = Callable[[Trace, Operation, Shape], Axes]


# ---------------------------------------------------------------- element by element


def _pass(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    return list(trace.axes(operation.inputs[0]))


def _broadcast(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    """Tie the axes that inputs share; one of length 1 is repeated and says nothing."""
    output: Axes = [None] * len(shape)
    for position in range(1, len(shape) + 1):  # counted from the last axis
        found: list[AxisLabels] = [
            trace.axes(tensor)[-position]
            for tensor in operation.inputs
            if tensor.ndim >= position and (tensor.shape[-position] == shape[-position])
        ]
        if not any(each is not None for each in found):
            continue
        if shape[-position] == 1:
            trace.labels.freeze_all(found, FIXED)
            continue
        first, *others = found
        for other in others:
            first = trace.labels.tie(first, other, FIXED)
        output[-position] = first
    return output


def _along_axis(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    axes = _pass(trace, operation, shape)
    kind = type(operation).__name__
    trace.labels.freeze(axes[operation.axis], f"a {kind} is computed over all of them")  # type: ignore[attr-defined]
    return axes


def _reduce(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    assert isinstance(operation, operations._Reduction)
    axes, reduced = _pass(trace, operation, shape), operation.axes()
    kind = type(operation).__name__
    for axis in reduced:
        trace.labels.freeze(axes[axis], f"a {kind} is computed over all of them")
    if operation.keepdims:
        return [None if axis in reduced else each for axis, each in enumerate(axes)]
    return [each for axis, each in enumerate(axes) if axis not in reduced]


# ---------------------------------------------------------------- products


def _linear(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    x, weight, *bias = operation.inputs
    inputs, (rows, columns) = trace.axes(x), trace.axes(weight)
    trace.labels.tie(rows, inputs[-1], "its inputs are those of the model")
    trace.consume(weight, 0)
    for each in bias:
        trace.labels.tie(columns, trace.axes(each)[0], FIXED)
    return [*inputs[:-1], columns]


def _matmul(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    first, second = operation.inputs
    if first.ndim < 2 or second.ndim < 2:
        return _unknown(trace, operation, shape)
    left, right = trace.axes(first), trace.axes(second)
    trace.labels.tie(left[-1], right[-2], FIXED)
    trace.consume(first, first.ndim - 1)
    trace.consume(second, second.ndim - 2)
    if first.creator is not None and second.creator is not None:
        trace.labels.freeze(left[-1], "two things that were computed are multiplied")
    trace.labels.freeze_all([*left[:-2], *right[:-2]], "it is one of a stack of matrices")
    return [*[None] * (len(shape) - 2), left[-2], right[-1]]


def _attention(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    """Heads are channels; the width of a head and the tokens are not."""
    assert isinstance(operation, operations.Attention)
    query, key, value = (trace.axes(tensor) for tensor in operation.inputs)
    for axes in (query, key, value):
        trace.labels.freeze_all([*axes[:-3], axes[-2]], "attention is computed over all of them")
    for axes in (query, key, value):
        trace.labels.freeze(axes[-1], "it is a part of a head of attention")
    heads: AxisLabels = None
    if len(query) > 2 and len({axes.shape[-3] for axes in operation.inputs}) == 1:
        heads = query[-3]
        for axes in (key, value):
            heads = trace.labels.tie(heads, axes[-3], FIXED)
        mask = operation.bias
        if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
            trace.labels.freeze(heads, "a mask has something for each head")
    elif len(query) > 2:
        trace.labels.freeze_all([axes[-3] for axes in (query, key, value)], "heads share keys")
    lead: Axes = [None] * (len(shape) - 3)
    return [*lead, *([heads] if len(shape) > 2 else []), None, value[-1]]


def _conv2d(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    assert isinstance(operation, operations.Conv2d)
    x, weight, *bias = operation.inputs
    inputs, (outputs, channels, *window) = trace.axes(x), trace.axes(weight)
    labels, groups = trace.labels, operation.settings["groups"]
    labels.freeze_all([*window, *inputs[2:]], "the window of a convolution")
    for each in bias:
        labels.tie(outputs, trace.axes(each)[0], FIXED)
    if groups == 1:
        labels.tie(channels, inputs[1], "its inputs are those of the model")
        trace.consume(weight, 1)
    elif groups == x.shape[1] == weight.shape[0]:  # one filter for each channel
        labels.freeze(channels, "a group of one channel")
        outputs = labels.tie(outputs, inputs[1], "its inputs are those of the model")
    else:
        labels.freeze_all(
            [outputs, channels, inputs[1]], f"a convolution in {groups} groups needs equal groups"
        )
    return [inputs[0], outputs, None, None]


def _pool(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    axes = _pass(trace, operation, shape)
    trace.labels.freeze_all(axes[2:], "the window of a pool")
    return [*axes[:2], None, None]


# ---------------------------------------------------------------- norms


def _layer_norm(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    x, *parameters = operation.inputs
    axes = trace.axes(x)
    for each in parameters:
        trace.labels.tie(axes[-1], trace.axes(each)[0], FIXED)
    reason = f"a {type(operation).__name__} is computed over all of them"
    trace.labels.freeze(trace.axes(parameters[0])[0], reason)
    return list(axes)


def _batch_norm(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    x, *parameters = operation.inputs
    axes = trace.axes(x)
    for each in parameters:
        trace.labels.tie(axes[1], trace.axes(each)[0], FIXED)
    return list(axes)


# ---------------------------------------------------------------- moving elements


def _transpose(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    axes = trace.axes(operation.inputs[0])
    return [axes[axis] for axis in operation.axes]  # type: ignore[attr-defined]


def _embedding(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    tokens, width = trace.axes(operation.inputs[0])
    trace.labels.freeze(tokens, "its rows are looked up by number")
    return [*[None] * (len(shape) - 1), width]


def _concatenate(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    axis = operation.axis % len(shape)  # type: ignore[attr-defined]
    parts = [trace.axes(tensor) for tensor in operation.inputs]
    output: Axes = []
    for place in range(len(shape)):
        found = [axes[place] for axes in parts]
        if all(each is None for each in found):
            output.append(None)
        elif place == axis:
            output.append(
                _joined(trace, found, [tensor.shape[axis] for tensor in operation.inputs])
            )
        else:
            first, *others = found
            for other in others:
                first = trace.labels.tie(first, other, FIXED)
            output.append(first)
    return output


def _joined(trace: Trace, parts: Sequence[AxisLabels], lengths: Sequence[int]) -> AxisLabels:
    known = []
    for labels, length in zip(parts, lengths, strict=True):
        if labels is None:
            labels = trace.labels.fresh(length)
            trace.labels.freeze(labels, FIXED)
        known.append(labels)
    return np.concatenate(known)


def _get_item(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    """Follow whole slices; axes of which something is taken must stay as they are."""
    index = operation.index  # type: ignore[attr-defined]
    index = index if isinstance(index, tuple) else (index,)
    lists = [each for each in index if not isinstance(each, (int, slice, type(None), EllipsisType))]
    has_numbers = any(isinstance(each, int) for each in index)
    if len(lists) > 1 or (lists and (has_numbers or np.asarray(lists[0]).dtype == bool)):
        return _unknown(trace, operation, shape)  # NumPy moves the axes of these about
    axes = list(trace.axes(operation.inputs[0]))
    output: Axes = []
    for each in _without_ellipsis(index, len(axes)):
        labels = None if each is None else axes.pop(0)
        if each is None or (isinstance(each, slice) and each == slice(None)):
            output.append(labels)
            continue
        trace.labels.freeze(labels, "some of them are taken by their numbers")
        if not isinstance(each, int):
            output += [None] * (1 if isinstance(each, slice) else np.ndim(each))
    return output


def _without_ellipsis(index: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """Write an index out: whole slices for all axes that it does not mention."""
    used = sum(each is not None and each is not Ellipsis for each in index)
    whole = (slice(None),) * (rank - used)
    place = next((number for number, each in enumerate(index) if each is Ellipsis), len(index))
    return (*index[:place], *whole, *index[place + 1 :])


def _reshape(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    """Match axes from the left into blocks of as many elements, and follow the labels in each."""
    x = operation.inputs[0]
    axes, output = trace.axes(x), []
    if x.data.size == 0:
        return _unknown(trace, operation, shape)
    start = 0
    taken = 0
    while start < x.ndim or taken < len(shape):
        stop, end = start + (start < x.ndim), taken + (taken < len(shape))
        while (before := math.prod(x.shape[start:stop])) != (after := math.prod(shape[taken:end])):
            if before < after:
                stop += 1
            else:
                end += 1
        output += _reshaped_block(trace, axes[start:stop], x.shape[start:stop], shape[taken:end])
        start, taken = stop, end
    return output


def _reshaped_block(trace: Trace, axes: Axes, lengths: Shape, shape: Shape) -> Axes:
    labelled = [place for place, each in enumerate(axes) if each is not None and lengths[place] > 1]
    trace.labels.freeze_all(
        [each for place, each in enumerate(axes) if place not in labelled], FIXED
    )
    if not labelled:
        return [None] * len(shape)
    if len(labelled) > 1:
        trace.labels.freeze_all(axes, "several axes of channels are made one")
        return [None] * len(shape)
    (place,) = labelled
    known = axes[place]
    assert known is not None
    spread = np.broadcast_to(
        known.reshape([-1 if axis == place else 1 for axis in range(len(axes))]), lengths
    )
    grid = spread.reshape(shape)
    if math.prod(shape) == 1:
        return [None] * len(shape)
    carrier = _carrier(grid)
    output: Axes = [None] * len(shape)
    rows = np.moveaxis(grid, carrier, 0).reshape(shape[carrier], -1)
    output[carrier] = np.array([trace.labels.tie_together(row) for row in rows], np.int64)
    return output


def _carrier(grid: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    """Choose the axis along which channels lie: the only one along which labels differ, or the
    first one, whose parts (such as heads) then stay or go as a whole."""
    for axis in range(grid.ndim):
        along = np.moveaxis(grid, axis, 0).reshape(grid.shape[axis], -1)
        if grid.shape[axis] > 1 and (along == along[:, :1]).all():
            return axis
    return next(axis for axis in range(grid.ndim) if grid.shape[axis] > 1)


def _unknown(trace: Trace, operation: Operation, shape: Shape) -> Axes:
    reason = f"no rule for how channels pass through {type(operation).__name__}"
    for tensor in operation.inputs:
        trace.labels.freeze_all(trace.axes(tensor), reason)
    return [None] * len(shape)


RULES: dict[type[Operation], Rule] = {
    **dict.fromkeys(
        (
            operations.ScalarPower, operations.Negative, operations.Absolute, operations.Exp,
            operations.Log, operations.Sqrt, operations.ReLU, operations.Sigmoid,
            operations.Tanh, operations.GELU, operations.SiLU,
        ),
        _pass,
    ),
    **dict.fromkeys(
        (
            operations.Add, operations.Subtract, operations.Multiply, operations.Divide,
            operations.Power, operations.BroadcastTo,
        ),
        _broadcast,
    ),
    **dict.fromkeys((operations.Softmax, operations.LogSoftmax), _along_axis),
    **dict.fromkeys((operations.Sum, operations.Mean, operations.Max), _reduce),
    **dict.fromkeys((operations.MaxPool2d, operations.AvgPool2d), _pool),
    operations.Linear: _linear,
    operations.Matmul: _matmul,
    operations.Attention: _attention,
    operations.Conv2d: _conv2d,
    **dict.fromkeys((operations.LayerNorm, operations.RMSNorm), _layer_norm),
    operations.BatchNorm: _batch_norm,
    operations.Transpose: _transpose,
    operations.Embedding: _embedding,
    operations.Concatenate: _concatenate,
    operations.GetItem: _get_item,
    operations.Reshape: _reshape,
}  # fmt: skip
"""By the exact class. What is in no row lets no channel through: it is not removed."""


def rule_for(operation: Operation) -> Rule:
    return RULES.get(type(operation), _unknown)


# ---------------------------------------------------------------- the channels of a model: what
# can only be removed together, found by watching one call
#
# A forward pass leaves a graph of the operations that ran. Walking through it, labels of weights
# are tied together (`channel_rules.py`); indices that end with the same label are one unit: a
# channel with everything that belongs to it, such as a filter, its batch norm and the inputs that
# it feeds.

IS_OUTPUT = "they are the outputs of the model"
NOT_USED = "no weights that could shrink with it take it in"


class Place(NamedTuple):
    """An axis of a weight."""

    tensor: str
    axis: int


Unit = Mapping[Place, tuple[int, ...]]
"""One channel: the indices of it at every place where it is found."""


@dataclass(frozen=True, eq=False)
class Family:
    """Channels that are found at the same places, such as those of one layer.

    `consumers` are the places where they are summed up with weights; at the others they are made.
    """

    units: tuple[Unit, ...]
    consumers: frozenset[Place]
    ranks: Mapping[str, int]
    """How many axes each weight has."""

    def rank(self, place: Place) -> int:
        return self.ranks[place.tensor]

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(self.units[0])

    @property
    def producers(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place not in self.consumers)


@dataclass(frozen=True, eq=False)
class ChannelGraph:
    """Families of channels that can be removed, and why those at other places cannot."""

    families: tuple[Family, ...]
    fixed: Mapping[Place, str]
    called: frozenset[str]
    """The weights that took part."""


def trace_channels(workload: Workload) -> ChannelGraph:
    """Call a copy of a workload's model, and follow the channels of its weights."""
    twin = adapter_for(workload.model, workload.arguments).clone(workload.model)
    adapter_for(twin).switch_to_eval(twin)
    tensors = {n: each for n, each in named_tensors(twin).items() if each.data.dtype.kind == "f"}
    for tensor in tensors.values():
        tensor.requires_grad = True  # statistics of batch norms are followed as weights are
    outputs = _call_with_graph(twin, workload)
    trace = _Trace({id(tensor): name for name, tensor in tensors.items()})
    for output in outputs:
        for tensor in topological_order(output):
            trace.see(tensor)
        trace.labels.freeze_all(trace.axes(output), IS_OUTPUT)
    return trace.graph(tensors)


def _call_with_graph(model: Any, workload: Workload) -> list[Tensor]:
    with adapter_for(model).plain_calls(model):
        state.grad_enabled = True  # the block ends with the mode that it began with
        result = call_model(model, *workload.inputs, **workload.keywords)
    outputs = [each for each in leaves(result) if isinstance(each, Tensor) and each.creator]
    if not outputs:
        raise ModelError(
            f"the output of {workload.name} ({type(result).__name__}) holds no tensor that was "
            "computed from its weights, so channels cannot be followed"
        )
    return outputs


class _Trace:
    """The labels of every tensor of one call."""

    def __init__(self, weights: Mapping[int, str]) -> None:
        self.labels = Labels()
        self._weights = weights
        self._axes: dict[int, Axes] = {}
        self._consumers: set[Place] = set()

    def axes(self, tensor: Tensor) -> Axes:
        if id(tensor) not in self._axes:
            is_weight = id(tensor) in self._weights
            self._axes[id(tensor)] = [
                self.labels.fresh(length) if is_weight else None for length in tensor.shape
            ]
        return self._axes[id(tensor)]

    def consume(self, tensor: Tensor, axis: int) -> None:
        if id(tensor) in self._weights:
            self._consumers.add(Place(self._weights[id(tensor)], axis))

    def see(self, tensor: Tensor) -> None:
        if id(tensor) not in self._axes and tensor.creator is not None:
            axes = rule_for(tensor.creator)(self, tensor.creator, tensor.shape)
            assert len(axes) == tensor.ndim, type(tensor.creator).__name__
            self._axes[id(tensor)] = axes

    def graph(self, tensors: Mapping[str, Tensor]) -> ChannelGraph:
        """Gather the indices with the same label, and the units at the same places."""
        units: dict[int, dict[Place, list[int]]] = {}
        called = [name for name, tensor in tensors.items() if id(tensor) in self._axes]
        for place, roots in self._roots(tensors, called):
            for index, root in enumerate(roots.tolist()):
                units.setdefault(root, {}).setdefault(place, []).append(index)
        families: dict[tuple[Place, ...], list[Unit]] = {}
        fixed: dict[Place, str] = {}
        for root, found in units.items():
            reason = self.labels.reason(root)
            if not reason and self._consumers.isdisjoint(found):
                reason = NOT_USED
            if reason:
                fixed |= {place: reason for place in found if place not in fixed}
                continue
            unit = {place: tuple(indices) for place, indices in found.items()}
            families.setdefault(tuple(unit), []).append(unit)
        return ChannelGraph(
            tuple(
                Family(
                    tuple(found),
                    frozenset(self._consumers.intersection(places)),
                    {place.tensor: tensors[place.tensor].ndim for place in places},
                )
                for places, found in families.items()
            ),
            fixed,
            frozenset(called),
        )

    def _roots(
        self, tensors: Mapping[str, Tensor], called: list[str]
    ) -> Iterator[tuple[Place, np.ndarray[Any, Any]]]:
        for name in called:
            for axis, labels in enumerate(self._axes[id(tensors[name])]):
                if labels is not None:
                    yield Place(name, axis), self.labels.roots(labels)


# ---------------------------------------------------------------- channels that can only go
# together: sets that grow while a model is looked through


class Units:
    """Roots that have to go together, as sets that grow."""

    def __init__(self, count: int) -> None:
        self._labels = Labels()
        self._roots = self._labels.fresh(count)

    def join_equal(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Join the roots that have an index in common."""
        known: dict[int, int] = {}
        for index, root in pairs:
            first = known.setdefault(index, root)
            self._labels.tie_together(self._roots[[first, root]])

    def join_blocks(
        self, pairs: Iterable[tuple[int, int]], block: tuple[int, bool]
    ) -> list[tuple[int, int]]:
        """Join what has the same position in each group of a convolution, which stay alike.

        Its inputs are held once for all groups: the positions take the place of the indices.
        """
        size, is_input = block
        pairs = list(pairs)
        self.join_equal((index % size, root) for index, root in pairs)
        return [(index % size, root) for index, root in pairs] if is_input else pairs

    def numbers(self) -> list[int]:
        """Return for each root the number of its set, in order."""
        order: dict[int, int] = {}
        return [
            order.setdefault(each, len(order)) for each in self._labels.roots(self._roots).tolist()
        ]
