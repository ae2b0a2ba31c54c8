"""Keeping measured crossovers on disk: one file for each machine, its libraries and threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinytorch import __version__
from tinytorch.core.files import cache_folder, write_atomically

__all__ = ["Key", "crossover_file", "load_crossovers", "save_crossover"]

SCHEMA = 1
"""Raise it when the meaning of a field changes; files of another version are measured again."""

Key = tuple[int, int, int, str]
"""Inputs, outputs, rows and backend."""


def crossover_file(fingerprint: str) -> Path:
    """Give the file that holds, or will hold, the crossovers of a machine."""
    return cache_folder() / f"crossovers-{fingerprint}.json"


def load_crossovers(path: Path) -> dict[Key, dict[str, Any]]:
    """Read crossovers; none where there are none, or none that this version understands."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if (content["schema"], content["version"]) != (SCHEMA, __version__):
            return {}
        return {_key(fields): fields for fields in content["crossovers"]}
    # Whatever is wrong with the file: it can be measured again.
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def save_crossover(path: Path, key: Key, fields: dict[str, Any]) -> bool:
    """Add one to a file, and tell whether that worked; without it, it is measured again."""
    rows = list((load_crossovers(path) | {key: fields}).values())
    content = {"schema": SCHEMA, "version": __version__, "crossovers": rows}
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1), "utf-8")
    except OSError:
        return False
    return True


def _key(fields: dict[str, Any]) -> Key:
    return fields["inputs"], fields["outputs"], fields["rows"], fields["backend"]
