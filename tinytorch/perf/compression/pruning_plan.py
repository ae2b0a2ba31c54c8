"""From weights that can be pruned to a plan, for models of any framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinytorch.workloads.kept_layers import idle_patterns
from tinytorch.workloads.plan import Plan, Skipped, Step

__all__ = ["NAME", "Prunable", "ShareOut", "make_plan"]

NAME = "Prune"
NO_SHRINKAGE = (
    "a zero takes as many bytes as any other number; SparseLayers, or the file that "
    "save_compressed() writes, holds fewer"
)
NO_SPEEDUP = (
    "dense kernels multiply zeros as fast as other numbers; SparseLayers leaves them out where "
    "that is measured to be faster"
)
NEARLY_ALL = 0.99
"""A layer that loses more than this share is worth a word."""


@dataclass
class Prunable:
    """One weight, and the layers that use it, on the way to a step or to a reason."""

    name: str
    """Of the parameter, such as ``layers.0.weight``."""
    weight: Any
    size: int
    zeros: int
    """How many are zero already."""
    shape: tuple[int, ...]
    reasons: dict[str, str]
    """The layers by their paths, each with the reason why it is left alone, if so."""
    input_norms: tuple[float, ...] | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self.reasons)

    @property
    def is_left(self) -> bool:
        return any(self.reasons.values())

    def leave(self, reason: str) -> None:
        """Leave all of its layers alone; those with a reason of their own keep it."""
        kept = next((path for path, each in self.reasons.items() if each), None)
        shared = reason if kept is None else f"it shares its weight with {kept!r}, which stays"
        self.reasons = {path: each or shared for path, each in self.reasons.items()}

    @property
    def most(self) -> int:
        """How many may be zero: one weight stays, so that the layer does not cut the model."""
        return self.size if self.zeros == self.size else self.size - 1

    @property
    def not_finite(self) -> str:
        """What to say if the weight holds NaN or infinity."""
        path = self.layers[0]
        return (
            f"the weight of layer {path!r} holds NaN or infinity, which cannot be ranked; mend it, "
            f"or leave it alone with keep=({path!r},)"
        )

    @property
    def share(self) -> str:
        return f"{self.zeros / self.size:.1%}"


ShareOut = Callable[[Sequence[Prunable], int], Sequence[int]]
"""Tells how many of the least important weights lie in each, if so many are taken in all."""


def make_plan(
    settings: Mapping[str, Any],
    prunables: Sequence[Prunable],
    others: Iterable[Skipped],
    share_out: ShareOut,
) -> Plan:
    """Decide how many zeros each weight gets.

    `settings` are those of the transform; `others` are the layers that cannot be pruned.
    """
    chosen = [each for each in prunables if not each.is_left]
    counts, notes = _zeros_after(chosen, settings, share_out)
    steps: list[Step] = []
    skipped = list(others)
    for each in prunables:
        if each.is_left:
            each.leave("")
            skipped += [Skipped(path, reason) for path, reason in each.reasons.items()]
        elif counts[each.name] > each.zeros:
            steps.append(_step(each, counts[each.name]))
        else:
            reason = _why_unchanged(each, counts[each.name], settings["scope"])
            skipped += [Skipped(path, reason) for path in each.layers]
    notes += [_note(each, counts[each.name]) for each in chosen if _loses_nearly_all(each, counts)]
    paths = [path for each in prunables for path in each.layers]
    notes += idle_patterns(settings["keep"], paths, change="pruned")
    return Plan(
        NAME,
        settings,
        tuple(steps),
        tuple(skipped),
        not_predicted={"speedup": NO_SPEEDUP, "shrinkage": NO_SHRINKAGE},
        notes=tuple(notes),
    )


def _zeros_after(
    chosen: Sequence[Prunable], settings: Mapping[str, Any], share_out: ShareOut
) -> tuple[dict[str, int], list[str]]:
    """Give the zeros of each weight by its name, and what is worth saying about them all."""
    sparsity = settings["sparsity"]
    before, size = sum(each.zeros for each in chosen), sum(each.size for each in chosen)
    if not size:
        return {}, ["the model has no weight that can be pruned"]
    if settings["scope"] == "layer":
        wanted = {each.name: round(sparsity * each.size) for each in chosen}
        counts = {each.name: min(wanted[each.name], each.most) for each in chosen}
        is_cut = wanted != counts
        counts = {each.name: max(counts[each.name], each.zeros) for each in chosen}
    else:
        count = min(round(sparsity * size), sum(each.most for each in chosen))
        is_cut = count < round(sparsity * size)
        if count <= before:
            counts = {each.name: each.zeros for each in chosen}
        else:
            shares = share_out(chosen, count)
            counts = {each.name: share for each, share in zip(chosen, shares, strict=True)}
    after = sum(counts.values())
    notes = []
    if after > before:
        notes.append(f"{after:,} of {size:,} weights are zero afterwards ({after / size:.1%})")
    else:
        notes.append(f"{before / size:.1%} of the {size:,} weights are zero already")
    if is_cut:
        notes.append(
            f"a layer keeps at least one weight, so the sparsity stays below {sparsity:g}: a "
            "layer without weights would cut the model in two"
        )
    return counts, notes


def _step(each: Prunable, zeros: int) -> Step:
    what = f"{zeros:,} of {each.size:,} weights become zero"
    why = f"the least important of a weight {each.shape}"
    if each.zeros:
        what += f", {each.zeros:,} of them are already"
    if len(each.layers) > 1:
        why += f", which {' and '.join(each.layers)} share"
    settings: dict[str, Any] = {"weight": each.name, "zeros": zeros}
    if len(each.layers) > 1:
        settings["layers"] = each.layers
    if each.input_norms is not None:
        settings["input_norms"] = each.input_norms
    return Step(each.layers[0], what, why, settings)


def _why_unchanged(each: Prunable, zeros: int, scope: str) -> str:
    if zeros:
        return f"{each.share} of its weights are zero already"
    if scope == "layer":
        return f"this share of {each.size:,} weights is less than one"
    return "all of its weights are more important than those that become zero"


def _loses_nearly_all(each: Prunable, counts: Mapping[str, int]) -> bool:
    zeros = counts[each.name]
    return zeros > each.zeros and zeros > NEARLY_ALL * each.size


def _note(each: Prunable, zeros: int) -> str:
    left = each.size - zeros
    return f"{each.layers[0]!r} keeps only {left:,} of {each.size:,} weights; keep= leaves it alone"
