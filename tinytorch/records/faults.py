"""What went wrong with a database file, in one line that says what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinytorch.errors import RecordError

__all__ = ["DAMAGED_FILE", "error_code", "naming_faults", "record_error"]

ELSEWHERE = "or name another file with TINYTORCH_RECORDS or --store"
NO_WRITING = f"cannot be written; check the permissions of the file and its folder, {ELSEWHERE}"

# SQLite's primary result code -> what it means here and what to do.
ADVICE = {
    sqlite3.SQLITE_BUSY: "is locked by another process; wait until that one is done, " + ELSEWHERE,
    sqlite3.SQLITE_LOCKED: "is locked by another connection; close that one, " + ELSEWHERE,
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; make room, " + ELSEWHERE,
    sqlite3.SQLITE_READONLY: NO_WRITING,
    sqlite3.SQLITE_PERM: NO_WRITING,
    sqlite3.SQLITE_CANTOPEN: f"cannot be opened; check that its folder can be written, {ELSEWHERE}",
    sqlite3.SQLITE_CORRUPT: (
        "is damaged; save what can be read with `tinytorch history --export FILE.jsonl`, move the "
        "file away and import the records into a new one"
    ),
    sqlite3.SQLITE_NOTADB: f"is no database; move it away if it is broken, {ELSEWHERE}",
    sqlite3.SQLITE_IOERR: f"cannot be read or written; check the disk and its limits, {ELSEWHERE}",
    sqlite3.SQLITE_TOOBIG: "does not take a record of this size; store fewer raw values",
}
DAMAGED_FILE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
OTHERWISE = "gave an error; check the file with `tinytorch history --check`"


def error_code(error: sqlite3.Error) -> int:
    """Give SQLite's primary result code; 0 when the error did not come from SQLite itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def record_error(path: Path, error: sqlite3.Error | OSError) -> RecordError:
    """Turn an error of the database or the system into ours."""
    if isinstance(error, OSError):
        return RecordError(f"{path}: {error.strerror or error}; {ELSEWHERE.removeprefix('or ')}")
    if isinstance(error, sqlite3.ProgrammingError):
        return RecordError(f"{path} cannot be used here; open the store again ({error})")
    advice = ADVICE.get(error_code(error), OTHERWISE)
    return RecordError(f"{path} {advice} ({error})")


@contextmanager
def naming_faults(path: Path) -> Iterator[None]:
    """Turn errors of the database inside of the block into a RecordError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise record_error(path, error) from error
