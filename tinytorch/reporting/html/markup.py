"""HTML that is safe by the way it is made: text is escaped unless it is Markup already."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from tinytorch.reporting.document import Cell, Column, Kind, Row, depths

VOID = frozenset({"br", "circle", "hr", "img", "input", "line", "link", "meta", "path", "rect"})
"""Elements that hold nothing."""

Attribute = str | int | float | bool | None


class Markup(str):
    """HTML or SVG that may be put into a page as it is. Made by :func:`element`, not by hand."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """Make an element. Children are escaped unless they are Markup, attributes always.

    The underscore at the end of a name is dropped and others become dashes: ``class_="a"``,
    ``data_sort=3``. An attribute that is None or False is left out, True has no value.

    >>> element("td", "a < b", class_="number", data_sort=3)
    '<td class="number" data-sort="3">a &lt; b</td>'
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID and not children:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{joined(children)}</{tag}>")


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Put pieces in a row; what is no Markup is escaped."""
    return Markup(_safe(between).join(_safe(part) for part in parts))


def listed(lines: Iterable[str]) -> Markup:
    """Write lines as a list."""
    return element("ul", *(element("li", line) for line in lines), class_="notes")


def packed(value: Any, name: str) -> Markup:
    """Return data for the scripts of a page: JSON, gzipped, in letters.

    JSON has no NaN and no infinity; they become null.
    """
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    letters = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
    return element("script", Markup(letters), type="application/gzip+json", id=name)


def _finite(value: Any) -> Any:
    """Return the same value with None for what is not a finite number."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return _finite(value.tolist()) if hasattr(value, "tolist") else value  # of NumPy


def _safe(part: str) -> str:
    return part if isinstance(part, Markup) else escape(part)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {shown}"
    if isinstance(value, float):
        value = f"{value:.6g}"
    return f' {shown}="{escape(str(value))}"'


# ---------------------------------------------------------------- tables: numbers that can be
# sorted, bars beside them, and trees whose branches fold


def table(
    columns: Sequence[Column],
    rows: Sequence[Row | Sequence[Cell | str]],
    *,
    caption: str = "",
    sortable: bool = True,
    class_: str = "",
) -> Markup:
    """Return a table that scrolls sideways where the screen is narrow.

    Rows are sequences of cells, or :class:`Row` for a tree, which stays one when it is sorted. The
    first column heads its rows.
    """
    whole = [each if isinstance(each, Row) else Row(each) for each in rows]
    parents = {row.parent for row in whole if row.parent is not None}
    deep = depths(whole)
    body = [
        _row(row, columns, depth, has_children=row.path is not None and row.path in parents)
        for row, depth in zip(whole, deep, strict=True)
    ]
    head = element("tr", *(_heading(column, is_sortable=sortable) for column in columns))
    classes = ["table", "sortable" if sortable else "", "tree" if parents else "", class_]
    drawn = element(
        "table",
        element("caption", caption) if caption else Markup(""),
        element("thead", head),
        element("tbody", *body),
        class_=" ".join(filter(None, classes)),
    )
    scroll = element("div", drawn, class_="scroll")
    return element("div", _fold_buttons(), scroll, class_="foldable") if parents else scroll


def _heading(column: Column, *, is_sortable: bool) -> Markup:
    about = column.about or None
    inside = element("button", column.title, type="button", title=about) if is_sortable else None
    return element(
        "th",
        inside or column.title,
        scope="col",
        class_=_kind_class(column.kind),
        title=None if inside else about,
    )


def _row(row: Row, columns: Sequence[Column], depth: int, *, has_children: bool) -> Markup:
    assert len(row.cells) == len(columns), f"{len(row.cells)} cells in {len(columns)} columns"
    cells = []
    for place, (given, column) in enumerate(zip(row.cells, columns, strict=True)):
        cell = given if isinstance(given, Cell) else Cell(given)
        is_head = place == 0
        fold = _fold_button(row) if is_head and has_children else None
        cells.append(_cell(cell, column, is_head=is_head, fold=fold, depth=depth if is_head else 0))
    return element(
        "tr",
        *cells,
        class_=row.tone or None,
        data_path=row.path,
        data_parent=row.parent,
    )


def _cell(cell: Cell, column: Column, *, is_head: bool, fold: Markup | None, depth: int) -> Markup:
    parts: list[str] = [cell.text] if fold is None else [fold, cell.text]
    if cell.bar is not None:
        share = min(1.0, max(0.0, cell.bar))
        parts.append(element("i", class_="bar", style=f"--share:{share:.4g}"))
    return element(
        "th" if is_head else "td",
        *parts,
        scope="row" if is_head else None,
        class_=" ".join(filter(None, (_kind_class(column.kind), cell.tone))) or None,
        data_sort=None if cell.sort is None else _all_digits(cell.sort),
        title=cell.title or None,
        style=f"--depth:{depth}" if depth else None,
    )


def _all_digits(value: float | str) -> str:
    """Return a number exactly, in few characters: an attribute that is a float would be rounded."""
    if isinstance(value, str):
        return value
    short = f"{value:g}"
    return short if float(short) == value else str(value)


def _kind_class(kind: Kind) -> str | None:
    return {"text": None, "code": "code", "number": "number", "bar": "number bars"}[kind]


def _fold_button(row: Row) -> Markup:
    return element(
        "button",
        type="button",
        class_="fold",
        aria_expanded="false" if row.is_folded else "true",
        aria_label=f"What is inside of {row.path}",
    )


def _fold_buttons() -> Markup:
    return element(
        "p",
        element("button", "Open all", type="button", data_fold="open"),
        element("button", "Fold all", type="button", data_fold="close"),
        class_="tools",
    )
