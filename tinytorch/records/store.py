"""The store of records: one SQLite file, safe for several processes and against being killed."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tinytorch.errors import RecordError, SettingError
from tinytorch.records.record import Record, SeriesKey, canonical_json, parse_record, utc_text

__all__ = [
    "APPLICATION_ID",
    "COLUMNS",
    "DAMAGED_FILE",
    "STORE_VARIABLE",
    "VERSION",
    "Damaged",
    "Kept",
    "RecordStore",
    "SeriesSummary",
    "error_code",
    "keep",
    "naming_faults",
    "open_store",
    "prepare",
    "record_error",
    "refuge_path",
    "store_path",
    "transaction",
]


# ---------------------------------------------------------------- the tables of the store, and how
# a file of an older version becomes one of this

VERSION = 2
APPLICATION_ID = 0x74746F72
"""Written into the file's header ("ttor"), so that no other database is taken for a store."""

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
    """Read the run out of a body; a damaged one is kept and reported when read."""
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
    if version > VERSION:
        raise RecordError(
            f"{path} has version {version}, but this tinytorch knows up to {VERSION}; "
            "update tinytorch, or name another file with TINYTORCH_RECORDS or --store"
        )
    return version


# ---------------------------------------------------------------- where the store of a project is,
# and where results go when it cannot be written

STORE_VARIABLE = "TINYTORCH_RECORDS"
FOLDER, FILE = ".tinytorch", "records.sqlite"
MARKS_OF_A_PROJECT = (".git", "pyproject.toml")


def store_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the absolute path of the record file; nothing is created.

    Without a `path` it is what the environment variable ``TINYTORCH_RECORDS`` names, else
    ``.tinytorch/records.sqlite`` in the nearest folder, from the working directory upwards, that
    has ``.git`` or ``pyproject.toml``, else in the working directory.
    """
    chosen = path if path is not None else os.environ.get(STORE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    here = Path.cwd()
    project = next((each for each in (here, *here.parents) if _is_project(each)), here)
    return project / FOLDER / FILE


def refuge_path() -> Path:
    """Return the file in the temporary folder for results that could not be stored.

    Each user has one, since a temporary folder is often shared.
    """
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"tinytorch-records-{user}.jsonl"


def _is_project(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS_OF_A_PROJECT)


# ---------------------------------------------------------------- what went wrong with a database
# file, in one line that says what to do

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
    """Return SQLite's primary result code; 0 if the error did not come from SQLite."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def record_error(path: Path, error: sqlite3.Error | OSError) -> RecordError:
    """Turn a database or system error into a RecordError."""
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
    except (sqlite3.Error, OSError) as error:
        raise record_error(path, error) from error


# ---------------------------------------------------------------- the store of records: one SQLite
# file, safe for several processes and against being killed

PATIENCE_S = 10.0
"""How long to wait for another process that is writing."""
RETRY_S = 0.02
SHORTEST_PREFIX = 4

INSERT = f"""
    INSERT INTO records ({", ".join(COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})
    ON CONFLICT (hash) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in COLUMNS)}
    WHERE {" OR ".join(f"{name} IS NOT excluded.{name}" for name in COLUMNS)}
"""
"""A known record is kept; a damaged one is repaired by adding it again."""


@dataclass(frozen=True)
class Damaged:
    """A record that cannot be read, or the file itself where `hash` is empty."""

    hash: str
    reason: str


@dataclass(frozen=True)
class SeriesSummary:
    """How many records a series has, and when the first and the last were made."""

    key: SeriesKey
    count: int
    first: str
    last: str


@dataclass(frozen=True)
class Kept:
    """Where a result went. `note` is empty unless it did not get into the store."""

    hash: str
    path: Path
    note: str = ""


