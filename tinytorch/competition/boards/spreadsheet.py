"""Tables for spreadsheets: comma-separated, and nothing in them is computed."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Cell", "csv_text"]

Cell = str | int | float | None
FORMULA_STARTS = ("=", "+", "-", "@")
"""What makes a spreadsheet compute a cell instead of showing it."""


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Cell]]) -> str:
    """Write a table as RFC 4180 wants it.

    A row may lack columns: these cells are empty. Text that a spreadsheet would compute gets an
    apostrophe in front; numbers stay what they are.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_defused(row.get(name)) for name in columns] for row in rows)
    return file.getvalue()


def _defused(cell: Cell) -> str:
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return str(cell)
    text = " ".join(cell.split())
    # A full-width equals sign counts as one, too.
    is_formula = unicodedata.normalize("NFKC", text).lstrip().startswith(FORMULA_STARTS)
    return f"'{text}" if is_formula else text
