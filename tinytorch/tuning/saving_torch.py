"""Weights of PyTorch models in a safetensors file that also has the recipe. Imported after torch.

What a model holds is its state dict, without wrappers around the model. A tensor that is made of
others (the values, scales and zero points of a quantized one) is written as these parts; what kind
of tensor they make is known from the model that the recipe builds, and so no code is ever loaded.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tinytorch import reading
from tinytorch.errors import CheckpointError, SettingError, first_line
from tinytorch.measure.memory import release_freed
from tinytorch.models.adapter import owner_of
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_tensors import digest_of, innermost
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize.quantizers import packing
from tinytorch.tuning.loading import Build
from tinytorch.tuning.recipe import Recipe, carry_out

RECIPE, SAME = "recipe", "same"
"""The texts of a file: the recipe, and for a tensor with several names the one that it is under."""
TRANSFORMERS = "transformers"
"""In the architecture of a recipe: the class of transformers that it is."""
PART = "::"
PLAIN_CLASSES = (torch.Tensor, nn.Parameter, nn.Buffer)
PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
WHOLE = (torch.qint8, torch.quint8, torch.qint32)
SEED = 8
MOST_PROBLEMS = 5
OPENED_FOR_BYTES = 2**23
"""So much of a file is read before what it takes in memory is given back."""

Tensors = dict[str, torch.Tensor]
Take = Callable[[str, torch.Tensor], torch.Tensor]
"""Returns a tensor of a file by its name, if it matches the one that a model holds."""


class TorchStorage:
    """Files of PyTorch models."""

    file_format = "safetensors"

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors that a file holds of a model."""
        return {
            name: tuple(each.shape)
            for part in _own_states(module_of(model))
            for name, each in _parts(part.state).items()
        }

    def digests(self, model: Any) -> dict[str, str]:
        """Return a hash of each tensor, by name."""
        return {
            name: digest_of(tensor)
            for part in _own_states(module_of(model))
            for name, tensor in _parts(part.state).items()
        }

    def with_other_weights(self, model: Any) -> Any:
        """Return a copy with random parameters, as after building the architecture again."""
        twin = TorchAdapter().clone(model)
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for each in module_of(twin).parameters():
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

    def architecture(self, model: Any) -> dict[str, Any]:
        """Return the class and the configuration of a model of transformers; {} for others."""
        return architecture_of(module_of(model))

    def built(self, architecture: Mapping[str, Any]) -> Any:
        """Build a model of transformers from its configuration."""
        return built_by_transformers(architecture)

    def emptied(self, build: Build) -> Workload:
        """Build a workload whose model has no numbers in its parameters."""
        with on_meta():
            workload = build()
        if any(each.is_meta for each in tensors_in(workload.arguments)):
            raise CheckpointError("its inputs are computed from torch.empty")
        return replace(workload, model=without_numbers(workload.model))

    def rebuild(self, path: Path, workload: Workload, recipe: Recipe) -> Any:
        """Rebuild the model of a file up to the saved weights; its hash is not checked."""
        model = carry_out(workload, recipe.plans[: recipe.weights_after])
        if model is workload.model:
            model = TorchAdapter().clone(model)
        give_room(model, recipe.device)
        _fill(model, _File(path))
        return model


# ---------------------------------------------------------------- what a model holds


@dataclass(frozen=True)
class _OwnState:
    """What a module holds itself under the names of the whole model, or `is_whole` of a model."""

    module: nn.Module
    prefix: str
    state: dict[str, Any]
    is_whole: bool = False


def _own_states(root: nn.Module) -> Iterator[_OwnState]:
    """Yield what a model holds, layer by layer: unpacking all of it at once would take its memory
    again. A model that says in its own way what it holds is one part."""
    if any(map(_has_own_state_dict, root.modules())):
        yield _OwnState(root, "", root.state_dict(), is_whole=True)
        return
    for path, module in root.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        state: dict[str, Any] = {}
        module._save_to_state_dict(state, prefix, False)
        if state:
            yield _OwnState(module, prefix, state)


def _has_own_state_dict(module: nn.Module) -> bool:
    kind = type(module)
    is_own = (
        kind.state_dict is not nn.Module.state_dict
        or kind.load_state_dict is not nn.Module.load_state_dict
    )
    hooks = (module._state_dict_hooks, module._load_state_dict_post_hooks)
    return is_own or any(hooks) or kind.get_extra_state is not nn.Module.get_extra_state


