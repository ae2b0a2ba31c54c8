"""The boundary of a PyTorch model: what goes in, what comes out, what else a call changes.

Transforms that convert inputs or wrap the call look here before they promise anything.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tinytorch.adapters.layer_watch import entering_layers
from tinytorch.adapters.pytorch import TorchAdapter, tensors_in
from tinytorch.adapters.pytorch_surgery import why_no_module
from tinytorch.adapters.values import leaves, rebuilt
from tinytorch.perf.acceleration.trial_torch import (
    ROUNDING,
    SEED,
    Trial,
    copied_arguments,
    first_line,
)
from tinytorch.workloads.preparation import preparations_of
from tinytorch.workloads.workload import Workload, call_model

__all__ = [
    "IN_TRAINING",
    "ObservedCall",
    "changed_tensors",
    "observe_call",
    "refusal",
    "rounding_of",
    "trial_note",
    "why_unchangeable",
]

IN_TRAINING = "it is in training mode; call eval() on it first"
ROUNDINGS = 16
"""So many units of the last place may outputs move when the same is computed in another order."""
TF32 = 2.0**-10
"""The last place of what CUDA devices may multiply float32 in."""


def why_unchangeable(model: Any) -> str:
    """Say why a model cannot be changed or called in another way, or nothing."""
    prepared = preparations_of(model)
    if prepared:
        return f"it was prepared already ({prepared[0].what}); change the model before that"
    return why_no_module(model)


def rounding_of(model: nn.Module) -> float:
    """Give how far outputs may move, relative to the largest, where only rounding changes."""
    units = [
        TF32 if each.is_cuda and each.dtype == torch.float32 else torch.finfo(each.dtype).eps
        for each in model.parameters()
        if each.is_floating_point()
    ]
    return max([ROUNDING, *(ROUNDINGS * unit for unit in units)])


def refusal(model: nn.Module, trial: Trial) -> str:
    """Say why a trial failed, and what may help."""
    is_training = any(module.training for module in model.modules())
    if is_training and trial.difference is not None:  # it ran, but gave something else
        return f"{trial.reason}; {IN_TRAINING}"
    return trial.reason


def trial_note(trial: Trial) -> str:
    """Say how far the outputs moved in a trial that worked."""
    error = trial.difference.max_relative_error if trial.difference is not None else None
    if error is None or trial.difference is None:
        return "the outputs hold no fractions to compare"
    if trial.difference.is_identical:
        return "on the inputs of the workload, the outputs stay the same, bit for bit"
    return f"on the inputs of the workload, outputs change by {error:.1e} of the largest one"


@dataclass(frozen=True)
class ObservedCall:
    """What one call of a copy of the model on the workload's inputs did.

    `called` are the paths of the layers that ran, `output_dtypes` those of the floats in the
    outputs, `writes_inputs` tells whether a tensor, list, dictionary or dataclass among the inputs
    was written to, and `written_buffers` are the names of buffers with fractions that changed.
    """

    called: frozenset[str] = frozenset()
    output_dtypes: tuple[torch.dtype, ...] = ()
    writes_inputs: bool = False
    written_buffers: tuple[str, ...] = ()
    error: str = ""


def observe_call(workload: Workload) -> ObservedCall:
    """Call a copy of the model once; an error of the model is part of the answer."""
    adapter = TorchAdapter()
    called: set[str] = set()
    try:
        model: nn.Module = adapter.clone(workload.model)
        inputs, keywords = copied_arguments(adapter, workload)
        parts = list(leaves((inputs, keywords)))
        given = tensors_in(parts)
        versions = [each._version for each in given]
        watch = entering_layers(
            adapter.watchable_modules(model),
            called.add,
            lambda path, error, output: None,
            methods=adapter.methods,
        )
        with adapter.preserving(workload.model), adapter.without_gradients(), watch:
            torch.manual_seed(SEED)
            output = call_model(model, *inputs, **keywords)
    except Exception as error:  # a model may raise anything
        return ObservedCall(error=f"it cannot be called: {first_line(error)}")
    floats = [each.dtype for each in tensors_in(output) if each.is_floating_point()]
    # the workload's own tensors are what there was before; versions see writes of equal numbers
    before = tensors_in((workload.inputs, workload.keywords))
    is_written = (
        [*map(id, leaves((inputs, keywords)))] != [*map(id, parts)]
        or [each._version for each in given] != versions
        or not all(_is_same(old, new) for old, new in zip(before, given, strict=True))
    )
    return ObservedCall(
        frozenset(called),
        tuple(dict.fromkeys(floats)),
        is_written,
        tuple(_written_buffers(workload.model, model)),
    )


def _written_buffers(before: nn.Module, after: nn.Module) -> Iterator[str]:
    """Yield the names of buffers with fractions that hold something else than before."""
    old = dict(before.named_buffers(remove_duplicate=False))
    for name, each in after.named_buffers(remove_duplicate=False):
        if each.is_floating_point() and not (name in old and _is_same(old[name], each)):
            yield name


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.layout != torch.strided or one.is_nested:
        return one.shape == other.shape
    one, other = one.detach(), other.detach()
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is NaN


def changed_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Give tuples, lists, dictionaries and dataclasses again, with the tensors in them changed.

    Objects of other kinds, such as a cache, are given as they are.
    """

    if isinstance(value, torch.Tensor):
        return change(value)
    # Plain containers are always made anew: torch.compile follows that, but no comparison of them.
    if type(value) in (tuple, list):
        return type(value)(changed_tensors(part, change) for part in value)
    if type(value) is dict:
        return {key: changed_tensors(part, change) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, dict)):
        return _changed_fields(value, change)
    if not isinstance(value, (dict, UserDict, list, tuple)):
        return value
    return rebuilt(value, lambda part: changed_tensors(part, change))


def _changed_fields(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    twin = copy.copy(value)
    for each in dataclasses.fields(value):
        part = changed_tensors(getattr(value, each.name), change)
        object.__setattr__(twin, each.name, part)  # which frozen ones allow, too
    return twin
