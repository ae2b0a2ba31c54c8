"""The files of the project, for tests that read them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tinytorch"
TESTS = ROOT / "tests"
LABS = PACKAGE / "learning" / "labs"

# Folders that hold nothing we wrote, as in .gitignore.
FOREIGN_FOLDERS = {".git", ".venv", "venv", "build", "dist", "htmlcov", "__pycache__"}
FOREIGN_ENDINGS = ("_cache", ".egg-info", ".hypothesis")


def project_files() -> Iterator[Path]:
    """Give every file that we wrote, below the project's root."""
    return _files_below(ROOT)


@cache
def package_modules() -> dict[str, ast.Module]:
    """Give the syntax tree of every module of the package, by its dotted name.

    The labs are data: they are read, and never imported.
    """
    return {
        dotted_name(path): ast.parse(path.read_text("utf-8"), filename=str(path))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent != LABS
    }


def dotted_name(path: Path) -> str:
    """Give the name under which a file of the package is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in FOREIGN_FOLDERS or path.name.endswith(FOREIGN_ENDINGS):
            continue  # also the file `.git` of a worktree
        if path.is_file():
            yield path
        else:
            yield from _files_below(path)
