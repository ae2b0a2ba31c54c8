"""A module that computes its attention fused when it is called as it was before, else by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import fx, nn

from tinytorch.perf.acceleration.attention_kernel_torch import AnotherCall

__all__ = [
    "HOOKS",
    "PLAIN",
    "FusedCalls",
    "GraphCode",
    "Kind",
    "call_kind",
    "fuse_in_place",
    "is_fused",
]

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""What may be an argument beside tensors: a graph holds for these values, and for no others."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

Kind = tuple[Any, ...]


class GraphCode:
    """The function that a graph stands for, of a module and of tensors; it can be pickled."""

    def __init__(self, source: str, names: Mapping[str, Any], modules: Mapping[str, str]) -> None:
        self.parts = source, dict(names), dict(modules)
        space: dict[str, Any] = {name: import_module(home) for name, home in modules.items()}
        space |= names
        exec(source, space)  # what fx wrote for a graph, as its GraphModule does
        self._forward: Callable[..., Any] = space["forward"]

    @classmethod
    def of(cls, graph: fx.Graph) -> GraphCode:
        """Read it from a graph."""
        graph.lint()
        code = graph.python_code("self")
        modules = {n: each.__name__ for n, each in code.globals.items() if _is_module(each)}
        names = {name: each for name, each in code.globals.items() if name not in modules}
        return cls(code.src, names, modules)

    def __call__(self, module: nn.Module, *tensors: torch.Tensor) -> Any:
        return self._forward(module, *tensors)

    def __reduce__(self) -> Any:
        return GraphCode, self.parts


class FusedCalls:
    """The fused forward for each kind of call, and what must hold for it.

    A graph holds the plain attributes of the module, and those of the modules inside that are not
    called any more, such as a dropout: where one of them is another one, or such a module is
    replaced, in another mode or watched by a hook, the call is computed by hand.
    """

    def __init__(
        self, forwards: Mapping[Kind, GraphCode], module: nn.Module, silenced: tuple[str, ...]
    ) -> None:
        self.forwards = dict(forwards)
        self.seen = {"": _attributes(module)}
        for path in silenced:
            inner = module.get_submodule(path)
            own = {"__class__": type(inner), "training": inner.training}
            self.seen[path] = _attributes(inner) | own

    def __deepcopy__(self, memo: Any) -> FusedCalls:
        return self  # nothing in it changes

    def find(self, module: Any, kind: Kind | None) -> GraphCode | None:
        """Give the fused forward for a call, or None where it is to be computed by hand."""
        fused = None if kind is None else self.forwards.get(kind)
        if fused is None:
            return None
        for path, attributes in self.seen.items():
            part = attrgetter(path)(module) if path else module
            if path and any(getattr(part, name) for name in HOOKS):
                return None
            if any(_sign(getattr(part, name, None)) != seen for name, seen in attributes.items()):
                return None
        return fused


def call_kind(
    training: bool, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Kind | None, list[torch.Tensor]]:
    """Give what a graph depends on in a call, None if that is an object, and the tensors in order.

    Of a tensor that is the number of its axes, of other values all.
    """
    tensors: list[torch.Tensor] = []
    kinds: list[Any] = [("training", training)]
    for value in inputs:
        kinds.append(_kind(value, tensors))
    for name in sorted(keywords):
        kinds.append((name, _kind(keywords[name], tensors)))
    return (None if _holds_object(kinds) else tuple(kinds)), tensors


def fuse_in_place(module: nn.Module, calls: FusedCalls) -> None:
    """Let a module compute its attention fused. It stays the same object, of a derived class.

    Parameters, buffers, names, hooks and other methods stay as they are.
    """
    module.__class__ = _fused_class(type(module), calls)


def is_fused(module: nn.Module) -> bool:
    """Tell whether a module computes its attention fused, where it is called as before."""
    return hasattr(type(module), "_fused_calls")


def _fused_class(base: Any, calls: FusedCalls) -> Any:
    """Derive a class; the base may be such a class, too, for other kinds of calls."""
    plain, earlier = getattr(base, "_fused_calls", (base, ()))

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        kind, tensors = call_kind(self.training, inputs, keywords)
        fused = calls.find(self, kind)
        if fused is not None:
            try:
                return fused(self, *tensors)
            except AnotherCall:
                pass
        return base.forward(self, *inputs, **keywords)

    def reduce(self: Any, protocol: Any) -> Any:  # a pickle cannot name a class made here
        _, _, *state = plain.__reduce_ex__(self, protocol)
        return _new, made._fused_calls, *state

    methods = {"forward": forward, "__reduce_ex__": reduce, "__module__": base.__module__}
    made: Any = type(base)(f"Fused{plain.__name__}", (base,), methods)
    made._fused_calls = plain, (*earlier, calls)
    return made


def _new(made: Any, all_calls: tuple[FusedCalls, ...]) -> Any:
    for calls in all_calls:
        made = _fused_class(made, calls)
    return made.__new__(made)


# ---------------------------------------------------------------- what is seen


def _is_module(value: Any) -> bool:
    return isinstance(value, ModuleType)


def _attributes(module: nn.Module) -> dict[str, Any]:
    own = {name: each for name, each in vars(module).items() if not name.startswith("_")}
    return {name: _sign(each) for name, each in own.items() if name != "training"}


def _sign(value: Any) -> Any:
    """Give what tells a value from others: of an object, which may be copied, only its type."""
    return value if isinstance(value, (*PLAIN, FunctionType, type)) else type(value)


def _kind(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", value.dim())
    if type(value) in (tuple, list):
        return (type(value).__name__, *[_kind(each, tensors) for each in value])
    if type(value) is dict:
        return ("dict", *[(name, _kind(each, tensors)) for name, each in value.items()])
    return (type(value).__name__, str(value)) if isinstance(value, PLAIN) else None


def _holds_object(kind: Any) -> bool:
    """Tell whether there is None, which stands for an object, among the kinds of values."""
    if isinstance(kind, (tuple, list)):
        return any(_holds_object(each) for each in kind)
    return kind is None
