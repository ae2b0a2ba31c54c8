"""Fusing the attention of PyTorch models. Imported after torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tinytorch.errors import SettingError, first_line
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_attention import FuseAttention
from tinytorch.transforms.fuse_attention.chain import Chain, fuse_chains
from tinytorch.transforms.fuse_attention.graph import (
    HOOKS,
    Call,
    FusedCalls,
    GraphCode,
    Kind,
    Observed,
    Site,
    calls_of_modules,
    fuse_in_place,
    observe_attention,
    prove,
    tolerance_for,
    trace_call,
    why_stateful,
)
from tinytorch.transforms.fuse_attention.kernel import NotFused, ReachesOut
from tinytorch.transforms.plan import Plan, Skipped, Step
from tinytorch.transforms.support.torch import refusal, trial_note, try_change, why_unchangeable

# ---------------------------------------------------------------- from places where attention is
# computed by hand to modules that compute it fused

AT_ONCE = 4
"""So many modules are looked at in one call: their arguments are held in memory."""


@dataclass
class Fusion:
    """One module that can compute its attention fused, and the places whose scores go away."""

    path: str
    sites: tuple[Site, ...]
    calls: FusedCalls
    is_causal: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Attempt:
    """A place that is to be rewritten in one of the modules around it, and why not further in."""

    site: Site
    level: int
    reason: str = ""

    @property
    def path(self) -> str:
        return self.site.stack[self.level]

    @property
    def inlined(self) -> tuple[str, ...]:
        """Return the modules between that one and the softmax."""
        return (*self.site.stack[self.level + 1 :], *self.site.inner)


def fuse_sites(workload: Workload, sites: Collection[Site]) -> tuple[list[Fusion], dict[str, str]]:
    """Rewrite the smallest modules that hold whole chains; give them, and reasons for the others.

    Where the weights leave a module or the scores come from outside, the one around it is tried.
    """
    fusions: list[Fusion] = []
    reasons: dict[str, str] = {}
    waiting = [_Attempt(site, len(site.stack) - 1) for site in sites]
    while waiting:
        # the innermost first, so that all that comes from below is rewritten in one go
        level = max(each.level for each in waiting)
        groups: dict[str, list[_Attempt]] = {}
        for each in waiting:
            if each.level == level:
                groups.setdefault(each.path, []).append(each)
        waiting = [each for each in waiting if each.level < level]
        for group, outcome in _outcomes(workload, groups):
            if isinstance(outcome, Fusion):
                fusions.append(outcome)
            elif isinstance(outcome, ReachesOut) and level > 0:
                reason = str(outcome)
                waiting += [_Attempt(e.site, level - 1, e.reason or reason) for e in group]
            else:
                reasons |= {each.site.path: each.reason or str(outcome) for each in group}
    order = {site.path: place for place, site in enumerate(sites)}
    return sorted(fusions, key=lambda each: order[each.sites[0].path]), reasons


def fused_copy(model: nn.Module, fusions: Iterable[Fusion]) -> nn.Module:
    """Fuse the attention of modules of a copy of the model, and return the copy."""
    for each in fusions:
        fuse_in_place(model.get_submodule(each.path), each.calls)
    return model


def _outcomes(
    workload: Workload, groups: Mapping[str, list[_Attempt]]
) -> Iterable[tuple[list[_Attempt], Fusion | NotFused]]:
    adapter = TorchAdapter()
    paths = tuple(groups)
    for start in range(0, len(paths), AT_ONCE):
        part = paths[start : start + AT_ONCE]
        calls = calls_of_modules(workload, adapter.clone(workload.model), part)
        probe: nn.Module = adapter.clone(workload.model)
        for path in part:
            yield groups[path], _outcome(probe, path, groups[path], calls[path])


def _outcome(
    probe: nn.Module, path: str, group: list[_Attempt], calls: list[Call]
) -> Fusion | NotFused:
    module = probe.get_submodule(path)
    names = {each: name for name, each in module.named_modules()}
    between = dict.fromkeys(each for attempt in group for each in attempt.inlined)
    inlined = tuple(names[probe.get_submodule(each)] for each in between)
    try:
        _check_hooks(module, inlined)
        return _fusion(module, path, [each.site for each in group], calls, inlined)
    except NotFused as error:
        return error
    except Exception as error:  # following a call may fail in any way
        return NotFused(f"its call cannot be followed: {first_line(error)}")


def _check_hooks(module: nn.Module, inlined: tuple[str, ...]) -> None:
    for name in inlined:
        inner = module.get_submodule(name)
        if any(getattr(inner, hooks) for hooks in HOOKS):
            raise NotFused(f"a hook watches {name!r} inside of it")


def _fusion(
    module: nn.Module, path: str, sites: list[Site], calls: list[Call], inlined: tuple[str, ...]
) -> Fusion:
    forwards: dict[Kind, GraphCode] = {}
    silenced: dict[str, None] = dict.fromkeys(inlined)
    notes: dict[str, None] = {}
    chains: list[Chain] = []
    for inputs, keywords in calls:
        reason = why_stateful(module, inputs, keywords)
        if reason:
            raise NotFused(reason)
        with torch.no_grad():
            kind, graph = trace_call(module, inputs, keywords, inlined=inlined)
            found, reasons = fuse_chains(graph, module)
            if not found:
                raise _worst(reasons)
            silenced |= dict.fromkeys(each for chain in found for each in chain.silenced)
            forwards[kind] = GraphCode.of(graph)
            reason, seen = prove(module, forwards[kind], inputs, keywords)
        if reason:
            raise NotFused(reason)
        chains += found
        notes |= dict.fromkeys((*seen, *map(str, reasons)))
    _check_hooks(module, tuple(silenced))
    fused = FusedCalls(forwards, module, tuple(silenced))
    is_causal = all(chain.is_causal for chain in chains)
    return Fusion(path, tuple(sites), fused, is_causal, tuple(notes))


def _worst(reasons: list[NotFused]) -> NotFused:
    """Return the reason that says where to search next, or else the first one."""
    if not reasons:
        return ReachesOut("its graph holds no softmax")
    return next((each for each in reasons if isinstance(each, ReachesOut)), reasons[0])


# ---------------------------------------------------------------- models of transformers have a
# switch for how they compute attention

BY_HAND = "eager"
FUSED = "sdpa"
SOFTCAP = re.compile(r"attn.*soft_?cap|soft_?cap.*attn")


def outermost(model: nn.Module, is_meant: Callable[[nn.Module], bool]) -> dict[str, nn.Module]:
    """Return the modules of a kind that are inside of no other one, by their paths."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        is_inside = any(path.startswith(f"{outer}." if outer else "") for outer in found)
        if not is_inside and is_meant(module):
            found[path] = module
    return found


