"""The weights of a model: how many, how many bytes, and how large they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tinytorch.errors import ModelError, SettingError, check_number
from tinytorch.models.adapter import adapter_for, owner_of
from tinytorch.profiling.timer import check_count

SMALL = {"0001": 0.001, "001": 0.01, "01": 0.1}
"""Thresholds by the end of their key."""


def parameter_tensors(model: Any) -> list[Any]:
    """Return the parameters of a model, each tensor once: from `parameters()`, or by inspection.

    A bound method learns what its owner does, a function what the models that it uses do.
    """
    model = owner_of(model)
    listed = getattr(model, "parameters", None)
    found = list(listed()) if callable(listed) else list(_found_inside(model))
    return list({id(tensor): tensor for tensor in found}.values())


def count_parameters(model: Any) -> int:
    """Count the numbers that a model learns; what is shared counts once."""
    return sum(math.prod(tensor.shape) for tensor in parameter_tensors(model))


def parameter_bytes(model: Any) -> int:
    """Return the bytes of the parameters."""
    return sum(int(tensor.data.nbytes) for tensor in parameter_tensors(model))


def analyze_weight_distribution(
    model: Any, percentiles: Sequence[float] = (10, 25, 50, 75, 90)
) -> dict[str, Any]:
    """Describe how large the weights of a model are, all parameters together.

    Everything is about magnitudes, ``|w|``: `mean`, `std`, `min`, `max`, `percentile_N` for each N,
    and `below_threshold_0001`, `_001`, `_01`, the percentage (0 to 100) of weights with a magnitude
    below 0.001, 0.01 and 0.1. `signed_mean`, `signed_min` and `signed_max` are of the weights
    themselves, `zeros` counts those that are exactly zero.
    """
    for each in percentiles:
        check_number("percentile", each, least=0, most=100)
    arrays = [_as_array(tensor).ravel() for tensor in parameter_tensors(model)]
    if not sum(array.size for array in arrays):
        raise ModelError(f"{type(model).__name__} has no weights: no parameters() and none inside")
    weights = np.concatenate(arrays)
    sizes = np.abs(weights)
    stats = {
        "total_weights": int(sizes.size),
        "mean": float(sizes.mean()),
        "std": float(sizes.std()),
        "min": float(sizes.min()),
        "max": float(sizes.max()),
    }
    stats |= {f"percentile_{each}": float(np.percentile(sizes, each)) for each in percentiles}
    stats |= {
        f"below_threshold_{key}": 100 * float(np.mean(sizes < limit))
        for key, limit in SMALL.items()
    }
    return stats | {
        "signed_mean": float(weights.mean()),
        "signed_min": float(weights.min()),
        "signed_max": float(weights.max()),
        "zeros": int(np.count_nonzero(weights == 0)),
    }


def _found_inside(model: Any) -> Iterator[Any]:
    """Find the parameters of an object that does not list them, by the names the adapter gives."""
    adapter = adapter_for(model)
    modules = adapter.modules(model)
    for spec in adapter.parameters(model):
        if not spec.is_buffer:
            tensor = modules[spec.path]
            for part in spec.name.removeprefix(spec.path).strip(".").split("."):
                tensor = _member(tensor, part)
            yield tensor


def _member(holder: Any, name: str) -> Any:
    if isinstance(holder, (list, tuple)):
        return holder[int(name)]
    return holder[name] if isinstance(holder, dict) else getattr(holder, name)


def _as_array(tensor: Any) -> npt.NDArray[np.float64]:
    if hasattr(tensor, "cpu"):  # PyTorch; NumPy does not know its bfloat16
        tensor = tensor.detach().double().cpu().numpy()
    values = getattr(tensor, "data", tensor)
    return np.asarray(tensor if isinstance(values, memoryview) else values, dtype=np.float64)


# ---------------------------------------------------------------- what training needs in memory,
# from the number of parameters

OPTIMIZER_STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""How many numbers an optimizer keeps for each parameter between steps."""
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class TrainingMemory(int):
    """A number of bytes that knows what it is made of. It is computed, not measured."""

    weights: int
    gradients: int
    optimizer_state: int
    activations: int

    def __new__(
        cls, weights: int, gradients: int, optimizer_state: int, activations: int = 0
    ) -> Self:
        self = super().__new__(cls, weights + gradients + optimizer_state + activations)
        self.weights = weights
        self.gradients = gradients
        self.optimizer_state = optimizer_state
        self.activations = activations
        return self

    def __getnewargs__(self) -> tuple[int, int, int, int]:  # type: ignore[override]
        return self.weights, self.gradients, self.optimizer_state, self.activations

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for; they add up to the total."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer_state": self.optimizer_state,
            "activations": self.activations,
        }

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={size:,}" for name, size in self.parts.items())
        return f"TrainingMemory({int(self):,} bytes: {parts})"


def training_memory(
    parameters: int | Any,
    optimizer: str = "adam",
    dtype: str = "float32",
    activations: int = 0,
) -> TrainingMemory:
    """Return the bytes that training holds between and inside of steps.

    `parameters` is a number, or a model to count them of. Weights, gradients and what the
    optimizer keeps (sgd nothing, momentum one number per parameter, adam and adamw two) all have
    `dtype`. `activations` are bytes, which depend on the batch: measure them. Copies of weights in
    another dtype, buffers and what the allocator wastes are not in it.

    >>> training_memory(125_000_000, optimizer="adam") == 2e9
    True
    """
    if optimizer.lower() not in OPTIMIZER_STATES:
        raise SettingError(f"optimizer={optimizer!r}; there are {', '.join(OPTIMIZER_STATES)}")
    if dtype not in ITEM_BYTES:
        raise SettingError(f"dtype={dtype!r}; there are {', '.join(ITEM_BYTES)}")
    count = _whole("parameters", parameters if _is_number(parameters) else _count(parameters))
    size = count * ITEM_BYTES[dtype]
    state = OPTIMIZER_STATES[optimizer.lower()] * size
    return TrainingMemory(size, size, state, _whole("activations", activations))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or hasattr(value, "__index__")


def _whole(name: str, value: Any) -> int:
    """Return a whole number, which may be given as a float such as 125e6."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    check_count(name, value, at_least=0)
    return int(value)


def _count(model: Any) -> int:
    if not hasattr(model, "parameters") and not hasattr(model, "forward"):
        raise SettingError(f"parameters={model!r}; give a whole number, or a model")
    return count_parameters(model)
