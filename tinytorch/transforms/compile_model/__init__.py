"""CompileModel: the transform that lets torch.compile make kernels for a PyTorch model."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Literal, get_args

from tinytorch.errors import SettingError
from tinytorch.transforms import plan

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class CompileModel(plan.TorchTransform):
    """Compile a PyTorch model with `torch.compile`.

    `mode` is that of torch.compile. `dynamic` is whether sizes are left open: None lets torch find
    out, which compiles once more when another size comes. `freeze` packs the weights for the
    processor, in memory beside that of the model; it is for calls without gradients, and weights
    that change are packed again, but for what is written through `.data`, which is not noticed.

    A plan compiles a copy, within `limit_s` seconds, and compares its outputs: they may change by
    `tolerance` of the largest one, by default by what rounding of the model's numbers explains.
    """

    variants = (
        plan.Variant(
            "compiled",
            "torch.compile",
            cost="the first call of each shape compiles, for seconds to minutes",
        ),
    )
    role, place, order = "kernels", 9, 180
    risk, serves = "exact", plan.TIME
    setup_s = 20.0
    follows_weights = is_prepared = True

    mode: Mode = "default"
    dynamic: bool | None = None
    freeze: bool = False
    tolerance: float | None = None
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        plan.check_choice("mode", self.mode, MODES)
        if self.dynamic not in (None, True, False):
            raise SettingError(f"dynamic is None, True or False, got {self.dynamic!r}")
        plan.check_tolerance(self.tolerance)
        plan.check_seconds("limit_s", self.limit_s)

    def outlook(self, framework: str, device: str) -> float:
        return 1.3

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.compile_model import torch as compile_model_torch

        return compile_model_torch
