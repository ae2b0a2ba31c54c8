"""Running PyTorch models in other engines: tried on a copy before it is promised. After torch."""

from __future__ import annotations

import linecache
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from tinytorch.errors import CheckpointError, ModelError, first_line
from tinytorch.measure.timing import time_limit
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_compile import users_line
from tinytorch.models.workload import Preparation, Workload, while_planning
from tinytorch.transforms.engines import (
    BFLOAT16_TOLERANCE,
    INT8_TOLERANCE,
    AotInductor,
    OnnxRuntimeInt8,
    OpenVino,
    OpenVinoBfloat16,
    OpenVinoInt8,
)
from tinytorch.transforms.engines.export import Exported, Signature, export_program, quietly
from tinytorch.transforms.engines.files import IR, ONNX, PACKAGE, convert_onnx
from tinytorch.transforms.plan import Plan, Step
from tinytorch.transforms.support.observing import calls_of
from tinytorch.transforms.support.torch import (
    IN_TRAINING,
    contents_of,
    refusal,
    rounding_of,
    trial_note,
    try_change,
    why_unchangeable,
)

if TYPE_CHECKING:
    from tinytorch.transforms.engines import EngineTransform

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""Calls an engine with the tensors of a call, and returns those of the output."""

INT8_PRODUCTS = ("MatMul", "Gemm", "Attention", "LSTM", "GRU", "Gather")
"""Operators that ONNX Runtime multiplies in INT8 with ranges per call; ConvInteger is slow."""
NOT_PREDICTED = {
    "speedup": "what another engine saves depends on the sizes; compare() measures it",
    "shrinkage": "the engine's memory is not seen from outside",
}


class EngineModel(nn.Module):
    """A PyTorch model that another engine computes, for calls as the exported one.

    It has no parameters: the engine holds the weights. Copies share the files, and open an engine
    of their own. Outputs carry no gradients.
    """

    holds_weights_elsewhere = True

    def __init__(self, exported: Exported, settings: EngineTransform, seconds: float) -> None:
        super().__init__()
        self.exported = exported
        self.settings = settings
        self.preparations: tuple[Preparation, ...] = (
            Preparation(f"exported to {settings.engine}", seconds),
        )
        self._run: Run | None = None
        self.eval()

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the engine."""
        signature = self.exported.signature
        tensors = signature.tensors(inputs, keywords)
        run = self._run or self.open()
        try:
            return signature.nested(run(tensors))
        except ModelError:
            raise
        except Exception as error:  # an engine may raise anything
            raise ModelError(f"{self.settings.engine} failed: {first_line(error)}") from error

    def open(self) -> Run:
        """Load the files into the engine, which is done in the first call otherwise."""
        self._run = OPENERS[self.exported.kind](self.exported, self.settings)
        return self._run

    def train(self, mode: bool = True) -> EngineModel:
        """Stay in evaluation mode: that is what was exported."""
        return super().train(False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}  # an engine cannot be copied, its files can


def read_model(folder: Path, settings: EngineTransform) -> EngineModel:
    """Return the model whose files are in a folder, opened in its engine."""
    if settings.obstacle:
        raise CheckpointError(settings.obstacle)
    started = perf_counter()
    model = EngineModel(Exported.read(folder), settings, 0.0)
    try:
        model.open()
    except Exception as error:  # an engine may raise anything about a file
        why = model.exported.other_version or "the file is as it was saved, by this version"
        raise CheckpointError(
            f"{settings.engine} cannot open its file: {first_line(error)}; {why}; optimize again"
        ) from error
    model.preparations = (Preparation("loaded", perf_counter() - started),)
    return model


# ---------------------------------------------------------------- opening what was exported


def _open_onnxruntime(exported: Exported, settings: EngineTransform) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads or torch.get_num_threads()
    options.log_severity_level = 3
    # Its threads would go on spinning after a call, and slow down whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        str(exported.folder / ONNX), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    places = _places(exported.signature, names)

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        feeds = {name: _array(tensors[at]) for name, at in zip(names, places, strict=True)}
        return [torch.from_numpy(each) for each in session.run(None, feeds)]

    return run


