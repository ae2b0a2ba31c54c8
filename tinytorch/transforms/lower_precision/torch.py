"""PyTorch models in a lower precision: where, and how far outputs move. Imported after torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tinytorch.errors import SettingError
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import WrappedModel
from tinytorch.models.workload import Workload
from tinytorch.transforms.lower_precision import LowerPrecision, why_slow_on_processor
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.support import torch as support
from tinytorch.transforms.support.observing import idle_patterns, why_kept
from tinytorch.transforms.support.weights_torch import is_transposed_linear

# ---------------------------------------------------------------- layers and models of PyTorch
# that compute in a lower precision. Imported after torch


def is_plain_float(tensor: torch.Tensor | None) -> bool:
    """Return whether a tensor holds floats of at least 16 bits, and nothing more than that."""
    if tensor is None or not tensor.is_floating_point() or tensor.itemsize < 2:
        return False
    return type(tensor.detach()) is torch.Tensor


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Return all floats in a value this dtype; the lowest number, a mask, stays the lowest one."""
    return support.changed_tensors(value, lambda each: _cast(each, dtype))


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


@dataclass(frozen=True)
class _CastInputs:
    """A forward pre-hook of a layer that keeps its precision."""

    dtype: torch.dtype

    def __call__(self, module: nn.Module, inputs: Any, keywords: Any) -> Any:
        return cast_floats((inputs, keywords), self.dtype)


@dataclass(frozen=True)
class _CastOutput:
    """A forward hook of a layer that keeps its precision."""

    dtype: torch.dtype

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return cast_floats(output, self.dtype)


def convert_model(
    model: nn.Module, dtype: torch.dtype, *, kept: Collection[str] = (), cast: Collection[str] = ()
) -> None:
    """Return the floats that a model holds another dtype, in place.

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
    """Return the class that a layer gets when it holds a lower dtype; None for other layers."""
    if is_transposed_linear(module):
        return LowerTransposedLinear
    return CLASSES.get(type(module))


def is_lower_layer(module: nn.Module) -> bool:
    """Return whether a layer is one of ours."""
    return isinstance(module, (_Lower, LowerTransposedLinear, LowerEmbedding))


def lower_layer(layer: nn.Module, dtype: torch.dtype) -> None:
    """Make a layer hold and compute a lower dtype, in place; shared parameters stay shared.

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


# ---------------------------------------------------------------- where in a PyTorch model a lower
# precision goes, and where not. Imported after torch

NOT_CALLED = "it was not called: its weight may be used in another way"


# ---------------------------------------------------------------- converting a whole model


def made_constants(model: nn.Module) -> tuple[str, ...]:
    """Return the float buffers that no checkpoint holds: the model computed them itself."""
    return tuple(
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, tensor in module._buffers.items()
        if name in module._non_persistent_buffers_set and is_plain_float(tensor)
    )


def kept_modules(model: nn.Module, keep: Iterable[str]) -> dict[str, str]:
    """Return the modules with floats of their own that stay as they are, with the reasons.

    Those that share a tensor with one of them stay, too.
    """
    floats = {path: own for path, module in model.named_modules() if (own := _own_floats(module))}
    kept = {path: reason for path in floats if (reason := why_kept(path, keep))}
    for path, reason in list(kept.items()):
        for other, tensors in floats.items():
            if other not in kept and floats[path] & tensors:
                kept[other] = f"it shares its weight with {path!r}, which is {reason}"
    return kept


def cast_modules(
    model: nn.Module, keep: Iterable[str], kept: Collection[str], called: Collection[str]
) -> tuple[str, ...]:
    """Return the outermost modules that are called and hold only layers that keep their precision.

    Inside of them everything is computed as before.
    """
    found: list[str] = []
    for path, module in model.named_modules():
        has_floats = any(_own_floats(each) for each in module.modules())
        is_meant = path in kept or (has_floats and bool(why_kept(path, keep)))
        inside = any(path.startswith(f"{other}.") for other in found)
        if is_meant and path in called and not inside:
            found.append(path)
    return tuple(found)


def _own_floats(module: nn.Module) -> set[int]:
    own = (*module._parameters.values(), *module._buffers.values())
    return {id(each) for each in own if is_plain_float(each)}


# ---------------------------------------------------------------- layer by layer


def find_layers(
    model: nn.Module, settings: LowerPrecision, called: Collection[str]
) -> tuple[tuple[Step, ...], tuple[Skipped, ...]]:
    """Choose the layers that hold and compute a lower precision; say why the others do not."""
    dtype: torch.dtype = getattr(torch, settings.dtype)
    modules = dict(model.named_modules())
    reasons: dict[str, str] = {}
    for path, module in modules.items():
        if _own_parameters(module):
            reasons[path] = why_kept(path, settings.keep) or _why_not(module, dtype, path in called)
    tables = _settle_shared(modules, reasons, settings, called)
    common = {"how": settings.how, "dtype": settings.dtype}
    steps = [
        Step(
            path,
            tables.get(path, f"holds and multiplies {settings.dtype}"),
            "products take less time; sums, norms and softmax around it keep their digits",
            common | {"layer": type(modules[path]).__name__},
        )
        for path, reason in reasons.items()
        if not reason
    ]
    skipped = [Skipped(path, reason) for path, reason in reasons.items() if reason]
    return tuple(steps), tuple(skipped)


