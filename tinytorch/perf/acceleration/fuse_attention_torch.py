"""Fusing the attention of PyTorch models. Imported after torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.errors import SettingError
from tinytorch.perf.acceleration.attention_fusion_torch import Fusion, fuse_sites, fused_copy
from tinytorch.perf.acceleration.attention_proof_torch import tolerance_for
from tinytorch.perf.acceleration.attention_sites_torch import Observed, Site, observe_attention
from tinytorch.perf.acceleration.attention_switch_torch import (
    BY_HAND,
    FUSED,
    implementation,
    outermost,
    switch_over,
    switchable,
    why_no_switch,
)
from tinytorch.perf.acceleration.boundary_torch import refusal, trial_note, why_unchangeable
from tinytorch.perf.acceleration.fuse_attention import NAME, FuseAttention
from tinytorch.perf.acceleration.trial_torch import first_line, try_change
from tinytorch.workloads.plan import Plan, Skipped, Step
from tinytorch.workloads.workload import Workload

__all__ = ["apply_torch", "plan_torch"]

NOT_PREDICTED = {
    "speedup": "how much the scores cost that are no longer written depends on the sizes and on "
    "the device; compare() measures it",
    "shrinkage": "the same parameters are held",
}
BY_SWITCH, BY_GRAPH = "switch", "graph"
OF_TORCH = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.MultiheadAttention)
FUSED_BY_TORCH = "torch computes its attention fused already"
NEEDS_WEIGHTS = (
    "it is asked for the attention weights (need_weights=True, which is the default), so torch "
    "computes them by hand; call it with need_weights=False where nobody uses them"
)
NOTHING = "no attention by hand was seen when the model was called"


@dataclass
class _Found:
    """What can be done in a model, and what not."""

    switched: dict[str, tuple[Site, ...]] = field(default_factory=dict)
    fusions: list[Fusion] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def change(self, model: nn.Module) -> nn.Module:
        """Carry it out on a copy of the model."""
        return fused_copy(switch_over(model, tuple(self.switched)), self.fusions)


def plan_torch(workload: Workload, settings: FuseAttention) -> Plan:
    """Look for attention by hand in a call of a copy of the model, and try to fuse it."""
    reason = why_unchangeable(workload.model)
    if reason:
        return Plan(NAME, {}, (), (Skipped("", reason),))
    adapter = TorchAdapter()
    try:
        with adapter.preserving(workload.model):
            found = _look(workload)
    except Exception as error:  # a model may raise anything
        return Plan(NAME, {}, (), (Skipped("", f"it cannot be called: {first_line(error)}"),))
    steps = _steps(found)
    if not steps:
        skipped = found.skipped or [Skipped("", NOTHING)]
        return Plan(NAME, {}, (), tuple(skipped))
    parameters = [each for each in workload.model.parameters() if each.is_floating_point()]
    tolerance = tolerance_for(parameters, workload.arguments)
    trial = try_change(workload, found.change, tolerance=tolerance)
    if not trial.works:
        found.skipped.append(Skipped("", refusal(workload.model, trial)))
        return Plan(NAME, {}, (), tuple(found.skipped))
    return Plan(
        NAME,
        {},
        steps,
        tuple(found.skipped),
        not_predicted=NOT_PREDICTED,
        notes=(_memory_note(found), trial_note(trial), *_notes(found)),
    )


def apply_torch(
    model: nn.Module, workload: Workload, plan: Plan, settings: FuseAttention
) -> nn.Module:
    """Fuse the attention of these modules in a copy of the model, and give it."""
    with TorchAdapter().preserving(workload.model):
        found = _look(workload)
    found.switched = {path: found.switched[path] for path in plan.layers if path in found.switched}
    found.fusions = [each for each in found.fusions if each.path in plan.layers]
    known = {*found.switched, *(each.path for each in found.fusions)}
    missing = [path for path in plan.layers if path not in known]
    if missing:
        raise SettingError(
            f"the model has no attention by hand in {missing[0]!r} as the plan of {NAME} knows it; "
            "make a plan for this model"
        )
    return found.change(model)


# ---------------------------------------------------------------- looking


def _look(workload: Workload) -> _Found:
    adapter = TorchAdapter()
    model: nn.Module = workload.model
    found = _Found()
    observed = observe_attention(workload, adapter.clone(model))
    left = dict(observed.sites)
    for path, module in switchable(model).items():
        inside = _under(left.values(), (path,))
        how = implementation(module)
        if how != BY_HAND:
            if how and not inside:
                found.skipped.append(Skipped(path, f"transformers computes it by {how!r} already"))
            continue
        if not inside:
            continue
        left = {each: site for each, site in left.items() if site not in inside}
        reason = why_no_switch(module, workload.keywords) or _why_idle(workload, path, inside)
        if reason:
            found.skipped.append(Skipped(path, reason))
        else:
            found.switched[path] = tuple(inside)
    found.fusions, reasons = fuse_sites(workload, left.values())
    found.skipped += [Skipped(path, reason) for path, reason in reasons.items()]
    found.skipped += _of_torch(model, observed)
    return found


def _under(sites: Iterable[Site], paths: tuple[str, ...]) -> list[Site]:
    return [site for site in sites if set(site.stack) & set(paths)]


def _why_idle(workload: Workload, path: str, inside: list[Site]) -> str:
    """Say that the switch has no effect, if so."""
    model = switch_over(TorchAdapter().clone(workload.model), (path,))
    if implementation(model.get_submodule(path)) == BY_HAND:
        return f"transformers leaves it at {BY_HAND!r} when asked for {FUSED!r}"
    after = observe_attention(workload, model).sites
    if len(_under(after.values(), (path,))) >= len(inside):
        return f"it computes attention by hand with {FUSED!r}, too"
    return ""


def _of_torch(model: nn.Module, observed: Observed) -> list[Skipped]:
    """Name the layers of torch, the outermost ones."""
    asked = observed.asked_for_weights
    return [
        Skipped(path, NEEDS_WEIGHTS if path in asked else FUSED_BY_TORCH)
        for path in outermost(model, lambda module: isinstance(module, OF_TORCH))
    ]


# ---------------------------------------------------------------- telling


def _steps(found: _Found) -> tuple[Step, ...]:
    steps = [
        Step(
            path,
            f"attention by {FUSED!r} in the place of {BY_HAND!r}",
            _why(sites),
            {"way": BY_SWITCH, "score_bytes": sum(site.nbytes for site in sites)},
        )
        for path, sites in found.switched.items()
    ]
    steps += [
        Step(
            each.path,
            "causal attention fused" if each.is_causal else "attention fused",
            _why(each.sites),
            {"way": BY_GRAPH, "score_bytes": sum(site.nbytes for site in each.sites)},
        )
        for each in found.fusions
    ]
    return tuple(steps)


def _why(sites: tuple[Site, ...]) -> str:
    count = sum(site.matrices for site in sites)
    shapes = " and ".join(dict.fromkeys(str(site.shape) for site in sites))
    what = f"a score matrix {shapes}" if count == 1 else f"{count} score matrices {shapes}"
    return f"saves writing {what} and reading it again for each step on it"


def _memory_note(found: _Found) -> str:
    sites = [site for each in found.fusions for site in each.sites]
    sites += [site for part in found.switched.values() for site in part]
    total, largest = sum(site.nbytes for site in sites), max(s.nbytes // s.matrices for s in sites)
    return (
        f"score matrices of {total:,} bytes in all are no longer needed in a call, the largest of "
        f"{largest:,} bytes"
    )


def _notes(found: _Found) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for each in found.fusions for note in each.notes))
