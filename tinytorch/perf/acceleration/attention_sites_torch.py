"""Where a model computes attention by hand, as seen in one call of a copy of it."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tinytorch.adapters.layer_watch import entering_layers
from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.perf.acceleration.attention_module_torch import call_kind
from tinytorch.perf.acceleration.trial_torch import run_once
from tinytorch.workloads.workload import Workload

__all__ = ["Observed", "Site", "calls_of_modules", "observe_attention"]

PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum")
SOFTMAX = "softmax"

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Site:
    """A place where softmax is computed and its result multiplied with something.

    `stack` are the paths of the modules around it, the outermost first, `inner` the modules below
    the last of them in which the softmax stands. `nbytes` are those of all score matrices in one
    call of the model.
    """

    stack: tuple[str, ...]
    inner: tuple[str, ...]
    shape: tuple[int, ...]
    nbytes: int = 0
    matrices: int = 0

    @property
    def path(self) -> str:
        return self.stack[-1]


@dataclass
class Observed:
    """What one call showed."""

    sites: dict[str, Site] = field(default_factory=dict)
    asked_for_weights: set[str] = field(default_factory=set)
    """The paths of each nn.MultiheadAttention that was called with need_weights=True."""


def observe_attention(workload: Workload, model: nn.Module) -> Observed:
    """Call a model that may be spoilt once, and see where it computes attention by hand."""
    observed = Observed()
    stack: list[str] = []
    modules = dict(model.named_modules())

    def ask(path: str, module: Any, inputs: tuple[Any, ...], keywords: Any) -> None:
        if _wants_weights(module, inputs, keywords):
            observed.asked_for_weights.add(path)

    def leave(*_: Any) -> None:
        stack.pop()

    # no hooks on all of them: modules that are watched by some compute by hand
    layers = entering_layers(modules, stack.append, leave)
    of_torch: dict[str, nn.Module] = {
        path: each for path, each in modules.items() if isinstance(each, nn.MultiheadAttention)
    }
    with layers, _hooked(of_torch, ask), _Watch(observed, stack, modules):
        run_once(TorchAdapter(), workload, model)
    return observed


def calls_of_modules(
    workload: Workload, model: nn.Module, paths: tuple[str, ...]
) -> dict[str, list[Call]]:
    """Call a model that may be spoilt once; give copies of the arguments of modules inside.

    Of calls of the same kind only the first one is kept.
    """
    adapter = TorchAdapter()
    found: dict[str, dict[Any, Call]] = {path: {} for path in paths}

    def enter(path: str, module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        kind, _ = call_kind(module.training, inputs, keywords)
        if kind not in found[path]:
            values = adapter.copy_inputs(tuple(keywords.values()))
            found[path][kind] = (
                adapter.copy_inputs(inputs),
                dict(zip(keywords, values, strict=True)),
            )

    with _hooked({path: model.get_submodule(path) for path in paths}, enter):
        run_once(adapter, workload, model)
    return {path: list(calls.values()) for path, calls in found.items()}


@dataclass(frozen=True)
class _Weights:
    """The result of a softmax, or what it was cast to since."""

    tensor: weakref.ref[torch.Tensor]
    stack: tuple[str, ...]
    shape: tuple[int, ...]
    nbytes: int


class _Watch(TorchFunctionMode):
    """Follow the result of each softmax to the product that takes it."""

    def __init__(self, observed: Observed, stack: list[str], modules: dict[str, Any]) -> None:
        super().__init__()
        self.observed = observed
        self.stack = stack
        self.modules = modules
        self.weights: dict[int, _Weights] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if not isinstance(result, torch.Tensor):
            return result
        if name == SOFTMAX and result.dim() >= 2:
            nbytes = result.numel() * result.element_size()
            self._keep(result, tuple(self.stack), tuple(result.shape), nbytes)
            return result
        origin = next((found for each in _flat(args) if (found := self._origin(each))), None)
        if origin is not None and name in PRODUCTS:
            self._found(origin)
        elif origin is not None and tuple(result.shape[-2:]) == origin.shape[-2:]:
            self._keep(result, origin.stack, origin.shape, origin.nbytes)
        return result

    def _keep(self, tensor: torch.Tensor, *about: Any) -> None:
        self.weights[id(tensor)] = _Weights(weakref.ref(tensor), *about)

    def _origin(self, value: Any) -> _Weights | None:
        known = self.weights.get(id(value))
        return known if known is not None and known.tensor() is value else None

    def _found(self, weights: _Weights) -> None:
        common: list[str] = []
        for one, other in zip(weights.stack, self.stack, strict=False):
            if one != other:
                break
            common.append(one)
        while len(common) > 1 and _is_of_torch(self.modules[common[-1]]):
            common.pop()
        stack = tuple(common)
        site = self.observed.sites.setdefault(stack[-1], Site(stack, (), weights.shape))
        site.inner = tuple(dict.fromkeys((*site.inner, *weights.stack[len(stack) :])))
        site.nbytes += weights.nbytes
        site.matrices += 1


def _flat(args: tuple[Any, ...]) -> Iterator[Any]:
    for each in args:
        yield from each if isinstance(each, (tuple, list)) else (each,)


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _wants_weights(
    module: nn.MultiheadAttention, inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> bool:
    try:
        bound = inspect.signature(type(module).forward).bind(module, *inputs, **keywords)
    except TypeError:
        return False  # the call itself will say what is wrong
    return bool(bound.arguments.get("need_weights", True))


@contextmanager
def _hooked(modules: dict[str, nn.Module], enter: Callable[..., None]) -> Iterator[None]:
    """Call `enter(path, module, inputs, keywords)` before each call of a module."""
    handles = [
        module.register_forward_pre_hook(
            lambda *call, path=path: enter(path, *call), with_kwargs=True
        )
        for path, module in modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
