"""Which layers of a model are missed least, whatever framework it is of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from tinytorch.workloads.kept_layers import why_kept
from tinytorch.workloads.plan import Skipped, Step

__all__ = [
    "Judge",
    "Removed",
    "Survey",
    "choose_layers",
    "is_part",
    "staying_layers",
    "steps_of",
    "why_no_stream",
    "why_part_kept",
]

Removed = Sequence[tuple[str, float]]
"""Layers in the order in which they go, each with how much the outputs change by then."""


class Survey(Protocol):
    """The layers of a model that can be taken out of their lists."""

    def removable_beside(self, gone: tuple[str, ...]) -> Collection[str]:
        """Give those that can go when some are gone already."""


class Judge(Protocol):
    """Tells how much the outputs of a model change."""

    def without(self, paths: tuple[str, ...]) -> tuple[float, str]:
        """Give the change without some layers, or the reason why the model fails then."""


def choose_layers(
    survey: Survey, judge: Judge, alone: Mapping[str, float], *, count: int
) -> Removed:
    """Remove the layer that is missed least, again and again; `alone` has the first changes."""
    chosen: list[tuple[str, float]] = []
    while len(chosen) < count:
        gone = tuple(path for path, _ in chosen)
        changes: dict[str, float] = {}
        for path in survey.removable_beside(gone):
            change, reason = (alone[path], "") if not gone else judge.without((*gone, path))
            if not reason:
                changes[path] = change
        if not changes:
            break
        least = min(changes, key=lambda path: changes[path])
        chosen.append((least, changes[least]))
    return chosen


def steps_of(removed: Removed, alone: Mapping[str, float]) -> tuple[Step, ...]:
    return tuple(
        Step(
            path,
            "removed",
            f"without it the outputs change by {alone[path]:.2%}"
            + (f", by {change:.2%} with those removed before" if number else ""),
            {"order": number, "change_alone": alone[path], "change_together": change},
        )
        for number, (path, change) in enumerate(removed)
    )


def staying_layers(
    survey: Survey, alone: Mapping[str, float], gone: Iterable[str]
) -> tuple[Skipped, ...]:
    """Say of each layer that could go, but stays, what it would change."""
    gone = tuple(gone)
    removable = survey.removable_beside(gone)
    return tuple(
        Skipped(
            path,
            f"without it the outputs would change by {change:.2%}"
            + ("" if path in removable else "; nothing else of its kind is in its list"),
        )
        for path, change in alone.items()
        if not any(is_part(path, each) for each in gone)
    )


def is_part(path: str, of: str) -> bool:
    """Tell whether a layer is another one, or in it."""
    return path == of or path.startswith(f"{of}.")


def why_no_stream(first: Any, output: Any, tensor: type) -> str:
    """Say why a layer that makes this output of this input cannot be left out, or nothing."""
    if not isinstance(first, tensor) or not isinstance(output, tensor):
        return "it takes or gives something else than one tensor"
    before, after = cast("Any", first), cast("Any", output)
    if before.shape != after.shape:
        return f"it makes {tuple(after.shape)} of {tuple(before.shape)}, so others need it"
    if before.dtype != after.dtype:
        return f"it makes {after.dtype} of {before.dtype}, so others need it"
    return ""


def why_part_kept(path: str, modules: Iterable[str], keep: tuple[str, ...]) -> str:
    """Say which pattern keeps a layer, or a part of it, which would go with it."""
    for part in modules:
        reason = why_kept(part, keep) if is_part(part, path) else ""
        if reason:
            return reason if part == path else f"{part!r} in it is {reason}"
    return ""
