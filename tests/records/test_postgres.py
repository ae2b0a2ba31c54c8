"""A store in PostgreSQL, on a real server: roles, killed servers and clients, many writers."""

import os
import random
import subprocess
import sys
import threading
import time

import pytest
from example_records import record, series
from parts import require_part
from project_files import ROOT, TESTS

from tinytorch.errors import RecordError
from tinytorch.records.database import APPLICATION_ID, VERSION
from tinytorch.records.postgres import Postgres
from tinytorch.records.store import RecordStore, keep

psycopg = require_part("psycopg")

WRITER = """
import os, sys
from example_records import record
from tinytorch.records.store import RecordStore
writer, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with RecordStore(os.environ["TINYTORCH_RECORDS"], timeout_s=60) as store:
    for number in range(first, first + count):
        # Each is added twice, as by a client that was not told of the first time.
        store.add(record(hours=number, run=writer))
        sys.stdout.write(store.add(record(hours=number, run=writer)) + "\\n")
        sys.stdout.flush()
"""


def start_writer(database, name, first=0, count=10**6):
    search = os.pathsep.join([str(ROOT), str(TESTS)])
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(first), str(count)],
        env=os.environ | {"PYTHONPATH": search, "TINYTORCH_RECORDS": database},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def whole_lines(text):
    """Give the lines that were acknowledged: what has no end was not."""
    return text[: text.rfind("\n") + 1].split()


def check_all_there(database, promised):
    with RecordStore(database) as store:
        hashes = store.hashes()
        assert set(promised) <= set(hashes)
        assert len(hashes) == len(set(hashes)) == len(store)
        assert store.check() == ()
        return len(hashes)


def test_the_series_are_counted_as_the_records_say(database):
    with RecordStore(database) as store:
        store.add_all([*series([1, 2, 3]), *series([1, 2], name="mlp")])
        store.add_all(series([1, 2, 3, 4]))
        counted = {each.key.name: (each.count, each.first, each.last) for each in store.series()}
        found = store.find()
    for name, (count, first, last) in counted.items():
        dates = [each.created_at for each in found if each.name == name]
        assert (count, first, last) == (len(dates), dates[0], dates[-1])


def test_a_changed_and_a_deleted_row_leave_their_series(database):
    with RecordStore(database) as store:
        store.add_all([*series([1, 2, 3]), record(name="mlp")])
        execute = store._database.connection.execute
        execute("DELETE FROM records WHERE name = 'mlp'")
        execute("UPDATE records SET name = 'other' WHERE id = (SELECT max(id) FROM records "
                "WHERE name = 'gpt')")  # fmt: skip
        assert {each.key.name: each.count for each in store.series()} == {"gpt": 2, "other": 1}
        assert len(store) == 3
        assert len(store.check()) == 1, "its columns do not fit the record"


def test_a_result_is_kept_in_the_database(database, monkeypatch):
    monkeypatch.setenv("TINYTORCH_RECORDS", database)
    kept = keep(record())
    assert kept.note == ""
    assert str(kept.path) == database, "there is no secret in it"
    with RecordStore(database) as store:
        assert store.find() == [record()]


