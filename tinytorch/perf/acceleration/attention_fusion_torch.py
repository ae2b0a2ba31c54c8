"""From places where attention is computed by hand to modules that compute it fused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tinytorch.adapters.pytorch import TorchAdapter
from tinytorch.perf.acceleration.attention_chain_torch import Chain, fuse_chains
from tinytorch.perf.acceleration.attention_graph_torch import trace_call
from tinytorch.perf.acceleration.attention_module_torch import (
    HOOKS,
    FusedCalls,
    GraphCode,
    Kind,
    fuse_in_place,
)
from tinytorch.perf.acceleration.attention_operations_torch import NotFused, ReachesOut
from tinytorch.perf.acceleration.attention_proof_torch import prove, why_stateful
from tinytorch.perf.acceleration.attention_sites_torch import Call, Site, calls_of_modules
from tinytorch.perf.acceleration.trial_torch import first_line
from tinytorch.workloads.workload import Workload

__all__ = ["Fusion", "fuse_sites", "fused_copy"]

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
        """Give the modules between that one and the softmax."""
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
    """Let modules of a copy of the model compute their attention fused, and give the copy."""
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
    """Give the reason that says where to look next, or else the first one."""
    if not reasons:
        return ReachesOut("its graph holds no softmax")
    return next((each for each in reasons if isinstance(each, ReachesOut)), reasons[0])