def _open_openvino(exported: Exported, settings: EngineTransform) -> Run:
    import openvino

    precision = "bf16" if isinstance(settings, OpenVinoBfloat16) else "f32"
    core = openvino.Core()
    compiled = core.compile_model(
        str(exported.folder / IR),
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": str(settings.threads or torch.get_num_threads()),
        },
    )
    places = _places(exported.signature, [each.any_name for each in compiled.inputs])
    request = compiled.create_infer_request()

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        found = request.infer([_array(tensors[at]) for at in places], share_inputs=True)
        return [torch.from_numpy(np.array(found[port])) for port in compiled.outputs]

    return run


def _open_package(exported: Exported, settings: EngineTransform) -> Run:
    package: Any = torch._inductor.aoti_load_package(str(exported.folder / PACKAGE))

    def run(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(package(*tensors))

    return run


OPENERS: dict[str, Callable[[Exported, EngineTransform], Run]] = {
    "onnxruntime": _open_onnxruntime,
    "openvino": _open_openvino,
    "aoti": _open_package,
}


def _places(signature: Signature, names: list[str]) -> list[int]:
    """Return which tensor of a call each input is; exporters leave out those that do nothing."""
    known = [each.name for each in signature.inputs]
    return [known.index(name) for name in names]


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


# ---------------------------------------------------------------- exporting

_made: WeakKeyDictionary[nn.Module, dict[str, tuple[list[Any], Exported, str]]] = (
    WeakKeyDictionary()
)
"""The contents of a model, and its files in float32, by the way of opening: a plan makes what is
applied later, and several transforms start from the ONNX file."""


def exported_files(
    model: nn.Module, workload: Workload, settings: EngineTransform
) -> tuple[Exported, str]:
    """Return the files of a model for an engine, and why axes are fixed that might be open."""
    if isinstance(settings, AotInductor):
        return _once("aoti", _package, model, workload)
    onnx, why_fixed = _once("onnxruntime", _float_onnx, model, workload)
    if isinstance(settings, OpenVino):
        files, why_fixed = _once(
            "openvino", lambda *_: (in_openvino(onnx), why_fixed), model, workload
        )
        if isinstance(settings, OpenVinoInt8):
            files = _quantized_by_nncf(files, workload)
        return files, why_fixed
    if isinstance(settings, OnnxRuntimeInt8):
        return _quantized(onnx, workload, settings), why_fixed
    return onnx, why_fixed


def _once(
    kind: str,
    make: Callable[[nn.Module, Workload], tuple[Exported, str]],
    model: nn.Module,
    workload: Workload,
) -> tuple[Exported, str]:
    """Return what was made before of the same weights for the same call, or make it."""
    kept = _made.setdefault(workload.model, {})
    known = kept.get(kind)
    contents = contents_of(workload.model)
    if known is not None and known[0] == contents and _fits(known[1], workload):
        return known[1], known[2]
    exported, why_fixed = make(model, workload)
    kept[kind] = contents, exported, why_fixed
    return exported, why_fixed


def _fits(exported: Exported, workload: Workload) -> bool:
    try:
        exported.signature.tensors(workload.inputs, workload.keywords)
    except ModelError:
        return False
    return True


def _package(model: nn.Module, workload: Workload) -> tuple[Exported, str]:
    signature, program, why_fixed = export_program(model, workload)
    exported = Exported(signature, "aoti")
    with quietly():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(exported.folder / PACKAGE)
        )
    return exported, why_fixed


def in_openvino(onnx: Exported) -> Exported:
    """Return the files of OpenVINO for the same model."""
    exported = Exported(onnx.signature, "openvino")
    shutil.copy2(onnx.folder / ONNX, exported.folder / ONNX)
    convert_onnx(exported.folder)
    (exported.folder / ONNX).unlink()
    return exported


