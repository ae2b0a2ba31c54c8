import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from example_records import ENVIRONMENT, record
from hypothesis import given

from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.records import record as module
from tinytorch.records.record import Record, SeriesKey, canonical_json, parse_record, utc_text

# Letters that a column of a database takes, and any text inside of JSON.
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)
SAMPLES = st.builds(
    Samples,
    name=st.text(),
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
    unit=st.text(max_size=3),
    loops=st.integers(1, 10**9),
    notes=st.lists(st.text(), max_size=2),
)
RECORDS = st.builds(
    Record,
    kind=NAMES,
    name=NAMES,
    samples=st.dictionaries(st.text(), SAMPLES, max_size=3),
    environment=OBJECTS.map(lambda fields: {**fields, "fingerprint": "f"}),
    settings=OBJECTS,
    details=OBJECTS,
    created_at=st.datetimes(timezones=st.just(UTC)),
    run=NAMES,
    notes=st.lists(st.text(), max_size=2),
)


@given(RECORDS)
def test_what_is_written_is_read_back(made):
    text = json.dumps(made.to_dict(), allow_nan=False)
    read = Record.from_dict(json.loads(text))
    assert read == made
    assert read.to_dict() == made.to_dict()
    assert (read.hash, hash(read), read.series) == (made.hash, hash(made), made.series)


@given(RECORDS)
def test_the_canonical_form_is_read_back_too(made):
    assert parse_record(canonical_json(made.to_dict()), expected_hash=made.hash) == made


def test_the_hash_does_not_depend_on_the_order_of_keys():
    one = record(settings={"batch": 8, "device": "cpu"})
    other = record(settings={"device": "cpu", "batch": 8})
    assert one.hash == other.hash
    assert len(one.hash) == 64


def test_every_field_counts_in_the_hash():
    changed = [
        record(kind="test"),
        record(name="mlp"),
        record(0.003),
        record(environment={**ENVIRONMENT, "load_average": 1.0}),
        record(settings={}),
        record(details={"x": 1}),
        record(hours=1),
        record(run="r"),
        record(notes=("doubt",)),
    ]
    assert len({each.hash for each in [record(), *changed]}) == len(changed) + 1


def test_a_record_knows_its_series():
    made = record()
    assert made.machine == "c0ffee5eed15600d"
    assert made.series == SeriesKey("measurement", "gpt", made.machine, made.settings_key)


def test_the_environment_of_this_machine_fits():
    environment = describe_environment()
    made = record(environment=environment.to_dict())
    assert made.machine == environment.fingerprint
    assert made.commit is None
    assert not made.commit_has_changes


@pytest.mark.parametrize(
    ("found", "commit", "has_changes"),
    [
        ({"hash": "abc", "is_dirty": True}, "abc", True),
        ("abc", "abc", False),
        (None, None, False),
        (7, None, False),
    ],
)
def test_the_commit_is_that_of_the_environment(found, commit, has_changes):
    made = record(environment={"fingerprint": "f", "commit": found})
    assert (made.commit, made.commit_has_changes) == (commit, has_changes)


def test_a_whole_number_is_the_same_setting_as_an_integer():
    one, other = (
        record(settings={"sizes": [8, {"b": 2}]}),
        record(settings={"sizes": [8.0, {"b": 2.0}]}),
    )
    assert one.settings_key == other.settings_key
    assert one.settings_key != record(settings={"sizes": [8.5, {"b": 2}]}).settings_key
    assert record(settings={"x": True}).settings_key != record(settings={"x": 1}).settings_key


def test_what_json_does_not_know_is_turned_into_what_it_does():
    made = record(
        details={
            "tuple": (1, 2),
            "array": np.arange(3),
            "number": np.float32(0.5),
            "path": Path("a/b"),
            "unit": timezone,
            3: "key",
        }
        | {"unit": None}
    )
    assert made.details == {
        "tuple": [1, 2],
        "array": [0, 1, 2],
        "number": 0.5,
        "path": str(Path("a/b")),
        "unit": None,
        "3": "key",
    }


def test_the_caller_keeps_his_own_mappings():
    details = {"list": [1]}
    made = record(details=details)
    details["list"].append(2)
    assert made.details == {"list": [1]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_that_are_not_finite_become_null_outside_of_settings(value):
    made = record(details={"speedup": value}, environment={**ENVIRONMENT, "x": [value]})
    assert made.details == {"speedup": None}
    assert made.environment["x"] == [None]
    with pytest.raises(SettingError, match=r"settings holds .*give a finite number or None"):
        record(settings={"limit": value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"details": {"x": object()}}, "details holds object, which has no form in JSON"),
        ({"details": {1: 0, "1": 0}}, "two keys that read the same"),
        ({"environment": {}}, "environment without a fingerprint"),
        ({"environment": {"fingerprint": 3}}, "environment without a fingerprint"),
        ({"samples": {"latency": [1.0]}}, "has list as its 'latency'; give Samples"),
        ({"created_at": "yesterday"}, "'yesterday' is no date; give ISO 8601"),
        ({"created_at": 5}, "5 is no date"),
        ({"name": "\ud800"}, "letters that cannot be stored"),
        ({"run": "a\0b"}, "letters that cannot be stored"),
        ({"kind": None}, "named by text, not by None"),
    ],
)
def test_what_makes_no_record_is_refused(changes, words):
    with pytest.raises(SettingError, match=words):
        record(**changes)


