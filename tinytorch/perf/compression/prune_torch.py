"""Pruning PyTorch models: the same plans, with scores on the model's device. After torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from tinytorch.adapters.pytorch import TorchAdapter, tensors_in
from tinytorch.errors import SettingError
from tinytorch.perf.compression.masks_torch import (
    check_rankable_torch,
    find_prunables_torch,
    kind_of_torch,
    named_weights,
    set_zero_torch,
)
from tinytorch.perf.compression.pruning_plan import Prunable, make_plan
from tinytorch.perf.compression.scores_torch import (
    ranks_within_outputs,
    relative_scores,
    share_out,
    smallest,
    weight_scores,
)
from tinytorch.workloads.plan import Plan, Step
from tinytorch.workloads.workload import Workload, call_model

if TYPE_CHECKING:
    from tinytorch.perf.compression.prune import Prune

__all__ = ["apply_torch", "least_important_torch", "plan_torch", "planned_weight_torch"]

NOT_REACHED = "the calibration data never reached it"
NO_COMMON_INPUT = "the layers that share its weight meet it with inputs of different kinds"


def plan_torch(workload: Workload, transform: Prune) -> Plan:
    """Say how many weights of which layers of a PyTorch model become zero."""
    adapter = TorchAdapter()
    is_observed = transform.score == "activation"
    model = adapter.clone(workload.model) if is_observed else workload.model
    prunables, skipped = find_prunables_torch(
        model, keep=transform.keep, embeddings=transform.prune_embeddings
    )
    check_rankable_torch(prunables)
    modules = adapter.modules(model)
    if is_observed:
        _observe_inputs(model, prunables, workload)

    def share(chosen: Sequence[Prunable], count: int) -> Sequence[int]:
        ranked = [
            _scores(transform, each.weight, _main_layer(each.layers, modules), each.input_norms)
            for each in chosen
        ]
        return share_out(ranked, count)

    return make_plan(asdict(transform), prunables, skipped, share)


def apply_torch(workload: Workload, plan: Plan, transform: Prune) -> Any:
    """Give a copy of a PyTorch model in which as many weights as planned are zero."""
    adapter = TorchAdapter()
    twin = adapter.clone(workload.model)
    modules, weights = adapter.modules(twin), named_weights(twin)
    for step in plan.steps:
        weight = planned_weight_torch(step, weights)
        set_zero_torch(weight, least_important_torch(transform, weight, step, modules))
    return twin


def planned_weight_torch(step: Step, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Give the weight that a step means, or raise if the model has another one there."""
    weight = weights.get(step.settings["weight"])
    if weight is None or weight.numel() < step.settings["zeros"]:
        raise SettingError(
            f"the model has no weight {step.settings['weight']!r} of which "
            f"{step.settings['zeros']:,} can become zero; make a plan for this model"
        )
    return weight


def least_important_torch(
    transform: Prune, weight: torch.Tensor, step: Step, modules: Mapping[str, Any]
) -> torch.Tensor:
    """Mark the weights that a step of a plan sets to zero."""
    layer = _main_layer(step.settings.get("layers", (step.layer,)), modules)
    scores = _scores(transform, weight, layer, step.settings.get("input_norms"))
    return smallest(scores, step.settings["zeros"])


def _main_layer(paths: Sequence[str], modules: Mapping[str, Any]) -> Any:
    """Give the layer that says how a weight is ranked: one that multiplies, if there is one."""
    kinds = {path: kind_of_torch(modules.get(path)) for path in paths}
    unknown = [path for path, kind in kinds.items() if kind is None]
    if unknown:
        raise SettingError(
            f"the model has no layer {unknown[0]!r} that can be pruned; make a plan for this model"
        )
    multiplying = [path for path, kind in kinds.items() if kind and kind.input_axis is not None]
    return modules[multiplying[0] if multiplying else paths[0]]


def _scores(
    transform: Prune, weight: torch.Tensor, layer: Any, norms: Sequence[float] | None
) -> torch.Tensor:
    kind = kind_of_torch(layer)
    assert kind is not None
    if transform.score == "magnitude":
        return weight_scores(weight)
    if norms is None:
        scores = weight_scores(weight)
    else:
        spread = kind.spread(layer, torch.tensor(norms, device=weight.device, dtype=torch.float64))
        scores = weight_scores(weight, spread)
    if transform.scope == "layer":
        return ranks_within_outputs(scores, kind.output_axis)
    return relative_scores(scores)


# ---------------------------------------------------------------- inputs on calibration data


def _observe_inputs(model: Any, prunables: Sequence[Prunable], workload: Workload) -> None:
    """Measure the norm of each input of each layer; the copy is of no other use afterwards."""
    modules = TorchAdapter().modules(model)
    kinds = {path: kind_of_torch(modules[path]) for each in prunables for path in each.layers}
    axes = {path: kind.input_axis for path, kind in kinds.items() if kind}
    squares: dict[str, torch.Tensor] = {}
    for path, axis in axes.items():
        if axis is not None:
            modules[path].forward = _watched(path, axis, modules[path].forward, squares)
    for module in modules.values():
        if isinstance(module, torch.nn.Module):
            module.training = False
    _run_calibration(model, workload)
    for each in prunables:
        users = [path for path in each.layers if axes[path] is not None]
        seen = {path: squares[path] for path in users if path in squares}
        if users and not seen:
            each.leave(NOT_REACHED)
        elif len({(kinds[path], len(norms)) for path, norms in seen.items()}) > 1:
            each.leave(NO_COMMON_INPUT)
        elif seen:
            total = torch.stack([norms.cpu() for norms in seen.values()]).sum(dim=0)
            each.input_norms = tuple(total.sqrt().tolist())


def _watched(
    path: str, axis: int, forward: Callable[..., Any], squares: dict[str, torch.Tensor]
) -> Callable[..., Any]:
    def watched(*inputs: Any, **settings: Any) -> Any:
        x = tensors_in((*inputs, *settings.values()))[0].detach()
        others = [each for each in range(x.dim()) if each != axis % x.dim()]
        if others:
            norms = torch.linalg.vector_norm(x, dim=others, dtype=torch.float64)
        else:
            norms = x.double().abs()
        if not torch.isfinite(norms).all():
            raise SettingError(f"input of layer {path!r}: it holds NaN or infinity")
        squares[path] = squares.get(path, torch.zeros_like(norms)) + norms.square()
        return forward(*inputs, **settings)

    return watched


def _run_calibration(model: Any, workload: Workload) -> None:
    adapter = TorchAdapter()
    for number, arguments in enumerate(workload.calibration):
        # what inputs are given by name may also come first in a batch
        keywords = workload.keywords if len(arguments) <= len(workload.inputs) else {}
        try:
            with torch.no_grad(), adapter.preserving(model), _without_fast_paths():
                call_model(model, *adapter.copy_inputs(arguments), **keywords)
        except SettingError as error:
            raise SettingError(f"calibration batch {number}, {error}") from error
        except Exception as error:  # whatever a model raises for inputs that it cannot take
            reason = f"{type(error).__name__}: {error}"
            raise SettingError(
                f"calibration batch {number} does not fit the model: {reason}"
            ) from error


@contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Let encoder layers call their linear layers instead of one kernel for all of them."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
