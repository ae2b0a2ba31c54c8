"""What a project has written down about its gate, in ``[tool.tinytorch.gate]``."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tinytorch.errors import SettingError

__all__ = ["SMALLEST_TOLERANCE", "GateSettings", "parse_share", "read_gate_settings"]

FILE = "pyproject.toml"
TABLE = "tool.tinytorch.gate"
SMALLEST_TOLERANCE = 0.005
"""The floor of the comparer: what is smaller may come from where code and arrays lie."""


@dataclass(frozen=True)
class GateSettings:
    """What to measure, and how much worse it may get.

    `tolerance` is a share of the baseline's time, `margin` is in the unit of the scores, `budget_s`
    the seconds of timing per target. `setup` is a command of the shell that prepares the folder of
    each side. `python` is the interpreter of both sides; one such as ``.venv/bin/python`` is looked
    for in each folder. A request to a side that takes longer than `timeout_s` is given up.
    """

    targets: tuple[str, ...] = ()
    tolerance: float = 0.05
    budget_s: float = 20.0
    margin: float = 0.01
    setup: str = ""
    python: str = ""
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if not self.tolerance >= SMALLEST_TOLERANCE:
            raise SettingError(
                f"a tolerance of {self.tolerance:.2%} is below {SMALLEST_TOLERANCE:.1%}, the least "
                "that can be told from where code lies in memory; give a larger one"
            )
        if not self.tolerance < 1:
            raise SettingError(
                f"a tolerance of {self.tolerance:.0%} is no share below 1; 5% is 0.05 or '5%'"
            )
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise SettingError(f"margin={self.margin}; it must be zero or a positive number")
        for name in ("budget_s", "timeout_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise SettingError(f"{name}={value}; it must be a number of seconds above zero")

    def changed(self, **settings: Any) -> GateSettings:
        """Return the settings with these replaced; None leaves a setting unchanged."""
        given = {name: value for name, value in settings.items() if value is not None}
        return replace(self, **given)


def parse_share(text: str | float) -> float:
    """Read a share of 1, also in percent.

    >>> parse_share("5%"), parse_share("0.05"), parse_share(0.05)
    (0.05, 0.05, 0.05)
    """
    is_percent = isinstance(text, str) and text.strip().endswith("%")
    try:
        number = float(text.strip().removesuffix("%") if isinstance(text, str) else text)
    except (TypeError, ValueError):
        number = math.nan
    share = number / 100 if is_percent else number
    if not 0 <= share < 1:
        percent = f"; {number:g} percent is '{number:g}%'" if 1 <= number <= 100 else ""
        raise SettingError(f"{text!r} is no share below 1; give 0.05 or '5%'{percent}")
    return share


def read_gate_settings(folder: str | os.PathLike[str], *, top: Path | None = None) -> GateSettings:
    """Read the settings of the project that a folder belongs to; defaults where there are none.

    The nearest ``pyproject.toml`` counts, from the folder upwards, but not above `top`.
    """
    here = Path(folder).resolve()
    for each in (here, *here.parents):
        file = each / FILE
        if file.is_file():
            return _settings_in(file)
        if top is not None and each == top.resolve():
            break
    return GateSettings()


def _settings_in(file: Path) -> GateSettings:
    try:
        contents = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{file} cannot be read: {error}") from error
    table: Any = contents
    for name in TABLE.split("."):
        table = table.get(name, {}) if isinstance(table, Mapping) else {}
    if not isinstance(table, Mapping):
        raise SettingError(f"{file}: {TABLE} is no table; write [{TABLE}] above its settings")
    return GateSettings(**{name: _checked(file, name, value) for name, value in table.items()})


def _checked(file: Path, name: str, value: Any) -> Any:
    known = [each.name for each in fields(GateSettings)]
    if name not in known:
        near = get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        raise SettingError(f"{file}: {TABLE} has no setting {name!r}; {advice}")
    where = f"{file}: {TABLE}.{name}"
    if name == "targets":
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise SettingError(f"{where} is {value!r}; give a list such as ['bench.py:make']")
        return tuple(value)
    if name in ("setup", "python"):
        if not isinstance(value, str):
            raise SettingError(f"{where} is {value!r}; give text")
        return value
    if name == "tolerance" and isinstance(value, str):
        return parse_share(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"{where} is {value!r}; give a number")
    return float(value)
