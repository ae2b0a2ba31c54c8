"""Weights of PyTorch models in a safetensors file that also has the recipe. Imported after torch.

What a model holds is its state dict, without wrappers around the model. A tensor that is made of
others (the values, scales and zero points of a quantized one) is written as these parts; what kind
of tensor they make is known from the model that the recipe builds, and so no code is ever loaded.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tinytorch.errors import CheckpointError, SettingError, first_line
from tinytorch.models.adapter import owner_of
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import innermost
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize.quantizers import packing
from tinytorch.tuning.recipe import Recipe, carry_out

__all__ = ["TorchStorage", "forget_compiled"]


RECIPE, SAME = "recipe", "same"
"""The texts of a file: the recipe, and for a tensor with several names the one that it is under."""
PART = "::"
PLAIN_CLASSES = (torch.Tensor, nn.Parameter, nn.Buffer)
PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
WHOLE = (torch.qint8, torch.quint8, torch.qint32)
SEED = 8
MOST_PROBLEMS = 5

Tensors = dict[str, torch.Tensor]
Take = Callable[[str, torch.Tensor], torch.Tensor]
"""Returns a tensor of a file by its name, if it matches the one that a model holds."""


class TorchStorage:
    """Files of PyTorch models."""

    file_format = "safetensors"

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors that a file holds of a model."""
        return {name: tuple(each.shape) for name, each in _parts(_state(model)).items()}

    def digests(self, model: Any) -> dict[str, str]:
        """Return a hash of each tensor, by name."""
        return {name: _digest(tensor) for name, tensor in _parts(_state(model)).items()}

    def with_other_weights(self, model: Any) -> Any:
        """Return a copy with random parameters, as after building the architecture again."""
        twin = TorchAdapter().clone(model)
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for each in _module(twin).parameters():
                if _is_plain(each) and each.is_floating_point() and each.numel() > 1:
                    spread = float(each.float().std()) or 1.0
                    numbers = torch.randn(each.shape, generator=generator) * spread
                    each.data.copy_(numbers)
        return twin

    def write(self, path: Path, model: Any, recipe: Recipe) -> None:
        """Write the weights and the recipe."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors, same = _each_once(_parts(_state(model)))
        if not tensors:
            raise SettingError(f"{type(model).__name__} holds no numbers that a file could keep")
        ready = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
        texts = {RECIPE: json.dumps(recipe.to_dict(), ensure_ascii=False, allow_nan=False)}
        texts |= {SAME: json.dumps(same)} if same else {}
        try:
            save_file(_owning(ready), path, metadata=texts)
        except SafetensorError as error:
            raise OSError(str(error)) from error

    def rebuild(self, path: Path, workload: Workload, recipe: Recipe) -> Any:
        """Rebuild the model of a file up to the saved weights; its hash is not checked."""
        tensors, same = _read(path)
        model = carry_out(workload, recipe.plans[: recipe.weights_after])
        if model is workload.model:
            model = TorchAdapter().clone(model)
        _fill(model, tensors, same)
        return model


# ---------------------------------------------------------------- what a model holds


def _module(model: Any) -> nn.Module:
    owner = innermost(owner_of(model))
    if not isinstance(owner, nn.Module):
        raise SettingError(
            f"{type(model).__name__} is no module of PyTorch, and only these say what they hold"
        )
    return owner


def _state(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = _module(model).state_dict()
    return found


def _parts(state: Mapping[str, Any]) -> Tensors:
    """Return everything in a state as plain tensors."""
    return {name: part for key, value in state.items() for name, part in _parts_of(key, value)}


def _parts_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if value is None or isinstance(value, torch.dtype):
        return  # the plan decides about it
    if isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from _parts_of(f"{name}{PART}{place}", each)
        return
    if not isinstance(value, torch.Tensor) or is_lazy(value):
        raise CheckpointError(f"{name!r} is a {type(value).__name__}, which no file holds")
    if is_traceable_wrapper_subclass(value):
        for inner in value.__tensor_flatten__()[0]:
            yield from _parts_of(f"{name}{PART}{inner}", getattr(value, inner))
    elif value.is_quantized:
        yield from _quantized_parts(name, value)
    elif _is_plain(value):
        yield name, value.detach()
    else:
        kind = type(value).__name__ if type(value) not in PLAIN_CLASSES else value.layout
        raise CheckpointError(f"{name!r} is a {kind}, which no file holds")


def _quantized_parts(name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if value.dtype not in WHOLE:
        raise CheckpointError(f"{name!r} holds {value.dtype}, which no file holds")
    yield f"{name}{PART}values", value.int_repr()
    if value.qscheme() in PER_CHANNEL:
        yield f"{name}{PART}scales", value.q_per_channel_scales()
        yield f"{name}{PART}zero_points", value.q_per_channel_zero_points()
    else:
        yield f"{name}{PART}scales", torch.tensor(value.q_scale(), dtype=torch.float64)
        yield f"{name}{PART}zero_points", torch.tensor(value.q_zero_point())


def _is_plain(value: torch.Tensor) -> bool:
    is_odd = value.is_quantized or value.is_nested or value.is_meta or value.is_complex()
    return type(value) in PLAIN_CLASSES and value.layout == torch.strided and not is_odd


def _each_once(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Return tensors each under the first of its names, and that name for each other one."""
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, each in tensors.items():
        place = (each.data_ptr(), each.shape, each.stride(), each.dtype, each.device)
        known = first.setdefault(place, name) if each.numel() else name
        if known != name:
            same[name] = known
    return {name: each for name, each in tensors.items() if name not in same}, same


