"""PyTorch models as a whole: calling them on a workload, comparing outputs, putting layers in.

Imported after torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter, tensors_in
from tinytorch.errors import SettingError
from tinytorch.workloads.plan import Gain
from tinytorch.workloads.workload import Workload

__all__ = [
    "Call",
    "calls_of",
    "counted_shrinkage",
    "first_line",
    "is_transposed_linear",
    "outputs_of",
    "owners_of_tensors",
    "relative_change",
    "watching",
    "without_fast_paths",
]

Watch = Callable[[str, tuple[Any, ...], Any], None]


def is_transposed_linear(module: Any) -> bool:
    """Tell whether it is a `Conv1D` of transformers: a linear layer with (inputs, outputs)."""
    source = sys.modules.get("transformers.pytorch_utils")
    return source is not None and type(module) is getattr(source, "Conv1D", None)


def owners_of_tensors(model: nn.Module) -> dict[int, list[str]]:
    """Give the names that the modules of a model have for each parameter, by its `id`."""
    names: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                names.setdefault(id(tensor), []).append(f"{path}.{name}" if path else name)
    return names


def first_line(error: BaseException) -> str:
    """Give the first line of an error's message, with its kind."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# ---------------------------------------------------------------- calling


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a model, and what they are."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    name: str


def calls_of(workload: Workload) -> list[Call]:
    """Give the call on the inputs, if there are some, and those on the calibration data."""
    calls = [
        # what inputs are given by name may also come first in a batch
        Call(each, workload.keywords if len(each) <= len(workload.inputs) else {}, name)
        for number, each in enumerate(workload.calibration)
        if (name := f"calibration batch {number}")
    ]
    if workload.arguments:
        calls.insert(0, Call(workload.inputs, workload.keywords, "the inputs"))
    return calls


def outputs_of(model: nn.Module, call: Call, *, fast_paths: bool = False) -> list[torch.Tensor]:
    """Give the floating-point tensors of one call, in evaluation mode and without a graph.

    The model is a copy: it stays in evaluation mode. `fast_paths`: encoder layers may compute in
    one kernel, without calling their parts.
    """
    adapter = TorchAdapter()
    model.eval()
    try:
        with torch.no_grad(), adapter.preserving(model), without_fast_paths(not fast_paths):
            output = model(*adapter.copy_inputs(call.arguments), **call.keywords)
    except SettingError:
        raise
    except Exception as error:  # whatever a model raises for inputs that it cannot take
        raise SettingError(f"{call.name} does not fit the model: {first_line(error)}") from error
    return [each for each in tensors_in(output) if each.is_floating_point()]


def relative_change(
    expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]
) -> tuple[float, str]:
    """Give the root mean square of the change over that of the outputs, or why there is none."""
    shapes = [[tuple(each.shape) for each in outputs] for outputs in (expected, found)]
    if shapes[0] != shapes[1]:
        return math.inf, "the outputs of the model have another shape"
    signal = noise = 0.0
    for one, other in zip(expected, found, strict=True):
        exact = one.double()
        signal += float(exact.square().sum())
        noise += float((exact - other.double()).square().sum())
    if noise == 0:
        return 0.0, ""
    change = math.sqrt(noise / signal) if signal > 0 else math.inf
    return (change, "") if math.isfinite(change) else (math.inf, "the outputs are not finite")


@contextmanager
def watching(layers: Mapping[str, nn.Module], see: Watch) -> Iterator[None]:
    """Call `see(path, inputs, output)` after each forward pass of these layers."""
    before = [(layer, layer.__dict__.get("forward")) for layer in layers.values()]
    for path, layer in layers.items():
        layer.__dict__["forward"] = _telling(path, layer.forward, see)
    try:
        yield
    finally:
        for layer, own in before:
            del layer.__dict__["forward"]
            if own is not None:
                layer.__dict__["forward"] = own


def _telling(path: str, forward: Callable[..., Any], see: Watch) -> Callable[..., Any]:
    def tell(*inputs: Any, **settings: Any) -> Any:
        output = forward(*inputs, **settings)
        see(path, (*inputs, *settings.values()), output)
        return output

    return tell


@contextmanager
def without_fast_paths(is_meant: bool = True) -> Iterator[None]:
    """Let encoder layers call their linear layers instead of one kernel for all of them."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(was_enabled and not is_meant)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


def counted_shrinkage(model: nn.Module, smaller: nn.Module) -> Gain:
    """Count what two models hold."""
    adapter = TorchAdapter()
    before, after = (
        sum(each.nbytes for each in adapter.parameters(each_model))
        for each_model in (model, smaller)
    )
    return Gain.counted(before, after, "counted on a copy")
