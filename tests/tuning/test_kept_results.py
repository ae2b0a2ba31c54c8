import json

import pytest
from example_comparisons import comparison, with_evidence
from example_records import ENVIRONMENT, record
from kept_attempts import UNUSABLE, optimization, timed

from tinytorch.benchmarking.suite_run import ENTRY_KIND
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import RecordError, SettingError
from tinytorch.models.workload import Workload
from tinytorch.records.record import comparison_record
from tinytorch.records.store import RecordStore
from tinytorch.reporting.kept_results import (
    last_result,
    result_in_file,
    result_in_store,
    result_in_text,
)
from tinytorch.tuning.attempt import Settings
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.records import attempt_record, optimization_record, origin_of

WORKLOAD = Workload("w", Linear(4, 3, rng=0), (Tensor([[1, 2, 3, 4.0]]),))
PRINTED = {"command": "optimize", "version": "0.1.0", "optimization": optimization().to_dict()}


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as opened:
        yield opened


@pytest.fixture
def origin():
    return origin_of(WORKLOAD, Settings())


def entry(name, hours=0, run="r1"):
    settings = {"target": name, "scenario": {"name": "single-stream"}}
    details = {"suite": "tiny", "examples": 1}
    return record(
        name=f"{name}/single-stream",
        kind=ENTRY_KIND,
        settings=settings,
        details=details,
        run=run,
        hours=hours,
    )


# ---------------------------------------------------------------- records


def test_an_optimization_is_read_from_its_record(store, origin):
    made = optimization()
    hash = store.add(optimization_record(made, origin))
    found = result_in_store(store, hash[:8])
    assert isinstance(found.result, Optimization)
    assert found.result.attempts == made.attempts
    assert (found.kind, found.source) == ("optimization", f"record {hash[:12]}")


def test_a_comparison_is_read_with_its_name_and_date(store):
    made = comparison_record(with_evidence(), name="a against b", settings={})
    found = result_in_store(store, store.add(made))
    assert found.result == with_evidence()
    assert found.context["about"][0] == "a against b"
    assert found.context["about"][1].startswith("measured at 20")


def test_any_record_with_a_comparison_in_it_can_be_shown(store):
    made = comparison_record(comparison(), name="test", settings={}, kind="test")
    found = result_in_store(store, store.add(made))
    assert (found.result, found.kind) == (comparison(), "test")


def test_an_attempt_is_shown_as_its_comparison(store, origin):
    made = timed("int8-dynamic")
    found = result_in_store(store, store.add(attempt_record(made, origin)))
    assert found.result == made.comparison
    assert found.context["about"][0] == "w: int8-dynamic"
    assert found.context["about"][1].startswith("better; ")


def test_an_attempt_that_was_never_timed_says_what_came_of_it(store, origin):
    hash = store.add(attempt_record(UNUSABLE[2], origin))
    with pytest.raises(SettingError, match=r"never timed.*failed: RuntimeError: no threads"):
        result_in_store(store, hash)


def test_an_entry_of_a_suite_brings_its_whole_run(store):
    hashes = store.add_all([entry("a"), entry("b", 1), entry("c", 2, run="r2")])
    found = result_in_store(store, hashes[1])
    assert [each.label for each in found.result] == ["a", "b"]
    assert found.context == {"name": "tiny", "planned": 2, "run": "r1"}


def test_another_kind_of_record_is_shown_elsewhere(store):
    hash = store.add(record())
    with pytest.raises(SettingError, match=f"kind 'measurement'.*history --show {hash[:12]}"):
        result_in_store(store, hash)


def test_a_record_without_its_parts_is_damaged(store, origin):
    made = optimization_record(optimization(), origin)
    broken = record(kind="optimization", details={**made.details, "attempts": [{}]})
    with pytest.raises(RecordError, match=r"is damaged, or of another version.*is missing"):
        result_in_store(store, store.add(broken))


def test_an_optimization_of_another_schema_says_so(store, origin):
    made = optimization_record(optimization(), origin)
    newer = record(kind="optimization", details={**made.details, "schema": 99})
    with pytest.raises(RecordError, match=r"schema.* got 99"):
        result_in_store(store, store.add(newer))


def test_the_last_result_is_the_newest_that_can_be_shown(store):
    def compared(name, day):
        made = comparison_record(comparison(), name=name, settings={}).to_dict()
        fields = {key: made[key] for key in ("settings", "details")}
        at = f"2026-05-0{day}T00:00:00Z"
        return record(kind="comparison", name=name, created_at=at, **fields)

    store.add_all([compared("new", 2), compared("old", 1), entry("a"), record(hours=99_999)])
    assert last_result(store).context["about"][0] == "new"


