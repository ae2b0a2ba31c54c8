"""Which channels of a PyTorch model go together, by the dependency graph of torch-pruning.

The graph is made from one call, and takes operations that it does not know for elementwise ones. So
what is found here is a guess until removing channels is seen to be the same as zeroing them.
Imported after torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from tinytorch.errors import ModelError, first_line
from tinytorch.models.inputs import ModelCall
from tinytorch.models.pytorch import TorchAdapter, tensors_in, without_fast_paths
from tinytorch.transforms.remove_channels import ChannelGroup, layer_of
from tinytorch.transforms.support.channels import Place, Units
from tinytorch.transforms.support.weights_torch import (
    is_depthwise,
    is_transposed_linear,
    owners_of_tensors,
)

OUTPUTS = "its outputs are outputs of the model"
Indices = npt.NDArray[np.int64]
"""(units, indices of each)"""


# ---------------------------------------------------------------- tracing


def trace_groups(
    model: nn.Module, call: ModelCall, heads: Iterable[ChannelGroup] = ()
) -> list[ChannelGroup]:
    """Return the groups of channels of a copy of a model, which cannot be used afterwards.

    Groups that have to stay have a reason. What is in `heads` is left out.
    """
    for each in model.parameters():
        each.requires_grad_(each.is_floating_point())
    if getattr(getattr(model, "config", None), "use_cache", False):
        model.config.use_cache = False  # type: ignore[union-attr]  # it is no part of the stream
    graph = _Graph(model, call)
    known = {place for group in heads for place in group.places}
    groups: list[ChannelGroup] = []
    for path, module in model.named_modules():
        if not _makes_channels(module) or module not in graph.nodes:
            continue
        places = _places(module, path, "out")
        if not known.intersection(places):
            group = graph.group_from(path, module)
            known.update(group.places)
            for layer in group.layers:  # all of them stay together, if they do
                known.update(_places(model.get_submodule(layer), layer, "out"))
            groups.append(group)
    return groups


def _makes_channels(module: Any) -> bool:
    return isinstance(module, (nn.Linear, _ConvNd)) or is_transposed_linear(module)


class _Graph:
    """The nodes of torch-pruning's graph, and the way through them."""

    def __init__(self, model: nn.Module, call: ModelCall) -> None:
        import torch_pruning

        self._types = torch_pruning.ops.OPTYPE
        self._index = torch_pruning._helpers._HybridIndex
        self._graph = torch_pruning.DependencyGraph()
        self._paths: dict[Any, str] = {module: path for path, module in model.named_modules()}
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._buffers = dict(model.named_buffers(remove_duplicate=False))
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._owners = owners_of_tensors(model)
        transposed = [type(m) for m in model.modules() if is_transposed_linear(m)]
        pruner = _transposed_pruner(torch_pruning)
        try:
            with warnings.catch_warnings(), torch.enable_grad(), without_fast_paths():
                warnings.simplefilter("ignore")
                self._graph.build_dependency(
                    model,
                    example_inputs=call.arguments,
                    forward_fn=lambda twin, _: _outputs_with_graph(twin, call),
                    customized_pruners={kind: pruner() for kind in transposed} or None,
                    verbose=False,
                )
        except ModelError:
            raise
        except Exception as error:  # tracing raises whatever the code of a model raises
            raise ModelError(f"its channels cannot be followed: {first_line(error)}") from error
        self.nodes: Mapping[Any, Any] = self._graph.module2node

    def group_from(self, path: str, module: nn.Module) -> ChannelGroup:
        """Return the group of the channels that a layer makes."""
        group = ChannelGroup((path,), "channels", {})
        try:
            self._fill(group, self._reached_from(module))
        except _StayingError as reason:
            group.reason = str(reason)
        return group

    def _reached_from(self, module: nn.Module) -> dict[tuple[Any, Any], set[Any]]:
        """Walk from the outputs of a layer to all that goes with them: pairs of index and root.

        torch-pruning walks so, too, but need not come to an end.
        """
        pruner = self._graph.get_pruner_of_module(module)
        count = pruner.get_out_channels(module)
        root = (self.nodes[module], pruner.prune_out_channels)
        found = {root: {self._index(idx=i, root_idx=i) for i in range(count)}}
        stack = [(root, list(found[root]))]
        while stack:
            (node, function), pairs = stack.pop()
            for edge in node.dependencies:
                if not edge.is_triggered_by(function):
                    continue
                moved = pairs
                for mapping in edge.index_mapping:
                    moved = moved if mapping is None else mapping(moved)
                target = (edge.target, edge.handler)
                new = set(moved) - found.setdefault(target, set())
                if new:
                    found[target] |= new
                    stack.append((target, list(new)))
        return found

    def _fill(self, group: ChannelGroup, reached: Mapping[tuple[Any, Any], set[Any]]) -> None:
        """Add places and consumers to a group; raise if its channels have to stay."""
        ends: dict[Place, tuple[Any, str, set[Any]]] = {}
        layers: dict[str, None] = dict.fromkeys(group.layers)
        staying: list[str] = []
        for (node, function), pairs in reached.items():
            if not pairs:
                continue
            if node.type == self._types.OUTPUT:
                staying.insert(0, OUTPUTS)
                continue
            module = node.module
            if isinstance(module, nn.Parameter):
                name = self._names[id(module)]
                staying += self._why_parameter_stays(name)
                ends[Place(name, node.pruning_dim)] = (module, "pass", pairs)
                continue
            if module not in self._paths:
                continue  # an operation without tensors of its own
            path = self._paths[module]
            side = self._side(module, function)
            staying += self._why_layer_stays(path, module)
            if side == "out" or is_depthwise(module):
                layers[path] = None
            for place in _places(module, path, side):
                ends[place] = (module, side, pairs)
        group.layers = tuple(layers)
        if staying:
            raise _StayingError(staying[0])
        self._join(group, ends)

    def _side(self, module: nn.Module, function: Any) -> str:
        pruner = self._graph.get_pruner_of_module(module)
        if function == pruner.prune_out_channels:
            return "pass" if function == pruner.prune_in_channels else "out"
        return "in"

    def _why_layer_stays(self, path: str, module: nn.Module) -> list[str]:
        kind = type(module).__name__
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            return [f"{path!r}, a {kind}, normalises its channels together with others"]
        if isinstance(module, nn.Embedding):
            return [f"its channels are added to those of the table {path!r}"]
        if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            return [f"its channels go into {path!r}, a {kind}, which keeps its sizes"]
        for name in ("weight", "bias"):
            tensor = getattr(module, name, None)
            if tensor is None:
                continue
            own = f"{path}.{name}" if path else name
            if own not in self._parameters:
                return [f"the {name} of {path!r} is computed anew before each call"]
            others = [each for each in self._owners.get(id(tensor), []) if each != own]
            if others:
                return [f"{path!r} shares its {name} with {others[0].rpartition('.')[0]!r}"]
        return []

    def _why_parameter_stays(self, name: str) -> list[str]:
        owner = name.rpartition(".")[0]
        kind = next(type(m).__name__ for m, path in self._paths.items() if path == owner)
        if "norm" in kind.lower():
            return [f"{owner!r}, a {kind}, normalises its channels together with others"]
        return []

    def _join(self, group: ChannelGroup, ends: Mapping[Place, tuple[Any, str, set[Any]]]) -> None:
        """Make units: the least sets of indices that can go without anything left over."""
        units = Units(max(pair.idx for pair in next(iter(ends.values()))[2]) + 1)
        tables: dict[Place, list[tuple[int, int]]] = {}
        for place, (module, _, pairs) in ends.items():
            if any(pair.root_idx is None for pair in pairs):
                raise _StayingError("its channels are repeated in a way that cannot be followed")
            tables[place] = sorted((int(pair.idx), int(pair.root_idx)) for pair in pairs)
            units.join_equal(tables[place])
            block = _block(place, module)
            if block is not None:
                tables[place] = units.join_blocks(tables[place], block)
        numbers = units.numbers()
        consumers = set()
        for place, (_, side, _) in ends.items():
            rows: dict[int, set[int]] = {}
            for index, root in tables[place]:
                rows.setdefault(numbers[root], set()).add(index)
            if len(rows) != len(set(numbers)) or len({len(row) for row in rows.values()}) != 1:
                raise _StayingError(f"{place.tensor!r} does not hold as much of each channel")
            if place.tensor in self._parameters or place.tensor in self._buffers:
                group.places[place] = np.array([sorted(rows[n]) for n in range(len(rows))])
                consumers |= {place} if side == "in" else set()
        group.consumers = frozenset(consumers)
        group.sizes = {
            self._paths[module]: {"num_features": 1}
            for module, _, _ in ends.values()
            if isinstance(module, _InstanceNorm)
        }
        if not consumers:
            group.places.clear()
            raise _StayingError(OUTPUTS)


