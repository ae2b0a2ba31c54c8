"""What training needs in memory, from the number of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from tinytorch.errors import SettingError
from tinytorch.perf.profiling.timer import check_count
from tinytorch.perf.profiling.weights import count_parameters

__all__ = ["OPTIMIZER_STATES", "TrainingMemory", "training_memory"]

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
    def total_bytes(self) -> int:
        return int(self)

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
    """Give the bytes that training holds between and inside steps.

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
    """Give a whole number, which may be written as 125e6."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    check_count(name, value, at_least=0)
    return int(value)


def _count(model: Any) -> int:
    if not hasattr(model, "parameters") and not hasattr(model, "forward"):
        raise SettingError(f"parameters={model!r}; give a whole number, or a model")
    return count_parameters(model)
