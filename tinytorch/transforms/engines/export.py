"""Exporting a PyTorch model for another engine: tensors in, tensors out. Imported after torch."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tinytorch import reading
from tinytorch.codec import Coded
from tinytorch.errors import CheckpointError, ModelError, RecordError
from tinytorch.measure.environment import instruction_sets
from tinytorch.models.pytorch import TorchAdapter, tensors_in
from tinytorch.models.pytorch_compile import quiet_compiler, users_place, why_it_failed
from tinytorch.models.workload import Workload, call_model
from tinytorch.transforms.engines.files import (
    COMPILED,
    FILES,
    SIGNATURE,
    Argument,
    check_files,
    open_axes,
    program_text,
    why_other_version,
    write_about,
)
from tinytorch.transforms.support.torch import changed_tensors, copied_arguments

OPEN = torch.export.Dim.DYNAMIC
GROWN = 2
"""Sizes of 1 would be taken for constants: a model is exported for so many rows more."""
DIFFERENCE = 1e-3
"""So much, of the largest one, may outputs of other sizes move: rounding and no more."""
BY_VALUES = "which way it goes depends on the values of its inputs"
EXPORTERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "nncf", "")
"""Their loggers; the last is the root, which ONNX Runtime's quantization uses."""


class Exported:
    """The files of an exported model, and its signature. They go when nothing uses them."""

    def __init__(self, signature: Signature, kind: str) -> None:
        self.signature = signature
        self.kind = kind
        self.other_version = ""
        """That the files were made with another version of the engine, or ""."""
        self._folder = TemporaryDirectory(prefix="tinytorch-engine-")

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def write(self, folder: Path, precision: str = "f32") -> None:
        """Copy the files and the signature into a folder, with a program that needs only them."""
        for name in FILES[self.kind]:
            shutil.copy2(self.folder / name, folder / name)
        signature = self.signature
        program = program_text(self.kind, signature.inputs, signature.outputs, precision)
        write_about(folder, self.kind, signature.to_dict(), program)

    @classmethod
    def read(cls, folder: Path) -> Exported:
        """Return a copy of what :meth:`write` wrote; raise if this machine cannot run it."""
        try:
            fields = reading.read_json(folder / SIGNATURE)
            found = cls(Signature.from_dict(fields), fields["engine"])
            missing = sorted({*fields["compiled_for"]} - {*instruction_sets()})
            digests = {name: str(fields["sha256"][name]) for name in FILES[found.kind]}
            found.other_version = why_other_version(found.kind, str(fields.get("made_with", "")))
        except (OSError, ValueError, KeyError, TypeError, RecordError) as error:
            raise CheckpointError(f"{SIGNATURE} cannot be read: {error}") from error
        if missing:
            raise CheckpointError(
                f"it was compiled for a processor with {', '.join(missing)}, which this one lacks; "
                "optimize again on this machine"
            )
        if found.other_version and found.kind in COMPILED:
            raise CheckpointError(
                f"{found.other_version}: what was compiled runs in that version alone; optimize "
                "again, or install it"
            )
        check_files(folder, found.kind, digests)
        for name in digests:
            shutil.copy2(folder / name, found.folder / name)
        return found

    def __deepcopy__(self, memo: Any) -> Exported:
        return self  # files are written once


class FlatCall(nn.Module):
    """A model that is called with tensors alone, and returns tensors alone."""

    def __init__(self, model: nn.Module, arguments: inspect.BoundArguments) -> None:
        super().__init__()
        self.model = model
        self._arguments = arguments

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(tensors)
        named = changed_tensors(dict(self._arguments.arguments), lambda _: next(rest))
        call = inspect.BoundArguments(self._arguments.signature, named)
        return tuple(tensors_in(self.model(*call.args, **call.kwargs)))


