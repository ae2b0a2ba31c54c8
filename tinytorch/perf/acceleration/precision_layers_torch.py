"""Layers and models of PyTorch that compute in a lower precision. Imported after torch."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch_wrapping import WrappedModel
from tinytorch.perf.acceleration.boundary_torch import changed_tensors

__all__ = [
    "AutocastModel",
    "LowerPrecisionModel",
    "convert_model",
    "is_lower_layer",
    "is_plain_float",
    "lower_class",
    "lower_layer",
]


def is_plain_float(tensor: torch.Tensor | None) -> bool:
    """Tell whether a tensor holds floats of at least 16 bits, and nothing more than that."""
    if tensor is None or not tensor.is_floating_point() or tensor.itemsize < 2:
        return False
    return type(tensor.detach()) is torch.Tensor


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Give all floats in a value this dtype; the lowest number, a mask, stays the lowest one."""
    return changed_tensors(value, lambda each: _cast(each, dtype))


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    lowest, limit = torch.finfo(tensor.dtype).min, torch.finfo(dtype).min
    cast = tensor.to(dtype)
    # infinite it would give NaN to a query whose keys are all masked
    is_plain = tensor.layout == torch.strided and not tensor.is_nested
    return cast.masked_fill(tensor == lowest, limit) if is_plain and lowest < limit else cast


# ---------------------------------------------------------------- whole models


class LowerPrecisionModel(WrappedModel):
    """A model that holds another dtype inside than goes in and comes out."""

    def __init__(self, model: nn.Module, inner: torch.dtype, outer: torch.dtype | None) -> None:
        super().__init__(model)
        self.inner, self.outer = inner, outer

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Cast what goes in, call the model, and cast what comes out."""
        inputs, keywords = cast_floats((inputs, keywords), self.inner)
        output = self.model(*inputs, **keywords)
        return output if self.outer is None else cast_floats(output, self.outer)


class AutocastModel(WrappedModel):
    """A model inside of `torch.autocast`."""

    def __init__(
        self, model: nn.Module, inner: torch.dtype, outer: torch.dtype | None, device_type: str
    ) -> None:
        super().__init__(model)
        self.inner, self.outer, self.device_type = inner, outer, device_type

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Let PyTorch choose dtypes operation by operation; cast what comes out."""
        with torch.autocast(self.device_type, self.inner):
            output = self.model(*inputs, **keywords)
        return output if self.outer is None else cast_floats(output, self.outer)


@dataclass(frozen=True)
class _CastInputs:
    """A hook before the call of a layer that stays as it is."""

    dtype: torch.dtype

    def __call__(self, module: nn.Module, inputs: Any, keywords: Any) -> Any:
        return cast_floats((inputs, keywords), self.dtype)


@dataclass(frozen=True)
class _CastOutput:
    """A hook after the call of a layer that stays as it is."""

    dtype: torch.dtype

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return cast_floats(output, self.dtype)


def convert_model(
    model: nn.Module, dtype: torch.dtype, *, kept: Collection[str] = (), cast: Collection[str] = ()
) -> None:
    """Give the floats that a model holds another dtype, in place.

    kept: names of modules and buffers that stay. cast: names of modules that go on computing in
    what they hold: what they are given is cast for them, and their outputs are cast back. Shared
    tensors go on being shared.
    """
    staying: set[int] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        own = [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in own:
            if path in kept or (f"{path}.{name}" if path else name) in kept:
                staying.add(id(tensor))
    converted: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in staying or not is_plain_float(tensor):
            return tensor
        return converted.setdefault(id(tensor), tensor.to(dtype))

    own_dtypes = {path: _float_dtype(model.get_submodule(path)) for path in cast}
    for parameter in model.parameters():
        parameter.grad = None
    # What Module.to() uses; that casts complex numbers too, and would lose their imaginary part.
    model._apply(convert)  # type: ignore[no-untyped-call]
    for path, own_dtype in own_dtypes.items():
        module = model.get_submodule(path)
        module.register_forward_pre_hook(_CastInputs(own_dtype), with_kwargs=True)
        module.register_forward_hook(_CastOutput(dtype))


def _float_dtype(module: nn.Module) -> torch.dtype:
    held = (*module.parameters(), *module.buffers())
    return next(each.dtype for each in held if is_plain_float(each))


# ---------------------------------------------------------------- single layers


class _Lower(nn.Module):
    """The first base of layers that hold a lower dtype and give back the dtype of their input."""

    weight: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = super().forward(input.to(self.weight.dtype))
        return output.to(input.dtype)


class LowerLinear(_Lower, nn.Linear):
    """A Linear that holds and multiplies a lower dtype."""


class LowerConv1d(_Lower, nn.Conv1d):
    """A Conv1d that holds and multiplies a lower dtype."""


class LowerConv2d(_Lower, nn.Conv2d):
    """A Conv2d that holds and multiplies a lower dtype."""


class LowerConv3d(_Lower, nn.Conv3d):
    """A Conv3d that holds and multiplies a lower dtype."""


class LowerTransposedLinear(nn.Module):
    """A `Conv1D` of transformers in a lower dtype: a Linear with a weight (inputs, outputs)."""

    nf: int
    weight: nn.Parameter
    bias: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in the dtype of the weight, and give back that of the input."""
        rows = x.to(self.weight.dtype).reshape(-1, x.shape[-1])
        product = torch.addmm(self.bias, rows, self.weight)
        return product.view(*x.shape[:-1], self.nf).to(x.dtype)


class LowerEmbedding(nn.Embedding):
    """A table of a lower dtype whose rows are given in another one."""

    given: torch.dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Look up rows, and cast only these."""
        return super().forward(input).to(self.given)


CLASSES: dict[type, type[nn.Module]] = {
    nn.Linear: LowerLinear,
    nn.Conv1d: LowerConv1d,
    nn.Conv2d: LowerConv2d,
    nn.Conv3d: LowerConv3d,
}
"""Exactly these, and the Conv1D of transformers: a subclass may compute something else."""


def lower_class(module: nn.Module) -> type[nn.Module] | None:
    """Give the class that a layer gets when it holds a lower dtype; None for other layers."""
    source = sys.modules.get("transformers.pytorch_utils")
    if source is not None and type(module) is getattr(source, "Conv1D", None):
        return LowerTransposedLinear
    return CLASSES.get(type(module))


def is_lower_layer(module: nn.Module) -> bool:
    """Tell whether a layer is one of ours."""
    return isinstance(module, (_Lower, LowerTransposedLinear, LowerEmbedding))


def lower_layer(layer: nn.Module, dtype: torch.dtype) -> None:
    """Let a layer hold and compute a lower dtype, in place; it goes on sharing what it shares.

    Only its class changes, as with `torch.nn.utils.parametrize`: names, hooks and attributes stay.
    """
    known: Any = LowerEmbedding if type(layer) is nn.Embedding else lower_class(layer)
    assert known is not None, f"no class for a {type(layer).__name__}"
    changed: Any = layer
    if known is LowerEmbedding:
        changed.given = changed.weight.dtype
    for parameter in layer.parameters(recurse=False):
        parameter.grad = None
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    changed.__class__ = known
