"""Data of others, read within limits: JSON, TOML, and the header of a safetensors file.

What is too large, too deep, or no data at all raises :class:`ReadingError`, which is a ValueError:
a loader catches it as it catches any other and says which file it was.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from tinytorch.errors import SettingError, TinyTorchError


class ReadingError(SettingError):
    """Data that cannot be read, or that exceeds a limit; the message has one line."""


@dataclass(frozen=True)
class Limits:
    """How large data may be. A byte of JSON becomes up to thirty of memory: items are limited, too.

    `containers` are objects and lists, `items` all that commas separate. Numbers of more digits
    than a float has room for are refused, and so are those that overflow one.
    """

    nbytes: int = 128 << 20
    depth: int = 100
    containers: int = 1_000_000
    items: int = 8_000_000


DATA = Limits()
"""Records, results, what other programs measured."""
SETTINGS = Limits(nbytes=1 << 20, depth=20, containers=10_000, items=50_000)
"""What a person writes, or a program about a model."""
HEADER = Limits(nbytes=100_000_000, depth=20)
"""The header of a safetensors file; the size is that of the safetensors package."""

MOST_DIGITS = 300
LENGTH_BYTES = 8
PIECE = 1 << 20
METADATA = "__metadata__"
LONGEST_SHOWN = 80
READ_BYTES = "TINYTORCH_READ_BYTES"
"""The environment variable that raises the bytes of `DATA`."""

# Texts and comments of TOML, each up to its end or that of the file.
TOML_TEXT = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:"{3,5}|\Z)'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+"
)
TOML_KEY = re.compile(r"[\w.\t -]+")


def read_bytes(path: str | PathLike[str], limits: Limits = DATA) -> bytes:
    """Return a file; raise ReadingError where it is larger, OSError where there is none."""
    content = bytearray()
    most = _most_bytes(limits)
    try:
        with Path(path).open("rb") as file:
            while len(content) <= most and (piece := file.read(PIECE)):
                content += piece
            size = os.fstat(file.fileno()).st_size  # 0 of a pipe
    except ValueError as error:  # a name with a zero byte
        raise ReadingError(f"it cannot be opened: {error}") from error
    if len(content) > most:
        _check_size(max(size, len(content)), limits)
    return bytes(content)


def read_text(path: str | PathLike[str], limits: Limits = DATA) -> str:
    """Return a file of UTF-8 text."""
    return _as_text(read_bytes(path, limits))


def read_json(path: str | PathLike[str], limits: Limits = DATA) -> Any:
    """Return the value in a file of JSON."""
    return parse_json(read_bytes(path, limits), limits)


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the tables of a file of TOML."""
    import tomllib

    text = read_text(path, SETTINGS)
    _check_keys(text, SETTINGS)
    found = _guarded(lambda: tomllib.loads(text), "TOML")
    _check_depth(found, SETTINGS)
    _check_numbers(found)
    return dict(found)


