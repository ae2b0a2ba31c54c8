"""What shows a result, found by its type in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from tinytorch.errors import SettingError

__all__ = ["are_many", "loaded", "row_for"]


def are_many(result: Any) -> bool:
    """Tell whether these are several results, such as the outcomes of a suite."""
    return isinstance(result, Sequence) and not isinstance(result, str)


def loaded(name: str) -> Any:
    """Return what a row such as ``package.module:function`` names; its module is imported now."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def row_for(result: Any, table: Mapping[str, str], *, face: str) -> str:
    """Find the row for the type of a result; several are of the type of the first.

    Types are written as ``package.module.Name``, so that a table imports none of them. `face` is
    what the table is about, such as "HTML report".
    """
    if are_many(result) and not result:
        raise SettingError("there is nothing to report: no results were given")
    kind = type(result[0] if are_many(result) else result)
    rows = [table.get(f"{each.__module__}.{each.__qualname__}") for each in kind.__mro__]
    found = next(filter(None, rows), None)
    if found is None:
        known = ", ".join(sorted(each.rpartition(".")[2] for each in table))
        raise SettingError(f"a {kind.__name__} has no {face}; there is one for: {known}")
    return found
