"""Layers that the user wants to stay in floats, by patterns of their paths."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatch

__all__ = ["idle_patterns", "why_kept"]


def why_kept(path: str, keep: Iterable[str]) -> str:
    """Say which pattern keeps a layer in floats, or nothing."""
    pattern = next((each for each in keep if _matches(path, each)), None)
    return "" if pattern is None else f"kept in floats by keep={pattern!r}"


def idle_patterns(keep: Iterable[str], paths: Collection[str]) -> tuple[str, ...]:
    """Give a note for each pattern that means no layer, as with a typing error."""
    return tuple(
        f"keep={pattern!r} matches no layer that can be quantized"
        for pattern in keep
        if not any(_matches(path, pattern) for path in paths)
    )


def _matches(path: str, pattern: str) -> bool:
    """Tell whether a pattern means a layer, or one that the layer is a part of."""
    return fnmatch(path, pattern) or fnmatch(path, f"{pattern}.*")
