"""PyTorch models without numbers, for loading a file into them. Imported after torch.

A tensor on the `meta` device has a shape and takes no memory. What a model computes in its
`__init__` from `arange` or `ones`, such as position ids and rotary tables, is computed as ever: it
is in no file."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tinytorch.errors import CheckpointError, SettingError
from tinytorch.models.adapter import owner_of
from tinytorch.models.pytorch_tensors import innermost

META = torch.device("meta")
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)
FILLING = frozenset(
    getattr(torch.Tensor, f"{name}_")
    for name in (
        *("add", "bernoulli", "clamp", "copy", "div", "erfinv", "exponential", "fill", "mul"),
        *("masked_fill", "normal", "random", "sub", "uniform", "zero"),
    )
)
"""What writes numbers into a tensor. PyTorch works out shapes of some of them in Python, for which
it imports sympy: 35 MB."""
PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def module_of(model: Any) -> nn.Module:
    """Return the module inside of all wrappers; raise SettingError where there is none."""
    owner = innermost(owner_of(model))
    if not isinstance(owner, nn.Module):
        raise SettingError(
            f"{type(model).__name__} is no module of PyTorch, and only these say what they hold"
        )
    return owner


class on_meta(TorchFunctionMode):
    """Build models inside of it: what `torch.empty` makes has no numbers, all else does.

    That is how the layers of PyTorch make their parameters, to fill them in place. Under
    ``torch.device("meta")`` alone, buffers would lose their numbers as well, and no file has them.
    What asks for a device gets it; moving what has no numbers leaves it where it is.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.empty and given.get("device") is None:
            given["device"] = META
        elif args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            if func in FILLING:
                return args[0]
            if func in MOVES:
                return _moved(args[0], func, args[1:], given)
        return func(*args, **given)


def _moved(tensor: torch.Tensor, func: Any, args: Any, given: dict[str, Any]) -> Any:
    """Cast a tensor without numbers as it was asked for, and leave it on its device."""
    if func is not torch.Tensor.to:
        return tensor
    moved: Any = [META if isinstance(each, torch.device | str) else each for each in args]
    return func(tensor, *moved, **given | ({"device": META} if "device" in given else {}))


def without_numbers(model: Any) -> Any:
    """Return a copy of a model with what a file holds of it on the `meta` device."""
    empty = {
        id(tensor): _empty_twin(tensor)
        for module in module_of(model).modules()
        for name, tensor in _held(module)
        if name not in module._non_persistent_buffers_set
        and type(tensor) in PLAIN
        and not is_lazy(tensor)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
    }
    return copy.deepcopy(model, empty)


def _empty_twin(tensor: torch.Tensor) -> torch.Tensor:
    twin = _empty(tensor, META)
    if isinstance(tensor, nn.Parameter):
        twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
    vars(twin).update(vars(tensor))
    return twin


def _empty(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """Return a tensor without numbers; `empty_like` imports sympy, which takes 35 MB."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def give_room(model: Any, device: str) -> None:
    """Put tensors with room for numbers in the place of those on the `meta` device.

    A tensor that several layers hold stays one. Raise CheckpointError where something is left that
    no file fills, since only the model's own code knows its numbers.
    """
    made: dict[int, tuple[Any, Any]] = {}
    for path, module in module_of(model).named_modules():
        for name, tensor in list(_held(module)):
            if not _is_empty(tensor):
                continue
            if name in module._non_persistent_buffers_set:
                raise _computed(path, name)
            if id(tensor) not in made:
                made[id(tensor)] = tensor, _with_room(tensor, device)
            setattr(module, name, made[id(tensor)][1])
    for path, module in module_of(model).named_modules():
        for name, tensor in _attributes(module):
            if _is_empty(tensor):
                raise _computed(path, name)


def _computed(path: str, name: str) -> CheckpointError:
    place = f"{path}.{name}" if path else name
    return CheckpointError(
        f"{place!r} is in no file, and was computed from torch.empty, which has no numbers here"
    )


def _held(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for registry in (module._parameters, module._buffers):
        for name, tensor in registry.items():
            if tensor is not None:
                yield name, tensor


def _attributes(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a layer that are not registered, with the names of the attributes."""
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers", "_modules"):
            continue
        values = value.values() if isinstance(value, dict) else value
        parts = values if isinstance(value, (dict, list, tuple)) else (value,)
        yield from ((name, each) for each in parts if isinstance(each, torch.Tensor))


def _is_empty(tensor: torch.Tensor) -> bool:
    if is_traceable_wrapper_subclass(tensor):
        return any(_is_empty(getattr(tensor, each)) for each in tensor.__tensor_flatten__()[0])
    return tensor.is_meta


def _with_room(tensor: torch.Tensor, device: str) -> torch.Tensor:
    value = tensor.detach()
    if is_traceable_wrapper_subclass(value):
        inner, context = value.__tensor_flatten__()
        parts = {each: _with_room(getattr(value, each), device) for each in inner}
        kind: Any = type(value)
        value = kind.__tensor_unflatten__(parts, context, value.size(), value.stride())
    elif value.is_meta:
        value = _empty(value, device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value
