"""MixedPrecision: the transform that chooses a precision for each layer by its measured time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from tinytorch.errors import SettingError
from tinytorch.transforms.lower_precision import LowerPrecision
from tinytorch.transforms.plan import (
    TorchTransform,
    Transform,
    Variant,
    check_seconds,
    check_tolerance,
)
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.support.observing import checked_patterns

TOLERANCE = 5e-2
"""How far outputs may move by default, relative to the largest, as for a uniform precision."""
FORMS: Mapping[str, Transform] = {
    "bfloat16": LowerPrecision(how="layers"),
    "int8-dynamic": Quantize(mode="dynamic"),
    "int8-weights": Quantize(mode="weight_only"),
}
"""What a layer may become beside float32 -> the transform that makes it so."""


@dataclass(frozen=True)
class MixedPrecision(TorchTransform):
    """Choose float32 or one of `forms` for each group of layers, by measured time and effect.

    Layers of the same class, sizes and inputs are a group. Each form is timed on the inputs that
    the layer gets in a call of the workload, in turns with float32, within `budget_s` for all; it
    is taken where the interval of the ratio lies below 1. Then the whole is called: while outputs
    move by more than `tolerance` of the largest, the group whose own outputs move most goes back to
    float32. keep: patterns of layers that stay in float32.
    """

    variants = (
        Variant(
            "mixed-precision",
            "float32, bfloat16 or INT8 for each layer, by measured time",
            cost="timing layers once, for seconds",
        ),
    )
    role, place, order = "numbers", 4, 115
    risk, devices, setup_s = "rounding", ("cpu",), 12.0

    forms: tuple[str, ...] = tuple(FORMS)
    keep: tuple[str, ...] = ()
    tolerance: float | None = None
    budget_s: float = 6.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "forms", tuple(self.forms))
        unknown = [each for each in self.forms if each not in FORMS]
        if unknown or not self.forms:
            raise SettingError(f"forms={self.forms}; choose some of {', '.join(FORMS)}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))
        check_tolerance(self.tolerance)
        check_seconds("budget_s", self.budget_s)

    def outlook(self, framework: str, device: str) -> float:
        """At least as fast as the best uniform precision, where layers differ in what suits."""
        return 1.4

    @property
    def precision(self) -> str:
        return "int8"

    @property
    def allowed_error(self) -> float:
        """How far outputs may move, relative to the largest one."""
        return TOLERANCE if self.tolerance is None else self.tolerance

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.mixed_precision import torch as mixed_precision_torch

        return mixed_precision_torch
