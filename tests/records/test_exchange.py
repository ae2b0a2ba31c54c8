import io
import json

import pytest
from example_records import record, series

from tinytorch.errors import RecordError, SettingError
from tinytorch.records import exchange
from tinytorch.records.exchange import (
    Refused,
    export_jsonl,
    import_file,
    import_jsonl,
    read_pytest_benchmark,
)
from tinytorch.records.store import RecordStore


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as opened:
        yield opened


@pytest.fixture
def other(tmp_path):
    with RecordStore(tmp_path / "other.sqlite") as opened:
        yield opened


FOREIGN = {
    "machine_info": {"system": "Linux", "machine": "x86_64", "python_version": "3.12.1"},
    "commit_info": {"id": "5b78858eb718649a31fb93d8dc96ca2cee41a4cd", "dirty": True},
    "benchmarks": [
        {"name": "test_a", "fullname": "t.py::test_a", "stats": {"data": [0.1, 0.2]}},
        {"name": "test_b", "fullname": "t.py::test_b", "stats": {"median": 0.1}},
    ],
    "datetime": "2026-05-01T12:00:00.000000",
    "version": "5.1.0",
}


@pytest.fixture
def foreign(tmp_path):
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps(FOREIGN, indent=4))
    return path


def test_what_is_exported_can_be_imported(store, other, tmp_path):
    records = [*series([1, 2, 3]), record(name="ü/[x]", details={"text": "\u2028 \n ü"})]
    store.add_all(records)
    assert export_jsonl(store, tmp_path / "x.jsonl").count == 4
    assert import_jsonl(other, tmp_path / "x.jsonl") == exchange.Imported(4, 0)
    assert set(other.find()) == set(records)
    assert (tmp_path / "x.jsonl").read_text("ascii").count("\n") == 4


def test_an_export_of_the_import_is_the_same_text(store, other, tmp_path):
    store.add_all(series([3, 1, 2]))
    export_jsonl(store, tmp_path / "x.jsonl")
    import_jsonl(other, tmp_path / "x.jsonl")
    again = io.StringIO()
    assert export_jsonl(other, again).count == 3
    assert again.getvalue() == (tmp_path / "x.jsonl").read_text("ascii")


def test_importing_again_adds_nothing(store, other, tmp_path):
    store.add_all(series([1, 2, 3]))
    export_jsonl(store, tmp_path / "x.jsonl")
    lines = (tmp_path / "x.jsonl").read_text()
    (tmp_path / "twice.jsonl").write_text(lines + lines)
    assert import_jsonl(other, tmp_path / "twice.jsonl") == exchange.Imported(3, 3)
    assert import_jsonl(other, tmp_path / "x.jsonl") == exchange.Imported(0, 3)


def test_a_bad_line_does_not_lose_the_others(store, other, tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "CHUNK", 2)
    store.add_all(series([1, 2, 3, 4]))
    export_jsonl(store, tmp_path / "x.jsonl")
    good = (tmp_path / "x.jsonl").read_bytes().splitlines()
    changed = good[1].replace(b'"values":[2.0', b'"values":[7.0')
    lines = [good[0], b"\xff\xfe", b"", good[1], b"{}", changed, good[2], good[3][:100]]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    done = import_jsonl(other, tmp_path / "x.jsonl")
    assert (done.added, done.known) == (3, 0)
    assert [line for line, _ in done.refused] == [2, 5, 6, 8]
    reasons = " | ".join(reason for _, reason in done.refused)
    for words in ("not text", "schema: expected", "the hash does not fit", "not JSON"):
        assert words in reasons
    assert len(other) == 3


def test_kind_and_name_choose_what_is_exported(store, tmp_path):
    store.add_all([record(), record(name="mlp"), record(kind="test")])
    assert export_jsonl(store, io.StringIO(), name="mlp").count == 1
    assert export_jsonl(store, io.StringIO(), kind="measurement").count == 2
    assert export_jsonl(store, io.StringIO(), kind="test", name="mlp").count == 0


def test_what_was_damaged_is_said_and_left_out(store):
    store.add_all(series([1, 2]))
    store._database.connection.execute("UPDATE records SET body = '' WHERE id = 1")
    done = export_jsonl(store, io.StringIO())
    assert done.count == 1
    assert [each.hash for each in done.damaged] == [series([1])[0].hash]


def test_files_that_cannot_be_used_are_named(store, tmp_path):
    with pytest.raises(SettingError, match=r"nothing\.jsonl cannot be read .*check its name"):
        import_jsonl(store, tmp_path / "nothing.jsonl")
    with pytest.raises(SettingError, match="cannot be read"):
        import_file(store, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="cannot be written"):
        export_jsonl(store, tmp_path / "file" / "x.jsonl")


def test_the_kind_of_a_file_is_seen_from_what_is_in_it(store, foreign, tmp_path):
    done = import_file(store, foreign)
    assert (done.added, done.known) == (1, 0)
    (refused,) = done.refused
    assert refused.line == 2
    assert "no raw values" in refused.reason
    (tmp_path / "one.jsonl").write_text(json.dumps(record().to_dict()))
    assert import_file(store, tmp_path / "one.jsonl") == exchange.Imported(1, 0)


def test_an_empty_file_holds_nothing(store, tmp_path):
    (tmp_path / "x.jsonl").touch()
    assert import_file(store, tmp_path / "x.jsonl") == exchange.Imported(0, 0)


def test_entries_without_raw_values_are_never_left_out_silently(foreign):
    with pytest.raises(RecordError, match=r"entry 2: .*test_b has no raw values.*1 refused"):
        read_pytest_benchmark(foreign)
    refused = []
    (made,) = read_pytest_benchmark(foreign, refused=refused)
    assert made.name == "t.py::test_a"
    assert refused == [Refused(2, refused[0].reason)]


@pytest.mark.parametrize("text", ["[]", "{}", '{"benchmarks": []}', "3"])
def test_other_json_is_no_file_of_pytest_benchmark(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordError, match="no file of pytest-benchmark; write one with"):
        read_pytest_benchmark(tmp_path / "x.json")


def test_what_is_not_json_is_no_file_of_pytest_benchmark(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(RecordError, match="is not JSON"):
        read_pytest_benchmark(tmp_path / "x.json")
