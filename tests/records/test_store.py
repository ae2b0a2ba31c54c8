import sqlite3
import tempfile
import threading
from datetime import date

import pytest
from example_records import ENVIRONMENT, record, series

from tinytorch.errors import RecordError, SettingError
from tinytorch.records.exchange import import_jsonl
from tinytorch.records.location import Address
from tinytorch.records.store import RecordStore, keep, open_store

OTHER = {**ENVIRONMENT, "fingerprint": "0000000000000000"}


@pytest.fixture
def file_store(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def store(request):
    """Give an empty store of each kind: what holds for one holds for the other."""
    if request.param == "sqlite":
        yield request.getfixturevalue("file_store")
        return
    with RecordStore(request.getfixturevalue("database")) as opened:
        yield opened


def tamper(store, statement, *values):
    if isinstance(store.path, Address):
        import psycopg

        with psycopg.connect(store.path.full) as connection:
            connection.execute(statement.replace("?", "%s"), values)
        return
    connection = sqlite3.connect(store.path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_a_record_comes_back_as_it_was(store):
    made = record(details={"x": [1, None, "ü"]}, notes=("doubt",), run="r")
    assert store.add(made) == made.hash
    assert store.find() == [made]
    assert made.hash in store
    assert "0" * 64 not in store


def test_adding_again_changes_nothing(store):
    made = record()
    assert store.add(made) == store.add(made)
    assert store.add_all([made, made]) == (made.hash, made.hash)
    assert len(store) == 1


def test_a_trial_of_a_sweep_is_there_once_and_the_first_stays(store):
    trial = {"kind": "sweep trial", "run": "r/machine"}
    first, second = (record(value, **trial) for value in (1.0, 2.0))
    store.add(first)
    store.add(second)
    assert store.find() == [first]
    assert store.known([first.hash, second.hash]) == {first.hash}
    store.add_all([record(3.0, name="other", **trial), record(4.0, **{**trial, "run": "r/other"})])
    found = store.names_in_runs("r/", kind="sweep trial")
    assert sorted(found) == [("r/machine", "gpt"), ("r/machine", "other"), ("r/other", "gpt")]
    assert store.names_in_runs("r/other", kind="sweep trial") == [("r/other", "gpt")]
    store.add_all([record(kind="measurement", run="r/machine"), record(5.0, run="r/machine")])
    assert len(store) == 5


def test_records_are_there_for_the_next_one_who_opens(tmp_path):
    with RecordStore(tmp_path / "x.db") as first:
        first.add_all(series([1, 2, 3]))
    with RecordStore(tmp_path / "x.db") as second:
        assert second.find() == series([1, 2, 3])


def test_every_commit_is_written_through(file_store):
    assert file_store._database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert file_store._database.connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"


@pytest.fixture
def varied(store):
    records = [
        record(hours=3, name="mlp", run="r2"),
        record(hours=0),
        record(hours=1, run="r1"),
        record(hours=2, kind="test", environment=OTHER),
        record(hours=4, settings={"batch": 1}),
    ]
    store.add_all(records)
    return records


@pytest.mark.parametrize(
    ("wanted", "hours"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"newest_first": True}, [4, 3, 2, 1, 0]),
        ({"name": "gpt"}, [0, 1, 2, 4]),
        ({"kind": "test"}, [2]),
        ({"machine": OTHER["fingerprint"]}, [2]),
        ({"run": "r1"}, [1]),
        ({"run": ""}, [0, 2, 4]),
        ({"settings_key": record().settings_key}, [0, 1, 2, 3]),
        ({"since": "2026-03-01T03:00:00Z"}, [3, 4]),
        ({"since": date(2026, 3, 2)}, []),
        ({"limit": 2}, [0, 1]),
        ({"limit": 2, "newest_first": True}, [4, 3]),
        ({"limit": 0}, []),
        ({"name": "gpt", "kind": "measurement", "limit": 1}, [0]),
        ({"name": "nothing"}, []),
    ],
)
def test_records_are_found_by_what_they_are(store, varied, wanted, hours):
    found = store.find(**wanted)
    assert [int(each.created_at[11:13]) for each in found] == hours


def test_records_of_one_moment_come_in_the_order_of_adding(store):
    records = [record(value) for value in (3.0, 1.0, 2.0)]
    store.add_all(records)
    assert store.find() == records
    assert store.find(newest_first=True) == records[::-1]


def test_a_negative_limit_is_refused(store):
    with pytest.raises(SettingError, match="limit=-1"):
        store.find(limit=-1)


def test_one_record_is_found_by_the_start_of_its_hash(store, varied):
    for each in varied:
        assert store.get(each.hash[:12]) == each
        assert store.get(each.hash.upper()) == each


def test_an_unknown_hash_says_how_to_list(store, varied):
    with pytest.raises(SettingError, match=r"no record .* starts with ffffffff; .*history NAME"):
        store.get("f" * 8)


@pytest.mark.parametrize("prefix", ["", "abc", "xyzxyz", "abcd%"])
def test_what_is_no_hash_is_refused(store, prefix):
    with pytest.raises(SettingError, match="no start of a hash; give at least 4"):
        store.get(prefix)


def test_known_hashes_are_told_from_others(store, varied):
    hashes = [each.hash for each in varied]
    assert store.known([*hashes[:3], "0" * 64]) == set(hashes[:3])
    assert store.known([]) == frozenset()
    assert store.hashes() == hashes


