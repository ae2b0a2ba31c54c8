"""Each engine used by hand, as in twenty minutes of an engineer. Nothing of TinyTorch is imported.

`HANDS` has what makes a model faster by its name. Each takes a `Job` and returns a call without
arguments; what it writes goes into the job's folder, and is used again by the next run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Call = Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """A model in evaluation mode with the inputs of a call, by the names of `forward`'s arguments.

    `calibration` are such inputs, too. `kind` is that of the architecture, as ONNX Runtime's
    optimizer for transformers calls it, with its heads and width; "" where it knows none.
    """

    model: nn.Module
    inputs: Mapping[str, torch.Tensor]
    folder: Path
    threads: int
    calibration: Sequence[Mapping[str, torch.Tensor]] = ()
    kind: str = ""
    heads: int = 0
    width: int = 0

    def arrays(self) -> dict[str, Any]:
        return {name: each.numpy() for name, each in self.inputs.items()}


class FirstOutput(nn.Module):
    """A model that takes tensors in order and returns its first one alone, for exporters."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model, self.names = job.model, tuple(job.inputs)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return first(self.model(**dict(zip(self.names, tensors, strict=True))))


def first(output: Any) -> Any:
    """Return the first tensor or array of an output."""
    if isinstance(output, torch.Tensor | np.ndarray):
        return output
    return first(next(iter(output.values())) if hasattr(output, "values") else output[0])


# ---------------------------------------------------------------- torch


def eager(job: Job) -> Call:
    return lambda: job.model(**job.inputs)


def compiled(job: Job) -> Call:
    made = torch.compile(copy.deepcopy(job.model))
    return lambda: made(**job.inputs)


def frozen(job: Job) -> Call:
    """Compile with the weights as constants, which packs them for oneDNN."""
    import torch._inductor.config as settings

    with settings.patch(freezing=True):
        made = torch.compile(copy.deepcopy(job.model))
        made(**job.inputs)
    return lambda: made(**job.inputs)


def bfloat16(job: Job) -> Call:
    made, inputs = _in_bfloat16(job)
    return lambda: made(**inputs)


def compiled_bfloat16(job: Job) -> Call:
    model, inputs = _in_bfloat16(job)
    made = torch.compile(model)
    return lambda: made(**inputs)


def _in_bfloat16(job: Job) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    inputs = {
        name: each.bfloat16() if each.is_floating_point() else each
        for name, each in job.inputs.items()
    }
    return copy.deepcopy(job.model).bfloat16(), inputs


def dynamic_int8(job: Job) -> Call:
    kinds = {nn.Linear, nn.LSTM}
    quantize: Any = torch.ao.quantization.quantize_dynamic
    made = quantize(copy.deepcopy(job.model), kinds)
    return lambda: made(**job.inputs)


# ---------------------------------------------------------------- ONNX Runtime


def _onnx(job: Job) -> Path:
    path = job.folder / "model.onnx"
    if not path.exists():
        program: Any = torch.onnx.export(
            FirstOutput(job),
            tuple(job.inputs.values()),
            input_names=list(job.inputs),
            dynamo=True,
            verbose=False,
        )
        program.save(str(path), external_data=False)
    return path


def _session(job: Job, path: Path) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    known = [each.name for each in session.get_inputs()]
    arrays = {name: job.arrays()[name] for name in known}
    return lambda: session.run(None, arrays)


def onnxruntime_fp32(job: Job) -> Call:
    return _session(job, _onnx(job))


def onnxruntime_transformers(job: Job) -> Call:
    """Fuse attention and norms with ONNX Runtime's own optimizer for transformers."""
    from onnxruntime.transformers import optimizer

    if not job.kind:
        raise NotImplementedError("the optimizer for transformers does not know the architecture")
    path = job.folder / "fused.onnx"
    if not path.exists():
        made = optimizer.optimize_model(
            str(_onnx(job)), model_type=job.kind, num_heads=job.heads, hidden_size=job.width
        )
        made.save_model_to_file(str(path))
    return _session(job, path)


def onnxruntime_dynamic_int8(job: Job) -> Call:
    from onnxruntime.quantization import quantize_dynamic

    path = job.folder / "dynamic.onnx"
    if not path.exists():
        quantize_dynamic(_prepared(job), path)
    return _session(job, path)


def onnxruntime_static_int8(job: Job) -> Call:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    if not job.calibration:
        raise NotImplementedError("there is no calibration data")

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        left = iter(job.calibration)

        def get_next(self) -> Any:
            call = next(self.left, None)
            return call and {name: each.numpy() for name, each in call.items()}

    path = job.folder / "static.onnx"
    if not path.exists():
        quantize_static(_prepared(job), path, Reader(), per_channel=True)
    return _session(job, path)


def _prepared(job: Job) -> Path:
    """Return the ONNX file after the shape inference that quantization asks for."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = job.folder / "prepared.onnx"
    if not path.exists():
        quant_pre_process(str(_onnx(job)), str(path), skip_symbolic_shape=True)
        graph = onnx.load(str(path))
        del graph.graph.value_info[:]  # quantization transposes weights, and trips over old shapes
        onnx.save(graph, str(path))
    return path


# ---------------------------------------------------------------- OpenVINO


def _openvino(job: Job, precision: str, model: Any = None) -> Call:
    import openvino

    if model is None:
        path = job.folder / "model.xml"
        if not path.exists():
            made = openvino.convert_model(
                FirstOutput(job), example_input=tuple(job.inputs.values())
            )
            sizes = [list(each.shape) for each in job.inputs.values()]
            made.reshape(dict(zip(made.inputs, sizes, strict=True)))
            openvino.save_model(made, str(path), compress_to_fp16=False)
        model = str(path)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": job.threads,
    }
    ready = openvino.Core().compile_model(model, "CPU", settings)
    request, arrays = ready.create_infer_request(), list(job.arrays().values())
    return lambda: request.infer(arrays, share_inputs=True).to_tuple()


def openvino_fp32(job: Job) -> Call:
    return _openvino(job, "f32")


def openvino_bfloat16(job: Job) -> Call:
    return _openvino(job, "bf16")


def openvino_int8(job: Job) -> Call:
    """Quantize with NNCF by calibration data; by the call's own inputs where there is none."""
    import nncf
    import openvino

    path = job.folder / "nncf.xml"
    if not path.exists():
        openvino_fp32(job)
        source = openvino.Core().read_model(str(job.folder / "model.xml"))
        calls = job.calibration or [job.inputs]
        data = nncf.Dataset([[each.numpy() for each in call.values()] for call in calls])
        kind = nncf.ModelType.TRANSFORMER if job.kind else None
        made = nncf.quantize(source, data, model_type=kind, subset_size=len(calls))
        openvino.save_model(made, str(path), compress_to_fp16=False)
    return _openvino(job, "f32", str(path))


HANDS: Mapping[str, Callable[[Job], Call]] = {
    "eager": eager,
    "torch.compile": compiled,
    "torch.compile, frozen": frozen,
    "bfloat16": bfloat16,
    "bfloat16, torch.compile": compiled_bfloat16,
    "torch.ao dynamic INT8": dynamic_int8,
    "ONNX Runtime": onnxruntime_fp32,
    "ONNX Runtime, fused for transformers": onnxruntime_transformers,
    "ONNX Runtime, dynamic INT8": onnxruntime_dynamic_int8,
    "ONNX Runtime, static INT8": onnxruntime_static_int8,
    "OpenVINO": openvino_fp32,
    "OpenVINO, bfloat16": openvino_bfloat16,
    "OpenVINO, INT8 by NNCF": openvino_int8,
}
