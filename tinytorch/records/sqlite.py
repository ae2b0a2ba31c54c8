"""A store in a file of SQLite: safe for several processes and against being killed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path

from tinytorch import reading
from tinytorch.errors import RecordError
from tinytorch.reading import shown
from tinytorch.records.database import (
    APPLICATION_ID,
    COLUMNS,
    INDEX_BY_LAST,
    ONE_PER_TRIAL,
    READABLE,
    SERIES,
    VERSION,
    Database,
    Row,
    series_grows,
    series_shrinks,
    table_of_series,
)
from tinytorch.records.location import FOLDER

# ---------------------------------------------------------------- the tables of the store, and how
# a file of an older version becomes one of this


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
    """Read the run out of a body; a damaged one is kept and reported when read."""
    try:
        run = reading.parse_json(body)["run"]
    except (ValueError, KeyError, TypeError):
        return ""
    return run if isinstance(run, str) else ""


def _add_series(connection: sqlite3.Connection) -> None:
    connection.execute(table_of_series("TEXT"))
    connection.execute(
        f"""
        INSERT INTO series ({", ".join(SERIES)}, first, last, count, newest)
        SELECT {", ".join(SERIES)}, min(created_at), max(created_at), count(*), max(id)
        FROM records GROUP BY {", ".join(SERIES)}
        """
    )
    connection.execute(INDEX_BY_LAST)
    grow, shrink = series_grows("NEW", "min", "max"), "; ".join(series_shrinks("OLD"))
    own = ", ".join((*SERIES, "created_at"))
    for event, statements in (
        ("INSERT", grow),
        ("DELETE", shrink),
        (f"UPDATE OF {own}", f"{shrink}; {grow}"),
    ):
        name = f"series_{event.split()[0].lower()}"
        connection.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON records BEGIN {statements}; END"
        )


def _add_trials(connection: sqlite3.Connection) -> None:
    connection.execute(ONE_PER_TRIAL)


# The version that a file has -> what makes it the next one. A new file starts at 0.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    0: _create,
    1: _add_run,  # 2: the run that a record belongs to can be searched.
    2: _add_series,  # 3: series are counted as records come, not when they are listed.
    3: _add_trials,  # 4: a trial of a sweep is there once.
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
    version = _checked_version(connection, path)
    if version == VERSION:
        return
    try:
        # A process killed in here leaves the older version behind, whole.
        with transaction(connection):
            # Asked again: another process may have been faster.
            for step in range(_checked_version(connection, path), VERSION):
                MIGRATIONS[step](connection)
            connection.execute(f"PRAGMA user_version = {VERSION}")
    except sqlite3.OperationalError as error:
        # Only an index is missing, which keeps writers from adding a trial twice.
        if version < READABLE or error_code(error) != sqlite3.SQLITE_READONLY:
            raise


@contextmanager
def _reading_one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Read a consistent snapshot inside of the block."""
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
    """Return the schema version of a file; raise RecordError if it is not supported."""
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
    if version < 0 or (is_ours and version == 0 and has_tables):
        raise RecordError(f"{path} has version {version}, which no tinytorch wrote; {TAKE_AWAY}")
    if version > VERSION:
        raise RecordError(
            f"{path} has version {version}, but this tinytorch knows up to {VERSION}; "
            "update tinytorch, or name another file with TINYTORCH_RECORDS or --store"
        )
    if has_tables:
        _check_tables(connection, path, version)
    return version


Definition = tuple[str, str, str]


