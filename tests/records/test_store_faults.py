"""What happens to a store when processes are killed, disks are full and files are damaged."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from example_records import record, series
from project_files import ROOT, TESTS

from tinytorch.errors import RecordError, SettingError
from tinytorch.records import store as store_module
from tinytorch.records.exchange import export_jsonl, import_jsonl
from tinytorch.records.location import refuge_path
from tinytorch.records.store import RecordStore, keep

needs_posix = pytest.mark.skipif(os.name == "nt", reason="signals and limits of POSIX")

# Adds records and prints the hash of each once it is committed.
WRITER = """
import sys
from example_records import record
from tinytorch.records.store import RecordStore
path, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with RecordStore(path, timeout_s=60) as store:
    for number in range(count):
        sys.stdout.write(store.add(record(hours=number, run=writer)) + "\\n")
        sys.stdout.flush()
"""


def start(code, *arguments, **settings):
    search = os.pathsep.join([str(ROOT), str(TESTS)])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **settings,
    )


def finish(process):
    shown, messages = process.communicate(timeout=120)
    assert process.returncode == 0, messages
    return shown.split()


def check_integrity(path):
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def check_after_killing(path, times):
    """Kill a writer at random moments; every hash that it printed must be there."""
    chance, promised = random.Random(7), []
    for number in range(times):
        with start(WRITER, path, f"writer {number}", 10**6) as process:
            # Every fourth one dies early, perhaps while the file is created or opened.
            for _ in range(0 if number % 4 == 0 else chance.randrange(1, 30)):
                promised.append(process.stdout.readline().strip())
            time.sleep(chance.uniform(0, 0.5 if number % 4 == 0 else 0.02))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
            process.stderr.read()
        # What was printed without the end of its line was not promised yet.
        promised += rest[: rest.rfind("\n") + 1].split()
    with RecordStore(path) as store:
        assert [each for each in promised if each not in store] == []
        assert store.check() == ()
        assert len(store.find()) == len(store) >= len(promised) > 0
    check_integrity(path)


@needs_posix
def test_a_killed_process_loses_nothing_that_was_committed(tmp_path):
    check_after_killing(tmp_path / "x.db", times=8)


@needs_posix
@pytest.mark.slow
def test_a_hundred_killed_processes_lose_nothing(tmp_path):
    check_after_killing(tmp_path / "x.db", times=100)


def test_several_processes_that_write_at_once_lose_nothing(tmp_path):
    # The file is not there yet: all of them create it.
    processes = [start(WRITER, tmp_path / "x.db", f"writer {n}", 40) for n in range(4)]
    promised = [hash for process in processes for hash in finish(process)]
    assert len(set(promised)) == 160
    with RecordStore(tmp_path / "x.db") as store:
        assert all(hash in store for hash in promised)
        assert len(store) == 160
    check_integrity(tmp_path / "x.db")


def test_somebody_who_keeps_writing_is_named_a_lock(tmp_path):
    with RecordStore(tmp_path / "x.db", timeout_s=0.05) as store:
        store.add(record())
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordError, match="locked by another process; wait"):
            store.add(record(hours=1))
        assert store.find() == [record()], "reading goes on"
        other.execute("ROLLBACK")
        other.close()
        store.add(record(hours=1))
        assert len(store) == 2


def test_a_full_disk_keeps_what_was_committed(tmp_path):
    with RecordStore(tmp_path / "x.db") as store:
        (pages,) = store._database.connection.execute("PRAGMA page_count").fetchone()
        store._database.connection.execute(f"PRAGMA max_page_count = {pages + 20}")
        added = []
        with pytest.raises(RecordError, match="the disk is full; make room"):
            added.extend(store.add(record(hours=number)) for number in range(10_000))
        assert len(added) > 5
        assert [each.hash for each in store.find()] == added
        store._database.connection.execute("PRAGMA max_page_count = 100000")
        store.add(record(name="later"))
        assert store.check() == ()


LIMITED = """
import resource, sys, tempfile
from example_records import record
from tinytorch.errors import RecordError
from tinytorch.records.store import RecordStore, keep
path, refuge = sys.argv[1:]
tempfile.tempdir = refuge
with RecordStore(path) as store:
    store.add(record(hours=0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        for number in range(1, 10_000):
            print(store.add(record(hours=number)))
    except RecordError as error:
        sys.stderr.write(f"{error}\\n")
    kept = keep(record(name="kept"), path)
    sys.stderr.write(f"{kept.note}\\n")
"""


@needs_posix
def test_a_write_that_the_system_refuses_loses_nothing(tmp_path):
    with start(LIMITED, tmp_path / "x.db", tmp_path) as process:
        shown, messages = process.communicate(timeout=120)
    assert process.returncode == 0, messages
    refusal, note = messages.splitlines()
    assert "x.db cannot" in refusal
    assert "the result was not stored" in note
    with RecordStore(tmp_path / "x.db") as store:
        assert all(hash in store for hash in shown.split())
        assert store.check() == ()
        (refuge,) = tmp_path.glob("*.jsonl")
        assert import_jsonl(store, refuge).added == 1
        assert [each.name for each in store.find(name="kept")] == ["kept"]
    check_integrity(tmp_path / "x.db")


@pytest.fixture
def large(tmp_path):
    """Give a file of many pages, all in one file, and its records."""
    records = series(range(1, 301))
    with RecordStore(tmp_path / "x.db") as store:
        store.add_all(records)
    assert (tmp_path / "x.db").stat().st_size > 100_000
    return tmp_path / "x.db", records


def overwrite(path, start, length):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(random.Random(start).randbytes(length))


@pytest.mark.parametrize("part", [0.2, 0.35, 0.5, 0.65, 0.8])
def test_what_a_damaged_file_still_holds_can_be_saved(large, tmp_path, part):
    path, records = large
    overwrite(path, int(path.stat().st_size * part), 3000)
    with RecordStore(path) as store:
        damaged = store.check()
        assert damaged, "nothing noticed"
        saved = store.readable()
        assert set(saved) < set(records) or (set(saved) == set(records) and not damaged[0].hash)
        assert len(saved) > 100
        export_jsonl(store, tmp_path / "saved.jsonl")
    with RecordStore(tmp_path / "new.db") as fresh:
        assert import_jsonl(fresh, tmp_path / "saved.jsonl").added == len(saved)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_searching_a_damaged_file_gives_right_records_or_an_error(large, part):
    path, records = large
    overwrite(path, int(path.stat().st_size * part), 3000)
    with RecordStore(path) as store:
        try:
            found, problem = store.find(), None
        except RecordError as error:
            found, problem = [], str(error)
        assert set(found) <= set(records)
        skipped = len(records) - len(found)
        assert len(store.damaged) == skipped or "is damaged; save what can be read" in problem


def test_a_damaged_header_is_no_database(large):
    path, _ = large
    overwrite(path, 0, 100)
    with pytest.raises(RecordError, match="is no database"):
        RecordStore(path)


def test_a_truncated_file_is_damaged(large, tmp_path, monkeypatch):
    path, _ = large
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    kept = keep(record(name="new"), path)
    if kept.note:
        assert "is damaged" in kept.note
        assert kept.path.read_text("ascii").count("\n") == 1
    else:
        with RecordStore(path) as store:
            assert store.check(), "half of it is gone"


@pytest.mark.parametrize("content", [b"some text\n" * 500, b"\x00" * 5000])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    (tmp_path / "x.db").write_bytes(content)
    with pytest.raises(RecordError, match="is no database"):
        RecordStore(tmp_path / "x.db")
    assert (tmp_path / "x.db").read_bytes() == content


def test_an_empty_file_becomes_a_store(tmp_path):
    (tmp_path / "x.db").touch()
    with RecordStore(tmp_path / "x.db") as store:
        assert store.add(record())


def test_a_folder_is_no_store(tmp_path):
    with pytest.raises(RecordError, match=r"cannot be opened; check"):
        RecordStore(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"x\.db: .*; name another file with TINYTORCH_RECORDS"):
        RecordStore(tmp_path / "file" / "folder" / "x.db")
    with pytest.raises(RecordError, match="cannot be opened"):
        RecordStore(tmp_path / "file" / "x.db")


READER = """
import os, sys
from example_records import record
from tinytorch.errors import RecordError
from tinytorch.records.store import RecordStore
if os.geteuid() == 0:
    # Permissions do not stop the superuser, so he becomes somebody else.
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
with RecordStore(sys.argv[1]) as store:
    print(len(store.find()), len(store.check()))
    try:
        store.add(record(name="new"))
    except RecordError as error:
        print(error)
try:
    RecordStore(sys.argv[2])
except RecordError as error:
    print(error)
"""


@needs_posix
def test_a_folder_that_may_only_be_read_can_be_read():
    # Not in the folder of this test, into which nobody else may look.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with RecordStore(folder / "x.db") as store:
            store.add_all(series([1, 2, 3]))
        (folder / "x.db").chmod(0o444)
        folder.chmod(0o555)
        with start(READER, folder / "x.db", folder / "new.db") as process:
            shown, messages = process.communicate(timeout=120)
        folder.chmod(0o755)
    assert (process.returncode, messages) == (0, "")
    counts, no_write, no_create = shown.splitlines()
    assert counts == "3 0"
    assert "cannot be written; check the permissions" in no_write
    assert "cannot be opened; check that its folder can be written" in no_create


# ---------------------------------------------------------------- files that others made


def changed_store(path, *statements):
    with RecordStore(path) as store:
        store.add(record())
    connection = sqlite3.connect(path, isolation_level=None)
    for each in statements:
        connection.execute(each)
    connection.close()


ENDLESS = (
    "CREATE VIEW records AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT i AS id, 'a' AS hash, 'k' AS kind, 'n' AS name, 'm' AS machine, 's' AS settings_key, "
    "'r' AS run, 'd' AS created_at, 'b' AS body FROM n"
)


@pytest.mark.parametrize(
    "statements",
    [
        ("PRAGMA user_version = -1",),
        ("PRAGMA user_version = -2147483648",),
        ("PRAGMA user_version = 0",),
        ("ALTER TABLE records RENAME TO others", ENDLESS),
        ("CREATE VIEW more AS SELECT 1",),
        ("CREATE TRIGGER other AFTER INSERT ON records BEGIN DELETE FROM series; END",),
        ("CREATE TABLE other (a)",),
        ("CREATE INDEX other ON records (hex(zeroblob(1000)))",),
    ],
)
def test_a_file_with_more_than_a_store_has_is_refused(tmp_path, statements):
    changed_store(tmp_path / "x.db", *statements)
    with pytest.raises(RecordError, match="no tinytorch"):
        RecordStore(tmp_path / "x.db")


def test_an_endless_view_in_an_older_file_is_refused(tmp_path):
    changed_store(
        tmp_path / "x.db",
        "DROP TABLE records",
        "DROP TABLE series",
        ENDLESS,
        "PRAGMA user_version = 2",
    )
    with pytest.raises(RecordError, match="no tinytorch"):
        RecordStore(tmp_path / "x.db")


READS_WITHOUT_ROOM = """
import os, resource, signal, sys
from tinytorch.records.store import RecordStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
with RecordStore(sys.argv[1]) as store:
    os.write(1, "\\n".join(each.hash for each in store.find()).encode())
"""


@needs_posix
@pytest.mark.parametrize("has_log", [False, True])
def test_a_store_is_read_where_nothing_can_be_written(tmp_path, has_log):
    path = tmp_path / "x.db"
    with RecordStore(path) as store:
        hashes = list(store.add_all(series([1, 2, 3])))
        if has_log:  # as a killed process leaves it
            for name in ("x.db", "x.db-wal"):
                (tmp_path / "copy" / name).parent.mkdir(exist_ok=True)
                (tmp_path / "copy" / name).write_bytes((tmp_path / name).read_bytes())
    path = tmp_path / "copy" / "x.db" if has_log else path
    process = subprocess.run(
        [sys.executable, "-c", READS_WITHOUT_ROOM, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == hashes


@needs_posix
@pytest.mark.parametrize("plant", ["a link", "a second name", "a pipe", "others' file"])
def test_a_planted_file_does_not_get_the_results(tmp_path, monkeypatch, plant):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    refuge, other = refuge_path(), tmp_path / "other"
    other.write_text("")
    (tmp_path / "no").touch()  # no folder, so no store
    if plant == "a link":
        refuge.symlink_to(other)
    elif plant == "a second name":
        refuge.hardlink_to(other)
    elif plant == "a pipe":
        os.mkfifo(refuge)
    else:
        if os.geteuid():
            pytest.skip("only the superuser can give a file away")
        refuge.write_text("")
        os.chown(refuge, 12345, 12345)
    with pytest.raises(RecordError, match="took it neither"):
        keep(record(), tmp_path / "no" / "x.db")
    assert other.read_text() == ""


@needs_posix
def test_a_result_that_was_not_stored_is_for_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "no").touch()
    refuge_path().write_text("")
    refuge_path().chmod(0o666)
    kept = keep(record(), tmp_path / "no" / "x.db")
    assert kept.path == refuge_path()
    assert refuge_path().stat().st_mode & 0o777 == 0o600


def test_a_short_write_leaves_no_half_of_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "no").touch()
    keep(record(), tmp_path / "no" / "x.db")
    whole = refuge_path().read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, text: write(handle, text[: len(text) // 2]))
    with pytest.raises(RecordError, match="took it neither"):
        keep(record(hours=1), tmp_path / "no" / "x.db")
    assert refuge_path().read_bytes() == whole


def test_salvage_brings_back_every_id_the_first_and_the_last(large, monkeypatch):
    path, records = large
    with RecordStore(path) as store:
        read = store._database.read

        def damaged(statement, *values):
            if statement == "SELECT id, hash FROM records ORDER BY id":
                raise store._database.Unreadable("the index is damaged")
            return read(statement, *values)

        monkeypatch.setattr(store._database, "read", damaged)
        assert store.readable() == records
        monkeypatch.setattr(store_module, "MOST_SALVAGED", 7)
        assert store.readable() == records[:7]


def test_a_store_is_closed_at_the_end_of_the_block(tmp_path):
    with RecordStore(tmp_path / "x.db") as store:
        store.add(record())
    with pytest.raises(RecordError, match="cannot be used here"):
        store.find()


def test_hashes_that_start_alike_are_named_in_short(tmp_path, monkeypatch):
    with RecordStore(tmp_path / "x.db") as store:
        rows = [(number, "abcd" + f"{number:02}" * 30) for number in range(6)]
        monkeypatch.setattr(store, "_ask", lambda *words: rows)
        with pytest.raises(SettingError, match="6 records start with abcd: ") as caught:
            store.get("abcd")
    named = str(caught.value).partition("abcd: ")[2].partition(";")[0].split(", ")
    assert named == [hash[:12] for _, hash in rows[:4]]


def test_a_store_that_somebody_holds_for_a_moment_is_waited_for(tmp_path):
    path = tmp_path / "x.db"
    with RecordStore(path) as store:
        store.add(record())
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN IMMEDIATE")
    ending = threading.Timer(0.3, other.execute, ("ROLLBACK",))
    ending.start()
    with RecordStore(path, timeout_s=30) as store:
        assert len(store) == 1
        journal = store._database.connection.execute("PRAGMA journal_mode").fetchone()
    ending.join()
    other.close()
    assert journal == ("wal",)
