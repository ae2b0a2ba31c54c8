"""What is said of an error that the code of an entry raised: what it is, and in which line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

from tinytorch.competition.cell.contender import Contender
from tinytorch.errors import first_line

__all__ = ["failure_text"]


def failure_text(doing: str, error: BaseException, contender: Contender) -> str:
    """Say in one line what was raised, first the line of the entry's own code that led to it.

    It reads as ``model.py:14 in make: building it raised ZeroDivisionError: division by zero``.
    """
    said = f"{doing} raised {first_line(error)}"
    if contender.code is None:
        return said
    home = Path(contender.code.rpartition(":")[0]).parent
    homes = (home, home.resolve())
    place = next((found for each in _chain(error) if (found := _place_in(homes, each))), "")
    return f"{place}: {said}" if place else said


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Give an error and those that it came from, the last first."""
    met: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in met:  # code may tie them to a ring
        met.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _place_in(homes: tuple[Path, ...], error: BaseException) -> str:
    """Name the innermost line of an error's traceback that lies in the folder, or nothing."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        home = next((each for each in homes if path.is_relative_to(each)), None)
        if home is not None:
            place = f"{path.relative_to(home)}:{line} in {frame.f_code.co_name}"
    return place
