"""Finding the workload that a target names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tinytorch.errors import MissingPartError, SettingError, TargetError, TinyTorchError
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import ZOO, load_zoo

__all__ = [
    "as_workload",
    "check_reference",
    "import_place",
    "is_installed",
    "load_reference",
    "load_workload",
    "located",
    "place_in_project",
    "resolved",
]


NAMES_SHOWN = 10
FORMS = (
    f"a built-in name ({', '.join(ZOO)}), file.py:factory, package.module:factory, or hf:PATH, the "
    "folder of a transformers model"
)
HF = "hf:"


def load_workload(target: str, *, data: str | Path | None = None) -> Workload:
    """Return the workload that a target names.

    A target is a built-in name, ``file.py:factory``, ``package.module:factory`` or ``hf:PATH``, a
    folder as transformers saves a model. The factory takes no arguments and returns a Workload, or
    a model and its inputs: ``model, x``, ``model, (x, y)`` or, by name, ``model, {"x": x}``.
    `data`, for ``hf:PATH``, is a file of texts, one JSON object a line, to judge the model by.
    """
    if data is not None and not target.startswith(HF):
        raise TargetError(
            f"{data} is for hf:PATH targets; {target} says how it is evaluated by itself"
        )
    if target in ZOO:
        return load_zoo(target)
    if target.startswith(HF):
        return _load_hf(target, data)
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        near = get_close_matches(target, ZOO, n=1)
        if target.endswith(".py"):
            hint = f"name the function that returns the workload: {target}:make"
        else:
            hint = f"did you mean {near[0]!r}?" if near else f"pass {FORMS}"
        raise TargetError(f"{target!r} is not a target: {hint}")
    factory = _find_factory(target, import_place(target, place), name)
    try:
        made = factory()
    except TinyTorchError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{target}: {name}() raised {type(error).__name__}: {error}") from error
    return as_workload(target, made)


def _load_hf(target: str, data: str | Path | None) -> Workload:
    try:
        from tinytorch.models.hf_torch import load_hf
    except ImportError as error:
        raise MissingPartError(f'{target} needs {error.name}: pip install ".[torch,hf]"') from error
    return load_hf(target.removeprefix(HF), data)


def import_place(target: str, place: str) -> ModuleType:
    """Import the file or module of a target, whose name errors bear."""
    try:
        if place.endswith(".py"):
            return _import_file(Path(place))
        with _importing_from(Path.cwd()):
            return importlib.import_module(place)
    except TargetError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"{target}: {place} does not import: {type(error).__name__}: {error}"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"there is no file {path}")
    folder = path.parent.resolve()
    _forget_namesakes(folder)
    name = path.stem
    if name in sys.modules and name not in _neighbours:
        name = f"target_{name}"  # a file may be called as a module of the standard library is
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = set(sys.modules) - {name}
    sys.modules[name] = module  # torch.compile looks up the modules of what it compiles
    try:
        with _importing_from(folder):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    for name in set(sys.modules) - known:
        if _is_in(folder, sys.modules[name]):
            _neighbours[name] = folder
    return module


_neighbours: dict[str, Path] = {}
"""Modules that targets in files have imported from their own folders."""


def _forget_namesakes(folder: Path) -> None:
    """Let a file import its own neighbours, not those of the same name of an earlier target."""
    for name, home in list(_neighbours.items()):
        top = name.partition(".")[0]
        has_own = (folder / f"{top}.py").exists() or (folder / top).is_dir()
        if home != folder and has_own:
            del _neighbours[name]
            sys.modules.pop(name, None)


def _is_in(folder: Path, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and folder in Path(file).resolve().parents


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _find_factory(target: str, module: ModuleType, name: str) -> Callable[[], Any]:
    factory = getattr(module, name, None)
    if callable(factory):
        return factory
    functions = [
        key
        for key, value in vars(module).items()
        if callable(value) and key[0] != "_" and value.__module__ == module.__name__
    ]
    raise TargetError(
        f"{target}: {module.__name__} has no function {name!r}; "
        f"it has {_listed(functions) or 'none'}"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def as_workload(target: str, made: Any) -> Workload:
    """Return the workload that a factory made, or a model and its inputs as one."""
    if isinstance(made, Workload):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        model, inputs = made
        if callable(model) or hasattr(model, "forward"):
            return Workload(name=target, model=model, inputs=inputs)
    raise TargetError(
        f"{target} returned a {type(made).__name__}; it must return a Workload, or a model and "
        "its inputs: `return model, x`"
    )


# ---------------------------------------------------------------- functions that a suite names, as
# `file.py:name` or `package.module:name`: checked without running anything, and loaded later, in a
# process of their own

REFERENCE_FORMS = "file.py:name or package.module:name"
INSTALLED = ("site-packages", "dist-packages")
MARKS_OF_A_PROJECT = (".git", "pyproject.toml")
"""What the folder of a project has; the repository counts, where there is one."""


def resolved(reference: str, folder: str) -> str:
    """Return the reference with its file, if it has one, found from a folder on."""
    if reference.startswith(HF):
        return f"{HF}{Path(folder) / reference.removeprefix(HF)}"
    place, _, name = reference.rpartition(":")
    return f"{Path(folder) / place}:{name}" if place.endswith(".py") else reference


def check_reference(reference: str, folder: str, *, names: Sequence[str] = ()) -> None:
    """Raise a SettingError unless there is such a function, or it is one of `names`.

    Nothing is imported: the source is read. Where a name may appear only when the module runs
    (``from x import *``, no source), it is believed.
    """
    if reference in names:
        return
    if reference.startswith(HF):
        if not Path(folder, reference.removeprefix(HF), "config.json").is_file():
            raise SettingError("there is no folder with a config.json of transformers")
        return
    place, _, name = reference.rpartition(":")
    if not place or not name:
        near = get_close_matches(reference, names, n=1)
        known = f"{', '.join(names)}, " if names else ""
        raise SettingError(
            f"did you mean {near[0]!r}?" if near else f"pass {known}{REFERENCE_FORMS}"
        )
    source = Path(folder) / place if place.endswith(".py") else _source_of(place)
    if source is None:
        return
    if not source.is_file():
        raise SettingError(f"there is no file {source}")
    try:
        tree = ast.parse(source.read_bytes(), filename=str(source))
    except (SyntaxError, ValueError) as error:
        raise SettingError(f"{source} is not valid Python: {error}") from error
    found = list(_bound_names(tree))
    if name not in found and "*" not in found and "__getattr__" not in found:
        near = get_close_matches(name, found, n=1)
        public = [each for each in dict.fromkeys(found) if not each.startswith("_")]
        hint = f"did you mean {near[0]!r}?" if near else f"it has {_listed_names(public)}"
        raise SettingError(f"{place} has no {name!r}; {hint}")


def load_reference(reference: str) -> Any:
    """Import what a reference names."""
    place, _, name = reference.rpartition(":")
    module = import_place(reference, place)
    if not hasattr(module, name):
        raise TargetError(f"{reference}: {place} has no {name!r}")
    return getattr(module, name)


def located(reference: str, folder: str) -> str:
    """Return the file of a reference, which tells namesakes in other folders apart.

    The path is as of :func:`place_in_project`; empty for built-in names, installed modules and
    modules that are not found.
    """
    if reference.startswith(HF):
        return place_in_project(Path(folder, reference.removeprefix(HF)))
    place = reference.rpartition(":")[0]
    if not place or place.partition(".")[0] in sys.stdlib_module_names:
        return ""
    try:
        source = Path(folder) / place if place.endswith(".py") else _source_of(place)
    except SettingError:
        return ""
    return "" if source is None or is_installed(source) else place_in_project(source)


def place_in_project(file: Path) -> str:
    """Return a path relative to its project, which may move; absolute outside of projects."""
    file = file.resolve()
    for mark in MARKS_OF_A_PROJECT:
        root = next((each for each in file.parents if (each / mark).exists()), None)
        if root is not None:
            return file.relative_to(root).as_posix()
    return file.as_posix()


def is_installed(file: Path) -> bool:
    """Return whether a file belongs to an environment, wherever that is."""
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
    """Yield the names that the top level of a module binds; `*` for a star import."""
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


def _listed_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(names[:NAMES_SHOWN]) or "nothing") + more
