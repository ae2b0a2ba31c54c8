import json

import pytest
from example_records import record, series

from tinytorch.errors import SettingError
from tinytorch.measure.samples import Samples
from tinytorch.records import history as module
from tinytorch.records.history import overview, records_named, usual_metric
from tinytorch.records.store import RecordStore


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as opened:
        opened.add_all(series([1.0, 2.0, 3.0]))
        opened.add_all(series([5.0], name="mlp/batch 8", kind="suite entry", metric="throughput"))
        opened.add(record(name="bare", samples={}, hours=30))
        yield opened


def test_every_series_is_listed_with_its_recent_values(store):
    found = overview(store)
    assert [each.summary.key.name for each in found] == ["bare", "gpt", "mlp/batch 8"]
    assert [each.summary.count for each in found] == [1, 3, 1]
    assert [[trend.values for trend in each.recent] for each in found] == [
        [],
        [(1.0, 2.0, 3.0)],
        [(5.0,)],
    ]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"kind": "suite entry"}, ["mlp/batch 8"]),
        ({"metric": "latency"}, ["gpt"]),
        ({"limit": 1}, ["bare"]),
        ({"limit": 1, "metric": "throughput"}, ["mlp/batch 8"]),
        ({"kind": "nothing"}, []),
    ],
)
def test_it_can_be_narrowed(store, wanted, names):
    assert [each.summary.key.name for each in overview(store, **wanted)] == names


def test_only_the_newest_records_of_a_long_series_are_read(store, monkeypatch):
    monkeypatch.setattr(module, "RECENT", 2)
    (found,) = overview(store, metric="latency")
    assert found.summary.count == 3
    assert found.recent[0].values == (2.0, 3.0)


def test_an_overview_is_ready_for_json(store):
    fields = [each.to_dict() for each in overview(store)]
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert fields[1]["metrics"][0]["last"] == 3.0
    assert fields[1]["metrics"][0]["last_change"] == 0.5


def test_records_are_found_by_name(store):
    assert records_named(store, "gpt") == series([1.0, 2.0, 3.0])
    assert records_named(store, "gpt", kind="measurement") == series([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpr", "name 'gpr'; did you mean 'gpt'?"),
        ("mlp", "name 'mlp'; did you mean 'mlp/batch 8'?"),
        ("zzzzzzz", "`tinytorch history` lists what there is"),
    ],
)
def test_an_unknown_name_gets_a_near_one(store, name, words):
    with pytest.raises(SettingError) as raised:
        records_named(store, name)
    assert words in str(raised.value)


def test_a_known_name_of_another_kind_says_so(store):
    with pytest.raises(SettingError, match="'gpt' has no readable record of kind 'test'"):
        records_named(store, "gpt", kind="test")


def test_the_usual_metric_is_time_where_there_is_any():
    samples = {name: Samples(name, (1.0,)) for name in ("accuracy", "latency")}
    assert usual_metric([record(samples=samples)]) == "latency"
    assert usual_metric([record(metric="accuracy")]) == "accuracy"
    assert usual_metric([record(metric="accuracy"), record(samples={}, hours=5)]) == "accuracy"


def test_records_without_any_metric_have_no_usual_one():
    with pytest.raises(SettingError, match="none of these records has a metric"):
        usual_metric([record(samples={})])


def test_attempts_are_listed_when_asked_for(store):
    store.add(record(name="gpt int8", kind="attempt", hours=40))
    assert "gpt int8" not in [each.summary.key.name for each in overview(store)]
    found = overview(store, kind="attempt")
    assert [each.summary.key.name for each in found] == ["gpt int8"]
