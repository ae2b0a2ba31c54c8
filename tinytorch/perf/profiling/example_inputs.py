"""Inputs for a model from what the classic functions take: a shape, an input, or several."""

from __future__ import annotations

from typing import Any

from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import SettingError
from tinytorch.perf.profiling.timer import refuse_lazy

__all__ = ["as_inputs", "check_model", "example_inputs", "shape_of"]


def example_inputs(model: Any, input_shape: Any) -> tuple[Any, ...]:
    """Make inputs of a shape, or of each of several shapes: numbers, or tokens for embeddings."""
    check_model(model)
    shapes = input_shape if _is_list_of_shapes(input_shape) else (input_shape,)
    adapter = adapter_for(model)
    return tuple(adapter.example(_checked(shape), model) for shape in shapes)


def as_inputs(x: Any) -> tuple[Any, ...]:
    """Give the arguments of a call: a tuple is several, everything else is one."""
    return x if isinstance(x, tuple) else (x,)


def shape_of(x: Any) -> tuple[int, ...]:
    """Give the shape of an input; () for what has none."""
    return tuple(int(length) for length in getattr(x, "shape", ()))


def check_model(model: Any) -> None:
    """Refuse what is no model, and one that returns before it has done its work.

    A model can be called, or has `forward`.
    """
    if isinstance(model, type) or not (callable(model) or hasattr(model, "forward")):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise SettingError(
            f"{what} is no model: give an object that can be called or has forward()"
        )
    refuse_lazy(model)


def _is_list_of_shapes(given: Any) -> bool:
    return isinstance(given, (tuple, list)) and any(
        isinstance(each, (tuple, list)) for each in given
    )


def _checked(shape: Any) -> tuple[int, ...]:
    try:
        lengths = tuple(shape)
    except TypeError:
        raise SettingError(f"input_shape={shape!r}; give a tuple such as (32, 784)") from None
    for length in lengths:
        if isinstance(length, bool) or not hasattr(length, "__index__") or length < 1:
            raise SettingError(f"input_shape={lengths}; every length is a whole number from 1 on")
    return tuple(int(length) for length in lengths)