class _StayingError(Exception):
    """Why the channels of a group stay."""


def _block(place: Place, module: Any) -> tuple[int, bool] | None:
    """Return the size of a convolution's groups along an axis, and whether it is that of inputs."""
    if not isinstance(module, _ConvNd) or module.groups == 1 or is_depthwise(module):
        return None
    if module.transposed or module.groups == module.out_channels:
        raise _StayingError(f"{layer_of(place)!r} has {module.groups} groups that cannot shrink")
    is_input = place.axis == 1
    channels = module.in_channels if is_input else module.out_channels
    return channels // module.groups, is_input


def _places(module: Any, path: str, side: str) -> list[Place]:
    """Return where a layer holds something for each of its outputs, or inputs, or both."""
    names: list[tuple[str, int]] = []
    if isinstance(module, (_BatchNorm, _InstanceNorm)):
        names = [(name, 0) for name in ("weight", "bias", "running_mean", "running_var")]
    elif isinstance(module, nn.PReLU):
        names = [("weight", 0)] if module.num_parameters > 1 else []
    elif _makes_channels(module):
        is_turned = is_transposed_linear(module) or getattr(module, "transposed", False)
        first, second = (1, 0) if is_turned else (0, 1)
        names = [("weight", second)] if side == "in" else [("weight", first), ("bias", 0)]
    prefix = f"{path}." if path else ""
    found = [Place(prefix + name, axis) for name, axis in names if _has(module, name)]
    if isinstance(module, _InstanceNorm) and not found:
        return [Place(f"{prefix}num_features", 0)]  # it holds no tensor, but knows the number
    return found


