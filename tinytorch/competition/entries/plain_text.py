"""Text that others wrote and that will be shown: what may stand in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["as_plain", "as_plain_fields", "find_hidden_letter", "visible_path"]

# Letters that steer a terminal, turn the reading order round, or are no letters at all. A line end
# and a tabulator are fine.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def as_plain(text: str) -> str:
    """Replace every letter that cannot be seen for what it is.

    >>> as_plain("a\\x1b[31mb") == "a\N{REPLACEMENT CHARACTER}[31mb"
    True
    """
    return text if text.isprintable() else HIDDEN.sub(REPLACEMENT, text)


def as_plain_fields(value: Any) -> Any:
    """Do so in every text of a description in JSON, the names of its fields included."""
    if isinstance(value, str):
        return as_plain(value)
    if isinstance(value, Mapping):
        return {as_plain_fields(name): as_plain_fields(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain_fields(each) for each in value]
    return value


def find_hidden_letter(value: Any) -> str | None:
    """Give the first such letter in any text of a JSON value, written in ASCII, or None."""
    waiting = [value]  # No recursion: a value may be nested as deeply as somebody likes.
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            found = None if each.isprintable() else HIDDEN.search(each)
            if found is not None:
                return ascii(found.group())
        elif isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
    return None


def visible_path(path: str) -> str:
    """Write a path so that every letter of it can be seen, and so that it is one line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in path)