def export_program(
    model: nn.Module, workload: Workload
) -> tuple[Signature, torch.export.ExportedProgram, str]:
    """Return the signature and the graph of a model, and why axes stay fixed that might be open.

    Batch and sequence axes are open where the graph gives the model's outputs for other sizes.
    """
    adapter = TorchAdapter()
    inputs, keywords = copied_arguments(adapter, workload)
    call = bound(inspect.signature(model.forward), inputs, keywords)
    tensors: list[torch.Tensor] = []
    arguments = skeleton(dict(call.arguments), tensors.append)
    with adapter.preserving(workload.model), adapter.without_gradients():
        output = skeleton(call_model(model, *inputs, **keywords), lambda _: None)
        outputs = tuple(names_in(output))
        if not outputs:
            raise ModelError("its output holds no tensor")
        held = tuple(
            Argument(name, dtype_name(tensor.dtype), tuple(tensor.shape))
            for name, tensor in zip(names_in(arguments), tensors, strict=True)
        )
        program, axes, why_fixed = _most_open(FlatCall(model, call), tensors, held)
    held = tuple(each.opened(axes) for each in held)
    signature = Signature(parameters_of(model.forward), held, outputs, arguments, output)
    return signature, program, why_fixed


def _most_open(
    flat: FlatCall, tensors: list[torch.Tensor], held: tuple[Argument, ...]
) -> tuple[torch.export.ExportedProgram, tuple[int, ...], str]:
    """Export with as many open axes as work; also return why others do not."""
    why_fixed = ""
    for axes in open_axes(held):
        try:
            return _exported(flat, tensors, axes), axes, why_fixed
        except Exception as error:  # the exporter or the model may raise anything
            why_fixed = why_fixed or why_not_traced(error)
    try:
        with quietly():
            return torch.export.export(flat, tuple(tensors), strict=False), (), why_fixed
    except Exception as error:
        raise ModelError(f"torch cannot trace it: {why_not_traced(error)}") from error


def _exported(
    flat: FlatCall, tensors: list[torch.Tensor], axes: tuple[int, ...]
) -> torch.export.ExportedProgram:
    """Export a call with open axes for a larger example; check it with a third size."""
    larger = tuple(_resized(each, axes, GROWN) for each in tensors)
    shapes = tuple(dict.fromkeys(_axes_of(each, axes), OPEN) for each in tensors)
    with quietly():
        program = torch.export.export(flat, larger, dynamic_shapes=(shapes,), strict=False)
    third = [_resized(each, axes, GROWN + 1) for each in tensors]
    for expected, found in zip(flat(*third), program.module()(*third), strict=True):
        largest = float(expected.abs().max()) if expected.is_floating_point() else 0.0
        torch.testing.assert_close(found, expected, rtol=0.0, atol=DIFFERENCE * largest)
    return program


def _axes_of(tensor: torch.Tensor, axes: tuple[int, ...]) -> list[int]:
    return [axis for axis in axes if axis < tensor.dim()]


def _resized(tensor: torch.Tensor, axes: tuple[int, ...], by: int) -> torch.Tensor:
    """Return a tensor with its first entries once more along the batch; sequences get shorter.

    A model may know positions up to the given length alone.
    """
    for axis in _axes_of(tensor, axes):
        if axis and tensor.shape[axis] > GROWN + by:
            tensor = tensor.narrow(axis, 0, tensor.shape[axis] - by + 1)
        else:
            tensor = torch.cat([tensor, *[tensor.narrow(axis, 0, 1)] * by], axis)
    return tensor.contiguous()


@contextmanager
def quietly() -> Iterator[None]:
    """Keep what exporters say about their own code from the user; some print."""
    silent = StringIO()
    with quiet_compiler(*EXPORTERS), redirect_stderr(silent), redirect_stdout(silent):
        yield


def why_not_traced(error: Exception) -> str:
    """Return why torch cannot trace a model, and the line of the user's that is to blame."""
    depends_on_values = isinstance(error, GuardOnDataDependentSymNode)
    reason = BY_VALUES if depends_on_values else why_it_failed(error)
    return f"{reason}{users_place(error)}"


# ---------------------------------------------------------------- the signature of a call

TENSOR = "tensor"
PLAIN = (type(None), bool, int, float, str)
TRUSTED = "transformers.modeling_outputs"
"""Classes of this module are made by their name; a file can ask for no other class."""


