"""Functions that a suite names, as `file.py:name` or `package.module:name`: checked without
running anything, and loaded later, in a process of their own."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from tinytorch.errors import SettingError, TargetError
from tinytorch.workloads.targets import import_place

__all__ = [
    "check_reference",
    "is_installed",
    "load_reference",
    "located",
    "place_in_project",
    "resolved",
]

FORMS = "file.py:name or package.module:name"
NAMES_SHOWN = 10
INSTALLED = ("site-packages", "dist-packages")
MARKS_OF_A_PROJECT = (".git", "pyproject.toml")
"""What the folder of a project has; the repository counts, where there is one."""


def resolved(reference: str, folder: str) -> str:
    """Give the reference with its file, if it has one, found from a folder on."""
    place, _, name = reference.rpartition(":")
    return f"{Path(folder) / place}:{name}" if place.endswith(".py") else reference


def check_reference(reference: str, folder: str, *, names: Sequence[str] = ()) -> None:
    """Raise a SettingError unless there is such a function, or it is one of `names`.

    Nothing is imported: the source is read. Where a name may appear only when the module runs
    (``from x import *``, no source), it is believed.
    """
    if reference in names:
        return
    place, _, name = reference.rpartition(":")
    if not place or not name:
        near = get_close_matches(reference, names, n=1)
        known = f"{', '.join(names)}, " if names else ""
        raise SettingError(f"did you mean {near[0]!r}?" if near else f"give {known}{FORMS}")
    source = Path(folder) / place if place.endswith(".py") else _source_of(place)
    if source is None:
        return
    if not source.is_file():
        raise SettingError(f"there is no file {source}")
    try:
        tree = ast.parse(source.read_bytes(), filename=str(source))
    except (SyntaxError, ValueError) as error:
        raise SettingError(f"{source} is no Python: {error}") from error
    found = list(_bound_names(tree))
    if name not in found and "*" not in found and "__getattr__" not in found:
        near = get_close_matches(name, found, n=1)
        public = [each for each in dict.fromkeys(found) if not each.startswith("_")]
        hint = f"did you mean {near[0]!r}?" if near else f"it has {_listed(public)}"
        raise SettingError(f"{place} has no {name!r}; {hint}")


def load_reference(reference: str) -> Any:
    """Import what a reference names."""
    place, _, name = reference.rpartition(":")
    module = import_place(reference, place)
    if not hasattr(module, name):
        raise TargetError(f"{reference}: {place} has no {name!r}")
    return getattr(module, name)


def located(reference: str, folder: str) -> str:
    """Give the file that a reference leads to, so that namesakes in other folders differ.

    It is told as :func:`place_in_project` does. Nothing for built-in names, for what is installed,
    and for what cannot be found.
    """
    place = reference.rpartition(":")[0]
    if not place or place.partition(".")[0] in sys.stdlib_module_names:
        return ""
    try:
        source = Path(folder) / place if place.endswith(".py") else _source_of(place)
    except SettingError:
        return ""
    return "" if source is None or is_installed(source) else place_in_project(source)


def place_in_project(file: Path) -> str:
    """Give a path relative to the project that it belongs to; an absolute one outside of projects.

    A project may lie elsewhere on another day or machine.
    """
    file = file.resolve()
    for mark in MARKS_OF_A_PROJECT:
        root = next((each for each in file.parents if (each / mark).exists()), None)
        if root is not None:
            return file.relative_to(root).as_posix()
    return file.as_posix()


def is_installed(file: Path) -> bool:
    """Say whether a file belongs to an environment, wherever that is."""
    return any(part in INSTALLED for part in file.parts)


def _source_of(module: str) -> Path | None:
    """Find the source of a module without importing it or its packages; None if it has none."""
    spec: ModuleSpec | None = None
    for depth, part in enumerate(module.split(".")):
        if depth == 0:
            spec = PathFinder.find_spec(part, [os.getcwd(), *sys.path]) or _found_otherwise(part)
        else:
            assert spec is not None
            inside = list(spec.submodule_search_locations or [])
            spec = PathFinder.find_spec(f"{spec.name}.{part}", inside)
        if spec is None:
            missing = ".".join(module.split(".")[: depth + 1])
            raise SettingError(f"there is no module {missing}")
    assert spec is not None
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _found_otherwise(name: str) -> ModuleSpec | None:
    """Ask the finders of installed packages that are edited in place, and the built-in ones."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _bound_names(tree: ast.AST) -> Iterator[str]:
    """Give the names that the top level of a module binds; `*` for a star import."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (each.asname or each.name for each in names)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case _:
                yield from _bound_names(node)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(names[:NAMES_SHOWN]) or "nothing") + more
