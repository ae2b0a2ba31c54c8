"""Keeping choices on disk: one file for each machine, its libraries and number of threads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tinytorch import __version__
from tinytorch.core.files import cache_folder, write_atomically
from tinytorch.perf.acceleration.kernel_choice import Choice

__all__ = ["Key", "choices_file", "forget_choices", "load_choices", "save_choices"]

SCHEMA = 1
"""Raise it when the meaning of a field changes; files of another version are measured again."""

Key = tuple[str, str]
"""An operation and a size class."""


def choices_file(fingerprint: str) -> Path:
    """Give the file that holds, or will hold, the choices of a machine."""
    return cache_folder() / f"kernels-{fingerprint}.json"


def load_choices(path: Path) -> dict[Key, Choice]:
    """Read choices; none where there are none, or none that this version understands."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if (content["schema"], content["version"]) != (SCHEMA, __version__):
            return {}
        choices = [Choice.from_dict(each) for each in content["choices"]]
        return {(each.op, each.size_class): each for each in choices}
    # Whatever is wrong with the file: it can be measured again.
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def save_choices(choices: Mapping[Key, Choice], path: Path) -> str | None:
    """Add choices to a file; when it cannot be written, give a sentence that says so.

    What another process has added in the meantime stays.
    """
    together = load_choices(path) | dict(choices)
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(_as_json(together.values()), "utf-8")
    except OSError as error:
        return f"not kept for the next time: {path.parent} cannot be written ({error.strerror})"
    return None


def forget_choices(path: Path) -> None:
    """Remove a file of choices, if it is there and can be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # a folder that cannot be written; in memory they are forgotten


def _as_json(choices: Iterable[Choice]) -> str:
    rows = [each.to_dict() for each in choices]
    return json.dumps({"schema": SCHEMA, "version": __version__, "choices": rows}, indent=1)
