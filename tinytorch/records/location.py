"""Where the store of a project is, and where results go when it cannot be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["STORE_VARIABLE", "refuge_path", "store_path"]

STORE_VARIABLE = "TINYTORCH_RECORDS"
FOLDER, FILE = ".tinytorch", "records.sqlite"
MARKS_OF_A_PROJECT = (".git", "pyproject.toml")


def store_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Give the file that holds the records, as an absolute path; nothing is created.

    Without a `path` it is what the environment variable ``TINYTORCH_RECORDS`` names, else
    ``.tinytorch/records.sqlite`` in the nearest folder, from the working directory upwards, that
    has ``.git`` or ``pyproject.toml``, else in the working directory.
    """
    chosen = path if path is not None else os.environ.get(STORE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    here = Path.cwd()
    project = next((each for each in (here, *here.parents) if _is_project(each)), here)
    return project / FOLDER / FILE


def refuge_path() -> Path:
    """Give the file in the temporary folder for results that the store did not take.

    Each user has one, since a temporary folder is often shared.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"tinytorch-records-{user}.jsonl"


def _is_project(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS_OF_A_PROJECT)
