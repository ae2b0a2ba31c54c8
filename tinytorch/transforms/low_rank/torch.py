"""Factoring the weights of PyTorch models into thin matrices. Imported after torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from tinytorch.errors import SettingError, first_line
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import replace_modules, why_no_module
from tinytorch.models.workload import Workload
from tinytorch.transforms.low_rank import NAME, NO_SPEEDUP, rank_for_energy
from tinytorch.transforms.plan import Gain, Plan, Skipped, Step
from tinytorch.transforms.support.observing import (
    Call,
    calls_of,
    idle_patterns,
    outputs_of,
    watching,
    why_kept,
)
from tinytorch.transforms.support.weights_torch import (
    CONFIG_LACKS,
    has_config,
    is_transposed_linear,
)

if TYPE_CHECKING:
    from tinytorch.transforms.low_rank import LowRank

__all__ = ["apply_torch", "plan_torch"]

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Exactly these, and the Conv1D of transformers: a subclass may compute something else."""
NOT_CALLED = "it was not called: its weight may be used in another way"


def plan_torch(workload: Workload, settings: LowRank) -> Plan:
    """Look at each layer of a PyTorch model. A copy of it is called, to see its layers at work."""
    reason = why_no_module(workload.model)
    if reason:
        return _plan(settings, (), (Skipped("", reason),), None, ())
    model: nn.Module = workload.model
    layers = {
        path: _Layer(path, module, why_kept(path, settings.keep) or _why_not(module))
        for path, module in model.named_modules()
        if _is_known(module)
    }
    _leave_unused(workload, layers)
    fitted: dict[int, _Layer] = {}
    for each in layers.values():
        known = fitted.setdefault(id(each.module.weight), each)
        if not each.reason and (known is each or known.reason):
            each.choose_rank(settings.energy)
        elif not each.reason:
            each.what, each.why, each.settings = known.what, known.why, known.settings
    _keep_what_shares(model, layers)
    chosen = [each for each in layers.values() if not each.reason]
    reasons = {path: each.reason for path, each in layers.items() if each.reason}
    skipped = tuple(
        Skipped(path, why)
        for path, module in model.named_modules()
        if (why := reasons.get(path) or _why_unknown(module))
    )
    steps = tuple(Step(each.path, each.what, each.why, each.settings) for each in chosen)
    notes = idle_patterns(settings.keep, layers, change="factored")
    if steps and has_config(model):
        notes = (CONFIG_LACKS, *notes)
    return _plan(settings, steps, skipped, _shrinkage(model, chosen), notes)


def apply_torch(workload: Workload, plan: Plan, settings: LowRank) -> nn.Module:
    """Give a copy of the model with these layers factored."""
    plan.check_made_by(NAME, settings.to_dict())
    twin: nn.Module = TorchAdapter().clone(workload.model)
    modules = dict(twin.named_modules())
    wrong = [path for path in plan.layers if not _is_known(modules.get(path))]
    if wrong:
        raise SettingError(
            f"the model has no layer {wrong[0]!r} as the plan of {NAME} knows it; make a plan for "
            "this model"
        )
    halves: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # of weights that layers share
    replaced: dict[nn.Module, nn.Module] = {}
    for step in plan.steps:
        layer: Any = modules[step.layer]
        if id(layer.weight) not in halves:
            halves[id(layer.weight)] = _halves(layer, step.settings["rank"])
        replaced[layer] = _factored(layer, *halves[id(layer.weight)])
    return replace_modules(twin, replaced)


def _plan(
    settings: LowRank,
    steps: tuple[Step, ...],
    skipped: tuple[Skipped, ...],
    gain: Gain | None,
    notes: tuple[str, ...],
) -> Plan:
    return Plan(
        NAME,
        settings.to_dict(),
        steps,
        skipped,
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP},
        notes=notes,
    )


# ---------------------------------------------------------------- layer by layer