def test_some_of_the_series_are_listed_in_the_same_order(store, varied):
    found = store.series()
    assert [*store.series(limit=3), *store.series(limit=3, skipped=3)] == found
    assert store.series(kind="test") == [each for each in found if each.key.kind == "test"]


def test_a_limit_counts_readable_records_only(store):
    records = series(range(1, 11))
    store.add_all(records)
    for each in records[:4]:
        tamper(store, "UPDATE records SET body = '' WHERE hash = ?", each.hash)
    assert store.find(limit=3) == records[4:7]
    assert len(store.damaged) == 4


def test_an_ambiguous_start_lists_some(store):
    store.add_all(series(range(1, 1001)))
    starts = [each.hash[:4] for each in store.find()]
    twice = next(start for start in starts if starts.count(start) > 1)
    with pytest.raises(
        SettingError, match=f"records start with {twice}: {twice}.*give more digits"
    ):
        store.get(twice)


def test_series_are_listed_with_the_newest_first(store, varied):
    found = store.series()
    assert [each.key.name for each in found] == ["gpt", "mlp", "gpt", "gpt"]
    assert [each.count for each in found] == [1, 1, 1, 2]
    assert found[-1].key == varied[1].series
    assert (found[-1].first, found[-1].last) == (varied[1].created_at, varied[2].created_at)


DAMAGES = {
    "the hash does not fit": "UPDATE records SET body = replace(body, '0.0025', '0.0024')",
    "not JSON": "UPDATE records SET body = substr(body, 1, 50)",
    "columns for searching": "UPDATE records SET name = 'other'",
    "this is not": "UPDATE records SET hash = '00' || substr(hash, 3)",
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_record_is_skipped_and_reported(store, reason):
    good, bad = record(0.007, hours=1), record(0.0025)
    store.add_all([bad, good])
    tamper(store, f"{DAMAGES[reason]} WHERE hash = ?", bad.hash)
    assert store.damaged == ()
    assert store.find() == [good]
    assert store.find(limit=1) == [good], "a damaged one does not count"
    (found,) = store.damaged
    assert reason in found.reason
    assert store.check() == (found,)
    with pytest.raises(RecordError, match=reason):
        store.get(found.hash[:12])


def test_a_body_that_is_no_text_is_damaged(file_store):
    file_store.add(record())
    tamper(
        file_store, "UPDATE records SET body = CAST(x'fffe00' AS TEXT), name = CAST(x'ff' AS TEXT)"
    )
    assert file_store.find() == []
    assert [each.hash for each in file_store.damaged] == [record().hash]


def test_adding_a_damaged_record_again_mends_it(file_store):
    file_store.add(record())
    tamper(file_store, "UPDATE records SET body = '', name = 'x'")
    file_store.add(record())
    assert file_store.check() == ()
    assert file_store.find(name="gpt") == [record()]


def test_a_good_store_checks_out(store, varied):
    assert store.check() == ()
    assert store.readable() == store.find()
    assert store.count_rows() == 5


def test_a_closed_store_says_so(tmp_path):
    store = RecordStore(tmp_path / "x.db")
    store.close()
    with pytest.raises(RecordError, match="open the store again"):
        store.find()
    with pytest.raises(RecordError, match="open the store again"):
        store.add(record())


def test_another_thread_opens_its_own(file_store):
    raised = []

    def use():
        try:
            file_store.add(record())
        except RecordError as error:
            raised.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "open the store again" in raised[0]


def test_the_default_store_is_of_the_project_and_ignored_by_git(tmp_path, monkeypatch):
    monkeypatch.delenv("TINYTORCH_RECORDS", raising=False)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    with open_store() as store:
        store.add(record())
    assert store.path == tmp_path / ".tinytorch" / "records.sqlite"
    assert (tmp_path / ".tinytorch" / ".gitignore").read_text() == "*\n"


def test_a_name_with_odd_letters_is_a_file(tmp_path):
    path = tmp_path / "a b?c#d%20ü:memory:.db"
    with RecordStore(path) as store:
        store.add(record())
    assert path.exists()


def test_a_file_named_as_sqlites_memory_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RecordStore(":memory:") as store:
        store.add(record())
    assert (tmp_path / ":memory:").exists()


def test_a_result_is_kept_in_the_store(tmp_path):
    kept = keep(record(), tmp_path / "x.db")
    assert (kept.hash, kept.path, kept.note) == (record().hash, tmp_path / "x.db", "")
    with RecordStore(tmp_path / "x.db") as store:
        assert store.find() == [record()]


def test_a_result_that_the_store_does_not_take_goes_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "broken.db").write_text("this is no database at all" * 100)
    records = series([1, 2])
    kept = [keep(each, tmp_path / "broken.db") for each in records]
    assert {each.path.parent for each in kept} == {tmp_path}
    assert "is no database" in kept[0].note
    assert f"history --import {kept[0].path}" in kept[0].note
    with RecordStore(tmp_path / "new.db") as store:
        assert import_jsonl(store, kept[0].path).added == 2
        assert store.find() == records


def test_only_when_both_fail_is_it_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    (tmp_path / "broken.db").write_text("this is no database at all" * 100)
    with pytest.raises(RecordError, match=r"is no database.*and .* took it neither"):
        keep(record(), tmp_path / "broken.db")


def test_a_link_in_the_shared_folder_is_not_followed(tmp_path, monkeypatch):
    from tinytorch.records.location import refuge_path

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    refuge_path().symlink_to(victim)
    with pytest.raises(RecordError, match="took it neither"):
        keep(record(), tmp_path)
    assert victim.read_text() == "mine"
