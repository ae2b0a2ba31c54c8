"""What transforms that train a copy of a model are given to train it with."""

from __future__ import annotations

from typing import Any

from tinytorch.errors import SettingError

__all__ = ["check_loader", "check_optimizer"]


def check_loader(loader: Any) -> None:
    """Raise unless one can go over the data several times."""
    if not hasattr(loader, "__len__"):
        raise SettingError(
            f"training goes over the data several times, which a {type(loader).__name__} cannot; "
            "give a DataLoader or a list of batches"
        )


def check_optimizer(optimizer: Any) -> None:
    """Raise unless this is None, or a function of the parameters: those of a copy come later."""
    if not (optimizer is None or callable(optimizer)):
        raise SettingError(
            f"the optimizer is a function of the parameters of a copy, got "
            f"{type(optimizer).__name__}; write lambda parameters: SGD(parameters, lr=0.01)"
        )
