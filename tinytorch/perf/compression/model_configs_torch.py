"""The configuration of a model of transformers, after the model became smaller. After torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["CONFIG_FITS", "CONFIG_LACKS", "fit_config", "has_config"]

CONFIG_FITS = (
    "its config says the new sizes ({changes}): save_pretrained and from_pretrained work as before"
)
CONFIG_LACKS = (
    "its config cannot say the new sizes, so from_pretrained cannot rebuild it: save the module "
    "itself with torch.save(model)"
)


def has_config(model: nn.Module) -> bool:
    """Tell whether a model is built from a configuration, as those of transformers are."""
    config = getattr(model, "config", None)
    return config is not None and hasattr(config, "to_dict") and hasattr(model, "save_pretrained")


def fit_config(model: nn.Module, *alternatives: Mapping[str, Any]) -> str:
    """Let the config of a smaller model say its sizes, in place, and give a note about it.

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