@dataclass(frozen=True)
class Signature(Coded):
    """The arguments of `forward`, the tensors in them, and the skeletons around them.

    `parameters` has the name and kind of each argument, and whether it may be left out.
    """

    parameters: tuple[tuple[str, str, bool], ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[str, ...]
    arguments: Any
    output: Any

    @cached_property
    def _callable(self) -> inspect.Signature:
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect._ParameterKind[kind],
                    default=None if is_optional else inspect.Parameter.empty,
                )
                for name, kind, is_optional in self.parameters
            ]
        )

    def tensors(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of `inputs`; raise if it is another call."""
        found: list[torch.Tensor] = []
        arguments = skeleton(bound(self._callable, inputs, keywords).arguments, found.append)
        if arguments != self.arguments:
            raise ModelError(
                f"it was exported for calls with {', '.join(map(str, self.inputs))}, and is called "
                "with other arguments; optimize it again with these as inputs"
            )
        for argument, tensor in zip(self.inputs, found, strict=True):
            other = argument.why_not(tensor)
            if other:
                raise ModelError(
                    f"the model was exported for {argument}, and gets {other}; optimize it again "
                    "with such inputs"
                )
        return found

    def nested(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return tensors in the nesting of the model's output."""
        return filled(self.output, iter(tensors))


def parameters_of(forward: Callable[..., Any]) -> tuple[tuple[str, str, bool], ...]:
    """Return the arguments of a function as a `Signature` has them."""
    return tuple(
        (each.name, each.kind.name, each.default is not inspect.Parameter.empty)
        for each in inspect.signature(forward).parameters.values()
    )


def bound(
    signature: inspect.Signature, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return arguments by their names, without those that are None."""
    try:
        found = signature.bind(*inputs, **keywords)
    except TypeError as error:
        raise ModelError(f"the model cannot be called so: {error}") from error
    given = {name: value for name, value in found.arguments.items() if value is not None}
    return inspect.BoundArguments(signature, given)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype as in `float32`."""
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- skeletons


def skeleton(value: Any, see: Callable[[torch.Tensor], object]) -> Any:
    """Return what lies around tensors as plain data; `see` gets each tensor in order."""
    if isinstance(value, torch.Tensor):
        see(value)
        return TENSOR
    if type(value) in PLAIN:
        return {"value": value}
    if type(value) in (list, tuple):
        return {type(value).__name__: [skeleton(each, see) for each in value]}
    if isinstance(value, Mapping):
        items = {str(name): skeleton(each, see) for name, each in value.items()}
        return {"items": items} | _class_of(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {"items": {name: skeleton(each, see) for name, each in parts.items()}} | _class_of(
            value
        )
    raise ModelError(f"an engine neither takes nor makes a {type(value).__name__}")


def _class_of(value: Any) -> dict[str, str]:
    kind = type(value)
    return {} if kind is dict else {"class": f"{kind.__module__}.{kind.__qualname__}"}


def filled(skeleton: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return a value with tensors in a skeleton."""
    if skeleton == TENSOR:
        return next(tensors)
    if "value" in skeleton:
        return skeleton["value"]
    for kind in (list, tuple):
        if kind.__name__ in skeleton:
            return kind(filled(each, tensors) for each in skeleton[kind.__name__])
    items = {name: filled(each, tensors) for name, each in skeleton["items"].items()}
    return class_named(skeleton["class"])(**items) if "class" in skeleton else items


def class_named(name: str) -> Any:
    """Return a class that this process has imported, or one of the outputs of transformers."""
    module, _, kind = name.rpartition(".")
    if module == TRUSTED:
        import transformers.modeling_outputs as outputs

        return getattr(outputs, kind)
    found = getattr(sys.modules.get(module), kind, None)
    if found is None:
        raise CheckpointError(
            f"the model returns a {name}; import {module or name} before loading it"
        )
    return found


def names_in(skeleton: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the tensors in a skeleton, such as `hidden_states.0`."""
    if skeleton == TENSOR:
        yield name or "output"
        return
    inside = f"{name}." if name else ""
    for key in ("list", "tuple"):
        for place, each in enumerate(skeleton.get(key, ())):
            yield from names_in(each, f"{inside or 'output.'}{place}")
    for key, each in skeleton.get("items", {}).items():
        yield from names_in(each, f"{inside}{key}")
