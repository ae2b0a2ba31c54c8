"""CaptureGraph: the transform that starts a whole call of a PyTorch model as one CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from tinytorch.errors import SettingError
from tinytorch.transforms.plan import (
    TIME,
    TorchTransform,
    Variant,
    check_seconds,
    check_tolerance,
)


@dataclass(frozen=True)
class CaptureGraph(TorchTransform):
    """Record what a call of a PyTorch model does on a CUDA device, and start it as one.

    It saves the time in which Python and torch start each kernel, which is most of a call where
    kernels are small. `compile` lets torch.compile make the kernels first. Each kind of arguments
    (shapes, dtypes, numbers) is captured when it first comes, up to `most` kinds; more run as they
    did before, and so do calls in training mode or with gradients. Python does not run again in a
    replay: what it decided, from attributes of layers or settings of torch, stays decided.

    With `copy_outputs=False` outputs are not copied, which is faster; the next call overwrites
    them.

    A plan captures a copy, within `limit_s` seconds, and compares its outputs: they may change by
    `tolerance` of the largest one, by default by what rounding of the model's numbers explains.
    """

    variants = (
        Variant(
            "captured",
            "capture the call as a CUDA graph",
            cost="capturing before the first call; fixed shapes, and memory held for the graph",
            setup_s=2.0,
        ),
        Variant(
            "compiled-captured",
            "torch.compile, captured as a CUDA graph",
            {"compile": True},
            cost="compiling and capturing before the first call; fixed shapes",
        ),
    )
    role, place, order = "kernels", 9, 190
    risk, serves = "exact", TIME
    devices = ("cuda",)
    setup_s = 20.0
    follows_weights = is_prepared = True

    compile: bool = False
    copy_outputs: bool = True
    most: int = 8
    tolerance: float | None = None
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        if self.most < 1:
            raise SettingError(f"most must be at least 1 kind of arguments, got {self.most!r}")
        check_tolerance(self.tolerance)
        check_seconds("limit_s", self.limit_s)

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.capture_graph import torch as capture_graph_torch

        return capture_graph_torch