def _own_parameters(module: nn.Module) -> list[torch.Tensor]:
    own = [each for each in module._parameters.values() if each is not None]
    return [each for each in own if each.is_floating_point()]


def _why_not(module: Any, dtype: torch.dtype, is_called: bool) -> str:
    name = type(module).__name__
    if is_lower_layer(module):
        return "it holds a lower precision already"
    if lower_class(module) is None:
        base = next((known for known in CLASSES if isinstance(module, known)), None)
        if base is not None:
            return f"a {name} is a {base.__name__} that may compute something else"
        return f"{name} is no linear layer or convolution"
    if module._parameters.get("weight") is None:
        return "its weight is computed anew before each call"
    if "forward" in vars(module):
        return "its forward was replaced on this object by another function"
    odd = next((each for each in _own_parameters(module) if not is_plain_float(each)), None)
    if odd is not None:
        return f"its weight is held as {type(odd.detach()).__name__}"
    held = module.weight.dtype
    if held == dtype or held.itemsize <= dtype.itemsize:
        return f"it holds {str(held).removeprefix('torch.')} already"
    return "" if is_called else NOT_CALLED


def _settle_shared(
    modules: Mapping[str, nn.Module],
    reasons: dict[str, str],
    settings: LowerPrecision,
    called: Collection[str],
) -> dict[str, str]:
    """Skip layers whose parameters others need in full precision; return the tables that join in.

    A table that is looked up in and multiplied with, as in most language models, is held once: rows
    that are looked up are cast.
    """
    users: dict[int, list[str]] = {}
    for path in reasons:
        for each in _own_parameters(modules[path]):
            users.setdefault(id(each), []).append(path)
    tables: dict[str, str] = {}
    for path in [path for path, reason in reasons.items() if not reason]:
        sharers = {user for each in _own_parameters(modules[path]) for user in users[id(each)]}
        staying = [user for user in sorted(sharers) if reasons[user]]
        joining = [user for user in staying if _can_join(modules[user], user, settings, called)]
        if joining == staying:
            for user in joining:
                reasons[user] = ""
                tables[user] = f"holds {settings.dtype}, which it shares with {path!r}; casts rows"
        elif staying:
            reasons[path] = f"it shares its weight with {staying[0]!r}, which is not converted"
    return tables


def _can_join(
    module: nn.Module, path: str, settings: LowerPrecision, called: Collection[str]
) -> bool:
    is_table = type(module) is nn.Embedding and module.max_norm is None
    return is_table and path in called and not why_kept(path, settings.keep)


# ---------------------------------------------------------------- PyTorch models in a lower
# precision: where, and how far outputs move. Imported after torch

NO_SPEEDUP = (
    "how much faster products are in a lower precision depends on the device and the sizes; "
    "compare() measures it"
)
BFLOAT16_CAPABILITY = 8
"""The first generation of CUDA devices that multiplies bfloat16 in hardware (Ampere)."""

Steps = tuple[Step, ...]


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: LowerPrecision) -> Any:
    """Return the copy of the model that computes so."""
    return _carried_out(model, plan.steps)


def plan_torch(workload: Workload, settings: LowerPrecision) -> Plan:
    """Choose what changes, and try it on a copy."""
    reason = support.why_unchangeable(workload.model) or _why_not_lowered(workload.model, settings)
    seen = support.ObservedCall() if reason else support.observe_call(workload)
    reason = reason or seen.error or _why_not_observed(seen, settings)
    if reason:
        return settings.skipping(reason)
    skipped: tuple[Skipped, ...] = ()
    if settings.how == "layers":
        steps, skipped = find_layers(workload.model, settings, seen.called)
        attempts: list[Steps] = [steps] if steps else []
    else:
        attempts, skipped = _conversions(workload.model, settings, seen)
    return _tried(workload, settings, attempts, skipped)


# ---------------------------------------------------------------- planning


def _why_not_lowered(model: nn.Module, settings: LowerPrecision) -> str:
    dtype = getattr(torch, settings.dtype)
    tensors = [*model.parameters(), *model.buffers()]
    floats = [each for each in tensors if is_plain_float(each)]
    if settings.how != "layers":
        odd = [each for each in tensors if each.is_floating_point() and not is_plain_float(each)]
        if odd:
            name = type(odd[0].detach()).__name__
            kind = str(odd[0].dtype).removeprefix("torch.") if name == "Tensor" else name
            return (
                f"some of its weights are held as {kind}; lower the precision of the model before"
            )
    if not floats:
        return "it holds no floats"
    if all(each.dtype == dtype for each in floats):
        return f"all of its floats are {settings.dtype} already"
    return ""


