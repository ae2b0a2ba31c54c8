"""Names for models that are measured together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tinytorch.adapters.adapter import owner_of
from tinytorch.errors import SettingError

__all__ = ["model_name", "named_models"]


def named_models(models: Any) -> dict[str, Any]:
    """Give models by name, in their order.

    `models` is a dictionary of names, or a list. In a list a model is called by its `.name`, and
    one without by its class, the second of a class ``Sequential_2``. Two models that both say they
    have the same name are an error: their results could not be told apart.
    """
    if isinstance(models, Mapping):
        wrong = [name for name in models if not isinstance(name, str) or not name]
        if wrong:
            raise SettingError(f"{wrong[0]!r} is no name for a model; give a text")
        named = dict(models)
    elif isinstance(models, (list, tuple)):
        named = _named_list(models)
    else:
        raise SettingError(
            f"models is a {type(models).__name__}; give a list of models, or a dictionary of them "
            "by name"
        )
    if not named:
        raise SettingError("no models were given; there is nothing to measure")
    return named


def model_name(model: Any) -> str | None:
    """Give the name that a model says it has; a target is its own name."""
    if isinstance(model, str):
        return model
    name = getattr(model, "name", None)
    return name if isinstance(name, str) and name else None


def _named_list(models: list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    own = [model_name(model) for model in models]
    counted = Counter(name for name in own if name is not None)
    twice = [name for name, count in counted.items() if count > 1]
    if twice:
        raise SettingError(
            f"{counted[twice[0]]} models are called {twice[0]!r}; give a dictionary with a "
            "different name for each"
        )
    named: dict[str, Any] = {}
    for model, name in zip(models, own, strict=True):
        named[name or _free_name(_class_name(model), {*named, *counted})] = model
    return named


def _class_name(model: Any) -> str:
    """Give the name of a function, or of the class of an object."""
    owner = owner_of(model)
    own = getattr(owner, "__qualname__", None)  # functions have one, objects have not
    return own.rpartition("<locals>.")[2] if isinstance(own, str) else type(owner).__name__


def _free_name(wanted: str, taken: set[str]) -> str:
    if wanted not in taken:
        return wanted
    number = 2
    while f"{wanted}_{number}" in taken:
        number += 1
    return f"{wanted}_{number}"