def test_a_structure_that_holds_itself_is_refused():
    endless = {}
    endless["again"] = endless
    with pytest.raises(SettingError, match="nested too deeply, or holds itself"):
        record(details=endless)


def test_without_a_date_it_is_now():
    before = utc_text(datetime.now(UTC))
    fields = record().to_dict()
    made = Record("test", "x", {}, fields["environment"], {})
    assert before <= made.created_at <= utc_text(datetime.now(UTC))


@given(
    st.lists(
        st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), min_size=2
    )
)
def test_texts_sort_as_times_do(moments):
    zone = timezone(timedelta(hours=5))
    texts = [utc_text(moment.replace(tzinfo=zone)) for moment in moments]
    assert sorted(texts) == [utc_text(moment.replace(tzinfo=zone)) for moment in sorted(moments)]


@pytest.mark.parametrize(
    "moment",
    [
        "2026-05-01",
        date(2026, 5, 1),
        datetime(2026, 5, 1),
        "2026-05-01T00:00:00Z",
        "20260501T000000",
    ],
)
def test_a_date_is_its_midnight_in_utc(moment):
    assert utc_text(moment) == "2026-05-01T00:00:00.000000+00:00"


def test_a_changed_record_is_found_out():
    fields = record().to_dict()
    fields["samples"]["latency"]["values"][0] *= 0.5
    with pytest.raises(RecordError, match=r"the hash does not fit.*changed or damaged"):
        Record.from_dict(fields)


def test_a_record_without_a_hash_is_taken_as_it_is():
    fields = record().to_dict()
    del fields["hash"], fields["details"], fields["run"], fields["notes"]
    assert Record.from_dict(fields) == record()


def test_another_record_than_the_expected_one_is_refused():
    text = canonical_json(record().to_dict())
    with pytest.raises(RecordError, match="this is not 000000000000"):
        parse_record(text, expected_hash="0" * 64)


def without_hash(**changes):
    fields = {**record().to_dict(), **changes}
    del fields["hash"]
    return {name: value for name, value in fields.items() if value is not ...}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([], "Record: expected an object, got"),
        ({}, "schema: expected 1.* got None"),
        (without_hash(schema="1"), "schema: expected 1"),
        (without_hash(schema=True), "schema: expected 1"),
        (without_hash(schema=99), "newer ones need a newer tinytorch.*got 99"),
        (without_hash(schema=0), "schema: expected 1.* got 0"),
        (without_hash(kind=...), "Record.kind is missing"),
        (without_hash(created_at=...), "Record.created_at is missing"),
        (without_hash(created_at="now"), "'now' is no date"),
        (without_hash(extra=1), "Record.extra: expected no such field"),
        (without_hash(name=3), "Record.name: expected text, got 3"),
        (without_hash(samples=[]), "Record.samples: expected an object"),
        (without_hash(samples={"latency": 3}), "Record.samples.latency: expected an object"),
        (without_hash(notes="x"), "Record.notes: expected a list"),
        (without_hash(notes=[3]), r"Record.notes\[0\]: expected text"),
        (without_hash(environment={}), "without a fingerprint"),
    ],
)
def test_what_is_no_record_is_named(fields, words):
    with pytest.raises(RecordError, match=words):
        Record.from_dict(fields)


def broken_samples(**changes):
    good = Samples("latency", (1.0,)).to_dict()
    changed = {name: value for name, value in {**good, **changes}.items() if value is not ...}
    return without_hash(samples={"latency": changed})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (broken_samples(values=[]), "without a value"),
        (broken_samples(values=["1"]), r"values\[0\]: expected a number, got '1'"),
        (broken_samples(values=[True]), r"values\[0\]: expected a number, got True"),
        (broken_samples(values=[math.nan]), "hold nan"),
        (broken_samples(values=[10**400]), "too large"),
        (broken_samples(values=...), "samples.latency.values is missing"),
        (broken_samples(loops=0), "loops=0"),
        (broken_samples(loops=1.5), "loops: expected a whole number"),
        (broken_samples(notes=[1]), r"notes\[0\]: expected text"),
        (broken_samples(more=1), "latency.more: expected no such field"),
    ],
)
def test_samples_that_are_none_are_named(fields, words):
    with pytest.raises(RecordError, match=words):
        Record.from_dict(fields)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"schema": NaN}', "null", "\x00"])
def test_what_is_not_strict_json_is_no_record(text):
    with pytest.raises(RecordError):
        parse_record(text)


def test_a_hash_over_what_is_not_json_is_refused():
    fields = {**record().to_dict(), "details": {"x": math.nan}}
    with pytest.raises(RecordError, match="not strict JSON"):
        Record.from_dict(fields)


def test_an_older_schema_is_upgraded():
    old = {**record().to_dict(), "title": "gpt"}
    del old["name"], old["hash"]
    old["hash"] = module._digest(old)

    class Newer(Record):
        schema = 2
        upgrades: ClassVar = {1: lambda fields: {"name": fields.pop("title"), **fields}}

    assert vars(Newer.from_dict(old)) == vars(record())
    assert Newer.from_dict(old).to_dict()["schema"] == 2
