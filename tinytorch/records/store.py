"""The store of records: a file of SQLite, or a database of PostgreSQL for many writers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tinytorch.errors import RecordError, SettingError, check_number
from tinytorch.records.database import COLUMNS, Database, Row
from tinytorch.records.location import POSTGRES, Location, refuge_path, store_path
from tinytorch.records.record import Record, SeriesKey, canonical_json, parse_record, utc_text
from tinytorch.records.sqlite import SQLite

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long to wait for another process that is writing, or for a server that starts again."""
SHORTEST_PREFIX = 4
MOST_SALVAGED = 10_000_000
"""So many ids are tried where the list of them is damaged; the last one may be damaged, too."""
PAGE = 200
"""Rows that are read at once."""


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
    path: Location
    note: str = ""


class RecordStore:
    """Records in one place. Every ``add`` is committed, and on disk, before it returns.

    Several processes may read and write at once. A record that is damaged is skipped when
    searching and listed in `damaged`. A store that may only be read can be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = PATIENCE_S) -> None:
        self.path = store_path(path)
        self._damaged: dict[int, Damaged] = {}
        self._database = _connect(self.path, timeout_s)

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
        """Close the connection. Everything added is on disk already."""
        self._database.close()

    def __len__(self) -> int:
        return int(self._ask("SELECT coalesce(sum(count), 0) FROM series")[0][0])

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
        self._database.add(rows)
        return tuple(row[0] for row in rows)

    def known(self, hashes: Iterable[str]) -> frozenset[str]:
        """Return those hashes of which there are records."""
        found: set[str] = set()
        for some in _pages(hashes):
            marks = ", ".join("?" * len(some))
            rows = self._ask(f"SELECT hash FROM records WHERE hash IN ({marks})", *some)
            found.update(hash for (hash,) in rows)
        return frozenset(found)

    def names_in_runs(self, prefix: str, *, kind: str) -> list[tuple[str, str]]:
        """Return the run and the name of each record of a kind whose run starts with `prefix`."""
        query = "SELECT run, name FROM records WHERE run >= ? AND run < ? AND kind = ?"
        return [(run, name) for run, name in self._ask(query, prefix, f"{prefix}~", kind)]

    def hashes(self) -> list[str]:
        """Return the hashes of all records in the order in which they were added."""
        return [hash for (hash,) in self._ask("SELECT hash FROM records ORDER BY id")]

    def get_all(self, hashes: Sequence[str]) -> list[Record]:
        """Return the records of these hashes in their order; what is damaged is left out."""
        found: dict[str, Record] = {}
        for some in _pages(hashes):
            marks = ", ".join("?" * len(some))
            rows = self._ask(f"SELECT id, hash FROM records WHERE hash IN ({marks})", *some)
            found |= {record.hash: record for record in self._read_all(rows)}
        return [found[hash] for hash in hashes if hash in found]

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
        check_number("limit", limit or 0, least=0)
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
        query = f"SELECT id, hash FROM records {where} {order}"
        if limit is None:
            return self._read_all(self._ask(query, *wanted.values()))
        found: list[Record] = []
        done, page = 0, max(1, min(limit, PAGE))
        # In pages, since damaged ones do not count.
        while len(found) < limit:
            part = f"{query} LIMIT {page} OFFSET {done}"
            rows = self._ask(part, *wanted.values())
            found += self._read_all(rows)
            done += len(rows)
            if len(rows) < page:
                break
        return found[:limit]

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

    def series(
        self, *, kind: str | None = None, limit: int | None = None, skipped: int = 0
    ) -> list[SeriesSummary]:
        """Return all series, the one with the newest record first, or some of them."""
        where, values = ("WHERE kind = ?", [kind]) if kind is not None else ("", [])
        part = "" if limit is None else f"LIMIT {limit} OFFSET {skipped}"
        query = f"""
            SELECT {", ".join(SeriesKey._fields)}, count, first, last FROM series
            {where} ORDER BY last DESC, newest DESC {part}
        """
        rows = self._ask(query, *values)
        return [SeriesSummary(SeriesKey(*row[:4]), *row[4:]) for row in rows]

    def check(self) -> tuple[Damaged, ...]:
        """Read everything, check every hash, and give what is damaged."""
        found = [Damaged("", problem) for problem in self._database.problems()]
        for rows in _pages(self._all_rows()):
            found += [each for _, each in self._read_some(rows) if isinstance(each, Damaged)]
        return tuple(found)

    def count_rows(self) -> int | None:
        """Return the number of records, damaged ones included; None if it is unknown."""
        try:
            return len(self)
        except RecordError:
            return None

    def readable(self) -> list[Record]:
        """Return all readable records by date, also from a damaged file."""
        found = self._read_all(self._all_rows())
        return sorted(found, key=lambda record: record.created_at)

    def _ask(self, query: str, *values: object) -> list[Row]:
        return self._database.ask(query, *values)

    def _read_all(self, rows: Iterable[Row]) -> list[Record]:
        """Return the readable records of some rows of id and hash, in their order."""
        records: list[Record] = []
        for some in _pages(rows):
            for id, record in self._read_some(some):
                if isinstance(record, Damaged):
                    self._damaged[id] = record
                else:
                    records.append(record)
        return records

    def _read_some(self, rows: Sequence[Row]) -> list[tuple[int, Record | Damaged]]:
        """Read some rows at once; where one is damaged, each by itself, so that others stay."""
        wanted = f"SELECT id, {', '.join(COLUMNS)} FROM records WHERE id IN"
        marks = ", ".join("?" * len(rows))
        ids = [id for id, _ in rows]
        try:
            found = {row[0]: row for row in self._database.read(f"{wanted} ({marks})", *ids)}
        except Database.Unreadable:
            return [(id, self._read(id, hash)) for id, hash in rows]
        return [(id, _record_in(found.get(id), hash)) for id, hash in rows]

    def _read(self, id: int, hash: str) -> Record | Damaged:
        query = f"SELECT id, {', '.join(COLUMNS)} FROM records WHERE id = ?"
        try:
            rows = self._database.read(query, id)
        except Database.Unreadable as error:
            return Damaged(hash, f"cannot be read ({error})")
        return _record_in(rows[0] if rows else None, hash)

    def _all_rows(self) -> list[Row]:
        """List all rows; where the index is damaged, by going through the table itself."""
        try:
            return self._database.read("SELECT id, hash FROM records ORDER BY id")
        except Database.Unreadable:
            last = self._ask("SELECT max(id) FROM records")[0][0] or 0
            return [(id, "") for id in range(1, min(last, MOST_SALVAGED) + 1)]


def open_store(
    path: str | os.PathLike[str] | None = None, *, timeout_s: float = PATIENCE_S
) -> RecordStore:
    """Open the store of this project, or the one in `path`; it is created when it is not there.

    `path` may be an address, such as ``postgresql://db.example/performance``;
    :func:`tinytorch.records.location.store_path` says which store it is without one.
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