def _has(module: Any, name: str) -> bool:
    return getattr(module, name, None) is not None


def _outputs_with_graph(model: nn.Module, call: ModelCall) -> list[torch.Tensor]:
    """Return the outputs, each behind one more operation, which identifies it in the graph."""
    output = model(*TorchAdapter().copy_inputs(call.arguments), **call.keywords)
    found = [each * 1 for each in tensors_in(output) if each.grad_fn is not None]
    if not found:
        raise ModelError(
            "its outputs have no graph by which channels could be followed; is it called under "
            "torch.no_grad(), or does it round its outputs?"
        )
    return found


def _transposed_pruner(torch_pruning: Any) -> Callable[[], Any]:
    """Return a pruner for the linear layers of transformers that hold (inputs, outputs)."""

    class Transposed(torch_pruning.pruner.function.BasePruningFunc):  # type: ignore[misc]
        def prune_out_channels(self, layer: Any, idxs: Any) -> Any:
            return layer

        def prune_in_channels(self, layer: Any, idxs: Any) -> Any:
            return layer

        def get_out_channels(self, layer: Any) -> int:
            return int(layer.nf)

        def get_in_channels(self, layer: Any) -> int:
            return int(layer.nx)

    return Transposed


# ---------------------------------------------------------------- the heads of attention layers as
# transformers writes them, to be removed whole. After torch
#
# torch-pruning takes a head for so many channels, which it would remove one by one. Here a unit is
# a head with its queries, keys, values and its inputs of the projection after it; where several
# heads share keys and values, they are one unit.

SEPARATE = (
    ("q_proj", "k_proj", "v_proj", ("o_proj", "out_proj")),
    ("query", "key", "value", ()),
)
"""Queries, keys, values, and what comes after them; nothing: the layer `output.dense` beside."""
FUSED = ("c_attn", "c_proj")
HEAD_SIZES = ("head_dim", "attention_head_size")
QUERY_COUNTS = ("num_heads", "num_attention_heads", "n_heads")
KEY_COUNTS = ("num_key_value_heads", "num_kv_heads")
WIDTHS = ("all_head_size", "split_size")
"""Numbers that an attention layer may keep, for its heads and for the channels of all of them."""