def _owning(tensors: Tensors) -> Tensors:
    """Return tensors none of which shares the memory of another, as safetensors requires."""
    return {
        name: each.clone()
        if each.untyped_storage().nbytes() != each.numel() * each.element_size()
        else each
        for name, each in tensors.items()
    }


def _digest(tensor: torch.Tensor) -> str:
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.numel():
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# ---------------------------------------------------------------- reading


def _read(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Return the tensors of a file, and for further names of a tensor the one that it is under."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            same = json.loads((file.metadata() or {}).get(SAME, "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"it cannot be read (truncated, or damaged?): {error}") from error
    if not isinstance(same, dict):
        raise CheckpointError("it is damaged: it does not say which tensors have several names")
    return tensors, same


def _fill(model: Any, tensors: Tensors, same: Mapping[str, str]) -> None:
    """Load the tensors of a file into a model; raise unless all of them match its own."""
    state = _state(model)
    problems: list[str] = []
    used: set[str] = set()

    def take(name: str, like: torch.Tensor) -> torch.Tensor:
        key = same.get(name, name)
        used.add(key)
        found = tensors.get(key)
        if found is None:
            problems.append(f"the file has no {name!r}")
        elif found.shape != like.shape or found.dtype != like.dtype:
            problems.append(
                f"{name!r} is {tuple(found.shape)} of {found.dtype} in the file, the model needs "
                f"{tuple(like.shape)} of {like.dtype}"
            )
        else:
            return found.to(like.device)
        return like

    filled = type(state)((name, _like(name, value, take)) for name, value in state.items())
    problems += [f"the file has {name!r}, the model does not" for name in set(tensors) - used]
    if problems:
        more = f"; and {len(problems) - MOST_PROBLEMS} more" if problems[MOST_PROBLEMS:] else ""
        raise CheckpointError("; ".join(problems[:MOST_PROBLEMS]) + more)
    if hasattr(state, "_metadata"):
        filled._metadata = state._metadata  # type: ignore[attr-defined]
    try:
        with packing(), _own_versions(_module(model)):
            _module(model).load_state_dict(filled)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise CheckpointError(f"PyTorch cannot put its weights in: {first_line(error)}") from error


@contextmanager
def _own_versions(model: nn.Module) -> Iterator[None]:
    """Keep the version that was set on packed layers; PyTorch would reset it to its class's.

    It decides how many bits of its inputs a dynamic layer uses.
    """
    own = [(each, vars(each)["version"]) for each in model.modules() if "version" in vars(each)]
    yield
    for module, version in own:
        vars(module)["version"] = version


def _like(name: str, value: Any, take: Take) -> Any:
    """Return the value of a file in the place of something that a model holds."""
    if isinstance(value, tuple):
        return tuple(_like(f"{name}{PART}{place}", each, take) for place, each in enumerate(value))
    if not isinstance(value, torch.Tensor):
        return value
    if is_traceable_wrapper_subclass(value):
        inner, context = value.__tensor_flatten__()
        parts = {each: _like(f"{name}{PART}{each}", getattr(value, each), take) for each in inner}
        kind: Any = type(value.detach())
        return kind.__tensor_unflatten__(parts, context, value.size(), value.stride())
    if value.is_quantized:
        return _like_quantized(name, value, take)
    return take(name, value.detach())


def _like_quantized(name: str, value: torch.Tensor, take: Take) -> torch.Tensor:
    parts = {
        key.rpartition(PART)[2]: take(key, part) for key, part in _quantized_parts(name, value)
    }
    values, scales, zero_points = (parts[key] for key in ("values", "scales", "zero_points"))
    if value.qscheme() in PER_CHANNEL:
        axis = value.q_per_channel_axis()
        return torch._make_per_channel_quantized_tensor(values, scales, zero_points, axis)
    return torch._make_per_tensor_quantized_tensor(values, scales.item(), int(zero_points.item()))


# ---------------------------------------------------------------- letting every attempt compile as
# if it were the first. Imported after torch


def forget_compiled() -> None:
    """Drop what torch.compile has kept; models that are compiled do it again when called next.

    What follows a graph break is kept with the code of the model's class, which all attempts share,
    for eight variants; any further model would run uncompiled, and be timed as if it were compiled.
    """
    if "torch._dynamo" in sys.modules:  # else nothing was compiled
        reset: Any = torch.compiler.reset
        reset()