def _check_tables(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Raise RecordError for views, triggers and the like that a store does not have.

    They are code: one can keep every reader busy for ever, or do something at each writing.
    """
    for kind, name, words in _definitions(connection) - _own_definitions(version):
        if not name.startswith("sqlite_"):
            raise RecordError(
                f"{path} has a {kind} {shown(name)} that no tinytorch made ({shown(words)}); "
                f"{TAKE_AWAY}"
            )


def _definitions(connection: sqlite3.Connection) -> set[Definition]:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {(str(kind), str(name), " ".join(str(sql).split())) for kind, name, sql in rows}


@lru_cache
def _own_definitions(version: int) -> set[Definition]:
    """Return what a file of a version has, as the migrations make it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in range(version):
            MIGRATIONS[step](connection)
        return _definitions(connection)


# ---------------------------------------------------------------- what went wrong with a database
# file, in one line that says what to do

TAKE_AWAY = "move it away, or name another file with TINYTORCH_RECORDS or --store"
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
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
DAMAGED_FILE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
OTHERWISE = "gave an error; check the file with `tinytorch history --check`"


def error_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 if the error did not come from SQLite."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def record_error(path: Path, error: sqlite3.Error | OSError | UnicodeDecodeError) -> RecordError:
    """Turn a database or system error into a RecordError."""
    if isinstance(error, UnicodeDecodeError):  # a name in the file that SQLite wants to complain of
        return RecordError(f"{path} {ADVICE[sqlite3.SQLITE_CORRUPT]}")
    if isinstance(error, OSError):
        return RecordError(f"{path}: {error.strerror or error}; {ELSEWHERE.removeprefix('or ')}")
    if isinstance(error, sqlite3.ProgrammingError):
        return RecordError(f"{path} cannot be used here; open the store again ({error})")
    advice = ADVICE.get(error_code(error), OTHERWISE)
    return RecordError(f"{path} {advice} ({error})")


@contextmanager
def naming_faults(path: Path) -> Iterator[None]:
    """Turn database errors inside of the block into a RecordError."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise record_error(path, error) from error


# ---------------------------------------------------------------- the connection

RETRY_S = 0.02


class SQLite(Database):
    """The tables of a store in one file. A file that may only be read can be read."""

    insert = f"""
        INSERT INTO records ({", ".join(COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})
        ON CONFLICT (hash) DO UPDATE SET {", ".join(f"{x} = excluded.{x}" for x in COLUMNS)}
        WHERE {" OR ".join(f"{x} IS NOT excluded.{x}" for x in COLUMNS)}
        ON CONFLICT DO NOTHING
    """
    """A known record is kept; a damaged one is repaired by adding it again."""

    location: Path

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self.location = path
        with naming_faults(path):
            _make_folder(path.parent)
            try:
                self.connection = _opened(path, _connect(path, timeout_s), timeout_s)
            except (sqlite3.OperationalError, OSError) as error:
                # Without room for the files beside it, a store can still be read.
                connection = _connect_without_room(path, error, timeout_s)
                if connection is None:
                    raise
                self.connection = _opened(path, connection, timeout_s)

    def read(self, statement: str, *values: object) -> list[Row]:
        """Return all rows of a query; raise Unreadable where they are damaged."""
        try:
            return self.connection.execute(statement, values).fetchall()
        except UnicodeDecodeError as error:
            raise self.Unreadable(str(error)) from error
        except sqlite3.Error as error:
            if error_code(error) in DAMAGED_FILE:
                raise self.Unreadable(str(error)) from error
            raise record_error(self.location, error) from error

    def as_record_error(self, error: Exception) -> Exception:
        cause = error.__cause__
        if isinstance(cause, sqlite3.Error | UnicodeDecodeError):
            return record_error(self.location, cause)
        return error

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows of `records`, all of them or none; they are on disk when it returns."""
        with naming_faults(self.location), transaction(self.connection):
            self.connection.executemany(self.insert, rows)

    def problems(self) -> list[str]:
        """Return what is wrong with the file."""
        try:
            lines = self.connection.execute("PRAGMA integrity_check").fetchall()
        except sqlite3.DatabaseError as error:
            return [str(error)]
        return [line for (line,) in lines if line != "ok"]

    def close(self) -> None:
        self.connection.close()


def _make_folder(folder: Path) -> None:
    if folder.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if folder.name == FOLDER:
        # A database that changes with every run has no place in a repository.
        (folder / ".gitignore").write_text("*\n", "utf-8")


def _connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    """Open the file; one that may only be read is opened so."""
    if not path.exists() or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # Autocommit: transactions begin and end where we say so.
        return sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    # Without a log there is no writer; then SQLite does not need to create files beside it.
    has_log = path.with_name(f"{path.name}-wal").exists()
    return _connect_as(path, "mode=ro" if has_log else "mode=ro&immutable=1", timeout_s)


def _connect_as(path: Path, mode: str, timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?{mode}", timeout=timeout_s, isolation_level=None, uri=True
    )


def _opened(path: Path, connection: sqlite3.Connection, timeout_s: float) -> sqlite3.Connection:
    """Return the connection, with the tables of this version; close it where that fails."""
    try:
        # What is damaged must not stop the rest from being read; its hash will not fit.
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        prepare(connection, path)
        _set_up(connection, timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_without_room(
    path: Path, error: Exception, timeout_s: float
) -> sqlite3.Connection | None:
    """Open a file for reading where nothing can be written; None unless that is why it failed."""
    if not isinstance(error, sqlite3.Error) or error_code(error) not in NO_ROOM:
        return None
    if not path.is_file() or not path.stat().st_size:
        return None
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        return _connect_as(path, "mode=ro&immutable=1", timeout_s)
    # With the file to itself, SQLite has the index of the log in memory.
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def _set_up(connection: sqlite3.Connection, timeout_s: float) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    deadline = time.monotonic() + timeout_s
    while connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete":
        try:
            # Readers and one writer at a time. Some network drives cannot; what they have is
            # as safe, only slower.
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            # This one does not wait for others by itself.
            if error_code(error) == sqlite3.SQLITE_READONLY:
                return
            if error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
