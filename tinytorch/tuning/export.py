"""``export``: a model, or what was found for it, as files of an engine that need no TinyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tinytorch import reading
from tinytorch.codec import Coded
from tinytorch.errors import (
    MissingPartError,
    ModelError,
    SettingError,
    TinyTorchError,
    first_line,
)
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import AXES, Workload, axis_length, call_model, resize_workload
from tinytorch.transforms.engines import AotInductor, EngineTransform, OnnxRuntime, OpenVino
from tinytorch.transforms.engines.files import (
    NAMES,
    ONNX,
    PROGRAM,
    Argument,
    convert_onnx,
    program_text,
    run_files,
    write_about,
)
from tinytorch.tuning.loading import RECIPE_FILE, load_optimized

FORMATS: Mapping[str, type[EngineTransform]] = {
    "onnx": OnnxRuntime,
    "openvino": OpenVino,
    "aoti": AotInductor,
}
KINDS = {"onnx": "onnxruntime", "openvino": "openvino", "aoti": "aoti"}
ENGINES = {
    "int8-dynamic": "onnxruntime-int8-dynamic",
    "int8-static": "onnxruntime-int8-static",
    "int8-weights": "onnxruntime-int8-dynamic",
    "mixed-precision": "onnxruntime-int8-dynamic",
    "bfloat16": "openvino-bfloat16",
    "bfloat16-layers": "openvino-bfloat16",
}
"""A transform whose PyTorch model no engine takes -> the one that an engine does itself."""
TOLERANCE = 1e-3
"""How far outputs may move, of the largest one: other kernels sum in another order."""
MORE_ROWS = 3


@dataclass(frozen=True)
class ExportedModel(Coded):
    """What was written, and how far its outputs in a fresh process are from the model's.

    `largest_error` is relative to the largest output of each call in `checked`. `fixed_because` is
    why sizes are fixed that might be open.
    """

    name: str
    format: str
    engine: str
    folder: str
    files: Mapping[str, int]
    inputs: tuple[Argument, ...]
    outputs: tuple[str, ...]
    checked: tuple[str, ...]
    largest_error: float
    fixed_because: str = ""

    def __str__(self) -> str:
        lines = [
            f"wrote {self.folder}: {', '.join(self.files)}",
            f"takes {', '.join(map(str, self.inputs))}; returns {', '.join(self.outputs)}",
            f"checked in a fresh process without TinyTorch, on {' and '.join(self.checked)}: "
            f"outputs are within {self.largest_error:.1e} of the largest",
            f"run it: python {Path(self.folder) / PROGRAM}",
        ]
        if self.fixed_because:
            lines.insert(2, f"other sizes are not open: {self.fixed_because}")
        return "\n".join(lines)


def export(
    target: str | Workload,
    *,
    to: str = "onnx",
    output: str | Path | None = None,
    optimized: str | Path | None = None,
) -> ExportedModel:
    """Write a model as files of an engine, with a program that runs them without TinyTorch.

    `to` is "onnx" (ONNX Runtime), "openvino" or "aoti" (AOTInductor, for PyTorch models). With
    `optimized`, what `optimize(...).save()` wrote there is exported, for calls as the target's.
    Batch and sequence axes are open where outputs of other sizes are right, too. The files are
    called in a fresh process, and nothing is written where they do not give the model's outputs.
    """
    if to not in FORMATS:
        raise SettingError(f"unknown format {to!r}; there are {', '.join(FORMATS)}")
    transform = FORMATS[to]()
    if transform.obstacle:
        raise MissingPartError(f"to {to}: {transform.obstacle}")
    workload = load_workload(target) if isinstance(target, str) else target
    folder = Path(output or f"{Path(workload.name.rpartition(':')[2]).name}-{to}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"{folder} exists; name a new or an empty folder")
    model = workload.model if optimized is None else load_optimized(optimized, workload)
    changed = replace(workload, model=model)
    with TemporaryDirectory(prefix="tinytorch-export-") as scratch:
        place = Path(scratch)
        try:
            held, outputs, why_fixed = _written(changed, to, place)
        except ModelError as error:
            raise (_with_engine(error, optimized) if optimized else error) from error
        calls = _calls(workload, held)
        largest = _largest_error(changed, calls, place, held)
        folder.mkdir(parents=True, exist_ok=True)
        for each in sorted(place.iterdir()):
            (folder / each.name).write_bytes(each.read_bytes())
    return ExportedModel(
        name=workload.name,
        format=to,
        engine=NAMES[KINDS[to]],
        folder=str(folder),
        files={each.name: each.stat().st_size for each in sorted(folder.iterdir())},
        inputs=held,
        outputs=outputs,
        checked=tuple(calls),
        largest_error=largest,
        fixed_because=why_fixed,
    )


def _with_engine(error: ModelError, optimized: str | Path) -> ModelError:
    """Return the error, with the engine that does what PyTorch's own reduced precision did."""
    file = Path(optimized) / RECIPE_FILE
    recipe = reading.parse_json(reading.read_text(file)) if file.is_file() else {}
    stack = recipe.get("stack") or []
    engine = next((ENGINES[name] for name in stack if name in ENGINES), None)
    if engine is None:
        return error
    return ModelError(
        f"a model changed by {', '.join(stack)} cannot be exported: {error}; "
        f"tinytorch optimize TARGET --only {engine} --save NEW writes files of an engine"
    )


