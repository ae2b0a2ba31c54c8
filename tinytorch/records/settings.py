"""What a project has written down about its gate, in ``[tool.tinytorch.gate]``."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tinytorch import reading
from tinytorch.codec import DataError, decode
from tinytorch.errors import SettingError, check_number, did_you_mean

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
        check_number("margin", self.margin, least=0)
        check_number("budget_s", self.budget_s, above=0)
        check_number("timeout_s", self.timeout_s, above=0)

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
        contents = reading.read_toml(file)
    except (OSError, ValueError) as error:
        raise SettingError(f"{file} cannot be read: {error}") from error
    table: Any = contents
    for name in TABLE.split("."):
        table = table.get(name, {}) if isinstance(table, Mapping) else {}
    if not isinstance(table, Mapping):
        raise SettingError(f"{file}: {TABLE} is no table; write [{TABLE}] above its settings")
    where = f"{file}: {TABLE}"
    known = [each.name for each in fields(GateSettings)]
    if unknown := next((name for name in table if name not in known), None):
        raise SettingError(f"{where} has no setting {unknown!r}; {did_you_mean(unknown, known)}")
    given = dict(table)
    if isinstance(given.get("tolerance"), str):
        given["tolerance"] = parse_share(given["tolerance"])
    try:
        return decode(GateSettings, given)
    except DataError as error:
        raise SettingError(f"{where}: {error}") from error
