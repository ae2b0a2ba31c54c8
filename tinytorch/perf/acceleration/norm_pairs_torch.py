"""Which layer's output a batch norm reads, and whether it is the only reader. Imported after torch.

Two witnesses: one call, in which every operation is watched, says what happened to each output of a
layer; the code of the module around both, traced by torch.fx, says the same for every other call.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.utils._python_dispatch import TorchDispatchMode

from tinytorch.adapters.pytorch import TorchAdapter, tensors_in
from tinytorch.perf.acceleration.trial_torch import SEED, copied_arguments, first_line
from tinytorch.workloads.workload import Workload, call_model

__all__ = ["Flow", "watch_flow", "why_not_always"]


@dataclass
class Flow:
    """What one call did.

    `source` has the layer whose output was the input of each norm, `axes` how many axes that had.
    `read_elsewhere` are layers whose output somebody but one norm read, changed, gave out or kept,
    `weight_read` those whose weight or bias was read by others than the layer.
    """

    calls: Counter[str] = field(default_factory=Counter)
    source: dict[str, str] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    read_elsewhere: set[str] = field(default_factory=set)
    weight_read: set[str] = field(default_factory=set)
    error: str = ""


def watch_flow(workload: Workload, layers: Collection[str], norms: Collection[str]) -> Flow:
    """Call a copy of the model once, and follow the outputs of some layers."""
    adapter = TorchAdapter()
    watch = _Watch()
    try:
        model: nn.Module = adapter.clone(workload.model)
        inputs, keywords = copied_arguments(adapter, workload)
        with (
            adapter.preserving(workload.model),
            adapter.without_gradients(),
            watch.hooked(model, layers, norms),
            watch,
        ):
            torch.manual_seed(SEED)
            output = call_model(model, *inputs, **keywords)
        watch.see_given_out(output)
        del output
    except Exception as error:  # a model may raise anything
        return Flow(error=f"it cannot be called: {first_line(error)}")
    watch.see_kept()
    return watch.flow


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, and in hooks every call of a layer."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = Flow()
        # the outputs of layers that are still alive; a number of a dead one may be another's
        self._made: dict[int, tuple[str, weakref.ref[torch.Tensor]]] = {}
        self._reader: dict[str, str] = {}  # the norm that reads the output of a layer
        self._running = ""  # the norm or the layer that is being called
        self._weights: dict[int, str] = {}  # the layers that parameters belong to

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in((args, kwargs or {})):
            owner = self._weights.get(id(tensor), self._running)
            if owner != self._running:
                self.flow.weight_read.add(owner)
            layer = self._layer_of(tensor)
            if layer and (not self._running or self._reader.get(layer) != self._running):
                self.flow.read_elsewhere.add(layer)
        return func(*args, **(kwargs or {}))

    def _layer_of(self, tensor: torch.Tensor) -> str:
        layer, alive = self._made.get(id(tensor), ("", None))
        return layer if alive is not None and alive() is tensor else ""

    @contextmanager
    def hooked(
        self, model: nn.Module, layers: Collection[str], norms: Collection[str]
    ) -> Iterator[None]:
        """Watch these layers while the block runs."""
        modules = dict(model.named_modules())
        hooks = []
        for path in layers:
            own = modules[path].parameters(recurse=False)
            self._weights |= {id(each): path for each in own}
            hooks.append(modules[path].register_forward_pre_hook(self._before_layer(path)))
            hooks.append(modules[path].register_forward_hook(self._after_layer(path)))
        for path in norms:
            hooks.append(modules[path].register_forward_pre_hook(self._before_norm(path)))
            hooks.append(modules[path].register_forward_hook(self._after_norm))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before_layer(self, path: str) -> Callable[..., None]:
        def see(module: nn.Module, inputs: Any) -> None:
            self._running = path

        return see

    def _after_layer(self, path: str) -> Callable[..., None]:
        def see(module: nn.Module, inputs: Any, output: Any) -> None:
            self._running = ""
            self.flow.calls[path] += 1
            if isinstance(output, torch.Tensor):
                self._made[id(output)] = path, weakref.ref(output)

        return see

    def _before_norm(self, path: str) -> Callable[..., None]:
        def see(module: nn.Module, inputs: Any) -> None:
            self.flow.calls[path] += 1
            self._running = path
            if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
                return
            layer = self._layer_of(inputs[0])
            if layer:
                self.flow.source[path] = layer
                self.flow.axes[path] = inputs[0].dim()
                if self._reader.setdefault(layer, path) != path:
                    self.flow.read_elsewhere.add(layer)

        return see

    def _after_norm(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._running = ""

    def see_given_out(self, output: Any) -> None:
        layers = {self._layer_of(tensor) for tensor in tensors_in(output)}
        self.flow.read_elsewhere |= layers - {""}

    def see_kept(self) -> None:
        """Whoever holds an output after the call may read it later."""
        alive = {layer for layer, tensor in self._made.values() if tensor() is not None}
        self.flow.read_elsewhere |= alive


# ---------------------------------------------------------------- all other calls


def why_not_always(model: nn.Module, layer: str, norm: str) -> str:
    """Say why other calls may use the output of a layer elsewhere than in a norm, or nothing.

    The code of the innermost module around both is read, with everything else as it is. The model
    is a copy: its code runs with symbols in the place of tensors.
    """
    around = _common_path(layer, norm)
    inner = {path: path[len(around) + 1 :] if around else path for path in (layer, norm)}
    name = repr(around) if around else "the model"
    try:
        graph = _Around(inner.values()).trace(model.get_submodule(around))
    except TraceError:
        return f"the code of {name} decides by its inputs what to call"
    except Exception as error:  # the code of a model meets symbols that it does not know
        return (
            f"torch.fx cannot trace the code of {name}, so other calls may use the output of "
            f"{layer!r} elsewhere ({first_line(error)})"
        )
    found: Mapping[str, list[fx.Node]] = {
        path: [node for node in graph.nodes if _is_call(node, target)]
        for path, target in inner.items()
    }
    if any(len(nodes) != 1 for nodes in found.values()):
        return f"the code of {name} does not always call both of them once"
    ((first,), (second,)) = found[layer], found[norm]
    targets = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    if any(target.startswith(f"{path}.") for target in targets for path in inner.values()):
        return f"the code of {name} reads weights of {layer!r} or of the norm itself"
    if [*first.users] != [second] or second.args[:1] != (first,):
        return f"the output of {layer!r} is used elsewhere, too"
    return ""


class _Around(fx.Tracer):
    """Follows the code down to the two layers, and into no other one."""

    def __init__(self, wanted: Collection[str]) -> None:
        super().__init__()
        self.wanted = tuple(wanted)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inside = f"{module_qualified_name}."
        return not any(path.startswith(inside) for path in self.wanted)


def _is_call(node: fx.Node, target: str) -> bool:
    return node.op == "call_module" and node.target == target


def _common_path(one: str, other: str) -> str:
    parts = []
    for left, right in zip(one.split(".")[:-1], other.split(".")[:-1], strict=False):
        if left != right:
            break
        parts.append(left)
    return ".".join(parts)
