"""LowerPrecision: the transform that computes in bfloat16 or float16."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.measure.environment import instruction_sets
from tinytorch.transforms.plan import TorchTransform, Variant, check_choice, check_tolerance
from tinytorch.transforms.support.observing import checked_patterns

TOLERANCE = 5e-2
"""How far outputs may move by default, relative to the largest: bfloat16 has 8 bits, and errors of
a dozen layers add up to 1e-2 or 2e-2."""
INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "float16": ("avx512_fp16", "asimdhp"),
}
"""Those that multiply such numbers, in the kernel's spelling."""
WAYS = ("convert", "layers")


@dataclass(frozen=True)
class LowerPrecision(TorchTransform):
    """Compute in `dtype`, "bfloat16" or "float16", where that is precise enough.

    how="convert": parameters, buffers and everything between them are of that dtype; floats are
    cast where they go in, and come out in the dtype that the model gave before. Fastest, and half
    the bytes. how="layers": only linear layers and convolutions hold their weights so and compute
    so; what they give is cast back, so that sums, norms and softmax keep all their digits. The
    error is smaller, and casting costs a little.

    keep: patterns of layers that stay as they are. tolerance: how far outputs may move on the
    workload's inputs, relative to the largest one; 5e-2 unless given. The plan says how far they
    did, and is empty where that is more. float16 ends at 65,504: outputs that are then not finite
    are refused as well.
    """

    variants = (
        Variant("bfloat16-layers", "products in bfloat16, the rest in float32", {"how": "layers"}),
        Variant("bfloat16", "weights and activations in bfloat16"),
    )
    role, place, order = "numbers", 4, 110
    risk = "rounding"

    dtype: str = "bfloat16"
    how: str = "convert"
    keep: tuple[str, ...] = ()
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, INSTRUCTIONS)
        check_choice("how", self.how, WAYS)
        object.__setattr__(self, "keep", checked_patterns(self.keep))
        check_tolerance(self.tolerance)

    @property
    def precision(self) -> str:
        return self.dtype

    @property
    def allowed_error(self) -> float:
        """How far outputs may move, relative to the largest one."""
        return TOLERANCE if self.tolerance is None else self.tolerance

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.lower_precision import torch as lower_precision_torch

        return lower_precision_torch


def why_slow_on_processor(dtype: str) -> str:
    """Return why products of a dtype are slow on this processor, or ""."""
    found = instruction_sets()
    if not found:
        return f"the instructions of this processor are unknown: {dtype} may be slower"
    if not any(name in found for name in INSTRUCTIONS[dtype]):
        return (
            f"this processor has no instructions that multiply {dtype} (none of "
            f"{', '.join(INSTRUCTIONS[dtype])}), so that calls probably take longer"
        )
    return ""
