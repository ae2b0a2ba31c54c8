"""The tables of the store, and how a file of an older version becomes one of this."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tinytorch.errors import RecordError

__all__ = ["APPLICATION_ID", "COLUMNS", "VERSION", "prepare", "transaction"]

VERSION = 2
APPLICATION_ID = 0x74746F72
"""Written into the file's header ("ttor"), so that nobody else's database becomes a store."""

COLUMNS = ("hash", "kind", "name", "machine", "settings_key", "run", "created_at", "body")
"""What a row holds. All but the body are copies out of it, for searching."""


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(
        """
        CREATE TABLE records (
            id INTEGER PRIMARY KEY,
            hash TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            name TEXT NOT NULL,
            machine TEXT NOT NULL,
            settings_key TEXT NOT NULL,
            created_at TEXT NOT NULL,
            body TEXT NOT NULL
        )
        """
    )
    connection.execute(
        "CREATE INDEX by_series ON records (name, kind, machine, settings_key, created_at)"
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _add_run(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE records ADD COLUMN run TEXT NOT NULL DEFAULT ''")
    rows = connection.execute("SELECT id, body FROM records").fetchall()
    runs = [(_run_of(body), row) for row, body in rows]
    connection.executemany("UPDATE records SET run = ? WHERE id = ?", runs)
    connection.execute("CREATE INDEX by_run ON records (run, created_at)")
    connection.execute("CREATE INDEX by_date ON records (created_at)")


def _run_of(body: str) -> str:
    """Read the run out of a body; a damaged one stays as it is and is reported when read."""
    try:
        run = json.loads(body)["run"]
    except (ValueError, KeyError, TypeError):
        return ""
    return run if isinstance(run, str) else ""


# The version that a file has -> what makes it the next one. A new file starts at 0.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    0: _create,
    1: _add_run,  # 2: the run that a record belongs to can be searched.
}


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all that the block does, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # After some errors SQLite has rolled back by itself.
            connection.execute("ROLLBACK")
        raise


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make a file ready for use: a new one gets its tables, an older one is brought up to date."""
    if _checked_version(connection, path) == VERSION:
        return
    # A process killed in here leaves the older version behind, whole.
    with transaction(connection):
        # Asked again: another process may have been faster.
        for step in range(_checked_version(connection, path), VERSION):
            MIGRATIONS[step](connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def _reading_one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Let all that the block reads be of one moment, whoever writes meanwhile."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _checked_version(connection: sqlite3.Connection, path: Path) -> int:
    """Give the version of a file that this program may use."""
    with _reading_one_moment(connection):
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        is_ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        found = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    has_tables = found is not None
    if not is_ours and (version or has_tables):
        raise RecordError(
            f"{path} is a database of another program; name another file with TINYTORCH_RECORDS "
            "or --store"
        )
    if version > VERSION:
        raise RecordError(
            f"{path} has version {version}, but this tinytorch knows up to {VERSION}; "
            "update tinytorch, or name another file with TINYTORCH_RECORDS or --store"
        )
    return version
