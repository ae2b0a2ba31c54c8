"""Folding batch norms of PyTorch into the layers before them. Imported after torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.pytorch_surgery import HOOKS, replace_modules
from tinytorch.errors import ModelError, SettingError
from tinytorch.perf.acceleration.boundary_torch import (
    refusal,
    rounding_of,
    trial_note,
    why_unchangeable,
)
from tinytorch.perf.acceleration.fold_batch_norm import NAME, FoldBatchNorm
from tinytorch.perf.acceleration.norm_pairs_torch import Flow, watch_flow, why_not_always
from tinytorch.perf.acceleration.trial_torch import Trial, try_change
from tinytorch.workloads.plan import Gain, Plan, Skipped, Step
from tinytorch.workloads.workload import Workload

__all__ = ["FoldedNorm", "apply_torch", "fold_pairs", "folded", "plan_torch"]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
"""Exactly these: a subclass may compute something else."""
NO_SPEEDUP = (
    "how much the saved pass over the activations matters depends on the sizes; compare() "
    "measures it"
)
FOR_EVALUATION = "the copy is for evaluation: calling it in training mode is an error"
WHY = "saves one pass over the activations"


class FoldedNorm(nn.Identity):
    """Stands where a batch norm was that the layer before it now computes, for evaluation alone.

    axes: how many axes its input has, where the norm would take others and mean something else.
    """

    def __init__(self, axes: int | None = None) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Give the input."""
        if self.training:
            raise ModelError(
                "this batch norm was folded for evaluation; call eval() on the model, or train the "
                "one that it was made from"
            )
        if self.axes is not None:  # traceable, unlike an `if` on the input
            torch._assert(  # type: ignore[no-untyped-call]
                input.dim() == self.axes,
                f"the norm was folded for inputs of {self.axes} axes; fold it for these inputs",
            )
        return input

    def extra_repr(self) -> str:
        return "" if self.axes is None else f"axes={self.axes}"


# ---------------------------------------------------------------- planning


def apply_torch(model: nn.Module, workload: Workload, plan: Plan, settings: FoldBatchNorm) -> Any:
    """Give the copy of the model with these norms folded."""
    return fold_pairs(model, plan.steps)


def plan_torch(workload: Workload, settings: FoldBatchNorm) -> Plan:
    """Watch a call, find the pairs, and try them."""
    model = workload.model
    reason = why_unchangeable(model)
    modules = {} if reason else dict(model.named_modules())
    norms = [path for path, module in modules.items() if isinstance(module, _BatchNorm)]
    if not reason and not norms:
        reason = "it has no batch norm"
    if reason:
        return Plan(NAME, {}, (), (Skipped("", reason),))
    flow = watch_flow(workload, [*_layers(modules)], norms)
    if flow.error:
        return Plan(NAME, {}, (), (Skipped("", flow.error),))
    reasons = {path: _why_not(model, modules, path, flow) for path in norms}
    twin: nn.Module = TorchAdapter().clone(model)
    for path in [path for path, why in reasons.items() if not why]:
        reasons[path] = why_not_always(twin, flow.source[path], path)
    skipped = tuple(Skipped(path, why) for path, why in reasons.items() if why)
    steps = tuple(_step(path, flow) for path, why in reasons.items() if not why)
    if not steps:
        return Plan(NAME, {}, (), skipped)
    return _tried(workload, steps, skipped)


def _layers(modules: Mapping[str, nn.Module]) -> Iterator[str]:
    for path, module in modules.items():
        if isinstance(module, (nn.Linear, _ConvNd)):
            yield path


def _step(norm: str, flow: Flow) -> Step:
    layer = flow.source[norm]
    settings = {"layer": layer, "axes": flow.axes[norm]}
    return Step(norm, f"folded into {layer!r}", WHY, settings)


def _tried(workload: Workload, steps: tuple[Step, ...], skipped: tuple[Skipped, ...]) -> Plan:
    held: list[int] = []

    def change(model: nn.Module) -> nn.Module:
        changed = fold_pairs(model, steps)
        held.append(_held(changed))
        return changed

    trial: Trial = try_change(workload, change, tolerance=rounding_of(workload.model))
    if not trial.works:
        reason = refusal(workload.model, trial)
        return Plan(NAME, {}, (), (Skipped("", reason), *skipped))
    return Plan(
        NAME,
        {},
        steps,
        skipped,
        shrinkage=Gain.counted(_held(workload.model), held[0], "counted on a copy"),
        not_predicted={"speedup": NO_SPEEDUP},
        notes=(trial_note(trial), FOR_EVALUATION),
    )


def _held(model: nn.Module) -> int:
    return sum(each.nbytes for each in TorchAdapter().parameters(model))


# ---------------------------------------------------------------- reasons


