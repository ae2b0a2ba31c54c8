"""The channels of a model: what can only be removed together, found by watching one call.

A forward pass leaves a graph of the operations that ran. Walking through it, labels of weights are
tied together (`channel_rules.py`); indices that end with the same label are one unit: a channel
with everything that belongs to it, such as a filter, its batch norm and the inputs that it feeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tinytorch.adapters.adapter import adapter_for
from tinytorch.adapters.core_tensors import named_tensors
from tinytorch.adapters.values import leaves
from tinytorch.core.autograd import topological_order
from tinytorch.core.dispatch import state
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError
from tinytorch.perf.compression.channel_labels import Labels
from tinytorch.perf.compression.channel_rules import Axes, rule_for
from tinytorch.workloads.observing import calling_plainly, switch_to_eval
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["ChannelGraph", "Family", "Place", "Unit", "trace_channels"]

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
    switch_to_eval(adapter_for(twin).modules(twin))
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
    with calling_plainly(model):
        state.grad_enabled = True  # the block ends with the mode that it began with
        result = call_model(model, *workload.inputs, **workload.keywords)
    outputs = [each for each in leaves(result) if isinstance(each, Tensor) and each.creator]
    if not outputs:
        raise ModelError(
            f"the output of {workload.name} ({type(result).__name__}) holds no tensor that was "
            "computed from its weights, so nobody can follow their channels"
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
