"""PyTorch models in a lower precision: where, and how far outputs move. Imported after torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.errors import SettingError
from tinytorch.perf.acceleration.boundary_torch import (
    ObservedCall,
    observe_call,
    refusal,
    trial_note,
    why_unchangeable,
)
from tinytorch.perf.acceleration.lower_precision import (
    NAME,
    LowerPrecision,
    why_slow_on_processor,
)
from tinytorch.perf.acceleration.precision_layers_torch import (
    AutocastModel,
    LowerPrecisionModel,
    convert_model,
    is_plain_float,
    lower_layer,
)
from tinytorch.perf.acceleration.precision_places_torch import (
    cast_modules,
    find_layers,
    kept_modules,
    made_constants,
)
from tinytorch.perf.acceleration.trial_torch import Trial, try_change
from tinytorch.workloads.kept_layers import idle_patterns
from tinytorch.workloads.plan import Gain, Plan, Skipped, Step
from tinytorch.workloads.workload import Workload

__all__ = ["apply_torch", "carry_out", "plan_torch"]

NO_SPEEDUP = (
    "how much faster products are in a lower precision depends on the device and the sizes; "
    "compare() measures it"
)
IDLE = "nothing of it is computed in a lower precision: autocast leaves its operations alone"
BFLOAT16_CAPABILITY = 8
"""The first generation of CUDA devices that multiplies bfloat16 in hardware (Ampere)."""

Steps = tuple[Step, ...]


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: LowerPrecision) -> Any:
    """Give the copy of the model that computes so."""
    return carry_out(model, plan)


def plan_torch(workload: Workload, settings: LowerPrecision) -> Plan:
    """Choose what changes, and try it on a copy."""
    reason = why_unchangeable(workload.model) or _why_not(workload.model, settings)
    seen = ObservedCall() if reason else observe_call(workload)
    reason = reason or seen.error or _why_not_observed(seen, settings)
    if reason:
        return Plan(NAME, asdict(settings), (), (Skipped("", reason),))
    skipped: tuple[Skipped, ...] = ()
    if settings.how == "layers":
        steps, skipped = find_layers(workload.model, settings, seen.called)
        attempts: list[Steps] = [steps] if steps else []
    elif settings.how == "convert":
        attempts, skipped = _conversions(workload.model, settings, seen)
    else:
        device = next(workload.model.parameters(), torch.empty(0)).device
        what = f"called inside of torch.autocast in {settings.dtype}"
        why = "products in a lower precision take less time; the rest stays precise"
        attempts = [(Step("", what, why, _common(settings, seen) | {"device": device.type}),)]
    return _tried(workload, settings, attempts, skipped)


def carry_out(model: nn.Module, plan: Plan) -> nn.Module:
    """Change a model in place as a plan says, and give it, or what is now around it."""
    return _carried_out(model, plan.steps)


# ---------------------------------------------------------------- planning


def _why_not(model: nn.Module, settings: LowerPrecision) -> str:
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
    if isinstance(model, AutocastModel):
        return "it is called inside of torch.autocast already"
    return ""


def _why_not_observed(seen: ObservedCall, settings: LowerPrecision) -> str:
    if settings.how == "layers":
        return ""
    if len(seen.output_dtypes) > 1:
        names = ", ".join(str(each).removeprefix("torch.") for each in seen.output_dtypes)
        return f"its outputs have several dtypes ({names}), which one cast could not give back"
    if settings.how == "convert" and seen.writes_inputs:
        return "it writes into its inputs, and would write into copies of another dtype"
    if settings.how == "convert" and seen.written_buffers:
        name = seen.written_buffers[0]
        return (
            f"a call changes its buffer {name!r}; state that is carried on from call to call loses "
            f"digits in {settings.dtype}"
        )
    return ""


def _common(settings: LowerPrecision, seen: ObservedCall) -> dict[str, Any]:
    outer = next(iter(seen.output_dtypes), None)
    given = None if outer is None else str(outer).removeprefix("torch.")
    return {"how": settings.how, "dtype": settings.dtype, "outputs": given}


def _conversions(
    model: nn.Module, settings: LowerPrecision, seen: ObservedCall
) -> tuple[list[Steps], tuple[Skipped, ...]]:
    """Give the ways to convert a model, the most precise first.

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
    """Give the plan of the first attempt that works, or why the last one does not."""
    trial = Trial(reason="no linear layer or convolution is left to compute in a lower precision")
    for steps in attempts:
        held: list[int] = []
        trial = try_change(
            workload, _recording(steps, held), tolerance=settings.allowed_error, limit_s=None
        )
        if settings.how == "autocast" and trial.is_idle:
            trial = Trial(reason=IDLE)
        if trial.works:
            return _plan(workload, settings, steps, skipped, held[0], trial)
    reason = refusal(workload.model, trial) if attempts else trial.reason
    return Plan(NAME, asdict(settings), (), (Skipped("", reason), *skipped))


def _recording(steps: Steps, held: list[int]) -> Callable[[nn.Module], nn.Module]:
    def change(model: nn.Module) -> nn.Module:
        changed = _carried_out(model, steps)
        held.append(_held(changed))
        return changed

    return change


def _plan(
    workload: Workload,
    settings: LowerPrecision,
    steps: Steps,
    skipped: tuple[Skipped, ...],
    nbytes: int,
    trial: Trial,
) -> Plan:
    not_predicted = {"speedup": NO_SPEEDUP}
    shrinkage = None
    if settings.how == "autocast":
        not_predicted["shrinkage"] = "the weights stay as they are"
    else:
        shrinkage = Gain.counted(_held(workload.model), nbytes, "counted on a copy")
    return Plan(
        NAME,
        asdict(settings),
        steps,
        skipped,
        shrinkage=shrinkage,
        not_predicted=not_predicted,
        notes=tuple(_notes(workload, settings, trial)),
    )


def _notes(workload: Workload, settings: LowerPrecision, trial: Trial) -> Iterator[str]:
    yield trial_note(trial)
    paths = [path for path, _ in workload.model.named_modules()]
    yield from idle_patterns(settings.keep, paths, change="converted")
    device = next(workload.model.parameters(), torch.empty(0)).device
    if settings.how == "autocast":
        yield "the weights are cast anew at every call, which costs most for small batches"
    if device.type == "cpu" and why_slow_on_processor(settings.dtype):
        yield why_slow_on_processor(settings.dtype)
    if device.type == "cuda" and settings.dtype == "bfloat16":
        major = torch.cuda.get_device_capability(device)[0]
        if major < BFLOAT16_CAPABILITY:
            yield "this device has no units that multiply bfloat16, so that calls may take longer"


def _held(model: nn.Module) -> int:
    return sum(each.nbytes for each in TorchAdapter().parameters(model))


# ---------------------------------------------------------------- carrying out


def _carried_out(model: nn.Module, steps: Steps) -> nn.Module:
    settings = steps[0].settings
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    if settings["how"] == "layers":
        return _with_lower_layers(model, steps, dtype)
    outer = None if settings["outputs"] is None else getattr(torch, settings["outputs"])
    if settings["how"] == "autocast":
        return AutocastModel(model, dtype, outer, settings["device"])
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
        f"the model has no {name!r} as the plan of {NAME} knows it; make a plan for this model"
    )