Written = tuple[tuple[Argument, ...], tuple[str, ...], str]
"""The inputs and outputs of what was written, and why axes are fixed."""


def _written(workload: Workload, to: str, folder: Path) -> Written:
    adapter = adapter_for(workload.model, workload.arguments)
    write = _write_core if adapter.name == "core" else _write_torch
    try:
        return write(workload, to, folder)
    except TinyTorchError:
        raise
    except Exception as error:  # an exporter may raise anything about a model
        raise ModelError(f"{workload.name} cannot be exported: {first_line(error)}") from error


def _write_core(workload: Workload, to: str, folder: Path) -> Written:
    from tinytorch.transforms.engines.core import export_core

    if to == "aoti":
        raise SettingError("AOTInductor compiles models of PyTorch; export this one to onnx")
    onnx, held, outputs, why_fixed = export_core(workload)
    (folder / ONNX).write_bytes(onnx.SerializeToString())
    if to == "openvino":
        convert_onnx(folder)
        (folder / ONNX).unlink()
    kind = KINDS[to]
    fields = {"inputs": [each.to_dict() for each in held], "outputs": list(outputs)}
    write_about(folder, kind, fields, program_text(kind, held, outputs))
    return held, outputs, why_fixed


def _write_torch(workload: Workload, to: str, folder: Path) -> Written:
    from tinytorch.transforms.engines.torch import files_of

    exported, why_fixed = files_of(workload, FORMATS[to](), KINDS[to])
    exported.write(folder)
    return exported.signature.inputs, exported.signature.outputs, why_fixed


# ---------------------------------------------------------------- the check


def _calls(workload: Workload, held: Sequence[Argument]) -> dict[str, Workload]:
    """Return the call of the example, and one of other sizes on each axis that is open."""
    calls = {"the example": workload}
    for name, axis in AXES.items():
        if any(len(each.shape) > axis and each.shape[axis] is None for each in held):
            length = axis_length(workload.arguments, axis)
            other = length + MORE_ROWS if not axis else max(1, length // 2)
            calls[f"{name} {other}"] = resize_workload(workload, axis, other)
    return calls


def _largest_error(
    workload: Workload, calls: Mapping[str, Workload], folder: Path, held: Sequence[Argument]
) -> float:
    """Return how far outputs are from the model's; raise where that is more than rounding."""
    adapter = adapter_for(workload.model, workload.arguments)
    names = [each.name for each in held]
    expected, given = [], []
    for call in calls.values():
        arrays = adapter.arrays(tuple(x for x in _tensors(call)))
        given.append(dict(zip(names, arrays, strict=True)))
        with adapter.preserving(workload.model), adapter.without_gradients():
            made = call_model(workload.model, *call.inputs, **call.keywords)
            expected.append(adapter.arrays(made))
    found = run_files(folder, given)
    largest = 0.0
    for name, ours, theirs in zip(calls, expected, found, strict=True):
        largest = max(largest, _difference(ours, theirs, f"{workload.name}, on {name}"))
    return largest


def _tensors(call: Workload) -> list[Any]:
    from tinytorch.models.adapter import leaves

    return [each for each in leaves((call.inputs, call.keywords)) if hasattr(each, "dtype")]


def _difference(expected: Sequence[Any], found: Sequence[Any], where: str) -> float:
    expected = [each for each in expected if each.ndim or each.size]
    if [x.shape for x in expected] != [x.shape for x in found]:
        raise ModelError(
            f"{where}: the exported model returns shapes {[x.shape for x in found]}, and the model "
            f"{[x.shape for x in expected]}; nothing was written"
        )
    largest = 0.0
    for ours, theirs in zip(expected, found, strict=True):
        scale = float(np.abs(ours).max(initial=0.0)) or 1.0
        error = float(np.abs(ours.astype(np.float64) - theirs).max(initial=0.0)) / scale
        largest = max(largest, error if np.isfinite(error) else np.inf)
    if not largest <= TOLERANCE:
        raise ModelError(
            f"{where}: outputs of the exported model differ by {largest:.1e} of the largest, which "
            f"is more than rounding ({TOLERANCE:g}); nothing was written"
        )
    return largest
