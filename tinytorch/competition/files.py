"""Files that come from others, read with care; and files that are written once."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from tinytorch import reading
from tinytorch.errors import RecordError


def read_fields(path: Path, *, most: int, format: str, schema: int) -> dict[str, Any]:
    """Read a JSON object of a format; raise RecordError for anything else."""
    try:
        fields = reading.parse_json(read_text(path, most=most))
    except ValueError as error:
        raise RecordError("it is not JSON") from error
    if not isinstance(fields, dict) or fields.get("format") != format:
        raise RecordError(f"its format is not {format!r}")
    found = fields.get("schema")
    if type(found) is not int or found != schema:
        raise RecordError(
            f"its schema is {found!r}, this tinytorch reads {schema}; update tinytorch"
        )
    return fields


def read_text(path: Path, *, most: int) -> str:
    """Read an ordinary file of text; raise RecordError for links, devices and what is too large."""
    # A link is not followed, and a pipe without a writer does not keep us waiting.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if path.is_symlink():
            raise RecordError("a link; put the file itself there")
        handle = os.open(path, flags | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("no ordinary file; take it away")
            content = file.read(most + 1) if status.st_size <= most else None
        if content is None or len(content) > most:
            raise RecordError(f"larger than {most:,} bytes; no such file is that large")
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"not text: {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"it cannot be read ({reason})") from error


def write_new(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file that is not there yet, whole or not at all; raise FileExistsError if it is.

    With the `mode` 0o600 no other user can read it, not even for a moment.
    """
    if path.parent.is_file():
        raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", str(path.parent))
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "it is there already", str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        _name_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _name_new(temporary: Path, path: Path) -> None:
    """Link a file to its final name without overwriting, also under concurrent writers."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # A file system without links: the gap between looking and renaming is short.
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from None
        temporary.replace(path)
