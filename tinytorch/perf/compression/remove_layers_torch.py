"""Removing whole layers of PyTorch models, those that are missed least. Imported after torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.adapters.pytorch_surgery import why_no_module
from tinytorch.errors import SettingError
from tinytorch.perf.compression.missed_layers import (
    Removed,
    choose_layers,
    staying_layers,
    steps_of,
)
from tinytorch.perf.compression.model_configs_torch import fit_config
from tinytorch.perf.compression.models_torch import (
    calls_of,
    counted_shrinkage,
)
from tinytorch.perf.compression.removable_layers_torch import (
    LISTS,
    LayerSurvey,
    OutputChange,
    shorten,
    survey_layers,
)
from tinytorch.perf.compression.remove_layers import NAME, NO_SPEEDUP, too_few
from tinytorch.workloads.kept_layers import idle_patterns
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.workload import Workload

if TYPE_CHECKING:
    from tinytorch.perf.compression.remove_layers import RemoveLayers

__all__ = ["apply_torch", "plan_torch"]

COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
"""What configs call the number of layers."""
NO_CALLS = (
    "what a layer is worth is seen on calibration data or inputs, and there are none; give the "
    "workload `calibration`, or inputs"
)


def plan_torch(workload: Workload, settings: RemoveLayers) -> Plan:
    """Take layers away one by one, and see what the outputs do, on a copy of the model."""
    reason = why_no_module(workload.model)
    if reason:
        return _plan(workload, settings, LayerSurvey({}, {"": reason}), [], {})
    if not calls_of(workload):
        raise SettingError(NO_CALLS)
    twin: nn.Module = TorchAdapter().clone(workload.model)
    survey = survey_layers(twin, workload, settings.keep)
    judge = OutputChange(twin, workload)
    alone: dict[str, float] = {}
    for path in survey.candidates:
        change, reason = judge.without((path,))
        if reason:
            survey.reasons[path] = reason
        else:
            alone[path] = change
    removed = choose_layers(survey, judge, alone, count=settings.count)
    return _plan(workload, settings, survey, removed, alone)


def apply_torch(workload: Workload, plan: Plan, settings: RemoveLayers) -> nn.Module:
    """Give a copy of the model whose lists are shorter."""
    plan.check_made_by(NAME, settings.to_dict())
    twin: nn.Module = TorchAdapter().clone(workload.model)
    _remove(twin, plan.layers)
    return twin


def _remove(model: nn.Module, paths: Collection[str]) -> str:
    """Take layers out of their lists, in place, and give a note about the config."""
    modules = dict(model.named_modules())
    for path in paths:
        if path not in modules or not isinstance(modules[path.rpartition(".")[0]], LISTS):
            raise SettingError(
                f"the model has no layer {path!r} in a list of layers; make a plan for this model"
            )
    if not paths:
        return ""
    alternatives = list(_config_changes(model, paths))
    shorten(modules, paths)
    return fit_config(model, *alternatives)


def _config_changes(model: nn.Module, paths: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield what a config may have to say: fewer layers, and no entries for those that are gone."""
    config = getattr(model, "config", None)
    by_list: dict[str, list[int]] = {}
    for path in paths:
        parent, _, name = path.rpartition(".")
        names = list(model.get_submodule(parent)._modules)
        by_list.setdefault(parent, []).append(names.index(name))
    if len(by_list) > 1:
        yield {}
        return
    for parent, gone in by_list.items():
        count = len(model.get_submodule(parent)._modules)
        matching = [name for name in COUNTS if getattr(config, name, None) == count]
        lists = {
            name: [each for place, each in enumerate(value) if place not in gone]
            for name, value in getattr(config, "__dict__", {}).items()
            if isinstance(value, list) and len(value) == count and not name.startswith("_")
        }
        for size in range(1, len(matching) + 1):
            for chosen in combinations(matching, size):
                counts = dict.fromkeys(chosen, count - len(gone))
                yield {**counts, **lists}
                yield counts


# ---------------------------------------------------------------- the plan


def _plan(
    workload: Workload,
    settings: RemoveLayers,
    survey: LayerSurvey,
    removed: Removed,
    alone: Mapping[str, float],
) -> Plan:
    gone = tuple(path for path, _ in removed)
    steps = steps_of(removed, alone)
    staying = staying_layers(survey, alone, gone)
    notes = idle_patterns(settings.keep, survey.items, change="removed")
    if survey.items and len(removed) < settings.count:
        notes += (too_few(len(removed), settings.count),)
    gain = None
    if steps:
        twin: nn.Module = TorchAdapter().clone(workload.model)
        note = _remove(twin, gone)
        gain = counted_shrinkage(workload.model, twin)
        notes = (note, *notes) if note else notes
    return Plan(
        NAME,
        settings.to_dict(),
        steps,
        (*survey.skipped, *staying),
        shrinkage=gain,
        not_predicted={"speedup": NO_SPEEDUP},
        notes=notes,
    )
