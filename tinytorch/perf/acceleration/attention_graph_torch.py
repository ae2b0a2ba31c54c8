"""The graph of one call of a module, with the shapes that stood in it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from tinytorch.perf.acceleration.attention_kernel_torch import expect
from tinytorch.perf.acceleration.attention_module_torch import Kind, call_kind
from tinytorch.perf.acceleration.attention_operations_torch import NotFused

__all__ = ["trace_call"]

IN_PLACE = ("masked_fill_", "add_", "mul_", "div_")
FACTORIES = (
    *("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"),
    "finfo",
)
MODES = ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled")


def trace_call(
    module: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    inlined: tuple[str, ...] = (),
) -> tuple[Kind, fx.Graph]:
    """Follow a call of a module; give its kind, and the graph, of the tensors of the call.

    Modules inside stand as calls, but for those to be inlined.
    """
    kind, _ = call_kind(module.training, inputs, keywords)
    if kind is None:
        raise NotFused("it is called with an object; graphs are for tensors and plain values")
    if "forward" in vars(module):
        raise NotFused("its forward was replaced on this object by another function")
    tracer = _CallTracer(inputs, keywords, inlined)
    with _followed_functions(tracer):
        graph = tracer.trace(module)
    for node, value in tracer.values.items():
        if isinstance(value, torch.Tensor):
            node.meta["seen_shape"] = tuple(value.shape)
    _follow_in_place(graph)
    return kind, graph


class _CallTracer(fx.Tracer):
    """Tensors of the call become inputs, everything else stays what it is.

    What stands at a node is computed at once: sizes and plain values may decide what comes next.
    """

    proxy_buffer_attributes = True

    def __init__(
        self, inputs: tuple[Any, ...], keywords: Mapping[str, Any], inlined: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.keywords = keywords
        self.inlined = inlined
        self.values: dict[fx.Node, Any] = {}
        self.is_computing = False

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any
    ) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, *more, **named)
        if kind != "placeholder":
            self.is_computing = True
            try:
                self.values[proxy.node] = self._computed(proxy.node)
            finally:
                self.is_computing = False
        return proxy

    def _computed(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        target: Any = node.target
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        if node.op == "call_module":
            return self.root.get_submodule(target)(*args, **kwargs)
        if node.op == "get_attr":
            return attrgetter(target)(self.root)
        return target(*args, **kwargs)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Take the branch that the call took, where sizes or plain values decide.

        The graph then holds for such calls alone: it checks that, and gives up on others.
        """
        value = self.values[obj.node]
        if isinstance(value, torch.Tensor):
            raise NotFused("numbers in its inputs decide what it computes")
        self.create_proxy("call_function", expect, (obj, bool(value)), {})
        return bool(value)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Take as many parts as there were in the call."""
        count = len(self.values[obj.node])
        length = self.create_proxy("call_function", len, (obj,), {})
        is_same = self.create_proxy("call_function", operator.eq, (length, count), {})
        self.create_proxy("call_function", expect, (is_same, True), {})
        parts: Any = obj
        return iter([parts[place] for place in range(count)])

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        if self.is_computing:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self.is_computing:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.inlined

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        inputs = [self._followed(each) for each in self.inputs]
        keywords = {name: self._followed(self.keywords[name]) for name in sorted(self.keywords)}

        def call(module: nn.Module) -> Any:
            return root_fn(module, *inputs, **keywords)

        return call, [self.root]

    def create_arg(self, a: Any) -> Any:
        """Take the numbers out of single ones; for other tensors there is no place."""
        if isinstance(a, np.generic):
            return a.item()  # code that is written has no name for it
        if isinstance(a, torch.Tensor) and not self._is_attribute(a):
            if not (a.dim() or a.requires_grad) and a.device.type == "cpu":
                return a.item()
            raise NotFused("it makes tensors that do not depend on its inputs; make them buffers")
        return super().create_arg(a)

    def _is_attribute(self, tensor: torch.Tensor) -> bool:
        known = (*self.root.parameters(), *self.root.buffers(), *self.tensor_attrs)
        return any(tensor is each for each in known)

    def _followed(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            proxy = self.create_proxy("placeholder", f"tensor_{len(self.values) + 1}", (), {})
            self.values[proxy.node] = value.clone()
            return proxy
        if isinstance(value, (tuple, list)):
            return type(value)(self._followed(each) for each in value)
        if isinstance(value, dict):
            return {name: self._followed(each) for name, each in value.items()}
        return value


@contextmanager
def _followed_functions(tracer: _CallTracer) -> Iterator[None]:
    """Let tensors that a call makes stand in the graph: fx follows only what is given tensors."""
    originals = {name: getattr(torch, name) for name in (*FACTORIES, *MODES)}
    own = get_ident()

    def followed(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if tracer.is_computing or get_ident() != own:  # another thread goes on as usual
                return originals[name](*args, **kwargs)
            if name in MODES:
                raise NotFused(f"torch.{name}() decides what it computes")
            return tracer.create_proxy("call_function", originals[name], args, kwargs)

        return call

    for name in originals:
        setattr(torch, name, followed(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def _follow_in_place(graph: fx.Graph) -> None:
    """Let what comes after a change in place use its result, which is the same tensor."""
    for node in graph.nodes:
        if node.op == "call_method" and node.target in IN_PLACE:
            changed = node.args[0]
            later = {each for each in changed.users if each > node}
            changed.replace_all_uses_with(node, delete_user_cb=later.__contains__)
