"""What a store needs of a database, and the statements that SQLite and PostgreSQL share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from tinytorch.records.location import Location

VERSION, READABLE = 4, 3
"""The version of the tables, and the oldest one that has all that reading needs."""
APPLICATION_ID = 0x74746F72
"""Marks a database as a store ("ttor"), so that no other one is taken for it."""

COLUMNS = ("hash", "kind", "name", "machine", "settings_key", "run", "created_at", "body")
"""What a row of `records` holds. All but the body are copies out of it, for searching."""

SERIES = ("name", "kind", "machine", "settings_key")
"""What the records of a series have in common; `series` has a row for each, which triggers keep:
the number of its records, the dates of the first and the last, and the last id."""

Row = tuple[Any, ...]


def table_of_records(identity: str, text: str) -> str:
    columns = ", ".join(f"{name} {text} NOT NULL" for name in COLUMNS[1:])
    return f"CREATE TABLE records (id {identity}, hash {text} NOT NULL UNIQUE, {columns})"


def table_of_series(text: str) -> str:
    columns = ", ".join(f"{name} {text} NOT NULL" for name in (*SERIES, "first", "last"))
    return (
        f"CREATE TABLE series ({columns}, count BIGINT NOT NULL, newest BIGINT NOT NULL, "
        f"PRIMARY KEY ({', '.join(SERIES)}))"
    )


INDEX_BY_SERIES = (
    "CREATE INDEX by_series ON records (name, kind, machine, settings_key, created_at, id)"
)
INDEX_BY_RUN = "CREATE INDEX by_run ON records (run, created_at)"
INDEX_BY_DATE = "CREATE INDEX by_date ON records (created_at, id)"
ONE_PER_TRIAL = (
    "CREATE UNIQUE INDEX one_per_trial ON records (run, name) WHERE kind = 'sweep trial'"
)
"""A trial of a sweep is there once: what comes second, from whichever writer, is not added."""
INDEX_BY_LAST = "CREATE INDEX by_last ON series (last, newest)"


def series_grows(new: str, least: str, most: str) -> str:
    """Return the statement that counts a new row into its series."""
    key = ", ".join(f"{new}.{name}" for name in SERIES)
    return f"""
        INSERT INTO series ({", ".join(SERIES)}, first, last, count, newest)
        VALUES ({key}, {new}.created_at, {new}.created_at, 1, {new}.id)
        ON CONFLICT ({", ".join(SERIES)}) DO UPDATE SET
            count = series.count + 1,
            first = {least}(series.first, excluded.first),
            last = {most}(series.last, excluded.last),
            newest = {most}(series.newest, excluded.newest)
    """


def series_shrinks(old: str) -> tuple[str, str]:
    """Return the statements that take a row that was changed or deleted out of its series."""
    own = " AND ".join(f"{name} = {old}.{name}" for name in SERIES)
    among = f"FROM records WHERE {own}"
    count = f"""
        UPDATE series SET
            count = series.count - 1,
            first = coalesce((SELECT min(created_at) {among}), first),
            last = coalesce((SELECT max(created_at) {among}), last),
            newest = coalesce((SELECT max(id) {among}), newest)
        WHERE {own}
    """
    return count, f"DELETE FROM series WHERE {own} AND count <= 0"


class Database(ABC):
    """A connection to the tables of a store.

    Statements have a question mark for each value. Whatever goes wrong is raised as a RecordError
    that names the location; `Unreadable` as one, too, by `ask`, but not by `read`.
    """

    location: Location
    insert: ClassVar[str]
    """Adds a row of COLUMNS; one that is there already, by hash or as a trial, stays."""

    class Unreadable(Exception):
        """A part of the database is damaged; the rest may be read."""

    def ask(self, statement: str, *values: object) -> list[Row]:
        """Return all rows of a query."""
        try:
            return self.read(statement, *values)
        except self.Unreadable as error:
            raise self.as_record_error(error) from error

    @abstractmethod
    def read(self, statement: str, *values: object) -> list[Row]:
        """Return all rows of a query; raise Unreadable where they are damaged."""

    @abstractmethod
    def add(self, rows: Sequence[Row]) -> None:
        """Add rows of `records`, all of them or none; they are on disk when it returns."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Return what is wrong with the database itself."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def as_record_error(self, error: Exception) -> Exception: ...