def _state(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = module_of(model).state_dict()
    return found


def architecture_of(model: nn.Module) -> dict[str, Any]:
    """Return what a model of transformers is built from; {} where that gives other tensors."""
    kind, config = type(model), getattr(model, "config", None)
    source = sys.modules.get("transformers")
    if source is None or config is None or getattr(source, kind.__name__, None) is not kind:
        return {}
    found = {
        TRANSFORMERS: kind.__name__,
        "config": json.loads(config.to_json_string(use_diff=False)),
        "attention": getattr(config, "_attn_implementation", None),
        "dtype": str(getattr(model, "dtype", torch.float32)).removeprefix("torch."),
    }
    try:
        with on_meta(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            built = built_by_transformers(found)
    except Exception:  # a class may want other arguments, or check them in its own way
        return {}
    storage = TorchStorage()
    return found if storage.shapes(built) == storage.shapes(model) else {}


def built_by_transformers(architecture: Mapping[str, Any]) -> nn.Module:
    """Build a model of transformers, in evaluation mode, from its class and configuration."""
    import transformers

    name = architecture.get(TRANSFORMERS, "")
    kind = getattr(transformers, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise CheckpointError(f"transformers {transformers.__version__} has no model {name!r}")
    settings = dict(architecture["config"])
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation = architecture.get("attention")
    dtype = getattr(torch, architecture["dtype"])
    model: nn.Module = kind(config)
    return model.to(dtype).eval() if dtype != torch.float32 else model.eval()


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
    is_odd = value.is_quantized or value.is_nested or value.is_complex()
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


# ---------------------------------------------------------------- reading


class _File:
    """The tensors of a file, each read when it is asked for.

    They are parts of the file in memory, which stay there as long as it is open. So that no more
    of it is held than is needed, it is opened anew after some megabytes.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, 0
        with _reading():
            self._open = self._opened()
            self.names = frozenset(self._open.keys())
            same = reading.parse_json(reading.read_metadata(self._path).get(SAME, "{}"))
        if not isinstance(same, dict):
            raise CheckpointError("it is damaged: it does not say which tensors have several names")
        self.same: Mapping[str, str] = same

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor of the file by its name."""
        with _reading():
            if self._seen > OPENED_FOR_BYTES:
                self._open, self._seen = self._opened(), 0
                release_freed()
            found: torch.Tensor = self._open.get_tensor(name)
        self._seen += found.nbytes
        return found

    def _opened(self) -> Any:
        from safetensors import safe_open

        return safe_open(self._path, framework="pt")


@contextmanager
def _reading() -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"it cannot be read (truncated, or damaged?): {error}") from error


def _fill(model: Any, file: _File) -> None:
    """Load the tensors of a file into a model; raise unless all of them match its own."""
    problems: list[str] = []
    used: set[str] = set()

    def take(name: str, like: torch.Tensor) -> torch.Tensor:
        key = file.same.get(name, name)
        used.add(key)
        if key not in file.names:
            problems.append(f"the file has no {name!r}")
            return like
        found = file.tensor(key)
        if found.shape == like.shape and found.dtype == like.dtype:
            return found.to(like.device)
        problems.append(
            f"{name!r} is {tuple(found.shape)} of {found.dtype} in the file, the model needs "
            f"{tuple(like.shape)} of {like.dtype}"
        )
        return like

    for part in _own_states(module_of(model)):
        filled = {name: _like(name, value, take) for name, value in part.state.items()}
        if not problems:
            _load_into(part, filled)
    problems += [f"the file has {name!r}, the model does not" for name in file.names - used]
    if problems:
        more = f"; and {len(problems) - MOST_PROBLEMS} more" if problems[MOST_PROBLEMS:] else ""
        raise CheckpointError("; ".join(problems[:MOST_PROBLEMS]) + more)


def _load_into(part: _OwnState, filled: dict[str, Any]) -> None:
    """Put tensors into a module, without its children, or into a whole model."""
    wrong: list[str] = []
    try:
        with packing(), _own_versions(part.module):
            if part.is_whole:
                part.module.load_state_dict(_with_versions(filled, part.state))
                return
            version = {"version": part.module._version}
            part.module._load_from_state_dict(
                filled, part.prefix, version, True, wrong, wrong, wrong
            )
    except (RuntimeError, NotImplementedError, TypeError, KeyError) as error:
        raise CheckpointError(f"PyTorch cannot put its weights in: {first_line(error)}") from error
    if wrong:
        raise CheckpointError(f"PyTorch cannot put its weights in: {wrong[0]}")


def _with_versions(filled: dict[str, Any], state: Any) -> OrderedDict[str, Any]:
    """Return tensors with the versions of layers that belong to a state.

    Without them packed layers take the state for one of an older PyTorch and ask for other names.
    """
    found = OrderedDict(filled)
    vars(found)["_metadata"] = getattr(state, "_metadata", None)
    return found


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
    """Return the value of a file instead of something that a model holds."""
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


def write_pickled(path: Path, model: Any) -> None:
    """Write a model with its code's names, for a process of our own."""
    torch.save(model, path)


def read_pickled(path: Path) -> Any:
    """Read what :func:`write_pickled` wrote."""
    return torch.load(path, weights_only=False)


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


# ---------------------------------------------------------------- models without numbers: built
# on the meta device, which gives tensors no memory

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
