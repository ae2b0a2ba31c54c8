"""Layers that the user wants to stay as they are, by patterns of their paths."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from typing import Any

from tinytorch.errors import SettingError

__all__ = ["checked_patterns", "idle_patterns", "why_kept"]


def checked_patterns(keep: Any) -> tuple[str, ...]:
    """Give patterns as a tuple; a single text is an error, because it is a sequence as well."""
    if not isinstance(keep, (tuple, list)):
        raise SettingError(f"keep is a tuple of patterns: keep=({str(keep)!r},)")
    return tuple(keep)


def why_kept(path: str, keep: Iterable[str]) -> str:
    """Say which pattern keeps a layer as it is, or nothing."""
    pattern = next((each for each in keep if _matches(path, each)), None)
    return "" if pattern is None else f"kept by keep={pattern!r}"


def idle_patterns(keep: Iterable[str], paths: Collection[str], *, change: str) -> tuple[str, ...]:
    """Give a note for each pattern that means no layer, as with a typing error.

    `change` says what happens to the layers at these paths, such as "quantized".
    """
    return tuple(
        f"keep={pattern!r} matches no layer that can be {change}"
        for pattern in keep
        if not any(_matches(path, pattern) for path in paths)
    )


def _matches(path: str, pattern: str) -> bool:
    """Tell whether a pattern means a layer, or one that the layer is a part of."""
    return fnmatch(path, pattern) or fnmatch(path, f"{pattern}.*")
