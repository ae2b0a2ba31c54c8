"""What can be said about the code of an entry by reading it; it is never run here."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from pathlib import PurePosixPath

from tinytorch.competition.entries.entry import Entry, EntryError, shown
from tinytorch.competition.entries.entry_file import entry_files
from tinytorch.competition.rules import Finding, finding

__all__ = ["check_code"]

ALLOWED_PACKAGES = frozenset({"tinytorch", "numpy"})
LOADERS = frozenset({"ctypes", "importlib", "pkgutil", "runpy", "zipimport"})
"""Modules of the standard library that load what no import names."""
LOADING_CALLS = frozenset({"__import__", "eval", "exec", "compile"})
COMPILED_FILES = frozenset({".so", ".pyd", ".dll", ".dylib", ".pyc"})


def check_code(entry: Entry) -> tuple[Finding, ...]:
    """Give what is wrong with the code of an entry: E8, and for learners E7."""
    if entry.code is None:
        return ()
    try:
        names = entry_files(entry)
    except EntryError as error:
        return (error.finding,)
    trees: dict[str, ast.Module] = {}
    findings: list[Finding] = []
    for name in names:
        if name.endswith(".py"):
            parsed = _parse(entry, name)
            if isinstance(parsed, Finding):
                findings.append(parsed)
            else:
                trees[name] = parsed
    findings += _check_function(entry.code, trees)
    if entry.division == "learner":
        findings += _check_learner(names, trees)
    return tuple(findings)


def _parse(entry: Entry, name: str) -> ast.Module | Finding:
    try:
        source = (entry.folder / name).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the style of somebody else's code
            return ast.parse(source)
    except SyntaxError as error:
        return finding("E8", f"{name}, line {error.lineno}: {error.msg}", "mend the code")
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        return finding("E8", f"{name} cannot be read as Python: {error}", "mend the code")


def _check_function(code: str, trees: dict[str, ast.Module]) -> Iterator[Finding]:
    file, _, function = code.rpartition(":")
    if file in trees and function not in _bound_names(trees[file]):
        yield finding(
            "E8",
            f"{file} defines no {function}",
            f"write def {function}(reference, techniques): ...",
        )


def _bound_names(tree: ast.Module) -> set[str]:
    """Give all names that a file gives to anything, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=asname):
                found.add(asname or name)
    return found


# ---------------------------------------------------------------- learners


def _check_learner(names: tuple[str, ...], trees: dict[str, ast.Module]) -> Iterator[Finding]:
    own = {PurePosixPath(name).parts[0].removesuffix(".py") for name in trees}
    for name in names:
        if PurePosixPath(name).suffix in COMPILED_FILES:
            yield finding("E7", f"{name} is compiled", "leave it out")
    for name, tree in trees.items():
        for line, what in _loaded(tree, own):
            yield finding("E7", f"{name}, line {line}: {what}")


def _loaded(tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    """Give line and words for everything by which a file loads what learners do not use."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                packages = [each.name.partition(".")[0] for each in aliases]
            case ast.ImportFrom(module=str(module), level=0):
                packages = [module.partition(".")[0]]
            case ast.Call(func=ast.Name(id=name)) if name in LOADING_CALLS:
                yield node.lineno, f"calls {name}, with which anything can be loaded"
                continue
            case _:
                continue
        assert isinstance(node, ast.Import | ast.ImportFrom)
        for package in packages:
            if package not in own and (told := _why_not(package)):
                yield node.lineno, told


def _why_not(package: str) -> str:
    """Say why learners do not import a package, or nothing."""
    if package in LOADERS:
        return f"imports {package}, with which anything can be loaded"
    if package in ALLOWED_PACKAGES or package in sys.stdlib_module_names:
        return ""
    return f"imports {shown(package)}; learners use the standard library, NumPy and TinyTorch"
