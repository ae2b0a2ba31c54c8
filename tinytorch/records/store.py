"""The store of records: one SQLite file, safe for several processes and against being killed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tinytorch.errors import RecordError, SettingError
from tinytorch.records.faults import DAMAGED_FILE, error_code, naming_faults, record_error
from tinytorch.records.layout import COLUMNS, prepare, transaction
from tinytorch.records.location import FOLDER, refuge_path, store_path
from tinytorch.workloads.record import Record, SeriesKey, canonical_json, parse_record, utc_text

__all__ = ["Damaged", "Kept", "RecordStore", "SeriesSummary", "keep", "open_store"]

PATIENCE_S = 10.0
"""How long to wait for another process that is writing."""
RETRY_S = 0.02
SHORTEST_PREFIX = 4

INSERT = f"""
    INSERT INTO records ({", ".join(COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})
    ON CONFLICT (hash) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in COLUMNS)}
    WHERE {" OR ".join(f"{name} IS NOT excluded.{name}" for name in COLUMNS)}
"""
"""A known record stays as it is; a damaged one is mended by adding it again."""


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
        """Give the records that fit, by date; `limit` keeps the first ones in that order.

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
        """Give the one record whose hash starts so."""
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
        """Give what there is, the series with the newest record first."""
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
        """Give how many records there are, damaged ones included; None if that cannot be told."""
        try:
            return len(self)
        except RecordError:
            return None

    def readable(self) -> list[Record]:
        """Give all records that can still be read, also from a damaged file, by date."""
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

    :func:`tinytorch.records.location.store_path` says which file that is.
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
    """Give the columns between hash and body."""
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
    # Without a log nobody is writing; then SQLite does not need to create files beside it.
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