def _why_not_observed(seen: support.ObservedCall, settings: LowerPrecision) -> str:
    if settings.how == "layers":
        return ""
    if len(seen.output_dtypes) > 1:
        names = ", ".join(str(each).removeprefix("torch.") for each in seen.output_dtypes)
        return f"its outputs have several dtypes ({names}), which one cast could not give back"
    if seen.writes_inputs:
        return "it writes into its inputs, and would write into copies of another dtype"
    if seen.written_buffers:
        name = seen.written_buffers[0]
        return (
            f"a call changes its buffer {name!r}; state that is carried on from call to call loses "
            f"digits in {settings.dtype}"
        )
    return ""


def _common(settings: LowerPrecision, seen: support.ObservedCall) -> dict[str, Any]:
    outer = next(iter(seen.output_dtypes), None)
    given = None if outer is None else str(outer).removeprefix("torch.")
    return {"how": settings.how, "dtype": settings.dtype, "outputs": given}


def _conversions(
    model: nn.Module, settings: LowerPrecision, seen: support.ObservedCall
) -> tuple[list[Steps], tuple[Skipped, ...]]:
    """Return the ways to convert a model, the most precise first.

    Constants that a model made itself, such as the frequencies of rotary embeddings, keep their
    digits where its code allows that: at the thousandth position, eight bits are not enough.
    """
    kept = kept_modules(model, settings.keep)
    skipped = tuple(Skipped(path, reason) for path, reason in kept.items())
    cast = cast_modules(model, settings.keep, kept, seen.called)
    constants = made_constants(model)
    attempts: list[Steps] = []
    for staying in dict.fromkeys((constants, ())):
        place = {"kept": list(kept), "cast": list(cast), "constants": list(staying)}
        what = f"holds and computes {settings.dtype}"
        if staying:
            what += f", but for {len(staying)} of the constants that it made itself"
        why = "half the bytes are read, and products take less time"
        attempts.append((Step("", what, why, _common(settings, seen) | place),))
    return attempts, skipped


def _tried(
    workload: Workload,
    settings: LowerPrecision,
    attempts: list[Steps],
    skipped: tuple[Skipped, ...],
) -> Plan:
    """Return the plan of the first attempt that works, or why the last one does not."""
    trial = support.Trial(
        reason="no linear layer or convolution is left to compute in a lower precision"
    )
    for steps in attempts:
        trial = support.try_change(
            workload, partial(_carried_out, steps=steps), tolerance=settings.allowed_error
        )
        if trial.works:
            return _plan(workload, settings, steps, skipped, trial)
    reason = support.refusal(workload.model, trial) if attempts else trial.reason
    return settings.skipping(reason, *skipped)


def _plan(
    workload: Workload,
    settings: LowerPrecision,
    steps: Steps,
    skipped: tuple[Skipped, ...],
    trial: support.Trial,
) -> Plan:
    before = TorchAdapter().held_bytes(workload.model)
    return settings.planned(
        steps,
        skipped,
        shrinkage=Gain.of_bytes(before, trial.held_bytes, "counted on a copy"),
        not_predicted={"speedup": NO_SPEEDUP},
        notes=tuple(_notes(workload, settings, trial)),
    )


def _notes(workload: Workload, settings: LowerPrecision, trial: support.Trial) -> Iterator[str]:
    yield support.trial_note(trial)
    paths = [path for path, _ in workload.model.named_modules()]
    yield from idle_patterns(settings.keep, paths, change="converted")
    device = next(workload.model.parameters(), torch.empty(0)).device
    if device.type == "cpu" and why_slow_on_processor(settings.dtype):
        yield why_slow_on_processor(settings.dtype)
    if device.type == "cuda" and settings.dtype == "bfloat16":
        major = torch.cuda.get_device_capability(device)[0]
        if major < BFLOAT16_CAPABILITY:
            yield "this device has no units that multiply bfloat16, so that calls may take longer"


# ---------------------------------------------------------------- carrying out


def _carried_out(model: nn.Module, steps: Steps) -> nn.Module:
    settings = steps[0].settings
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    if settings["how"] == "layers":
        return _with_lower_layers(model, steps, dtype)
    outer = None if settings["outputs"] is None else getattr(torch, settings["outputs"])
    kept, cast = [*settings["kept"], *settings["constants"]], settings["cast"]
    names = _names(model)
    missing = [name for name in (*kept, *cast) if name not in names]
    if missing:
        raise _other_model(missing[0])
    convert_model(model, dtype, kept=kept, cast=cast)
    return LowerPrecisionModel(model, dtype, outer)


def _with_lower_layers(model: nn.Module, steps: Steps, dtype: torch.dtype) -> nn.Module:
    modules: Mapping[str, nn.Module] = dict(model.named_modules())
    for step in steps:
        layer = modules.get(step.layer)
        if layer is None or type(layer).__name__ != step.settings["layer"]:
            raise _other_model(step.layer)
        lower_layer(layer, dtype)
    return model


def _names(model: nn.Module) -> set[str]:
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    return modules | {name for name, _ in model.named_buffers(remove_duplicate=False)}


def _other_model(name: str) -> SettingError:
    return SettingError(
        f"the model has no {name!r} as the plan knows it; make a plan for this model"
    )
