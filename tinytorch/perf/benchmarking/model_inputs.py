"""What a model is called with: inputs of a shape, its own example, or arrays made to fit it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinytorch.adapters.adapter import Adapter, adapter_for, owner_of
from tinytorch.adapters.values import rebuilt
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.perf.benchmarking.checks import check_shape

__all__ = ["checked_shapes", "fitted_inputs", "inputs_of_shapes", "own_example"]


def checked_shapes(input_shape: Any) -> tuple[tuple[int, ...], ...]:
    """Give the shapes of all arguments: `input_shape` is one shape, or one for each of several."""
    several = isinstance(input_shape, (tuple, list)) and any(
        isinstance(each, (tuple, list)) for each in input_shape
    )
    return tuple(check_shape(shape) for shape in (input_shape if several else (input_shape,)))


def inputs_of_shapes(model: Any, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    """Make an input of each shape: normal numbers, or tokens where the model embeds them."""
    adapter = adapter_for(model)
    return tuple(adapter.example(shape, model) for shape in shapes)


def own_example(model: Any) -> tuple[Any, ...]:
    """Give the inputs that a model itself tells of.

    That is its `example_inputs` (a value, or a method without arguments), or else one example of
    the size that its first layer with a size takes.
    """
    owner = owner_of(model)
    told = getattr(owner, "example_inputs", None)
    if told is not None:
        told = told() if callable(told) else told
        return told if isinstance(told, tuple) else (told,)
    adapter = adapter_for(model)
    for layer in adapter.modules(model).values():
        for attribute, shape_for in FIRST_LAYERS.items():
            size = getattr(layer, attribute, None)
            if isinstance(size, int):
                return (adapter.example(shape_for(owner, layer, size), model),)
    raise SettingError(
        f"{type(owner).__name__} does not tell what it takes: no layer has a size for its input; "
        "give it inputs, such as measure_performance(model, x)"
    )


def _of_features(owner: Any, layer: Any, size: int) -> tuple[int, ...]:
    return (1, size)


def _of_tokens(owner: Any, layer: Any, size: int) -> tuple[int, ...]:
    context = getattr(owner, "max_seq_len", None)
    if not isinstance(context, int):
        raise SettingError(
            f"{type(owner).__name__} reads tokens, and has no max_seq_len that tells how many; "
            "give it inputs, such as measure_performance(model, ids)"
        )
    return (1, context)


def _of_images(owner: Any, layer: Any, size: int) -> tuple[int, ...]:
    raise SettingError(
        f"{type(owner).__name__} begins with a convolution of {size} channels, which takes images "
        "of any height and width; give it inputs, such as measure_performance(model, images)"
    )


FIRST_LAYERS: dict[str, Callable[[Any, Any, int], tuple[int, ...]]] = {
    "in_features": _of_features,
    "num_embeddings": _of_tokens,
    "in_channels": _of_images,
}
"""What tells the size of a layer's input, and the shape that follows for one example."""


def fitted_inputs(model: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give arrays and tensors in the framework of the model, floats in its dtype.

    A plain function or object, which is of no framework, gets what it was given.
    """
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    if adapter.name == "pytorch":
        from tinytorch.perf.benchmarking.inputs_torch import torch_input

        fitted: tuple[Any, ...] = rebuilt(
            inputs, lambda value: torch_input(value, modules.values())
        )
        return fitted
    if any(isinstance(module, Module) for module in modules.values()):
        dtype = _floating_dtype(adapter, model)
        fitted = rebuilt(inputs, lambda value: _core_input(value, dtype))
        return fitted
    return inputs


def _floating_dtype(adapter: Adapter, model: Any) -> np.dtype[Any] | None:
    """Give the dtype of the first floating-point tensor in a model."""
    for layer in adapter.modules(model).values():
        for value in getattr(layer, "__dict__", {}).values():
            if isinstance(value, Tensor) and value.data.dtype.kind == "f":
                return value.data.dtype
    return None


def _core_input(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """Give an array, also one of PyTorch, as a tensor of ours; a tensor of ours as it is."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray):
        return value
    is_other_float = value.dtype.kind == "f" and dtype is not None and value.dtype != dtype
    return Tensor(value.astype(dtype) if is_other_float else value)
