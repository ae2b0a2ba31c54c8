"""Files that come from others: read with care, and written once."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from pathlib import Path

from tinytorch.errors import RecordError
from tinytorch.workloads.record import Record, canonical_json, parse_record

__all__ = ["LARGEST_RECORD_BYTES", "read_record_file", "read_text", "record_text", "write_new"]

LARGEST_RECORD_BYTES = 8 << 20
"""A record of 50,000 images has 120 kB."""


def record_text(record: Record) -> str:
    """Give the one form that a record has in a file."""
    return canonical_json(record.to_dict()) + "\n"


def read_record_file(path: str | Path) -> Record:
    """Read a record; raise RecordError unless the file is, letter by letter, as it was written."""
    text = read_text(Path(path), most=LARGEST_RECORD_BYTES)
    record = parse_record(text)
    fields = json.loads(text)
    if "hash" not in fields:
        raise RecordError("a record without its hash; take the original file")
    if text != canonical_json(fields) + "\n":
        raise RecordError(
            "the file says the same in other letters (spaces, order, or a key twice); "
            "take the original file"
        )
    return record


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


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet, whole or not at all; raise FileExistsError if it is."""
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
        temporary.chmod(0o644)
        _name_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _name_new(temporary: Path, path: Path) -> None:
    """Give a file its name unless another has it; two who try at once do not overwrite."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # A file system without links: the gap between looking and renaming is short.
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from None
        temporary.replace(path)
