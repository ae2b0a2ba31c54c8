"""Keeping measured ceilings on disk: one file for each device and fingerprint."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tinytorch.core.files import cache_folder, write_atomically
from tinytorch.measure.ceilings import Ceilings

__all__ = ["ceilings_file", "load_ceilings", "save_ceilings"]

SCHEMA = 1
"""Raise it when the meaning of a field changes; files of another version are measured again."""


def ceilings_file(device: str, fingerprint: str) -> Path:
    """Give the file that holds, or will hold, the ceilings of a device."""
    safe = re.sub(r"\W", "-", device)
    return cache_folder() / f"ceilings-{safe}-{fingerprint}.json"


def load_ceilings(path: Path) -> Ceilings | None:
    """Read ceilings; None when there are none, or none that this version understands."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return Ceilings.from_dict(content["ceilings"]) if content["schema"] == SCHEMA else None
    # Whatever is wrong with the file: it can be measured again.
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def save_ceilings(ceilings: Ceilings, path: Path) -> str | None:
    """Write ceilings; when the folder cannot be written, give a sentence that says so."""
    content = {"schema": SCHEMA, "ceilings": ceilings.to_dict()}
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1), "utf-8")
    except OSError as error:
        return f"not kept for the next time: {path.parent} cannot be written ({error.strerror})"
    return None
