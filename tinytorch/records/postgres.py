"""A store in a database of PostgreSQL: many writers at once, with roles that are left to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from tinytorch.errors import MissingPartError, RecordError
from tinytorch.records.database import (
    APPLICATION_ID,
    COLUMNS,
    INDEX_BY_DATE,
    INDEX_BY_LAST,
    INDEX_BY_RUN,
    INDEX_BY_SERIES,
    ONE_PER_TRIAL,
    SERIES,
    VERSION,
    Database,
    Row,
    series_grows,
    series_shrinks,
    table_of_records,
    table_of_series,
)
from tinytorch.records.location import Address

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

LOCKS = 64
"""So many locks all names share: the server has room for some thousands of them."""
LONGEST_PAUSE_S = 0.5

# ---------------------------------------------------------------- the tables of the store

FIRST_VERSION = 3
"""SQLite had versions before it; a database of PostgreSQL begins here."""
TEXT = 'TEXT COLLATE "C"'
"""Sorts as SQLite and Python do, whatever the language of the database is."""
IDENTITY = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"


TABLES = ("records", "series", "tinytorch_store")
OUR_TABLES = f"""
    SELECT relname FROM pg_catalog.pg_class
    WHERE relname IN {TABLES} AND relkind IN ('r', 'p', 'v', 'm', 'f') AND pg_table_is_visible(oid)