def parse_json(
    content: str | bytes,
    limits: Limits = DATA,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the value in a text of JSON; the hooks are those of `json.loads`."""
    _check_size(len(content), limits)
    text = content if isinstance(content, str) else _as_text(content)
    if text.count("{") + text.count("[") > limits.containers:
        raise ReadingError(f"it has more than {limits.containers:,} objects and lists")
    if text.count(",") > limits.items:
        raise ReadingError(f"it has more than {limits.items:,} items")
    found = _guarded(
        lambda: json.loads(
            text,
            parse_int=_whole_number,
            parse_float=_number,
            parse_constant=parse_constant,
            object_pairs_hook=object_pairs_hook,
        ),
        "JSON",
    )
    _check_depth(found, limits)
    return found


def read_header(path: str | PathLike[str], limits: Limits = HEADER) -> dict[str, Any]:
    """Return the header of a safetensors file: tensors by name, and texts under METADATA.

    The offsets of each tensor lie within the file; the metadata are texts.
    """
    _check_ordinary(path)
    with Path(path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
            raise ReadingError(f"it has {size:,} bytes and announces a header of {length:,}")
        _check_size(length, limits)
        table = parse_json(file.read(length), limits)
    if not isinstance(table, dict):
        raise ReadingError("its header is no object")
    texts = table.get(METADATA, {})
    if not (isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())):
        raise ReadingError("its metadata are no texts")
    for name, row in table.items():
        if name != METADATA:
            _check_tensor(name, row, size - LENGTH_BYTES - length)
    return table


def read_metadata(path: str | PathLike[str]) -> dict[str, str]:
    """Return the texts in the header of a safetensors file."""
    return dict(read_header(path).get(METADATA, {}))


# ---------------------------------------------------------------- text of others that is shown

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


def shown(value: object) -> str:
    """Return how a value of someone else is written in a message: short, without control codes."""
    text = ascii(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# ---------------------------------------------------------------- checks


def _guarded(parse: Callable[[], Any], what: str) -> Any:
    try:
        return parse()
    except TinyTorchError:
        raise
    except RecursionError as error:
        raise ReadingError(f"it is nested too deep for {what} that is data") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        # Malformed TOML has got more than its own error out of the parser.
        raise ReadingError(f"it is no {what}: {error}") from error


def _as_text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReadingError(
            f"UTF-8 cannot decode it: {error.reason} at byte {error.start}"
        ) from error


def _check_ordinary(path: str | PathLike[str]) -> None:
    """Raise for a pipe or a device before it is opened: that may wait for ever."""
    try:
        mode = Path(path).stat().st_mode
    except ValueError as error:  # a name with a zero byte
        raise ReadingError(f"it cannot be opened: {error}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder says what it is
        raise ReadingError("it is no ordinary file")


def _check_size(nbytes: int, limits: Limits) -> None:
    most = _most_bytes(limits)
    if nbytes > most:
        remedy = f"; if you trust it, set {READ_BYTES}={nbytes}" if limits is DATA else ""
        raise ReadingError(f"it is larger than {most:,} bytes: it has {nbytes:,}{remedy}")


def _most_bytes(limits: Limits) -> int:
    """Return how many bytes are read; a user may allow more for `DATA`."""
    own = os.environ.get(READ_BYTES, "") if limits is DATA else ""
    return max(limits.nbytes, int(own) if own.isdecimal() else 0)


def _whole_number(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ReadingError(f"a number has {len(text):,} digits, at most {MOST_DIGITS} are read")
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ReadingError(f"the number {text[:20]} is larger than a float holds")
    return number


def _check_depth(value: Any, limits: Limits) -> None:
    level, depth = [value], 0
    while level := [each for each in level if type(each) is dict or type(each) is list]:
        depth += 1
        if depth > limits.depth:
            raise ReadingError(f"it is nested more than {limits.depth} deep")
        level = [
            inner
            for each in level
            for inner in (each.values() if type(each) is dict else each)
            if type(inner) is dict or type(inner) is list
        ]


def _check_keys(text: str, limits: Limits) -> None:
    """Raise for a dotted key of TOML that nests too deep: reading n parts takes n squared steps."""
    bare = TOML_TEXT.sub("_", text)
    if any(key.count(".") >= limits.depth for key in TOML_KEY.findall(bare)):
        raise ReadingError(f"it is nested more than {limits.depth} deep")


def _check_numbers(value: Any) -> None:
    """Raise for a number of TOML that is too long; its parser has no hook for whole numbers."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list):
            waiting.extend(each.values() if isinstance(each, dict) else each)
        elif type(each) is int and abs(each) > 10**MOST_DIGITS:
            raise ReadingError(f"a number has more than {MOST_DIGITS} digits")


def _check_tensor(name: str, row: Any, payload: int) -> None:
    offsets: Any = row.get("data_offsets") if isinstance(row, dict) else None
    is_pair = isinstance(offsets, list) and len(offsets) == 2
    if not is_pair or not all(type(each) is int for each in offsets):
        raise ReadingError(f"its tensor {name[:80]!r} has no offsets")
    start, end = offsets
    if not 0 <= start <= end <= payload:
        raise ReadingError(f"its tensor {name[:80]!r} lies outside of the file")