def _float_onnx(model: nn.Module, workload: Workload) -> tuple[Exported, str]:
    signature, program, why_fixed = export_program(model, workload)
    exported = Exported(signature, "onnxruntime")
    with quietly():
        try:
            onnx: Any = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=[each.name for each in signature.inputs],
                output_names=list(signature.outputs),
            )
        except Exception as error:  # the exporter may raise anything about an operator
            raise ModelError(_no_onnx_form(program, error)) from error
        onnx.save(str(exported.folder / ONNX), external_data=False)
    return exported, why_fixed


def _no_onnx_form(program: torch.export.ExportedProgram, error: BaseException) -> str:
    """Return which operator the exporter gave up at, and the line that called it."""
    cause: BaseException | None = error
    named = None
    while cause is not None and named is None:
        named = re.search(r"translating node %(\w+) : .*target=torch\.ops\.([\w.]+)", str(cause))
        cause = cause.__cause__
    if named is None:
        return f"torch cannot write it as ONNX: {first_line(error)}"
    name, operator = named.groups()
    nodes = program.run_decompositions().graph.nodes
    frames = next((str(x.meta.get("stack_trace")) for x in nodes if x.name.endswith(name)), "")
    places = [(file, int(line)) for file, line in re.findall(r'File "(.*)", line (\d+)', frames)]
    file, line = users_line(places)
    code = linecache.getline(file, line).strip()
    where = f" ({Path(file).name}:{line}: {code})" if file else ""
    return f"the operator {operator} has no ONNX form{where}"


def _quantized(onnx: Exported, workload: Workload, settings: OnnxRuntimeInt8) -> Exported:
    import onnx as onnx_files
    from onnxruntime import quantization

    made = Exported(onnx.signature, "onnxruntime")
    source, target = str(made.folder / "prepared.onnx"), str(made.folder / ONNX)
    with quietly():
        quantization.shape_inference.quant_pre_process(
            str(onnx.folder / ONNX), source, skip_symbolic_shape=True
        )
        if settings.mode == "dynamic":
            graph = onnx_files.load(source)
            # Weights get transposed, which would contradict the shapes that are noted.
            del graph.graph.value_info[:]
            quantization.quantize_dynamic(
                graph,
                target,
                op_types_to_quantize=list(INT8_PRODUCTS),
                weight_type=quantization.QuantType.QInt8,
                per_channel=settings.per_channel,
            )
        else:
            quantization.quantize_static(
                source,
                target,
                _Calibration(onnx.signature, workload),
                weight_type=quantization.QuantType.QInt8,
                per_channel=settings.per_channel,
            )
    Path(source).unlink()
    return made


ATTENTION = {"Softmax", "ScaledDotProductAttention"}
"""Operators of OpenVINO that tell a transformer."""


def _quantized_by_nncf(files: Exported, workload: Workload) -> Exported:
    import nncf
    import openvino

    made = Exported(files.signature, "openvino")
    model = openvino.Core().read_model(str(files.folder / IR))
    has_attention = any(each.get_type_name() in ATTENTION for each in model.get_ops())
    feeds = list(iter(_Calibration(files.signature, workload).get_next, None))
    known = {name for each in model.inputs for name in each.names}
    data = [{name: each[name] for name in each if name in known} for each in feeds]
    with quietly():
        changed = nncf.quantize(
            model,
            nncf.Dataset(data),
            model_type=nncf.ModelType.TRANSFORMER if has_attention else None,
            subset_size=len(data),
        )
        openvino.save_model(changed, str(made.folder / IR), compress_to_fp16=False)
    return made


class _Calibration:
    """The calibration data of a workload, as ONNX Runtime reads it."""

    def __init__(self, signature: Signature, workload: Workload) -> None:
        self._signature = signature
        self._calls = iter(calls_of(workload)[1 if workload.arguments else 0 :])

    def get_next(self) -> Mapping[str, Any] | None:
        call = next(self._calls, None)
        if call is None:
            return None
        tensors = self._signature.tensors(call.arguments, call.keywords)
        pairs = zip(self._signature.inputs, tensors, strict=True)
        return {argument.name: _array(tensor) for argument, tensor in pairs}


