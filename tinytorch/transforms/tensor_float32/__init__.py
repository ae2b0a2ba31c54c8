"""TensorFloat32: the transform that lets a CUDA device multiply float32 numbers as TF32."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.transforms.plan import TIME, TorchTransform, Variant, check_tolerance

TOLERANCE = 5e-3
"""How far outputs may move by default, relative to the largest: TF32 rounds what is multiplied to
11 bits, which is 5e-4, and sums it in float32."""


@dataclass(frozen=True)
class TensorFloat32(TorchTransform):
    """Compute products of float32 matrices as TF32, on the tensor cores of a CUDA device.

    Weights and everything between the products stay float32, and the memory that they take stays
    the same; what is multiplied is rounded to 11 bits first. Convolutions do that by themselves,
    unless that is disabled, and are left alone.

    PyTorch has one setting for the whole process. It is changed when a call begins and put back
    when it ends: what other threads multiply meanwhile is TF32 as well. Models that `CompileModel`
    and `CaptureGraph` compile afterwards keep it; a `torch.compile` of one's own sees only the
    setting of the process.

    tolerance: how far outputs may move on the workload's inputs, relative to the largest one; 5e-3
    unless given. The plan says how far they did, and is empty where that is more.
    """

    variants = (
        Variant(
            "tf32",
            "float32 products in TF32",
            cost="during a call, other threads multiply in TF32, too",
        ),
    )
    role, place, order = "numbers", 4, 120
    risk, serves = "rounding", TIME
    devices = ("cuda",)
    follows_weights = True

    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)

    @property
    def allowed_error(self) -> float:
        """How far outputs may move, relative to the largest one."""
        return TOLERANCE if self.tolerance is None else self.tolerance

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.tensor_float32 import torch as tensor_float32_torch

        return tensor_float32_torch