@dataclass
class _Layer:
    path: str
    module: Any
    reason: str = ""
    """Why it stays as it is, if so."""
    what: str = ""
    why: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def choose_rank(self, energy: float) -> None:
        matrix = _as_matrix(self.module)
        squares = _spectrum(matrix)[0].flip(0).clamp(min=0).cpu().numpy()
        values = np.sqrt(squares)
        rank = rank_for_energy(values, energy)
        before, after = matrix.numel(), rank * sum(matrix.shape)
        if rank == 0:
            self.reason = "its weight is zero everywhere"
        elif after >= before:
            self.reason = (
                f"rank {rank} of {len(values)} would need {after:,} weights in the place of "
                f"{before:,}"
            )
        else:
            lost = float(squares[rank:].sum() / squares.sum())
            self.what = f"rank {rank} of {len(values)}"
            self.why = f"{1 - lost:.1%} of its energy in {after:,} of {before:,} weights"
            self.settings = {
                "rank": rank,
                "full_rank": len(values),
                "energy": 1 - lost,
                "relative_error": math.sqrt(lost),
            }


def _is_known(module: Any) -> bool:
    return type(module) in KINDS or is_transposed_linear(module)


def _why_not(layer: Any) -> str:
    weight = layer._parameters.get("weight")
    if weight is None:
        return "its weight is computed anew before each call"
    if "forward" in vars(layer):
        return "its forward was replaced on this object by another function"
    if type(weight.detach()) is not torch.Tensor or not weight.is_floating_point():
        return f"its weight holds {str(weight.dtype).removeprefix('torch.')}"
    if not weight.numel():
        return "its weight is empty"
    if not torch.isfinite(weight.detach()).all():
        return "its weight holds NaN or infinity"
    groups = getattr(layer, "groups", 1)
    return f"its weight is in {groups} groups, which are small already" if groups > 1 else ""


def _why_unknown(module: nn.Module) -> str:
    """Say why a layer of another kind is left alone; nothing if it holds no floats itself."""
    own = [each for each in module._parameters.values() if each is not None]
    count = sum(each.numel() for each in own if each.is_floating_point())
    if _is_known(module) or not count:
        return ""
    name = type(module).__name__
    base = next((known for known in KINDS if isinstance(module, known)), None)
    if base is not None:
        return f"a {name} is a {base.__name__} that may compute something else"
    return f"{name} is not a layer that can be factored; its {count:,} numbers stay"


def _leave_unused(workload: Workload, layers: Mapping[str, _Layer]) -> None:
    """Leave layers alone that are not called, or whose weight the model reads itself."""
    calls = calls_of(workload)
    if not calls:
        return  # nobody can call it without inputs
    twin: nn.Module = TorchAdapter().clone(workload.model)
    free = {path: twin.get_submodule(path) for path, each in layers.items() if not each.reason}
    called: set[str] = set()
    with watching(free, lambda path, *_: called.add(path)):
        outputs_of(twin, calls[0], fast_paths=True)
    for path in free.keys() - called:
        layers[path].reason = NOT_CALLED
    for path, error in _needing_own_class(workload, calls[0], sorted(called)):
        layers[path].reason = f"the model needs a layer of this class there: {error}"


