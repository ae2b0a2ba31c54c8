"""Optimizations as if a stack of the catalog had won, without measuring anything."""

from tinytorch.models.adapter import adapter_for
from tinytorch.tuning.attempt import BETTER, Attempt, Settings
from tinytorch.tuning.catalog import Entry, find_entries
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.trying import build_stack


def entry_of(*transforms, name="own"):
    """Give an entry that no catalog has."""
    return Entry(name, transforms, "own", 1, "exact", frozenset(), "")


def recommending(workload, *stack, settings=None):
    """Give the optimization that recommends these entries (or names of some) for the workload."""
    entries = [each if isinstance(each, Entry) else find_entries([each])[0] for each in stack]
    built = build_stack(workload, entries)
    adapter = adapter_for(workload.model, workload.arguments)
    optimization = Optimization(
        name=workload.name,
        framework=adapter.name,
        device=adapter.device(workload.model, workload.arguments),
        settings=settings or Settings(),
        advice=(),
        attempts=(Attempt(built.stack, BETTER, "", built.plans),),
        model=built.model,
    )
    return recommended(optimization)


def recommended(optimization):
    """Let the first attempt be what is recommended: there are no comparisons that could say so."""
    vars(optimization)["recommended"] = optimization.attempts[0]
    return optimization