def _why_not(model: nn.Module, modules: Mapping[str, Any], path: str, flow: Flow) -> str:
    """Say why a norm stays, or nothing; what is simplest to understand comes first."""
    norm = modules[path]
    reason = _why_not_norm(norm) or _why_not_called(path, flow)
    if reason:
        return reason
    source = flow.source.get(path)
    if source is None:
        return "its input is not the output of a convolution or linear layer"
    layer = modules[source]
    reason = _why_not_layer(layer) or _why_not_called(source, flow)
    if reason:
        return f"{source!r} in front of it cannot take it: {reason}"
    if source in flow.read_elsewhere:
        return f"the output of {source!r} is used elsewhere, too"
    if source in flow.weight_read:
        return f"the weight of {source!r} is used elsewhere, too"
    if flow.axes[path] != layer.weight.dim():
        where = "the last axis" if isinstance(layer, nn.Linear) else "the first axis"
        return f"its channels are not the outputs of {source!r}: these are {where}"
    held = {
        each.dtype
        for each in (layer.weight, norm.running_mean, norm.running_var, norm.weight)
        if each is not None
    }
    if len(held) > 1:
        return f"it holds another dtype than {source!r}"
    return _why_shared(model, path, source) or _why_not_finite(layer, norm, source)


def _why_not_norm(norm: Any) -> str:
    if type(norm) not in NORMS:
        return f"{type(norm).__name__} is a batch norm that may compute something else"
    if norm.training:
        return "it is in training mode, where it normalises by each batch; call eval() first"
    if norm.running_mean is None or norm.running_var is None:
        return "it keeps no running statistics, and normalises by each batch"
    return _why_touched(norm, ("weight", "bias") if norm.affine else ())


def _why_not_layer(layer: Any) -> str:
    if type(layer) not in LAYERS:
        return f"{type(layer).__name__} may compute something else than its base"
    return _why_touched(layer, ("weight",))


def _why_touched(module: Any, names: Iterable[str]) -> str:
    if any(module._parameters.get(name) is None for name in names):
        return "its weight is computed anew before each call"
    if "forward" in vars(module):
        return "its forward was replaced on this object by another function"
    if any(getattr(module, name, None) for name in HOOKS):
        return "a hook watches it, and would see other values"
    own = [each for each in module._parameters.values() if each is not None]
    if any(type(each.detach()) is not torch.Tensor or not each.is_floating_point() for each in own):
        return "its weight is held in another form than floats"
    return ""


def _why_not_called(path: str, flow: Flow) -> str:
    calls = flow.calls[path]
    if calls == 0:
        return "it was not called"
    return f"it is called {calls} times in one call of the model" if calls > 1 else ""


def _why_shared(model: nn.Module, norm: str, layer: str) -> str:
    """A layer or weight with two names may be used in a place that this call did not show."""
    wanted = {id(model.get_submodule(path)): path for path in (norm, layer)}
    named = [id(module) for _, module in model.named_modules(remove_duplicate=False)]
    twice = [path for module, path in wanted.items() if named.count(module) > 1]
    if twice:
        return f"{twice[0]!r} stands in several places of the model"
    owners = Counter(id(each) for module in model.modules() for each in module._parameters.values())
    own = [*model.get_submodule(layer).parameters(recurse=False)]
    shared = any(owners[id(each)] > 1 for each in own)
    return f"{layer!r} shares its weight with another layer" if shared else ""


def _why_not_finite(layer: Any, norm: Any, name: str) -> str:
    finite = all(bool(torch.isfinite(each).all()) for each in folded(layer, norm))
    return "" if finite else f"the weights of {name!r} would not be finite"


# ---------------------------------------------------------------- carrying out


def folded(layer: Any, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the weight and the bias of a layer that also does what the norm after it does.

    Computed in float64, and given in the dtype of the weight.
    """
    dtype = layer.weight.dtype
    scale = (norm.running_var.double() + norm.eps).rsqrt()  # (channels,)
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    if layer.bias is not None:
        shift = shift + layer.bias.detach().double() * scale
    weight = layer.weight.detach().double()
    if isinstance(layer, _ConvTransposeNd):  # (inputs, channels / groups, ...)
        grouped = weight.reshape(layer.groups, -1, *weight.shape[1:])
        factor = scale.reshape(layer.groups, 1, -1, *(1 for _ in layer.kernel_size))
        product = (grouped * factor).reshape(weight.shape)
    else:  # (channels, ...)
        product = weight * scale.reshape(-1, *(1 for _ in weight.shape[1:]))
    return product.to(dtype), shift.to(dtype)


def fold_pairs(model: nn.Module, steps: Iterable[Step]) -> nn.Module:
    """Fold the norms of a plan in place, and give the model."""
    modules: dict[str, Any] = dict(model.named_modules())
    replaced: dict[nn.Module, nn.Module] = {}
    for step in steps:
        norm: Any = modules.get(step.layer)
        layer: Any = modules.get(step.settings["layer"])
        if type(norm) not in NORMS or type(layer) not in LAYERS:
            raise SettingError(
                f"the model has no norm {step.layer!r} after {step.settings['layer']!r}, as the "
                f"plan of {NAME} knows it; make a plan for this model"
            )
        weight, bias = folded(layer, norm)
        is_learned = layer.weight.requires_grad
        # the layout of the weight stays
        weight = torch.empty_like(layer.weight).copy_(weight)
        layer.weight = nn.Parameter(weight.detach(), requires_grad=is_learned)
        layer.bias = nn.Parameter(bias, requires_grad=is_learned)
        # BatchNorm1d alone takes inputs of several numbers of axes
        is_strict = isinstance(norm, (nn.BatchNorm1d, nn.SyncBatchNorm))
        replaced[norm] = FoldedNorm(step.settings["axes"] if is_strict else None)
    return replace_modules(model, replaced)
