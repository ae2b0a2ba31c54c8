"""Workload: the common currency of every command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch.errors import SettingError

__all__ = ["Scores", "Workload", "call_model"]

Scores = npt.NDArray[np.float64]
"""One score per example, higher is better."""


@dataclass(frozen=True)
class Workload:
    """A model, what to call it with, and how to tell whether it is still any good.

    `inputs` are the arguments of one call of the model, `keywords` those that it takes by name.
    `calibration` holds such arguments for
    several calls, from training data. `evaluate` gives a score per held-out example, higher is
    better, always of the same examples in the same order; `metric` says what its mean is called.
    """

    name: str
    model: Any = field(repr=False)
    inputs: tuple[Any, ...] = field(repr=False)
    calibration: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    evaluate: Callable[[Any], Scores] | None = None
    metric: str = "accuracy"
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.model) and not hasattr(self.model, "forward"):
            raise SettingError(
                f"the model of workload {self.name!r} is a {type(self.model).__name__}, "
                "which cannot be called and has no forward()"
            )
        if not (self.evaluate is None or callable(self.evaluate)):
            raise SettingError(
                f"evaluate of workload {self.name!r} must be a function of the model, "
                f"got {type(self.evaluate).__name__}"
            )
        if not isinstance(self.inputs, tuple):
            raise SettingError(
                f"the inputs of workload {self.name!r} must be a tuple of arguments, "
                f"got {type(self.inputs).__name__}"
            )

        object.__setattr__(self, "calibration", tuple(self.calibration))
        for number, batch in enumerate(self.calibration):
            if not isinstance(batch, tuple):
                raise SettingError(
                    f"batch {number} of the calibration of workload {self.name!r} must be a tuple "
                    f"of arguments, such as (x,), got {type(batch).__name__}"
                )

    def run(self) -> Any:
        """Call the model once on the example inputs."""
        return call_model(self.model, *self.inputs, **self.keywords)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Everything that a call of the model gets."""
        return (*self.inputs, *self.keywords.values())


def check_workload(workload: Any, what: str = "a plan") -> None:
    """Raise unless this is what plans and reports are made for."""
    if not isinstance(workload, Workload):
        raise SettingError(
            f"{what} is made for a Workload, got {type(workload).__name__}; "
            "load_workload('mlp') or Workload(name, model, inputs) gives one"
        )


def call_model(model: Any, *inputs: Any, **settings: Any) -> Any:
    """Call a model, which may have nothing but `forward`."""
    call = model if callable(model) else model.forward
    return call(*inputs, **settings)
