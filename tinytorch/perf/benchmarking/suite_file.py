"""Reading a suite from TOML, or from a Python function; everything is checked at once."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.perf.benchmarking.entries import NO_TRANSFORM, Suite, SuiteWorkload, one_of
from tinytorch.perf.benchmarking.references import check_reference, load_reference
from tinytorch.perf.benchmarking.scenario_settings import SCENARIOS, Scenario
from tinytorch.workloads.zoo import ZOO

__all__ = ["load_suite"]

Made = TypeVar("Made")

SUITE_KEYS = ("name", "budget_s", "timeout_s", "workload", "scenario")
OWN_SETTINGS = ("name", "budget_s", "timeout_s")


def load_suite(place: str) -> Suite:
    """Give the suite in a TOML file, or the one that ``file.py:name`` or ``module:name`` gives.

    In Python the name is that of a Suite, or of a function that returns one. Wrong keys, values,
    targets and transforms are a SettingError that names the file and the key. Nothing that is to
    be measured is imported.
    """
    if place.endswith(".toml"):
        suite = _from_toml(Path(place))
    elif ":" in place:
        suite = _from_python(place)
    else:
        hint = f"{place}:suite" if place.endswith(".py") else "suite.toml or file.py:suite"
        raise SettingError(f"{place!r} is no suite; give {hint}")
    _check_references(suite, place)
    return suite


def _from_toml(path: Path) -> Suite:
    try:
        fields = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is no TOML: {error}") from error
    _check_keys(fields, SUITE_KEYS, str(path))
    workloads = fields.get("workload")
    if not isinstance(workloads, list) or not workloads:
        raise SettingError(f"{path} has no workload; add a table [[workload]] with a target")
    made = [
        _make(SuiteWorkload, each, f"{path}: workload {number}")
        for number, each in enumerate(workloads, start=1)
    ]
    own = {name: fields[name] for name in OWN_SETTINGS if name in fields}
    own.setdefault("name", path.stem)
    return _naming(
        str(path),
        lambda: Suite(
            **own,
            workloads=made,
            scenarios=_scenarios(fields.get("scenario", {}), path),
            folder=str(path.absolute().parent),
        ),
    )


def _scenarios(tables: object, path: Path) -> list[Scenario]:
    if not isinstance(tables, Mapping):
        raise SettingError(f"{path}: scenario = {tables!r}; give tables such as [scenario.server]")
    _check_keys(tables, tuple(SCENARIOS), f"{path}: scenario")
    made: list[Scenario] = []
    for name, fields in tables.items():
        kind: Callable[..., Scenario] = SCENARIOS[name]
        made.append(_make(kind, fields, f"{path}: scenario.{name}"))
    return made


def _from_python(place: str) -> Suite:
    _naming(place, partial(check_reference, place, ""))
    found = load_reference(place)
    if not isinstance(found, Suite) and callable(found):
        try:
            found = found()
        except TinyTorchError:
            raise
        except Exception as error:
            raise SettingError(f"{place} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Suite):
        raise SettingError(f"{place} is a {type(found).__name__}; it must be or return a Suite")
    file = place.rpartition(":")[0]
    return found.in_folder(Path(file).parent if file.endswith(".py") else Path.cwd())


def _make(kind: Callable[..., Made], fields: object, where: str) -> Made:
    """Make settings from a table, naming the file and the key in what is wrong."""
    if not isinstance(fields, Mapping):
        raise SettingError(f"{where} is {fields!r}; give a table")
    known = [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if kind is SuiteWorkload and "target" not in fields:
        raise SettingError(f"{where} has no target; give one of {', '.join(ZOO)}, or file.py:name")
    _check_keys(fields, known, where)
    return _naming(where, lambda: kind(**fields))


def _check_keys(fields: Mapping[str, Any], known: tuple[str, ...] | list[str], where: str) -> None:
    for key in fields:
        if key not in known:
            raise SettingError(f"{where} has the unknown key {key!r}; {one_of(key, known)}")


def _check_references(suite: Suite, place: str) -> None:
    """Look for every target and transform, before any of them runs."""
    for number, workload in enumerate(suite.workloads, start=1):
        where = f"{place}: workload {number}"
        for key, names, references in (
            ("target", tuple(ZOO), (workload.target,)),
            ("transforms", (NO_TRANSFORM,), workload.transforms),
        ):
            for each in references:
                check = partial(check_reference, each, suite.folder, names=names)
                _naming(f"{where}: {key} {each!r}", check)


def _naming(where: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error