"""


def _trigger(event: str, statements: Sequence[str]) -> tuple[str, str]:
    """Return the function and the trigger that keep the table of series true.

    It runs with the rights of the owner, so that a writer needs none on the series themselves.
    """
    name = f"series_{event.split()[0].lower()}"
    body = ";\n".join((*statements, "RETURN NULL"))
    function = f"""
        CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path FROM CURRENT AS $$ BEGIN {body}; END $$
    """
    on = f"AFTER {event} ON records FOR EACH ROW EXECUTE FUNCTION {name}()"
    return function, f"CREATE TRIGGER {name} {on}"


def _create(execute: Callable[[str], object]) -> None:
    grow, shrink = series_grows("NEW", "least", "greatest"), series_shrinks("OLD")
    own = ", ".join((*SERIES, "created_at"))
    statements = (
        table_of_records(IDENTITY, TEXT),
        INDEX_BY_SERIES,
        INDEX_BY_RUN,
        INDEX_BY_DATE,
        table_of_series(TEXT),
        INDEX_BY_LAST,
        *_trigger("INSERT", [grow]),
        *_trigger("DELETE", shrink),
        *_trigger(f"UPDATE OF {own}", [*shrink, grow]),
        "CREATE TABLE tinytorch_store (application BIGINT NOT NULL, version INTEGER NOT NULL)",
        f"INSERT INTO tinytorch_store VALUES ({APPLICATION_ID}, {FIRST_VERSION})",
    )
    for statement in statements:
        execute(statement)


def _add_trials(execute: Callable[[str], object]) -> None:
    execute(ONE_PER_TRIAL)


# The version that a database has -> what makes it the next one.
MIGRATIONS: dict[int, Callable[[Callable[[str], object]], None]] = {
    3: _add_trials,  # 4: a trial of a sweep is there once.
}

LOCK_ALL = "SELECT pg_advisory_xact_lock(%s, number) FROM unnest(%s::int[]) AS number"
"""Locks numbers in the given order until the end of the transaction; every role may."""


def _lock_of(row: Row) -> int:
    return crc32(row[COLUMNS.index("name")].encode(errors="replace")) % LOCKS


# ---------------------------------------------------------------- what went wrong, in one line

INSTALL = 'records in PostgreSQL need psycopg: pip install "tinytorch-perf[postgres]"'
TRY_AGAIN = ("08", "40", "57")
"""Classes of SQLSTATE that pass: no connection, a deadlock, a server that is shutting down."""
# The beginning of a SQLSTATE -> what it means here and what to do; the first that fits.
ADVICE = {
    "42501": "does not allow this; ask its owner for the grants of a reader or a writer",
    "25006": "may only be read; connect to the primary server",
    "53": "has no room or no connection left; try again later, or ask its administrator",
    "57": "is shutting down or starting; try again later",
    "40": "is busy with other writers; try again",
    "": "cannot be used; check the address, the password (PGPASSWORD, ~/.pgpass) and the server",
}


class Postgres(Database):
    """The tables of a store in a database of PostgreSQL.

    A connection that is lost is made anew, for `timeout_s` seconds: adding a record once more
    changes nothing, so what was not acknowledged is sent again.
    """

    insert = (
        f"INSERT INTO records ({', '.join(COLUMNS)}) "
        f"VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT DO NOTHING"
    )
    location: Address

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self.location = address
        self._timeout_s = timeout_s
        self._is_closed = False
        self.connection = self._patiently(self._connect)
        try:
            self._patiently(self._prepare)
        except BaseException:
            self.connection.close()
            raise

    def read(self, statement: str, *values: object) -> list[Row]:
        """Return all rows of a query; raise Unreadable where they are damaged."""
        query = statement.replace("?", "%s")

        def run() -> list[Row]:
            return self.connection.execute(query, values).fetchall()

        return self._patiently(run)

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows of `records`, all of them or none; they are on disk when it returns.

        Rows that meet in an index or a series have one name. Writers lock the names first, all in
        one order, so that none of them waits for another in a circle (a deadlock).
        """
        locks = sorted({_lock_of(row) for row in rows})

        def run() -> None:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                cursor.execute(LOCK_ALL, (APPLICATION_ID, locks))
                cursor.executemany(self.insert.replace("?", "%s"), rows)

        self._patiently(run)

    def problems(self) -> list[str]:
        """Return nothing: PostgreSQL checks its own pages."""
        return []

    def close(self) -> None:
        self._is_closed = True
        self.connection.close()

    def as_record_error(self, error: Exception) -> Exception:
        """Turn an error into a RecordError without any secret of the address."""
        import psycopg

        state = getattr(error, "sqlstate", None) or ""
        words = self.location.safe_words(error)
        if self._is_closed or (isinstance(error, psycopg.ProgrammingError) and not state):
            return RecordError(f"{self.location} cannot be used here; open the store again")
        advice = next(advice for start, advice in ADVICE.items() if state.startswith(start))
        return RecordError(f"{self.location} {advice} ({words})")

    # ------------------------------------------------------------ connecting

    def _connect(self) -> psycopg.Connection[Any]:
        psycopg = _psycopg()
        connection = psycopg.connect(
            self.location.full,
            autocommit=True,
            connect_timeout=max(2, round(self._timeout_s)),
            application_name="tinytorch",
        )
        # What is acknowledged is on disk, whatever the server does by default.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
        return connection

    def _patiently(self, run: Callable[[], T]) -> T:
        """Run something that may be repeated, again while the server is away or busy."""
        psycopg = _psycopg()
        deadline, pause_s = time.monotonic() + self._timeout_s, 0.02
        chance = SystemRandom()  # Writers with the same seed must not meet again and again.
        while True:
            try:
                return run()
            except psycopg.Error as error:
                if self._is_closed or not self._may_pass(error) or time.monotonic() > deadline:
                    # Not as its cause: it may hold a secret.
                    raise self.as_record_error(error) from None
            time.sleep(pause_s * chance.uniform(0.5, 1))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._connect_again()

    def _may_pass(self, error: psycopg.Error) -> bool:
        """Return whether an error may be gone when the same is tried again."""
        state = error.sqlstate or ""
        if state:
            return state.startswith(TRY_AGAIN)
        # Without one it came from the client: a lost connection, if there has been one.
        has_connection = hasattr(self, "connection")
        return isinstance(error, _psycopg().OperationalError) and has_connection

    def _connect_again(self) -> None:
        if not hasattr(self, "connection") or not self.connection.closed:
            return
        try:
            self.connection = self._connect()
        except _psycopg().OperationalError:
            return  # The next try fails, too, and counts.

    # ------------------------------------------------------------ the tables

    def _prepare(self) -> None:
        """Make the database ready for use: its tables, or those of an older version as ours."""
        version = self._checked_version()
        if version == VERSION:
            return
        if version and not self._is_owner():
            raise RecordError(
                f"{self.location} has version {version}, and only its owner can bring it to "
                f"{VERSION}: run `tinytorch history --store URL` as its owner"
            )
        # One at a time, and locked before the transaction, which sees what was there at its start.
        self.connection.execute("SELECT pg_advisory_lock(%s)", (APPLICATION_ID,))
        try:
            with self.connection.transaction():
                self._migrate(self._checked_version())
        finally:
            if not self.connection.closed:
                self.connection.execute("SELECT pg_advisory_unlock(%s)", (APPLICATION_ID,))

    def _is_owner(self) -> bool:
        row = self.connection.execute(
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'records'::regclass"
        ).fetchone()
        return bool(row and row[0])

    def _migrate(self, version: int) -> None:
        if not version:
            _create(self._execute)
            version = FIRST_VERSION
        for step in range(version, VERSION):
            MIGRATIONS[step](self._execute)
        self._execute(f"UPDATE tinytorch_store SET version = {VERSION} WHERE version < {VERSION}")

    def _execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def _checked_version(self) -> int:
        """Return the version of the tables, 0 where there are none; raise for those of others."""
        rows = self.connection.execute(OUR_TABLES).fetchall()
        found = {name for (name,) in rows}
        if not found:
            return 0
        advice = "name another database, or a schema with ?options=-csearch_path%3DNAME"
        if len(found) < len(TABLES):
            raise RecordError(f"{self.location} has tables of another program; {advice}")
        row = self.connection.execute("SELECT application, version FROM tinytorch_store").fetchone()
        application, version = row or (0, 0)
        if application != APPLICATION_ID or version < FIRST_VERSION:
            raise RecordError(f"{self.location} has tables of another program; {advice}")
        if version > VERSION:
            raise RecordError(
                f"{self.location} has version {version}, but this tinytorch knows up to {VERSION}; "
                "update tinytorch, or name another database"
            )
        return int(version)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise MissingPartError(INSTALL) from error
    return psycopg
