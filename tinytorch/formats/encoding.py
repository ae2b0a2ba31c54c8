"""What an encoding is: a way to keep arrays as plain parts and a short text.

An encoding turns an array into named parts, which are plain arrays, and a short text of settings;
shape and settings together say what the parts look like. `encodings.py` has the table of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinytorch.core.backends.backend import Array
from tinytorch.formats.tensor_file import TensorSpec

__all__ = ["MAIN", "Encoded", "Encoding", "Shape"]

MAIN = ""
"""The part that has the name of the array itself."""

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Encoded:
    """An array as an encoding keeps it. The settings are words, separated by single spaces."""

    shape: Shape
    settings: str
    parts: dict[str, Array]


@dataclass(frozen=True)
class Encoding:
    """One way to keep arrays.

    accepts: whether an array is of the kind that this encoding is for.
    encode: take an array apart; raises a TinyTorchError for one that would not come back as it is.
    layout: say what the parts of an array with this shape and these settings look like. Both come
        from a file and may be anything: it raises a ValueError then, and allocates nothing.
    decode: give the array back; the parts are as the layout says, but may hold anything: it raises
        a ValueError if they mean nothing.
    """

    accepts: Callable[[Any], bool]
    encode: Callable[[Any], Encoded]
    layout: Callable[[Shape, str], dict[str, TensorSpec]]
    decode: Callable[[Encoded], Any]
