"""What an optimization is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tinytorch.comparison.rounds import LATENCY, THROUGHPUT
from tinytorch.errors import SettingError
from tinytorch.tuning.catalog import GOALS
from tinytorch.tuning.limits import checked_limits

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The goal, how much worse a model may become, limits, and how long it may take.

    `max_accuracy_drop` is in the unit of the scores. Where there is no evaluate, outputs may be off
    by `max_output_error`, as a share of the largest. `limits` has `latency_ms`, `memory_mb` and
    `size_mb`, where set.
    """

    goal: str = "latency"
    max_accuracy_drop: float = 0.01
    max_output_error: float = 0.02
    limits: Mapping[str, float] = field(default_factory=dict)
    budget_s: float = 120.0
    seed: int = 0

    @property
    def timing(self) -> str:
        """What decides about time where calls run on a device: sustained calls, or single ones."""
        return THROUGHPUT if self.goal == THROUGHPUT else LATENCY

    @property
    def needs_latency_beside(self) -> bool:
        """Whether single calls are limited while sustained ones decide."""
        return self.timing == THROUGHPUT and "latency_ms" in self.limits

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise SettingError(f"goal={self.goal!r}; there are {', '.join(GOALS)}")
        for name in ("max_accuracy_drop", "max_output_error"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise SettingError(f"{name}={value!r}; it must be zero or a positive number")
        if not 0 < self.budget_s < math.inf:
            raise SettingError(f"budget_s={self.budget_s!r}; trying things needs some seconds")
        if self.seed < 0:
            raise SettingError(f"seed={self.seed!r}; it must be a whole number from 0 on")
        object.__setattr__(self, "limits", checked_limits(self.limits))
