"""What the text of a lab uses: pictures of letters, and predictions beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tinytorch.errors import SettingError
from tinytorch.measure.ceilings import Ceilings
from tinytorch.showing import Shown

Answer: TypeAlias = str | float | None


@dataclass(frozen=True)
class Bars(Shown):
    """Numbers of one unit as bars below each other, longest where the number is largest."""

    title: str
    values: Mapping[str, float]
    unit: str = ""


@dataclass(frozen=True)
class Growth(Shown):
    """How several quantities grow with a size, each with the exponent of its growth."""

    title: str
    sizes: Sequence[int]
    values: Mapping[str, Sequence[float]]
    unit: str = ""
    size_name: str = "size"


@dataclass(frozen=True)
class Roof(Shown):
    """The roofline of a machine with pieces of work: FLOP per byte, and FLOP/s achieved."""

    title: str
    ceilings: Ceilings
    points: Mapping[str, tuple[float, float]]
    dtype: str = "float32"


@dataclass(frozen=True)
class Histogram(Shown):
    """How often which value was seen, with marks such as a mean and percentiles."""

    title: str
    values: Sequence[float]
    marks: Mapping[str, float]
    unit: str = ""


@dataclass(frozen=True)
class Outcome(Shown):
    """Predictions beside what was measured."""

    predicted: Mapping[str, Answer]
    measured: Mapping[str, Answer]


def check_prediction(prediction: Mapping[str, Answer]) -> None:
    """Raise unless every prediction was made."""
    open_ones = [name for name, value in prediction.items() if value is None]
    if open_ones:
        raise SettingError(
            f"predict before you measure: there is no prediction for {', '.join(open_ones)}; "
            "replace each None by what you expect, a guess is fine"
        )
