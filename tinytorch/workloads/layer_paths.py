"""The paths of layers: ``h.3.mlp`` lies in ``h.3``, in ``h`` and in ``""``, which is the model."""

from __future__ import annotations

from collections.abc import Container

__all__ = ["BACKWARD", "PHASES", "UPDATE", "ancestors", "layers_around"]

BACKWARD, UPDATE = "<backward>", "<update>"
"""Rows of a training step that are no layers, and lie in none."""
PHASES = {BACKWARD: "backward", UPDATE: "update"}
"""These rows, and the phase of the operations in them."""


def ancestors(path: str) -> list[str]:
    """Give a path and all that it lies in, from the inside to the model itself."""
    if path in PHASES:
        return [path]
    parts = path.split(".") if path else []
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def layers_around(path: str | None, known: Container[str]) -> list[str]:
    """Give the known layers around an operation, the outermost first."""
    if path is None:
        return []
    return [outer for outer in reversed(ancestors(path)) if outer in known]