def _connect(location: Location, timeout_s: float) -> Database:
    """Open what a location names; psycopg is imported where it is used."""
    if isinstance(location, Path):
        return SQLite(location, timeout_s=timeout_s)
    if location.startswith(POSTGRES):
        from tinytorch.records.postgres import Postgres

        return Postgres(location, timeout_s=timeout_s)
    raise SettingError(
        f"{location} is no store of records; name a file or postgresql://..., and use "
        f"`tinytorch history push --to {location}` to copy records there"
    )


def _pages(rows: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(rows)
    while page := list(islice(rest, PAGE)):
        yield page


def _record_in(row: Row | None, hash: str) -> Record | Damaged:
    """Return the record in a row of id and COLUMNS, or why there is none."""
    if row is None:
        return Damaged(hash, "listed, but not there")
    _, stored_hash, *stored, body = row
    try:
        record = parse_record(body, expected_hash=stored_hash)
    except RecordError as error:
        return Damaged(stored_hash, str(error))
    if tuple(stored) != _columns_of(record):
        return Damaged(stored_hash, "the columns for searching do not fit the record")
    return record


def _columns_of(record: Record) -> tuple[str, ...]:
    """Return the columns between hash and body."""
    kind, name, machine, settings_key = record.series
    return kind, name, machine, settings_key, record.run, record.created_at


def _row_of(record: Record) -> tuple[str, ...]:
    fields = record.to_dict()
    return fields["hash"], *_columns_of(record), canonical_json(fields)


def _append_line(path: Path, line: str) -> None:
    """Append one line, whole or not at all, and see it on disk."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    # No link is followed, and a pipe that somebody planted does not keep us waiting.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags, 0o600)
    try:
        status = os.fstat(handle)
        is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
        if not is_own or not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise OSError(f"{path} is not a file of this user alone; take it away")
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(handle, 0o600)
        before = status.st_size
        text = (line + "\n").encode("ascii")
        written = os.write(handle, text)
        if written < len(text):
            os.ftruncate(handle, before)
            raise OSError(f"wrote {written} of {len(text)} bytes to {path}")
        os.fsync(handle)
    finally:
        os.close(handle)
