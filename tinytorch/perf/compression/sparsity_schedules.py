"""How sparse a model is at each step of its training, on the way to a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from tinytorch.errors import SettingError

__all__ = ["CubicSchedule", "LinearSchedule", "OneShotSchedule", "SparsitySchedule"]


class SparsitySchedule(Protocol):
    """A function of the number of steps taken and the target, that gives a sparsity."""

    def __call__(self, step: int, target: float) -> float: ...


@dataclass(frozen=True)
class _Ramp:
    """Stay at `start` for `warmup` steps, then rise to the target, which `steps` steps reach.

    The sparsity changes every `every` steps, so that the model can recover in between.
    """

    steps: int
    start: float = 0.0
    warmup: int = 0
    every: int = 10

    power: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SettingError(f"steps must be at least 1, got {self.steps}")
        if not 0 <= self.warmup < self.steps:
            raise SettingError(f"warmup must be in 0..{self.steps - 1}, got {self.warmup}")
        if not 0 <= self.start < 1:
            raise SettingError(f"start must be at least 0 and below 1, got {self.start}")
        if self.every < 1:
            raise SettingError(f"every must be at least 1, got {self.every}")

    def __call__(self, step: int, target: float) -> float:
        if step >= self.steps or self.start >= target:
            return target
        since = max(0, step - self.warmup)
        done = (since - since % self.every) / (self.steps - self.warmup)
        return self.start + (target - self.start) * (1 - (1 - done) ** self.power)


class CubicSchedule(_Ramp):
    """Prune fast while there is much to prune, then ever more slowly (Zhu and Gupta, 2017).

    >>> schedule = CubicSchedule(steps=100)
    >>> [round(schedule(step, 0.8), 3) for step in (0, 10, 50, 90, 100)]
    [0.0, 0.217, 0.7, 0.799, 0.8]
    """

    power = 3


class LinearSchedule(_Ramp):
    """Prune as many weights each time.

    >>> schedule = LinearSchedule(steps=100, warmup=20, every=40)
    >>> [round(schedule(step, 0.8), 3) for step in (0, 59, 60, 99, 100)]
    [0.0, 0.0, 0.4, 0.4, 0.8]
    """

    power = 1


@dataclass(frozen=True)
class OneShotSchedule:
    """Prune everything at once, after `at` steps."""

    at: int = 0

    def __post_init__(self) -> None:
        if self.at < 0:
            raise SettingError(f"at must be at least 0, got {self.at}")

    def __call__(self, step: int, target: float) -> float:
        return target if step >= self.at else 0.0
