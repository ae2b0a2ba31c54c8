"""Advice from a profile: every rule reads the same facts, and the largest gain comes first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain, Plan
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.catalog import CATALOG, Entry
from tinytorch.tuning.facts import Facts, gather_facts, share_of
from tinytorch.tuning.rules import (
    batch_norms,
    convolution_layout,
    own_kernels,
    parameters_dominate,
    quadratic_attention,
    small_batch,
    small_operations,
    token_by_token,
    written_out_attention,
)
from tinytorch.tuning.rules_products import (
    compute_bound_products,
    fewer_products,
    memory_bound_products,
)
from tinytorch.tuning.rules_program import (
    book_keeping,
    busy_machine,
    launches,
    not_counted,
    python_overhead,
    repeated_calls,
    synchronisations,
)

Rule = Callable[[Profile, Facts], Iterable[Advice]]

# fmt: off
RULES: dict[str, Rule] = {
    # what products cost
    "memory-bound products":  memory_bound_products,
    "compute-bound products": compute_bound_products,
    "fewer products":         fewer_products,
    "repeated calls":         repeated_calls,
    # what stands between them
    "attention written out":  written_out_attention,
    "small operations":       small_operations,
    "own kernels":            own_kernels,
    "batch norms":            batch_norms,
    "layout of convolutions": convolution_layout,
    # the program around them
    "launches":               launches,
    "token by token":         token_by_token,
    "book-keeping":           book_keeping,
    "python overhead":        python_overhead,
    "synchronisation":        synchronisations,
    # bytes and sizes
    "parameters dominate":    parameters_dominate,
    "small batch":            small_batch,
    "quadratic attention":    quadratic_attention,
    # how far all of it can be trusted
    "not counted":            not_counted,
    "busy machine":           busy_machine,
}
# fmt: on
"""Name -> the rule; the order is that of equal advice."""

PLANNED = "planned"
RISKS = {
    "exact": "equal outputs up to the order of summation",
    "rounding": "lower precision: small output differences; check the accuracy",
    "approximate": "outputs differ: needs an evaluate to check the accuracy",
}
COSTS = {"approximate": "fine-tuning, where accuracy is lost"}
"""Risk -> what an entry costs beyond the time of trying it, unless it says so itself."""


def advise(
    profile: Profile,
    *,
    entries: Sequence[Entry] = (),
    plans: Mapping[str, tuple[Plan, ...]] | None = None,
) -> tuple[Advice, ...]:
    """Return what a profile suggests, with the evidence, largest gain first.

    `entries` are those that can be tried; without them, all of the catalog that fit the framework
    and the device. `plans` has what their transforms would do, by the name of the entry: what a
    plan has measured or counted itself is taken for the prediction, cut to what Amdahl's law
    allows, and an entry whose plan is empty is not advised.

    What has a predicted gain comes first, by its value, and then the rest, by the part of a call
    that it is about.
    """
    facts = gather_facts(profile, entries, plans)
    found = [
        replace(each, rule=name) for name, rule in RULES.items() for each in rule(profile, facts)
    ]
    named = {each.entry for each in found}
    found += _only_planned(facts, named)
    offered = {each.name: each for each in CATALOG} | dict(facts.offered)
    finished = [_finished(each, facts, offered.get(each.entry)) for each in found]
    return tuple(sorted(finished, key=_rank))


def _rank(advice: Advice) -> tuple[float, ...]:
    gain = advice.predicted
    if gain is not None:
        return (0.0, -gain.value, -gain.low)
    return (1.0, -(advice.share if advice.share is not None else -1.0))


# ---------------------------------------------------------------- what plans know


def _finished(advice: Advice, facts: Facts, entry: Entry | None) -> Advice:
    """Add what the catalog knows of risk and cost, and what the plans have measured."""
    if entry is None:
        return advice
    cost = advice.cost or entry.cost or COSTS.get(entry.risk, "")
    advice = replace(advice, risk=advice.risk or RISKS[entry.risk], cost=cost)
    plans = facts.plans.get(entry.name, ())
    planned = _planned_gain(plans)
    if planned is not None and advice.rule != "parameters dominate":
        return replace(advice, predicted=_bounded(planned, advice), not_predicted="")
    if advice.predicted is None and plans and not advice.not_predicted:
        return replace(advice, not_predicted=plans[-1].not_predicted.get("speedup", ""))
    return advice


def _planned_gain(plans: Sequence[Plan]) -> Gain | None:
    """Multiply what the transforms of an entry predict; None where none of them does."""
    gains = [plan.speedup for plan in plans if plan.speedup is not None]
    if not gains:
        return None
    value, low, high = (
        math.prod(getattr(x, name) for x in gains) for name in ("value", "low", "high")
    )
    basis = "; ".join(dict.fromkeys(each.basis for each in gains))
    return Gain(value, low, high, basis=f"its own plan: {basis}")


def _bounded(gain: Gain, advice: Advice) -> Gain:
    """Cut a plan's prediction to what the share of a call allows, where the share is known."""
    if advice.share is None or advice.share >= 1:
        return gain
    most = 1 / (1 - advice.share)
    if gain.high <= most:
        return gain
    low, value = min(gain.low, most), min(gain.value, most)
    return Gain(value, low, most, basis=f"{gain.basis}; at most what Amdahl's law allows")


def _only_planned(facts: Facts, named: Iterable[str]) -> Iterable[Advice]:
    """Advise entries that no rule speaks of, but whose plan has something to say about time."""
    for entry in facts.offered.values():
        gain = _planned_gain(facts.plans.get(entry.name, ()))
        if gain is None or entry.name in named or facts.does_nothing(entry.name):
            continue
        yield Advice(
            rule=PLANNED,
            title=entry.about[:1].upper() + entry.about[1:],
            evidence=(
                f"{gain.value:.2f}x speedup ({gain.low:.2f}x to {gain.high:.2f}x) planned: "
                f"{gain.basis.removeprefix('its own plan: ')}",
            ),
            entry=entry.name,
            predicted=gain,
            share=_planned_share(facts, entry.name),
        )


def _planned_share(facts: Facts, entry: str) -> float:
    """Return the share of a call in the layers that a plan names; the model itself is all of it."""
    layers = {layer for plan in facts.plans[entry] for layer in plan.layers}
    return 1.0 if "" in layers else share_of(facts.changed_by(entry, facts.work))
