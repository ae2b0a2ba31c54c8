"""Where the code of the two sides of a gate comes from: a change that neither runs is no result."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from tinytorch.records.worktrees import python_files

__all__ = ["Origins", "about_code"]

PACKAGE = "__init__.py"


@dataclass(frozen=True)
class Origins:
    """The files that a target was loaded from.

    `own` are those of the side's tree, relative to it, `outside` all others but the standard
    library, both by the name of the module. `file` is the target's, relative to its project.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    file: str = ""


class _Trees:
    """The Python files of both trees, relative to them."""

    def __init__(self, tops: tuple[Path, Path]) -> None:
        self.tops = tops
        self.files = (python_files(tops[0]), python_files(tops[1]))
        self._by_tail = tuple(_by_tail(each) for each in self.files)

    def differ_in(self, file: str) -> bool:
        """Say whether the trees have a file that is not the same on both sides."""
        one, other = (top / file for top in self.tops)
        if one.is_file() and other.is_file():
            return not filecmp.cmp(one, other, shallow=False)
        return one.is_file() or other.is_file()

    @cached_property
    def differ(self) -> bool:
        return self.files[0] != self.files[1] or any(map(self.differ_in, self.files[0]))

    def counterparts(self, side: int, module: str, imported: str) -> Iterator[str]:
        """Give the files of a side's tree that could have been imported as a module."""
        wanted = PurePosixPath(*module.split("."))
        is_package = imported.endswith(PACKAGE)
        wanted = wanted / PACKAGE if is_package else wanted.with_name(f"{wanted.name}.py")
        depth = len(wanted.parts)
        for file in self._by_tail[side].get(_tail(wanted), ()):
            parts = PurePosixPath(file).parts
            # A folder inside of a package is nothing to import from.
            outer = PurePosixPath(*parts[:-depth], PACKAGE).as_posix()
            if parts[-depth:] == wanted.parts and outer not in self.files[side]:
                yield file


def _by_tail(files: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for file in sorted(files):
        found.setdefault(_tail(PurePosixPath(file)), []).append(file)
    return found


def _tail(file: PurePosixPath) -> tuple[str, ...]:
    """Give what tells modules apart: the name of the file, for a package that of its folder too."""
    return file.parts[-2:] if file.name == PACKAGE else file.parts[-1:]


def about_code(tops: tuple[Path, Path], origins: tuple[Origins, Origins]) -> tuple[str, str]:
    """Give why the sides do not run the code of their trees, though it differs; and a note.

    Each is empty where there is nothing to say. That each side imports another installed file is
    no reason: then it has an environment of its own.
    """
    trees = _Trees(tops)
    problem = _shadowed(trees, origins) or _all_from_elsewhere(trees, origins)
    imported = {*origins[0].own.values(), *origins[1].own.values()}
    if problem or not imported or any(map(trees.differ_in, imported)) or not trees.differ:
        return problem, ""
    return "", "no Python file that this target imports differs between the two sides"


def _shadowed(trees: _Trees, origins: tuple[Origins, Origins]) -> str:
    """Name a module that a tree has, and has changed, but that was imported from elsewhere."""
    for side in (1, 0):
        for module, imported in sorted(origins[side].outside.items()):
            other = origins[1 - side].outside.get(module)
            if not imported.endswith(".py") or other not in (None, imported):
                continue
            for file in trees.counterparts(side, module, imported):
                if trees.differ_in(file):
                    return _sentence(("baseline", "candidate")[side], module, imported, file)
    return ""


def _sentence(side: str, module: str, imported: str, file: str) -> str:
    above = len(module.split(".")) - (not file.endswith(PACKAGE))
    folder = PurePosixPath(file).parents[above]
    return (
        f"the {side} imports {module} from {imported}, and not {file} of its own tree, which "
        "differs between the two sides: the change would not be measured; put the folder "
        f"{folder} on PYTHONPATH, or give each side an environment with --setup and --python"
    )


def _all_from_elsewhere(trees: _Trees, origins: tuple[Origins, Origins]) -> str:
    runs_same = dict(origins[0].outside) == dict(origins[1].outside)
    if origins[0].own or origins[1].own or not runs_same or not trees.differ:
        return ""
    return (
        "nothing that this target imports is part of either tree, though the trees differ: both "
        "sides would run the same code; name a target of the repository, or give each side an "
        "environment with --setup and --python"
    )
