import sqlite3
from contextlib import closing

import pytest
from example_records import record, series

from tinytorch.errors import RecordError
from tinytorch.records import sqlite as layout
from tinytorch.records.record import canonical_json
from tinytorch.records.store import RecordStore

COLUMNS_OF_1 = "hash, kind, name, machine, settings_key, created_at, body"


def write_version_1(path, records, bodies=None):
    """Write a file as the first version of the store did."""
    connection = sqlite3.connect(path, isolation_level=None)
    layout.MIGRATIONS[0](connection)
    connection.execute("PRAGMA user_version = 1")
    for each in records:
        body = (bodies or {}).get(each.hash, canonical_json(each.to_dict()))
        row = (each.hash, *each.series, each.created_at, body)
        connection.execute(f"INSERT INTO records ({COLUMNS_OF_1}) VALUES (?,?,?,?,?,?,?)", row)
    connection.close()


def version_of(path):
    connection = sqlite3.connect(path)
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return found


def test_there_is_a_way_from_every_version():
    assert sorted(layout.MIGRATIONS) == list(range(layout.VERSION))


def test_a_file_of_version_1_is_brought_up_to_date(tmp_path):
    records = [*series([1, 2, 3], run="first"), *series([1, 2], name="mlp", run="second")]
    write_version_1(tmp_path / "x.db", records)
    with RecordStore(tmp_path / "x.db") as store:
        assert len(store) == 5
        assert {each.name for each in store.find(run="second")} == {"mlp"}
        assert len(store.find(run="first")) == 3
        assert store.check() == ()
        store.add(record(hours=50))
    assert version_of(tmp_path / "x.db") == layout.VERSION


@pytest.mark.parametrize("body", ["", "{", "[]", '{"run": 3}'])
def test_a_damaged_record_does_not_stop_the_migration(tmp_path, body):
    records = series([1, 2, 3], run="r")
    write_version_1(tmp_path / "x.db", records, {records[1].hash: body})
    with RecordStore(tmp_path / "x.db") as store:
        assert store.find() == [records[0], records[2]]
        assert [each.hash for each in store.damaged] == [records[1].hash]


def test_a_migration_that_fails_leaves_the_older_version_whole(tmp_path, monkeypatch):
    records = series([1, 2, 3], run="r")
    write_version_1(tmp_path / "x.db", records)

    def fail(connection):
        layout._add_run(connection)
        raise RecordError("killed here")

    with monkeypatch.context() as patch:
        patch.setitem(layout.MIGRATIONS, 1, fail)
        with pytest.raises(RecordError, match="killed here"):
            RecordStore(tmp_path / "x.db")
    assert version_of(tmp_path / "x.db") == 1
    with RecordStore(tmp_path / "x.db") as store:
        assert store.find(run="r") == records


def test_a_new_file_is_of_this_version_and_says_whose_it_is(tmp_path):
    RecordStore(tmp_path / "x.db").close()
    connection = sqlite3.connect(tmp_path / "x.db")
    assert connection.execute("PRAGMA application_id").fetchone() == (layout.APPLICATION_ID,)
    connection.close()
    assert version_of(tmp_path / "x.db") == layout.VERSION


def test_a_newer_version_says_to_update_and_stays_as_it_is(tmp_path):
    with RecordStore(tmp_path / "x.db") as store:
        store.add(record())
        store._database.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(RecordError, match=r"version 99, but .* up to 4; update tinytorch"):
        RecordStore(tmp_path / "x.db")
    assert version_of(tmp_path / "x.db") == 99


@pytest.mark.parametrize("version", [0, 3])
def test_the_database_of_another_program_is_left_alone(tmp_path, version):
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE theirs (x)")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = (tmp_path / "x.db").read_bytes()
    with pytest.raises(RecordError, match="database of another program; name another file"):
        RecordStore(tmp_path / "x.db")
    assert (tmp_path / "x.db").read_bytes() == before


def test_a_file_that_another_process_makes_ready_meanwhile_is_ours(tmp_path):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as first:
        first.execute("PRAGMA journal_mode = WAL")

    class Overtaken(sqlite3.Connection):
        """A connection whose file gets its tables between two of its questions."""

        was_overtaken = False

        def execute(self, statement, *rest):
            if "sqlite_master" in statement and not self.was_overtaken:
                self.was_overtaken = True
                with RecordStore(path) as other:
                    other.add(record())
            return super().execute(statement, *rest)

    slower = sqlite3.connect(path, isolation_level=None, factory=Overtaken)
    layout.prepare(slower, path)
    assert slower.was_overtaken
    slower.close()
    assert version_of(path) == layout.VERSION


@pytest.fixture
def connection(tmp_path):
    opened = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    opened.execute("CREATE TABLE t (x)")
    yield opened
    opened.close()


def write_and_fail(connection, statement):
    with layout.transaction(connection):
        connection.execute(statement)
        raise KeyError


def test_a_transaction_is_all_or_nothing(connection):
    with pytest.raises(KeyError):
        write_and_fail(connection, "INSERT INTO t VALUES (1)")
    with layout.transaction(connection):
        connection.execute("INSERT INTO t VALUES (2)")
    assert connection.execute("SELECT x FROM t").fetchall() == [(2,)]


def test_a_transaction_that_sqlite_has_ended_raises_the_first_error(connection):
    with pytest.raises(KeyError):
        write_and_fail(connection, "ROLLBACK")
