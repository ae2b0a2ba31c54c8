"""The settings of quantization, and whether they go together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.formats.ranges import METHODS
from tinytorch.perf.quantization.packed_weight import check_group_size
from tinytorch.perf.quantization.quantized_layer import MODES
from tinytorch.workloads.kept_layers import checked_patterns

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """How a model is quantized.

    mode: `weight_only` (inputs stay floats), `dynamic` (inputs are quantized by what they are) or
    `static` (by what calibration data showed). bits: 8, or 4 for weights alone, then with a scale
    for each `group_size` inputs (None: 32, or fewer where 32 does not divide). ranges: how static
    ranges are chosen from the statistics. keep: patterns of layers that stay in floats. max_error:
    the most that outputs may change on the calibration data, relative to their size; layers that
    hurt most stay in floats until it holds.
    """

    mode: str = "dynamic"
    bits: int = 8
    group_size: int | None = None
    ranges: str = "mse"
    keep: tuple[str, ...] = ()
    max_error: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingError(f"unknown mode {self.mode!r}; there are {', '.join(MODES)}")
        if self.bits not in (4, 8):
            raise SettingError(f"bits must be 8 or 4, got {self.bits!r}")
        if self.bits == 4 and self.mode != "weight_only":
            raise SettingError(f"bits=4 is for weights: mode='weight_only', not {self.mode!r}")
        if self.bits == 8 and self.group_size is not None:
            raise SettingError("INT8 has a scale for each output, no groups: leave out group_size")
        if not isinstance(self.group_size, int | None):
            raise SettingError(f"group_size is a number of inputs, got {self.group_size!r}")
        if self.group_size is not None:
            check_group_size(self.group_size, self.group_size)
        if self.ranges not in METHODS:
            raise SettingError(f"unknown ranges {self.ranges!r}; there are {', '.join(METHODS)}")
        object.__setattr__(self, "keep", checked_patterns(self.keep))
        if self.max_error is not None and not self.max_error > 0:
            raise SettingError(f"max_error must be above 0, got {self.max_error}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
