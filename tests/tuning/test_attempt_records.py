from dataclasses import replace

import pytest
from example_records import record
from kept_attempts import UNUSABLE, optimization, timed

from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.models.workload import Workload
from tinytorch.records.record import Record
from tinytorch.records.store import RecordStore
from tinytorch.tuning import records as attempt_records
from tinytorch.tuning.attempt import FAILED, INACCURATE, NOT_TRIED, Attempt, Settings
from tinytorch.tuning.catalog import CATALOG
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.records import (
    add_record,
    attempt_record,
    find_finished,
    is_from_before,
    optimization_record,
    origin_of,
)

FASTER = timed("int8-dynamic")


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as opened:
        yield opened


def workload(**changes):
    fields = {"name": "w", "model": Linear(4, 3, rng=0), "inputs": (Tensor([[1, 2, 3, 4.0]]),)}
    return Workload(**(fields | changes))


def origin(settings=None, **changes):
    return origin_of(workload(**changes), settings or Settings(), run="r1")


# ---------------------------------------------------------------- as records


def test_an_attempt_comes_back_from_its_record():
    made = attempt_record(FASTER, origin())
    assert (made.kind, made.name, made.run) == ("attempt", "w: int8-dynamic", "r1")
    read = Record.from_dict(made.to_dict())
    assert Attempt.from_dict(read.details) == FASTER
    assert read.samples["time ratio"].median == pytest.approx(0.5, rel=0.02)


def test_settings_have_what_was_asked_and_how_it_is_done():
    asked = Settings(goal="size", max_accuracy_drop=0.02, max_output_error=0.1, seed=7)
    found = attempt_record(FASTER, origin(asked)).settings
    assert found["goal"] == "size"
    assert (found["max_accuracy_drop"], found["max_output_error"], found["seed"]) == (0.02, 0.1, 7)
    assert found["stack"] == ["int8-dynamic"]
    (entry,) = found["entries"]
    assert entry["transforms"][0]["settings"]["mode"] == "dynamic"
    assert len(found["workload"]) == 32


@pytest.mark.parametrize("attempt", UNUSABLE, ids=lambda each: each.outcome)
def test_an_attempt_without_numbers_has_a_record_too(attempt):
    made = attempt_record(attempt, origin())
    assert made.samples == {}
    assert Attempt.from_dict(made.details) == attempt


def test_a_stack_that_the_catalog_does_not_have_is_named():
    found = attempt_record(timed("my-own", "int8-dynamic"), origin()).settings
    assert [each["name"] for each in found["entries"]] == ["my-own", "int8-dynamic"]


def test_every_entry_of_the_catalog_can_be_a_setting():
    whole = timed(*(each.name for each in CATALOG))
    assert len(attempt_record(whole, origin()).settings["entries"]) == len(CATALOG)


def test_an_optimization_comes_back_from_its_record():
    made = optimization(timed("int8-dynamic", "compiled-kernels", ratio=0.4), *UNUSABLE)
    kept = optimization_record(made, origin())
    assert (kept.kind, kept.name) == ("optimization", "w")
    read = Optimization.from_dict(Record.from_dict(kept.to_dict()).details)
    assert read.recommended == made.recommended
    assert read.attempts == made.attempts
    assert kept.samples["time ratio"].median == pytest.approx(0.4, rel=0.02)


def test_an_optimization_that_found_nothing_has_no_numbers():
    kept = optimization_record(optimization(*UNUSABLE), origin())
    assert kept.samples == {}
    assert kept.details["recommended"] is None


# ---------------------------------------------------------------- what need not be repeated


def test_what_is_finished_is_found_with_a_note_that_says_when(store):
    here = origin()
    made = attempt_record(FASTER, here)
    store.add(made)
    found = find_finished(store, here)
    assert set(found) == {("int8-dynamic",)}
    (note,) = found["int8-dynamic",].notes
    assert note == f"measured at {made.created_at[:16].replace('T', ' ')} UTC, not again"
    assert replace(found["int8-dynamic",], notes=(), measured_at="") == FASTER
    assert found["int8-dynamic",].measured_at == made.created_at
    assert is_from_before(found["int8-dynamic",])
    assert not is_from_before(FASTER)


def test_stacks_are_found_in_their_order(store):
    store.add(attempt_record(timed("int8-dynamic", "compiled-kernels"), origin()))
    assert set(find_finished(store, origin())) == {("int8-dynamic", "compiled-kernels")}


