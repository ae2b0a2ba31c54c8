"""ActivationAwareQuantize: weights in few bits, scaled by what comes into them before (AWQ)."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.errors import SettingError
from tinytorch.transforms.plan import TorchTransform, Variant
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.support.observing import checked_patterns

NEEDS_DATA = "calibration data that represents later inputs"


@dataclass(frozen=True)
class ActivationAwareQuantize(TorchTransform):
    """Quantize the weights of a PyTorch model after scaling them by the size of their inputs.

    Linear layers behind a norm, or behind a linear layer that only a product follows, get columns
    that are larger where inputs are large, which then lose less to rounding; the norm or the layer
    before divides by the same. In floats nothing changes, which is checked, and the quantized model
    holds as many bytes as one of `Quantize(mode="weight_only")` with the same `bits`, `group_size`
    and `keep`. Scales are the mean size of an input to a power that is chosen on calibration data
    (Lin et al., AWQ, 2023). Of each layer `samples` rows of inputs are looked at.
    """

    variants = (
        Variant(
            "int8-weights-awq",
            "INT8 weights, scaled by their inputs before rounding",
            {"bits": 8},
            cost=NEEDS_DATA,
        ),
        Variant(
            "int4-weights-awq",
            "INT4 weights, scaled by their inputs before rounding",
            {"bits": 4},
            cost=NEEDS_DATA,
        ),
    )
    role, place, order = "numbers", 4, 105
    risk, serves, setup_s = "rounding", ("memory", "size"), 5.0

    bits: int = 4
    group_size: int | None = None
    keep: tuple[str, ...] = ()
    samples: int = 512

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", checked_patterns(self.keep))
        if self.samples < 1:
            raise SettingError(f"samples={self.samples}; at least one row of inputs is needed")
        _ = self.rounding  # which checks the other settings

    @property
    def rounding(self) -> Quantize:
        """What is applied to the scaled weights."""
        return Quantize(
            mode="weight_only", bits=self.bits, group_size=self.group_size, keep=self.keep
        )

    @property
    def precision(self) -> str:
        return self.rounding.precision

    def outlook(self, framework: str, device: str) -> float:
        return self.rounding.outlook(framework, device)

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.activation_aware import torch as activation_aware_torch

        return activation_aware_torch
