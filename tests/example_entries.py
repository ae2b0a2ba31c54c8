"""Entries and folders of them for tests."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinytorch.competition.entry import (
    FORMAT,
    MANIFEST,
    SCHEMA,
    Entry,
    Technique,
    read_entry,
    write_entry,
)

PLAIN = Entry("Team Ada", "mlp_sprint", "closed", 0.99)
MAKE = "def make(reference, techniques):\n    return reference.model\n"


def an_entry(*techniques: str | Technique, **changes: Any) -> Entry:
    """Give an entry with these techniques and other fields."""
    declared = tuple(Technique(each) if isinstance(each, str) else each for each in techniques)
    return replace(PLAIN, techniques=declared, **changes)


def manifest(**changes: Any) -> dict[str, Any]:
    """Give the fields of a manifest."""
    needed = {"team": "Team Ada", "event": "mlp_sprint", "division": "closed", "tier": 0.99}
    return {"format": FORMAT, "schema": SCHEMA, **needed, **changes}


def write_manifest(folder: Path, **changes: Any) -> Path:
    """Write a manifest as anybody may, without checks."""
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_text(json.dumps(manifest(**changes)), encoding="utf-8")
    return folder


def a_code_entry(folder: Path, source: str = MAKE, **changes: Any) -> Entry:
    """Write an entry with code, and read it."""
    write_entry(replace(PLAIN, code="model.py:make", **changes), folder)
    (folder / "model.py").write_text(source, encoding="utf-8")
    return read_entry(folder)