# ---------------------------------------------------------------- planning


def plan_torch(workload: Workload, settings: EngineTransform) -> Plan:
    """Plan the export: check for obstacles, export a copy and compare its outputs."""
    reason = _why_not(workload, settings)
    if reason:
        return settings.skipping(reason)
    made: list[EngineModel] = []
    fixed: list[str] = []

    def change(model: nn.Module) -> nn.Module:
        twin, why_fixed = _engine_model(model, workload, settings)
        made.append(twin)
        fixed.append(why_fixed)
        return twin

    trial = try_change(
        workload, change, tolerance=_tolerance(workload, settings), limit_s=settings.limit_s
    )
    if not trial.works:
        return settings.skipping(refusal(workload.model, trial))
    (twin,) = made
    spent = {"planning": while_planning(twin.preparations).to_dict()}
    step = Step("", f"exported to {settings.engine}", "another engine runs the whole call", spent)
    notes = [trial_note(trial), f"it takes {', '.join(map(str, twin.exported.signature.inputs))}"]
    notes += [f"other sizes are not open: {why}" for why in fixed if why]
    return settings.planned((step,), not_predicted=NOT_PREDICTED, notes=tuple(notes))


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: EngineTransform
) -> EngineModel:
    """Return the exported model, opened in its engine."""
    twin, _ = _engine_model(model, workload, settings)
    planning = Preparation.from_dict(plan.steps[0].settings["planning"])
    twin.preparations = (*twin.preparations, planning)
    return twin


def _engine_model(
    model: nn.Module, workload: Workload, settings: EngineTransform
) -> tuple[EngineModel, str]:
    started = perf_counter()
    with time_limit(settings.limit_s, workload.name):
        exported, why_fixed = exported_files(model, workload, settings)
        twin = EngineModel(exported, settings, 0.0)
        twin.open()
    seconds = perf_counter() - started
    twin.preparations = (Preparation(f"exported to {settings.engine}", seconds),)
    return twin, why_fixed


def _why_not(workload: Workload, settings: EngineTransform) -> str:
    """Return why a model cannot go to an engine, as far as can be told without trying, or ""."""
    reason = settings.obstacle or why_unchangeable(workload.model)
    if reason:
        return reason
    model = workload.model
    if any(module.training for module in model.modules()):
        return IN_TRAINING
    odd = {each.dtype for each in model.parameters()} - {torch.float32}
    if odd or any(each.is_quantized for each in model.buffers()):
        return "it holds numbers that are not float32; engines convert them themselves"
    is_static = isinstance(settings, OnnxRuntimeInt8) and settings.mode == "static"
    needs_data = is_static or isinstance(settings, OpenVinoInt8)
    if needs_data and not workload.calibration:
        return "needs calibration data"
    return ""


def _tolerance(workload: Workload, settings: EngineTransform) -> float:
    if settings.tolerance is not None:
        return settings.tolerance
    if settings.precision == "int8":
        return INT8_TOLERANCE
    if settings.precision == "bfloat16":
        return BFLOAT16_TOLERANCE
    return rounding_of(workload.model)


# ---------------------------------------------------------------- exporting what is no candidate


def files_of(workload: Workload, settings: EngineTransform, kind: str) -> tuple[Exported, str]:
    """Return the files of a workload's model, which may run in an engine already; raise if not."""
    model = workload.model
    if isinstance(model, EngineModel):
        if model.exported.kind == kind:
            return model.exported, ""
        if (model.exported.kind, kind) == ("onnxruntime", "openvino"):
            return in_openvino(model.exported), ""
        raise ModelError(
            f"it holds files of {model.settings.engine} alone, and not the model that they were "
            f"made from; export the model itself to {settings.engine}"
        )
    reason = _why_not(workload, settings)
    if reason:
        raise ModelError(f"{workload.name} cannot be exported: {reason}")
    twin = TorchAdapter().clone(model)
    with time_limit(settings.limit_s, workload.name):
        return exported_files(twin, workload, settings)
