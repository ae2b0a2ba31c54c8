"""Workload: the common currency of every command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError

__all__ = ["Scores", "Workload"]

Scores = npt.NDArray[np.float64]
"""One score per example, higher is better."""


@dataclass(frozen=True)
class Workload:
    """A model, what to call it with, and how to tell whether it is still any good.

    `inputs` are the arguments of one call of the model. `calibration` holds such arguments for
    several calls, from training data. `evaluate` gives a score per held-out example, higher is
    better, always of the same examples in the same order; `metric` says what its mean is called.
    """

    name: str
    model: Any
    inputs: tuple[Any, ...]
    calibration: tuple[tuple[Any, ...], ...] = ()
    evaluate: Callable[[Any], Scores] | None = None
    metric: str = "accuracy"

    def __post_init__(self) -> None:
        if not callable(self.model) and not hasattr(self.model, "forward"):
            raise SettingError(
                f"the model of workload {self.name!r} is a {type(self.model).__name__}, "
                "which cannot be called and has no forward()"
            )
        if not isinstance(self.inputs, tuple):
            raise SettingError(
                f"the inputs of workload {self.name!r} must be a tuple of arguments, "
                f"got {type(self.inputs).__name__}"
            )

    def run(self) -> Any:
        """Call the model once on the example inputs."""
        call = self.model if callable(self.model) else self.model.forward
        return call(*self.inputs)
