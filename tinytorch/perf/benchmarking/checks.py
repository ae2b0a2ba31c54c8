"""Checks of what the benchmarking tools are given."""

from __future__ import annotations

import inspect
from typing import Any

from tinytorch.errors import ModelError, SettingError, TinyTorchError

__all__ = ["check_budget", "check_count", "check_model", "check_shape", "failure_text"]

LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_count(name: str, value: Any, *, at_least: int) -> int:
    """Give a whole number of at least some size; refuse anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise SettingError(f"{name}={value!r}; it must be a whole number")
    if value < at_least:
        raise SettingError(f"{name}={value}; it must be at least {at_least}")
    return int(value)


def check_budget(budget_s: float) -> None:
    """Refuse a measuring time that is none."""
    if not budget_s > 0:
        raise SettingError(f"budget_s={budget_s}: a measurement needs some time")


def check_shape(shape: Any) -> tuple[int, ...]:
    """Give the lengths of a shape, each a whole number from 1 on."""
    if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
        raise SettingError(f"input_shape={shape!r}; give a tuple such as (1, 28, 28)")
    lengths = tuple(shape)
    if not lengths:
        raise SettingError("input_shape is empty; give a tuple such as (1, 28, 28)")
    for length in lengths:
        if isinstance(length, bool) or not hasattr(length, "__index__") or length < 1:
            raise SettingError(f"input_shape={lengths}; every length is a whole number from 1 on")
    return tuple(int(length) for length in lengths)


def check_model(model: Any) -> None:
    """Refuse what is no model, and one whose call returns before it has done its work."""
    if isinstance(model, type) or not (callable(model) or hasattr(model, "forward")):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise SettingError(
            f"{what} is no model: give an object that can be called or has forward()"
        )
    for each in (model, getattr(model, "forward", None), getattr(type(model), "__call__", None)):  # noqa: B004
        if any(is_lazy(each) for is_lazy in LAZY):
            raise ModelError(
                f"{type(model).__name__} is a coroutine or generator: calling it only makes an "
                "object; give a function that runs it to its end"
            )


def failure_text(error: Exception) -> str:
    """Say in one line what went wrong with a model."""
    text = str(error).strip() or "no message"
    is_plain = isinstance(error, TinyTorchError)  # its message needs no class to be understood
    return text if is_plain else f"{type(error).__name__}: {text}"