def test_a_store_without_results_says_what_fills_it(store):
    store.add(record())
    with pytest.raises(SettingError, match="no result to show; `tinytorch optimize`"):
        last_result(store)


# ---------------------------------------------------------------- files


def test_what_optimize_printed_is_read(tmp_path):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(PRINTED), "utf-8")
    found = result_in_file(file)
    assert found.result.recommended.name == "int8-dynamic"
    assert (found.kind, found.source) == ("optimize", str(file))


def test_what_compare_printed_is_read():
    sides = {"baseline": {"target": "mlp"}, "candidate": {"target": "x.py:make"}}
    text = json.dumps({"command": "compare", **sides, "comparison": comparison().to_dict()})
    found = result_in_text(text, "stdin")
    assert found.result == comparison()
    assert found.context == {"about": ["baseline: mlp", "candidate: x.py:make"]}


@pytest.mark.parametrize(
    "result", [{"comparison": comparison().to_dict()}, {"optimization": optimization().to_dict()}]
)
def test_what_report_printed_is_read_again(result):
    found = result_in_text(json.dumps({"command": "report", "context": {}, **result}), "stdin")
    assert found.result.to_dict() == next(iter(result.values()))


def test_a_record_in_a_file_is_read(origin):
    made = optimization_record(optimization(), origin)
    found = result_in_text(json.dumps(made.to_dict()), "one.jsonl")
    assert found.result.recommended.name == "int8-dynamic"


def test_an_entry_of_a_suite_in_a_file_is_alone():
    found = result_in_text(json.dumps(entry("a").to_dict()), "one.jsonl")
    assert [each.label for each in found.result] == ["a"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", RecordError, "x.json is no JSON, or not all of it"),
        ('{"command": "optimize", "opt', RecordError, "no JSON, or not all of it"),
        ("[" * 100_000, RecordError, "nested too deeply|no JSON"),
        ("[1, 2]", SettingError, "holds a list, not a result of a command"),
        ("{}", SettingError, "written by no command of tinytorch"),
        ('{"command": "tour"}', SettingError, "written by 'tour', which has no report"),
        ('{"command": "profile"}', SettingError, "`tinytorch profile TARGET --html FILE`"),
        ('{"command": "bench"}', SettingError, "`tinytorch report HASH`"),
        ('{"command": "history"}', SettingError, "`tinytorch history --html FILE`"),
        ('{"command": "optimize"}', RecordError, "damaged.*'optimization' is missing"),
        ('{"command": "optimize", "optimization": 3}', RecordError, "damaged"),
        ('{"command": "optimize", "optimization": {}}', RecordError, "schema.* got None"),
        ('{"command": "compare", "selfcheck": {}}', SettingError, "self-check has no report"),
        ('{"kind": "a", "samples": {}}', RecordError, "schema.* got None"),
    ],
)
def test_what_is_no_result_is_refused_with_the_reason(text, error, message):
    with pytest.raises(error, match=message):
        result_in_text(text, "x.json")


@pytest.mark.parametrize("part", sorted(PRINTED["optimization"]))
def test_a_missing_part_is_named(part):
    fields = {name: value for name, value in PRINTED["optimization"].items() if name != part}
    needless = {"recommended", "inconclusive", "front", "limit_checks"}  # drawn again
    needless |= {"ablation", "confirmations", "environment", "notes", "profile", "seconds"}
    needless |= {"at_sizes", "process", "target", "was_interrupted", "was_training"}  # defaults
    text = json.dumps({**PRINTED, "optimization": fields})
    if part in needless:
        assert result_in_text(text, "x.json").result.recommended.name == "int8-dynamic"
    else:
        with pytest.raises((RecordError, SettingError), match=f"{part}"):
            result_in_text(text, "x.json")


def test_a_record_that_was_changed_is_refused(origin):
    fields = optimization_record(optimization(), origin).to_dict()
    text = json.dumps({**fields, "environment": ENVIRONMENT})
    with pytest.raises(RecordError, match="the hash does not fit"):
        result_in_text(text, "x.jsonl")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"none.json cannot be read: No such file"):
        result_in_file(tmp_path / "none.json")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(SettingError, match=r"x.bin cannot be read"):
        result_in_file(tmp_path / "x.bin")