class RecordStore:
    """Records in one file. Every ``add`` is committed, and on disk, before it returns.

    Several processes may read and write at once. A record that is damaged is skipped when
    searching and listed in `damaged`. A file that may only be read can be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = PATIENCE_S) -> None:
        self.path = store_path(path)
        self._damaged: dict[int, Damaged] = {}
        with naming_faults(self.path):
            _make_folder(self.path.parent)
            self._connection = _connect(self.path, timeout_s)
        try:
            with naming_faults(self.path):
                # What is damaged must not stop the rest from being read; its hash will not fit.
                self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
                prepare(self._connection, self.path)
                _set_up(self._connection, timeout_s)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Everything added is on disk already."""
        self._connection.close()

    def __len__(self) -> int:
        return int(self._ask("SELECT count(*) FROM records")[0][0])

    def __contains__(self, hash: str) -> bool:
        return bool(self._ask("SELECT 1 FROM records WHERE hash = ?", hash))

    @property
    def damaged(self) -> tuple[Damaged, ...]:
        """What searching has come across and skipped so far."""
        return tuple(self._damaged.values())

    def add(self, record: Record) -> str:
        """Store a record and give its hash. Adding it once more changes nothing."""
        return self.add_all([record])[0]

    def add_all(self, records: Iterable[Record]) -> tuple[str, ...]:
        """Store records and give their hashes; all are stored, or none."""
        rows = [_row_of(record) for record in records]
        with naming_faults(self.path), transaction(self._connection):
            self._connection.executemany(INSERT, rows)
        return tuple(row[0] for row in rows)

    def find(
        self,
        *,
        kind: str | None = None,
        name: str | None = None,
        machine: str | None = None,
        run: str | None = None,
        settings_key: str | None = None,
        since: str | date | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """Return the matching records by date; `limit` keeps the first ones in that order.

        Records of one moment come in the order in which they were added. Damaged ones are skipped
        and listed in `damaged`.
        """
        if limit is not None and limit < 0:
            raise SettingError(f"limit={limit}; it must be 0 or more")
        equal = {
            "kind": kind,
            "name": name,
            "machine": machine,
            "run": run,
            "settings_key": settings_key,
        }
        wanted = {f"{column} = ?": value for column, value in equal.items() if value is not None}
        if since is not None:
            wanted["created_at >= ?"] = utc_text(since)
        where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
        way = "DESC" if newest_first else "ASC"
        order = f"ORDER BY created_at {way}, id {way}"
        rows = self._ask(f"SELECT id, hash FROM records {where} {order}", *wanted.values())
        return self._read_all(rows, limit)

    def get(self, hash_prefix: str) -> Record:
        """Return the one record whose hash starts with `hash_prefix`."""
        prefix = hash_prefix.strip().lower()
        if len(prefix) < SHORTEST_PREFIX or set(prefix) - set("0123456789abcdef"):
            raise SettingError(
                f"{hash_prefix!r} is no start of a hash; give at least {SHORTEST_PREFIX} of its "
                "hexadecimal digits"
            )
        # "g" comes right after the last hexadecimal digit.
        between = "SELECT id, hash FROM records WHERE hash >= ? AND hash < ? ORDER BY hash"
        rows = self._ask(between, prefix, prefix + "g")
        if not rows:
            raise SettingError(
                f"no record in {self.path} has a hash that starts with {prefix}; "
                "`tinytorch history NAME` lists them"
            )
        if len(rows) > 1:
            some = ", ".join(hash[: len(prefix) + 8] for _, hash in rows[:4])
            raise SettingError(f"{len(rows)} records start with {prefix}: {some}; give more digits")
        found = self._read(*rows[0])
        if isinstance(found, Damaged):
            raise RecordError(f"record {found.hash[:12]} in {self.path}: {found.reason}")
        return found

    def series(self) -> list[SeriesSummary]:
        """Return all series, the one with the newest record first."""
        rows = self._ask(
            """
            SELECT kind, name, machine, settings_key, count(*), min(created_at), max(created_at)
            FROM records GROUP BY name, kind, machine, settings_key
            ORDER BY max(created_at) DESC, max(id) DESC
            """
        )
        return [SeriesSummary(SeriesKey(*row[:4]), *row[4:]) for row in rows]

    def check(self) -> tuple[Damaged, ...]:
        """Read everything, check every hash, and give what is damaged."""
        found = [Damaged("", problem) for problem in self._problems_of_the_file()]
        for id, hash in self._all_rows():
            record = self._read(id, hash)
            if isinstance(record, Damaged):
                found.append(record)
        return tuple(found)

    def count_rows(self) -> int | None:
        """Return the number of records, damaged ones included; None if it is unknown."""
        try:
            return len(self)
        except RecordError:
            return None

    def readable(self) -> list[Record]:
        """Yield all readable records by date, also from a damaged file."""
        found = self._read_all(self._all_rows(), None)
        return sorted(found, key=lambda record: record.created_at)

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with naming_faults(self.path):
            return self._connection.execute(query, values).fetchall()

    def _read_all(self, rows: Iterable[tuple[Any, ...]], limit: int | None) -> list[Record]:
        records: list[Record] = []
        for id, hash in rows:
            if limit is not None and len(records) >= limit:
                break
            record = self._read(id, hash)
            if isinstance(record, Damaged):
                self._damaged[id] = record
            else:
                records.append(record)
        return records

    def _read(self, id: int, hash: str) -> Record | Damaged:
        """Read one row by itself, so that a damaged one does not take others with it."""
        query = f"SELECT {', '.join(COLUMNS)} FROM records WHERE id = ?"
        try:
            row = self._connection.execute(query, (id,)).fetchone()
        except sqlite3.Error as error:
            if error_code(error) not in DAMAGED_FILE:
                raise record_error(self.path, error) from error
            return Damaged(hash, f"cannot be read ({error})")
        if row is None:
            return Damaged(hash, "listed, but not there")
        stored_hash, *stored, body = row
        try:
            record = parse_record(body, expected_hash=stored_hash)
        except RecordError as error:
            return Damaged(stored_hash, str(error))
        if tuple(stored) != _columns_of(record):
            return Damaged(stored_hash, "the columns for searching do not fit the record")
        return record

    def _all_rows(self) -> list[tuple[Any, ...]]:
        """List all rows; where the index is damaged, by going through the table itself."""
        try:
            return self._connection.execute("SELECT id, hash FROM records ORDER BY id").fetchall()
        except sqlite3.DatabaseError as error:
            if error_code(error) not in DAMAGED_FILE:
                raise record_error(self.path, error) from error
        last = self._ask("SELECT max(id) FROM records")[0][0] or 0
        return [(id, "") for id in range(1, last + 1)]

    def _problems_of_the_file(self) -> list[str]:
        try:
            lines = self._connection.execute("PRAGMA integrity_check").fetchall()
        except sqlite3.DatabaseError as error:
            return [str(error)]
        return [line for (line,) in lines if line != "ok"]


def open_store(
    path: str | os.PathLike[str] | None = None, *, timeout_s: float = PATIENCE_S
) -> RecordStore:
    """Open the store of this project, or the one in `path`; it is created when it is not there.

    :func:`tinytorch.records.store.store_path` says which file that is.
    """
    return RecordStore(store_path(path), timeout_s=timeout_s)


def keep(record: Record, store_path: str | os.PathLike[str] | None = None) -> Kept:
    """Store a result in any case: where the store fails, in a file in the temporary folder.

    Only when both fail does it raise.
    """
    try:
        with open_store(store_path) as store:
            return Kept(store.add(record), store.path)
    except RecordError as error:
        refuge, problem = refuge_path(), error
    try:
        _append_line(refuge, canonical_json(record.to_dict()))
    except OSError as error:
        raise RecordError(f"{problem}; and {refuge} took it neither ({error})") from problem
    return Kept(
        record.hash,
        refuge,
        f"the result was not stored: {problem}; it is in {refuge}, from where "
        f"`tinytorch history --import {refuge}` brings it back",
    )


def _columns_of(record: Record) -> tuple[str, ...]:
    """Return the columns between hash and body."""
    kind, name, machine, settings_key = record.series
    return kind, name, machine, settings_key, record.run, record.created_at


def _row_of(record: Record) -> tuple[str, ...]:
    fields = record.to_dict()
    return fields["hash"], *_columns_of(record), canonical_json(fields)


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
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    address = f"{path.as_uri()}?{mode}"
    return sqlite3.connect(address, timeout=timeout_s, isolation_level=None, uri=True)


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


def _append_line(path: Path, line: str) -> None:
    """Append one line, whole or not at all, and see it on disk."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags, 0o600)
    try:
        before = os.fstat(handle).st_size
        text = (line + "\n").encode("ascii")
        written = os.write(handle, text)
        if written < len(text):
            os.ftruncate(handle, before)
            raise OSError(f"wrote {written} of {len(text)} bytes to {path}")
        os.fsync(handle)
    finally:
        os.close(handle)
