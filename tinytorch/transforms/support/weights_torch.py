"""PyTorch models whose weights take another form."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from tinytorch.errors import SettingError
from tinytorch.transforms.support.channels import Place
from tinytorch.transforms.support.trimming import Removal

# ---------------------------------------------------------------- PyTorch models as a whole:
# calling them on a workload, comparing outputs, putting layers in
#
# Imported after torch.

Watch = Callable[[str, tuple[Any, ...], Any], None]


def transposed_linear() -> type[nn.Module] | None:
    """Return the `Conv1D` of transformers, a linear layer with (inputs, outputs), if imported."""
    return getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)


def is_transposed_linear(module: Any) -> bool:
    """Return whether it is exactly that class: a subclass may compute something else."""
    return type(module) is transposed_linear()


def owners_of_tensors(model: nn.Module) -> dict[int, list[str]]:
    """Return the names that the modules of a model have for each parameter, by its `id`."""
    names: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                names.setdefault(id(tensor), []).append(f"{path}.{name}" if path else name)
    return names


# ---------------------------------------------------------------- the configuration of a model of
# transformers, after the model became smaller. After torch

CONFIG_FITS = (
    "its config says the new sizes ({changes}): save_pretrained and from_pretrained work as before"
)
CONFIG_LACKS = (
    "its config cannot say the new sizes, so from_pretrained cannot rebuild it: save the module "
    "itself with torch.save(model)"
)


def has_config(model: nn.Module) -> bool:
    """Return whether a model is built from a configuration, as those of transformers are."""
    config = getattr(model, "config", None)
    return config is not None and hasattr(config, "to_dict") and hasattr(model, "save_pretrained")


def fit_config(model: nn.Module, *alternatives: Mapping[str, Any]) -> str:
    """Update the sizes in the config of a smaller model, in place, and return a note about it.

    A model without numbers is built from the changed config: the first changes by which it gets
    the shapes of the smaller one are made.
    """
    if not has_config(model):
        return ""
    wanted = _shapes(model)
    for changes in alternatives:
        trial = copy.deepcopy(model.config)
        _change(trial, changes)
        if _shapes_built_from(trial, model) == wanted:
            _change(model.config, changes)
            said = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            return CONFIG_FITS.format(changes=said) if changes else ""
    return CONFIG_LACKS


def _change(config: Any, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        setattr(config, name, value)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in model.state_dict().items()}


def _shapes_built_from(config: Any, model: nn.Module) -> dict[str, tuple[int, ...]] | None:
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return _shapes(type(model)(config))
    except Exception:  # a class may want other arguments, or check sizes in its own way
        return None


# ---------------------------------------------------------------- taking indices out of the
# tensors of a PyTorch model, with what its layers know of their sizes
#
# Imported after torch.


def trim(model: nn.Module, removal: Removal) -> None:
    """Remove indices from tensors of a model, in place; its layers learn their new sizes."""
    changed: dict[str, nn.Module] = {}
    for place, indices in removal.items():
        path, module, name = _find(model, place, indices)
        registry: dict[str, Any] = (
            module._parameters if name in module._parameters else module._buffers
        )
        old = registry[name]
        gone = set(indices)
        left = [index for index in range(old.shape[place.axis]) if index not in gone]
        kept = old.detach().index_select(place.axis, torch.tensor(left, device=old.device))
        new: torch.Tensor = kept
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(kept, requires_grad=old.requires_grad)
        registry[name] = new
        changed[path] = module
    for module in changed.values():
        _fit(module)


def zero_out(model: nn.Module, removal: Removal) -> None:
    """Set the same indices to zero instead, in place."""
    for place, indices in removal.items():
        _, module, name = _find(model, place, indices)
        tensor = getattr(module, name)
        at = torch.tensor(indices, dtype=torch.long, device=tensor.device)
        with torch.no_grad():
            tensor.index_fill_(place.axis, at, 0)


def set_sizes(model: nn.Module, sizes: Mapping[str, Mapping[str, int]]) -> None:
    """Set numbers that layers keep beside their tensors, such as how many heads they have."""
    for path, values in sizes.items():
        module = model.get_submodule(path)
        for name, value in values.items():
            setattr(module, name, value)


def is_depthwise(module: Any) -> bool:
    """Return whether each channel of a convolution has its own kernel and nothing else."""
    return (
        isinstance(module, _ConvNd)
        and module.groups == module.out_channels == module.in_channels
        and module.groups > 1
    )


def _find(model: nn.Module, place: Place, indices: Iterable[int]) -> tuple[str, nn.Module, str]:
    path, _, name = place.tensor.rpartition(".")
    try:
        module = model.get_submodule(path)
        tensor = {**module._parameters, **module._buffers}[name]
    except (AttributeError, KeyError):
        tensor = None
    if tensor is None or tensor.dim() <= place.axis or tensor.shape[place.axis] <= max(indices):
        raise SettingError(
            f"the model has no tensor {place.tensor!r} with the indices of the plan; make a plan "
            "for this model"
        )
    return path, module, name


def _fit(module: nn.Module) -> None:
    """Update the sizes of a layer from its tensors."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif is_transposed_linear(module):
        module.nx, module.nf = module.weight.shape  # type: ignore[misc, assignment]
    elif isinstance(module, _ConvNd):
        _fit_convolution(module)
    elif isinstance(module, _NormBase):
        weight = module._parameters.get("weight")
        tensor: Any = module.running_mean if weight is None else weight
        module.num_features = len(tensor)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)


def _fit_convolution(conv: _ConvNd) -> None:
    outputs, inputs = conv.weight.shape[:2]
    if conv.transposed:
        conv.in_channels, conv.out_channels = outputs, inputs * conv.groups
    elif is_depthwise(conv):
        conv.groups = conv.out_channels = conv.in_channels = outputs
    else:
        conv.out_channels, conv.in_channels = outputs, inputs * conv.groups