@pytest.mark.parametrize("outcome", [FAILED, INCONCLUSIVE, NOT_TRIED])
def test_what_may_turn_out_otherwise_is_tried_again(store, outcome):
    store.add(attempt_record(replace(FASTER, outcome=outcome), origin()))
    assert find_finished(store, origin()) == {}


def test_what_is_not_as_good_is_not_tried_again(store):
    store.add(attempt_record(UNUSABLE[0], origin()))
    (found,) = find_finished(store, origin()).values()
    assert found.outcome == INACCURATE


def dated(attempt, day):
    return replace(attempt_record(attempt, origin()), created_at=f"2026-05-{day:02}T00:00:00Z")


def test_the_newest_of_a_stack_counts(store):
    slower = timed("int8-dynamic", ratio=1.25)
    store.add_all([dated(FASTER, 2), dated(slower, 3), dated(FASTER, 1)])
    assert find_finished(store, origin())["int8-dynamic",].outcome == slower.outcome


def test_a_failure_after_a_success_is_tried_again(store):
    store.add_all([dated(FASTER, 1), dated(replace(FASTER, outcome=FAILED), 2)])
    assert find_finished(store, origin()) == {}


def test_running_out_of_time_forgets_nothing(store):
    store.add_all([dated(FASTER, 1), dated(Attempt(FASTER.stack, NOT_TRIED, "no time"), 2)])
    assert set(find_finished(store, origin())) == {("int8-dynamic",)}


@pytest.mark.parametrize(
    "other",
    [
        lambda: origin(Settings(goal="size")),
        lambda: origin(Settings(max_accuracy_drop=0.5)),
        lambda: origin(Settings(seed=1)),
        lambda: origin(model=Linear(4, 3, rng=1)),
        lambda: origin(inputs=(Tensor([[0, 0, 0, 0.0]]),)),
        lambda: origin(name="another"),
        lambda: replace(origin(), environment=record().environment),
        lambda: replace(origin(), catalog=()),
        lambda: replace(origin(), settings={**origin().settings, "tinytorch": "0.0.9"}),
    ],
    ids=[
        "goal",
        "accuracy",
        "seed",
        "weights",
        "inputs",
        "name",
        "machine",
        "what the entry does",
        "version",
    ],
)
def test_attempts_of_something_else_are_not_found(store, other):
    store.add(attempt_record(FASTER, other()))
    assert len(store) == 1
    assert find_finished(store, origin()) == {}


def test_limits_and_budget_repeat_nothing(store):
    asked = Settings(limits={"latency_ms": 1.0}, budget_s=10)
    store.add(attempt_record(FASTER, origin(asked)))
    assert set(find_finished(store, origin())) == {("int8-dynamic",)}


def test_a_record_that_cannot_be_read_as_an_attempt_is_passed_over(store):
    store.add(replace(attempt_record(FASTER, origin()), details={"stack": ["int8-dynamic"]}))
    store.add(record())
    assert find_finished(store, origin()) == {}


# ---------------------------------------------------------------- when the store fails


def test_a_record_that_is_added_needs_no_words(store):
    assert add_record(store, record()) == ""
    assert len(store) == 1


def test_a_full_disk_is_a_reason_and_no_exception(store, monkeypatch):
    def full(self, records):
        raise attempt_records.RecordError("records.sqlite: database or disk is full")

    monkeypatch.setattr(RecordStore, "add_all", full)
    assert add_record(store, record()) == (
        "not kept as a record: records.sqlite: database or disk is full"
    )


# ---------------------------------------------------------------- what is measured again


def test_other_scores_of_the_model_as_it_is_are_another_question(store):
    def asked(scores):
        return origin_of(workload(), Settings(), scores=scores)

    store.add(attempt_record(FASTER, asked([1.0, 0.0, 1.0])))
    assert find_finished(store, asked([1.0, 0.0, 1.0 + 1e-9])) != {}  # the order of sums
    assert find_finished(store, asked([1.0, 1.0, 0.0])) == {}
    assert find_finished(store, asked(None)) == {}


def test_the_numbers_of_the_record_are_those_that_were_measured_again():
    found = optimization(FASTER, confirmations=(timed("int8-dynamic", ratio=0.7),))
    made = optimization_record(found, origin())
    assert made.samples["time ratio"].median == pytest.approx(0.7, rel=0.02)
