"""HTML that is safe by the way it is made: text is escaped unless it is Markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["Markup", "element", "joined", "listed"]

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