def _needing_own_class(
    workload: Workload, call: Call, paths: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield the layers without which a model fails if another module stands in their places."""
    twin: nn.Module = TorchAdapter().clone(workload.model)
    layers = [twin.get_submodule(path) for path in paths]
    wrapped = replace_modules(twin, {layer: nn.Sequential(layer) for layer in layers})
    try:
        outputs_of(wrapped, call, fast_paths=True)
    except SettingError as error:
        if len(paths) == 1:
            yield paths[0], first_line(error.__cause__ or error)
            return
        middle = len(paths) // 2
        yield from _needing_own_class(workload, call, paths[:middle])
        yield from _needing_own_class(workload, call, paths[middle:])


def _keep_what_shares(model: nn.Module, layers: Mapping[str, _Layer]) -> None:
    """Leave a layer alone if another one needs its weight as it is: it would be held twice."""
    users: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for tensor in module._parameters.values():
            users.setdefault(id(tensor), []).append(path)
    for path, each in layers.items():
        staying = [
            user
            for user in users.get(id(each.module._parameters.get("weight")), [])
            if user != path and (user not in layers or layers[user].reason)
        ]
        if staying and not each.reason:
            each.reason = f"it shares its weight with {staying[0]!r}, which stays as it is"


def _shrinkage(model: nn.Module, chosen: list[_Layer]) -> Gain | None:
    """Count what is held before and after; exact, as everything follows from the shapes."""
    if not chosen:
        return None
    before = sum(each.nbytes for each in TorchAdapter().parameters(model))
    after = before
    for each in {id(each.module.weight): each for each in chosen}.values():
        weight, matrix = each.module.weight, _as_matrix(each.module)
        after += (each.settings["rank"] * sum(matrix.shape) - weight.numel()) * weight.itemsize
    return Gain.of_bytes(before, after, "counted from the shapes")


# ---------------------------------------------------------------- factors


def _as_matrix(layer: Any) -> torch.Tensor:
    """Give the weight as (out, inputs of one output)."""
    weight: torch.Tensor = layer.weight.detach()
    return weight.T if is_transposed_linear(layer) else weight.reshape(len(weight), -1)


def _spectrum(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the squared singular values, ascending, and the directions of the shorter side.

    They come from the products of its rows, in float64: what is asked for are squares, of which
    this loses no digits that matter, and it is far less work than singular values.
    """
    wide = matrix.double()
    rows = wide if wide.shape[0] <= wide.shape[1] else wide.T
    values, directions = torch.linalg.eigh(rows @ rows.T)
    return values, directions


def _halves(layer: Any, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Give weights of two layers, in the shapes of theirs; both have entries of like sizes."""
    weight, matrix = layer.weight, _as_matrix(layer)
    directions = _spectrum(matrix)[1][:, -rank:].flip(1)  # (shorter side, rank)
    wide = matrix.double()
    if wide.shape[0] <= wide.shape[1]:
        second, first = directions, directions.T @ wide  # (out, rank), (rank, in)
        sizes = torch.linalg.vector_norm(first, dim=1).sqrt()
    else:
        second, first = wide @ directions, directions.T
        sizes = torch.linalg.vector_norm(second, dim=0).sqrt()
        sizes = torch.where(sizes > 0, 1 / sizes, 1.0)
    scale = torch.where(sizes > 0, sizes, 1.0)
    second, first = second * scale, first / scale[:, None]
    if isinstance(layer, _ConvNd):
        first = first.reshape(rank, *weight.shape[1:])
        second = second.reshape(*second.shape, *(1 for _ in layer.kernel_size))
    one, other = (
        nn.Parameter(each.to(weight.dtype).contiguous(), requires_grad=weight.requires_grad)
        for each in (first, second)
    )
    return one, other


def _factored(layer: Any, first: nn.Parameter, second: nn.Parameter) -> nn.Sequential:
    """Put the weights into two layers; the bias, the same object, is added by the second."""
    one: Any
    other: Any
    rank = len(first)
    if isinstance(layer, _ConvNd):
        kind: Any = type(layer)
        one = kind(
            layer.in_channels,
            rank,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            padding_mode=layer.padding_mode,
            bias=False,
            device="meta",
        )
        other = kind(rank, layer.out_channels, 1, bias=False, device="meta")
    else:
        one = nn.Linear(first.shape[1], rank, bias=False, device="meta")
        other = nn.Linear(rank, len(second), bias=False, device="meta")
    one.weight, other.weight, other.bias = first, second, layer.bias
    return nn.Sequential(one, other)