def test_tables_of_another_program_are_left_alone(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE records (x int)")
    with pytest.raises(RecordError, match="tables of another program; name another database"):
        RecordStore(database)


def test_a_newer_version_says_to_update(database):
    with RecordStore(database) as store:
        store._database.connection.execute("UPDATE tinytorch_store SET version = 99")
    with pytest.raises(RecordError, match=r"version 99, but .* update tinytorch"):
        RecordStore(database)


def test_tables_with_the_mark_of_another_program_are_left_alone(database):
    with RecordStore(database) as store:
        store._database.connection.execute("UPDATE tinytorch_store SET application = 7")
    with pytest.raises(RecordError, match="tables of another program"):
        RecordStore(database)


def test_an_older_version_is_brought_up_to_date_by_its_owner_only(database, roles):
    index = "SELECT count(*) FROM pg_indexes WHERE indexname = 'one_per_trial'"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("UPDATE tinytorch_store SET version = 3; DROP INDEX one_per_trial")
        with pytest.raises(RecordError, match="version 3, and only its owner"):
            RecordStore(roles["writer"])
        with RecordStore(database) as store:
            assert store.find() == series([1, 2, 3])
        assert owner.execute(index).fetchone() == (1,)
        assert owner.execute("SELECT version FROM tinytorch_store").fetchone() == (VERSION,)


def test_a_closed_store_says_so_at_once(database):
    store = RecordStore(database, timeout_s=60)
    store.close()
    with pytest.raises(RecordError, match="open the store again"):
        store.hashes()


def test_a_connection_that_is_lost_is_made_again(database, monkeypatch):
    with RecordStore(database, timeout_s=60) as store:
        connect, fails = store._database._connect, [True, False]

        def connect_at_the_second_time():
            if fails.pop(0):
                raise psycopg.OperationalError("it is away")
            return connect()

        monkeypatch.setattr(store._database, "_connect", connect_at_the_second_time)
        store._database.connection.close()
        assert store.add(record()) == record().hash
        assert (store.find(), fails) == ([record()], [])


def test_what_does_not_exist_is_one_line_with_advice(postgres):
    with pytest.raises(RecordError, match="check the address, the password") as raised:
        RecordStore(postgres.address("nowhere"), timeout_s=0.1)
    assert "\n" not in str(raised.value)


GRANTS = {
    "reader": "GRANT SELECT ON records, series, tinytorch_store TO {role}",
    "writer": "GRANT SELECT ON records, series, tinytorch_store TO {role}; "
    "GRANT INSERT ON records TO {role}",
}
"""The same as in docs/history.md."""


@pytest.fixture
def roles(postgres, database):
    """Give the URLs of a reader and a writer of a store with three records."""
    with RecordStore(database) as store:
        store.add_all(series([1, 2, 3]))
    name = database.partition("@/")[2].partition("?")[0]
    addresses = {}
    with psycopg.connect(database, autocommit=True) as owner:
        for word, grants in GRANTS.items():
            role = f"{word}_of_{name}"
            owner.execute(f"CREATE ROLE {role} LOGIN")
            owner.execute(grants.format(role=role))
            addresses[word] = postgres.address(name, user=role)
    return addresses


def test_a_reader_reads_and_does_not_write(roles):
    with RecordStore(roles["reader"]) as store:
        assert store.find() == series([1, 2, 3])
        assert store.series()[0].count == 3
        with pytest.raises(RecordError, match="does not allow this; ask its owner"):
            store.add(record(hours=9))


def test_a_writer_adds_and_changes_nothing_of_others(roles):
    with RecordStore(roles["writer"]) as store:
        store.add(record(hours=9))
        assert store.series()[0].count == 4, "counted with the rights of the owner"
        for statement in ("UPDATE records SET body = ''", "DELETE FROM records",
                          "UPDATE series SET count = 0", "DROP TABLE records"):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                store._database.connection.execute(statement)
        assert store.check() == ()


def test_a_killed_server_that_comes_back_is_waited_for(postgres, database):
    with RecordStore(database, timeout_s=60) as store:
        store.add(record())
        postgres.kill()
        thread = threading.Thread(target=postgres.start)
        thread.start()
        store.add(record(hours=1))
        assert store.find() == [record(), record(hours=1)]
        thread.join()


def test_a_server_that_stays_away_is_an_error_after_a_while(postgres, database):
    with RecordStore(database, timeout_s=0.2) as store:
        store.add(record())
        postgres.kill()
        with pytest.raises(RecordError, match="check the address, the password"):
            store.add(record(hours=1))
        postgres.start()
        store.add(record(hours=2))
        assert len(store) == 2


def check_many_writers(postgres, database, writers, records, kills):
    """Many processes write while the server and some of them are killed: nothing is lost."""
    chance = random.Random(5)
    processes = [start_writer(database, f"writer {n}", count=records) for n in range(writers)]
    victims = chance.sample(range(writers), max(1, writers // 5))
    promised = [process.stdout.readline().strip() for process in processes]  # all are connected
    for _ in range(kills):
        time.sleep(chance.uniform(0.05, 0.3))
        postgres.kill()
        postgres.start()
    for victim in victims:
        processes[victim].kill()
    for number, process in enumerate(processes):
        shown, messages = process.communicate(timeout=600)
        assert process.returncode == 0 or number in victims, messages
        promised += whole_lines(shown)
    check_all_there(database, promised)
    # Those that were killed begin again from their start: nothing is doubled.
    again = [start_writer(database, f"writer {n}", count=records) for n in victims]
    for process in again:
        shown, messages = process.communicate(timeout=600)
        assert process.returncode == 0, messages
        promised += whole_lines(shown)
    assert check_all_there(database, promised) == writers * records


def test_writers_and_a_killed_server_lose_and_double_nothing(postgres, database):
    check_many_writers(postgres, database, writers=4, records=15, kills=1)


@pytest.mark.slow
def test_fifty_writers_and_a_server_killed_often_lose_and_double_nothing(postgres, database):
    check_many_writers(postgres, database, writers=50, records=30, kills=5)


def test_a_writer_locks_its_names_before_all_else_and_together(database):
    rows = [record(name=name) for name in ("mlp", "gpt")]
    held = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
    with RecordStore(database) as one, RecordStore(database) as other:
        connection = one._database.connection
        taken = []
        for order in (rows, rows[::-1]):
            with connection.transaction(force_rollback=True):
                one.add_all(order)
                taken.append({id for (id,) in connection.execute(held, [APPLICATION_ID])})
        assert taken[0] == taken[1]
        assert len(taken[0]) == 2
        assert connection.execute(held, [APPLICATION_ID]).fetchall() == [], "until it is committed"
        assert other.add_all(rows) == tuple(each.hash for each in rows)


def test_writers_of_the_same_records_in_other_orders_never_deadlock(database, monkeypatch):
    records = [record(hours=n, name=f"series {n % 7}") for n in range(60)]
    retried, raised = [], []

    def note_and_give_up(self, error):
        retried.append(error.sqlstate)
        return False

    monkeypatch.setattr(Postgres, "_may_pass", note_and_give_up)

    def write(seed):
        # A trial of a sweep, by whichever machine, meets the same trial of the others.
        own = {"kind": "sweep trial", "run": "r", "environment": {"fingerprint": f"{seed:016x}"}}
        trials = [record(name=f"trial {n}", **own) for n in range(20)]
        rows = [*records, *trials]
        try:
            with RecordStore(database, timeout_s=60) as store:
                for _ in range(5):
                    store.add_all(random.Random(seed).sample(rows, len(rows)))
        except RecordError as error:
            raised.append(str(error))

    with RecordStore(database):
        pass  # Its tables are made before all write.
    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (retried, raised) == ([], [])
    with RecordStore(database) as store:
        assert len(store) == len(store.hashes()) == 80
        assert len(store.find(kind="sweep trial", run="r")) == 20
