"""Finding the workload that a target names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from tinytorch.errors import TargetError, TinyTorchError
from tinytorch.workloads.workload import Workload
from tinytorch.workloads.zoo import ZOO, load_zoo

__all__ = ["import_place", "load_workload"]

NAMES_SHOWN = 10
FORMS = f"a built-in name ({', '.join(ZOO)}), file.py:factory or package.module:factory"


def load_workload(target: str) -> Workload:
    """Give the workload that a target names.

    A target is a built-in name, ``file.py:factory`` or ``package.module:factory``. The factory
    takes no arguments and returns a Workload, or a model and its inputs: ``model, x``,
    ``model, (x, y)`` or, by name, ``model, {"x": x}``.
    """
    if target in ZOO:
        return load_zoo(target)
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        near = get_close_matches(target, ZOO, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"give {FORMS}"
        raise TargetError(f"{target!r} is no target: {hint}")
    factory = _find_factory(target, import_place(target, place), name)
    try:
        made = factory()
    except TinyTorchError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{target}: {name}() raised {type(error).__name__}: {error}") from error
    return _as_workload(target, made)


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


def _as_workload(target: str, made: Any) -> Workload:
    if isinstance(made, Workload):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        model, inputs = made
        if callable(model) or hasattr(model, "forward"):
            if isinstance(inputs, Mapping):
                return Workload(name=target, model=model, inputs=(), keywords=dict(inputs))
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            return Workload(name=target, model=model, inputs=arguments)
    raise TargetError(
        f"{target} returned a {type(made).__name__}; it must return a Workload, or a model and "
        "its inputs: `return model, x`"
    )