@dataclass(frozen=True)
class _Attention:
    """An attention layer: the layers that make queries, keys and values, and the one after them."""

    path: str
    makers: tuple[tuple[str, nn.Module], ...]
    after: tuple[str, nn.Module]
    head_size: int
    sizes: Mapping[str, int]
    """How many heads, or channels, of a unit the layer counts, by its own names for them."""
    units: int

    def group(self) -> ChannelGroup:
        places: dict[Place, Indices] = {}
        for path, layer in self.makers:
            is_fused = len(self.makers) == 1
            total = int(layer.nf if is_transposed_linear(layer) else layer.out_features)  # type: ignore[arg-type]
            indices = _rows(total // 3 if is_fused else total, self.units)
            if is_fused:
                indices = np.concatenate([indices + part * total // 3 for part in range(3)], 1)
            axis = 1 if is_transposed_linear(layer) else 0
            places[Place(f"{path}.weight", axis)] = indices
            if layer.bias is not None:
                places[Place(f"{path}.bias", 0)] = indices
        path, layer = self.after
        is_turned = is_transposed_linear(layer)
        taken = Place(f"{path}.weight", 0 if is_turned else 1)
        inputs = int(layer.nx if is_turned else layer.in_features)  # type: ignore[arg-type]
        places[taken] = _rows(inputs, self.units)
        return ChannelGroup(
            (self.path, *(path for path, _ in self.makers)),
            "heads",
            places,
            frozenset({taken}),
            {self.path: self.sizes},
        )


def find_heads(model: nn.Module) -> list[ChannelGroup]:
    """Return a group of heads for each attention layer whose parts are known."""
    owners = owners_of_tensors(model)
    groups = []
    for path, module in model.named_modules():
        attention = _separate(model, path, module) or _fused(path, module)
        if attention is None:
            continue
        group = attention.group()
        shared = [
            name
            for _, layer in (*attention.makers, attention.after)
            for name in owners[id(layer.weight)][1:]
        ]
        if shared:
            group.reason = f"its weights are shared under the name {shared[0]!r}"
        groups.append(group)
    return groups


def _rows(total: int, units: int) -> Indices:
    """Split indices evenly: those of each unit lie side by side."""
    return np.arange(total).reshape(units, -1)


def _number(module: nn.Module, names: tuple[str, ...]) -> int:
    """Return the first of some numbers that a layer has, 0 if it has none."""
    found = (getattr(module, name, None) for name in names)
    return next((each for each in found if isinstance(each, int) and each > 0), 0)


def _separate(model: nn.Module, path: str, module: nn.Module) -> _Attention | None:
    for query, key, value, after in SEPARATE:
        makers = tuple(
            (f"{path}.{name}", getattr(module, name))
            for name in (query, key, value)
            if type(getattr(module, name, None)) is nn.Linear
        )
        last = _after(model, path, module, after)
        size = _number(module, HEAD_SIZES)
        if len(makers) < 3 or last is None or not size:
            continue
        queries, keys, values = (layer.out_features // size for _, layer in makers)
        is_even = all(layer.out_features % size == 0 for _, layer in makers)
        fits = last[1].in_features == queries * size and keys == values
        if is_even and fits and keys and queries % keys == 0:
            sizes = _sizes(module, queries // keys, size)
            return _Attention(path, makers, last, size, sizes, keys)
    return None


def _after(
    model: nn.Module, path: str, module: nn.Module, names: tuple[str, ...]
) -> tuple[str, Any] | None:
    """Find the linear layer that takes what the heads give, with its path."""
    for name in names:
        if type(getattr(module, name, None)) is nn.Linear:
            return f"{path}.{name}", getattr(module, name)
    parent = path.rpartition(".")[0]
    found = getattr(getattr(model.get_submodule(parent), "output", None), "dense", None)
    beside = f"{parent}.output.dense" if parent else "output.dense"
    return (beside, found) if not names and type(found) is nn.Linear else None


def _fused(path: str, module: nn.Module) -> _Attention | None:
    """Find GPT-2's attention: queries, keys and values of one layer, split by `split_size`."""
    made, last = (getattr(module, name, None) for name in FUSED)
    size = _number(module, HEAD_SIZES)
    if not (is_transposed_linear(made) and is_transposed_linear(last)) or not size:
        return None
    assert isinstance(made, nn.Module)
    assert isinstance(last, nn.Module)
    width = int(last.nx)  # type: ignore[arg-type]
    if made.nf != 3 * width or getattr(module, "split_size", None) != width or width % size:
        return None
    sizes = _sizes(module, 1, size)
    parts = ((f"{path}.{FUSED[0]}", made),)
    return _Attention(path, parts, (f"{path}.{FUSED[1]}", last), size, sizes, width // size)


def _sizes(module: nn.Module, per_unit: int, head_size: int) -> dict[str, int]:
    """Return what each size of the layer counts in a unit of some heads."""
    counts = dict.fromkeys(QUERY_COUNTS, per_unit) | dict.fromkeys(KEY_COUNTS, 1)
    counts |= dict.fromkeys(WIDTHS, per_unit * head_size)
    return {
        name: each for name, each in counts.items() if isinstance(getattr(module, name, None), int)
    }
