"""OnnxRuntime, OpenVino, AotInductor: transforms that run a PyTorch model in another engine."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from tinytorch.measure.environment import instruction_sets
from tinytorch.transforms.plan import (
    TIME,
    Risk,
    TorchTransform,
    Variant,
    check_choice,
    check_seconds,
    check_tolerance,
)

BY_EXPORT = "exporting before the first call; the engine holds weights of its own"
INT8_TOLERANCE, BFLOAT16_TOLERANCE = 2e-1, 5e-2
"""How far outputs may move on the workload's inputs before a plan is refused, relative to the
largest one. What may be recommended is decided by the search, on accuracy."""
MODES = ("dynamic", "static")


@dataclass(frozen=True)
class EngineTransform(TorchTransform):
    """What transforms to other engines share: the model is exported, and the engine calls it.

    The result is called as the model is, with the same names and nesting of inputs and outputs,
    on a processor, without gradients, and in evaluation mode. Batch and sequence axes stay open
    where the exported model gives the right outputs for other sizes, too. A plan exports a copy
    within `limit_s` seconds and compares its outputs: they may move by `tolerance` of the largest.
    `threads` is how many the engine uses; None is as many as torch.
    """

    role, place, order = "kernels", 9, 210
    serves, devices = TIME, ("cpu",)
    risk: ClassVar[Risk] = "exact"
    setup_s = 10.0
    follows_weights = is_prepared = keeps_files = True

    packages: ClassVar[tuple[str, ...]] = ()
    """What has to be installed; the extra brings it."""
    extra: ClassVar[str] = "engines"
    usual_speedup: ClassVar[float] = 1.3
    engine: ClassVar[str] = ""
    """The name of the engine in reports."""

    threads: int | None = None
    tolerance: float | None = None
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)
        check_seconds("limit_s", self.limit_s)

    def outlook(self, framework: str, device: str) -> float:
        """Of five real models on a CPU, ONNX Runtime was the best by hand at four."""
        return self.usual_speedup

    @property
    def missing_extras(self) -> tuple[str, ...]:
        return () if all(map(find_spec, self.packages)) else (self.extra,)

    @property
    def obstacle(self) -> str:
        """Why this machine cannot run it, or ""."""
        absent = [name for name in self.packages if find_spec(name) is None]
        if not absent:
            return ""
        return (
            f"needs {' and '.join(absent)}, not installed here; "
            f'install the extra: pip install ".[{self.extra}]"'
        )

    def write_files(self, model: Any, folder: Path) -> None:
        """Write the engine's own files, the signature of the call, and a program that runs them."""
        hint = "bf16" if self.precision == "bfloat16" else "f32"
        model.exported.write(folder, hint)

    def read_files(self, folder: Path) -> Any:
        return self.torch_code.read_model(folder, self)

    @property
    def torch_code(self) -> ModuleType:
        from tinytorch.transforms.engines import torch as engines_torch

        return engines_torch


@dataclass(frozen=True)
class OnnxRuntime(EngineTransform):
    """Run a PyTorch model in ONNX Runtime, in float32."""

    variants: ClassVar[tuple[Variant, ...]] = (
        Variant("onnxruntime", "ONNX Runtime, float32", cost=BY_EXPORT),
    )
    packages = ("onnx", "onnxscript", "onnxruntime")
    engine, usual_speedup = "ONNX Runtime", 1.5


@dataclass(frozen=True)
class OnnxRuntimeInt8(OnnxRuntime):
    """Run a PyTorch model in ONNX Runtime with INT8 weights and activations.

    mode: "dynamic" chooses ranges of activations per call, for products; "static" takes them from
    the calibration data of the workload, for convolutions as well. per_channel: whether weights
    have a scale for each output, which errs less, and in dynamic products costs about a tenth of
    the time (LSTM tagger, MiniLM).
    """

    variants = (
        Variant(
            "onnxruntime-int8-dynamic",
            "ONNX Runtime, INT8 products with ranges per call",
            {"mode": "dynamic", "per_channel": False},
            cost=BY_EXPORT,
        ),
        Variant(
            "onnxruntime-int8-per-channel",
            "ONNX Runtime, INT8 products with ranges per call, a scale for each output",
            {"mode": "dynamic"},
            cost=BY_EXPORT,
        ),
        Variant(
            "onnxruntime-int8-static",
            "ONNX Runtime, INT8 with calibrated ranges",
            {"mode": "static"},
            cost=f"calibration data that represents later inputs; {BY_EXPORT}",
        ),
    )
    risk, order, usual_speedup = "rounding", 220, 2.0

    mode: str = "dynamic"
    per_channel: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mode", self.mode, MODES)

    @property
    def precision(self) -> str:
        return "int8"


@dataclass(frozen=True)
class OpenVino(EngineTransform):
    """Run a PyTorch model in OpenVINO, in float32."""

    variants = (Variant("openvino", "OpenVINO, float32", cost=BY_EXPORT),)
    order = 230
    packages: ClassVar[tuple[str, ...]] = ("onnx", "onnxscript", "openvino")
    engine = "OpenVINO"


@dataclass(frozen=True)
class OpenVinoBfloat16(OpenVino):
    """Run a PyTorch model in OpenVINO, computing in bfloat16 where the processor can."""

    variants = (Variant("openvino-bfloat16", "OpenVINO, bfloat16", cost=BY_EXPORT),)
    risk, order = "rounding", 240

    @property
    def precision(self) -> str:
        return "bfloat16"

    @property
    def obstacle(self) -> str:
        found = instruction_sets()
        if not {"avx512_bf16", "amx_bf16"} & set(found):
            return "this processor has no instructions that multiply bfloat16"
        return super().obstacle


@dataclass(frozen=True)
class OpenVinoInt8(OpenVino):
    """Run a PyTorch model in OpenVINO, with INT8 weights and activations as NNCF calibrates them.

    Models with attention are quantized by NNCF's scheme for transformers.
    """

    variants = (
        Variant(
            "openvino-int8",
            "OpenVINO, INT8 with ranges calibrated by NNCF",
            cost=f"calibration data that represents later inputs; {BY_EXPORT}",
        ),
    )
    risk, order, usual_speedup = "rounding", 245, 1.8
    packages = (*OpenVino.packages, "nncf")
    extra = "nncf"

    @property
    def precision(self) -> str:
        return "int8"


@dataclass(frozen=True)
class AotInductor(EngineTransform):
    """Compile a PyTorch model ahead of time into a package that loads without compiling."""

    variants = (
        Variant(
            "aot-inductor",
            "compiled ahead of time by torch",
            cost="compiling before it is saved, for seconds to minutes",
        ),
    )
    order, setup_s = 250, 40.0
    engine, usual_speedup = "AOTInductor", 1.1