def switchable(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost modules that have such a switch, by their paths."""
    return outermost(model, lambda module: hasattr(module, "set_attn_implementation"))


def implementation(module: nn.Module) -> str:
    """Return how a model computes attention; by hand if a part of it does."""
    named = {getattr(each, "_attn_implementation", None) for each in _configs(module)} - {None}
    return BY_HAND if BY_HAND in named else "/".join(sorted(map(str, named)))


def why_no_switch(module: nn.Module, keywords: Mapping[str, Any]) -> str:
    """Return why attention of a model cannot be switched, or ""."""
    name = type(module).__name__
    can_switch = getattr(module, "_can_set_attn_implementation", None)
    if not getattr(module, "_supports_sdpa", True) or (can_switch and not can_switch()):
        return f"{name} of transformers does not support {FUSED!r} attention"
    for config in _configs(module):
        for setting, value in vars(config).items():
            if SOFTCAP.search(setting) and value is not None:
                return f"its scores are capped ({setting}={value!r}), which {FUSED!r} leaves out"
        if getattr(config, "output_attentions", False):
            return "its attention weights are returned (output_attentions=True in its config)"
    for keyword in ("output_attentions", "head_mask"):
        value = keywords.get(keyword)
        if value is not None and value is not False:
            return f"it is called with {keyword}=..., which needs the attention weights"
    return ""


def switch_over(model: nn.Module, paths: tuple[str, ...]) -> nn.Module:
    """Switch these parts of a model to fused attention, in place, and return the model."""
    for path in paths:
        switch: Any = model.get_submodule(path)
        switch.set_attn_implementation(FUSED)
    return model


def _configs(module: nn.Module) -> Iterator[Any]:
    """Yield the configs of a model and of its parts, each once."""
    seen: set[int] = set()
    for each in module.modules():
        config = getattr(each, "config", None)
        if config is not None and hasattr(config, "__dict__") and id(config) not in seen:
            seen.add(id(config))
            yield config


# ---------------------------------------------------------------- fusing the attention of PyTorch
# models. Imported after torch

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
    "computes them by hand; call it with need_weights=False where they are not used"
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
    """Plan the fusion: find attention by hand in a call of a copy, and try to fuse it."""
    reason = why_unchangeable(workload.model)
    if reason:
        return settings.skipping(reason)
    adapter = TorchAdapter()
    try:
        with adapter.preserving(workload.model):
            found = _look(workload)
    except Exception as error:  # a model may raise anything
        return settings.skipping(f"it cannot be called: {first_line(error)}")
    steps = _steps(found)
    if not steps:
        skipped = found.skipped or [Skipped("", NOTHING)]
        return settings.planned((), tuple(skipped))
    parameters = [each for each in workload.model.parameters() if each.is_floating_point()]
    tolerance = tolerance_for(parameters, workload.arguments)
    trial = try_change(workload, found.change, tolerance=tolerance)
    if not trial.works:
        found.skipped.append(Skipped("", refusal(workload.model, trial)))
        return settings.planned((), tuple(found.skipped))
    return settings.planned(
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
            f"the model has no attention by hand in {missing[0]!r} as the plan knows it; "
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
    """Return why the switch has no effect, or ""."""
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
            f"attention by {FUSED!r} instead of {BY_HAND!r}",
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
