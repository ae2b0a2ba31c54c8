import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from example_suites import write_suite

from tinytorch.benchmarking import suite_run
from tinytorch.benchmarking.suite_file import Server, Suite, SuiteWorkload, load_suite
from tinytorch.benchmarking.suite_run import (
    ENTRY_KIND,
    EntryAnswer,
    plan_run,
    run_suite,
    select_entries,
)
from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.samples import Samples
from tinytorch.records.store import open_store

SUITE = Suite("zoo", [SuiteWorkload("mlp", batch_sizes=[1, 2, 3])])
NAMES = [entry.name for entry in SUITE.entries()]


@pytest.fixture
def store(tmp_path):
    return tmp_path / "records.sqlite"


@pytest.fixture
def measured(monkeypatch):
    """Answer at once instead of starting processes, and note for whom."""
    asked = []

    def answer(entry, *, timeout_s):
        asked.append(entry.name)
        latency = Samples("latency", (1.0, 2.0, 3.0))
        details = {"server": {"bound_is_given": False}} if "server" in entry.name else {}
        return EntryAnswer({"latency": latency}, environment_here(), details)

    monkeypatch.setattr(suite_run, "run_entry", answer)
    return asked


def environment_here():
    return suite_run.describe_environment(os.getcwd()).to_dict()


def take(outcomes, count):
    """Take some outcomes, as if the run were interrupted then."""
    return [next(outcomes) for _ in range(count)]


def test_every_entry_is_stored_as_soon_as_it_is_finished(store, measured):
    outcomes = run_suite(plan_run(SUITE, store=store))
    for count in (1, 2, 3):
        next(outcomes)
        with open_store(store) as opened:
            assert len(opened.find(kind=ENTRY_KIND)) == count
    assert measured == NAMES


def test_records_of_a_run_share_its_id_and_hold_their_settings(store, measured):
    plan = plan_run(SUITE, store=store)
    list(run_suite(plan))
    with open_store(store) as opened:
        found = opened.find(run=plan.run)
    assert [record.name for record in found] == NAMES
    assert [record.settings for record in found] == [entry.settings for entry in plan.entries]


def test_an_interrupted_run_goes_on_without_repeating(store, measured):
    first = plan_run(SUITE, store=store)
    take(run_suite(first), 2)
    plan = plan_run(SUITE, store=store, resume=True)
    outcomes = list(run_suite(plan))
    assert plan.run == first.run
    assert [outcome.is_from_before for outcome in outcomes] == [True, True, False]
    assert [outcome.name for outcome in outcomes] == NAMES
    assert measured == NAMES
    assert f"run {first.run} goes on: 2 of 3 entries are there" in plan.notes


def test_without_being_asked_a_new_run_begins_and_says_so(store, measured):
    first = plan_run(SUITE, store=store)
    take(run_suite(first), 1)
    plan = plan_run(SUITE, store=store)
    assert plan.run != first.run
    assert not plan.finished
    assert any("is unfinished (1 of 3 entries); --resume" in note for note in plan.notes)


def test_a_complete_run_is_not_resumed(store, measured):
    list(run_suite(plan_run(SUITE, store=store)))
    plan = plan_run(SUITE, store=store, resume=True)
    assert not plan.finished
    assert any("it is complete; a new one begins" in note for note in plan.notes)
    assert plan_run(SUITE, store=store).notes == ()


def test_with_nothing_to_resume_a_new_run_begins(store):
    plan = plan_run(SUITE, store=store, resume=True)
    assert not plan.finished
    assert any("there is no run" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fingerprint": "another"}, "the machine, its thread settings"),
        ({"commit": {"hash": "f" * 40, "is_dirty": False}}, "made at another commit"),
    ],
)
def test_another_machine_or_commit_is_not_resumed(store, measured, monkeypatch, change, reason):
    take(run_suite(plan_run(SUITE, store=store)), 1)

    class Elsewhere:
        def to_dict(self, fields=environment_here()):  # noqa: B008
            return fields | change

    monkeypatch.setattr(suite_run, "describe_environment", lambda folder: Elsewhere())
    plan = plan_run(SUITE, store=store, resume=True)
    assert not plan.finished
    assert any(reason in note for note in plan.notes)


def test_other_settings_are_another_run(store, measured):
    take(run_suite(plan_run(SUITE, store=store)), 1)
    for other in (SUITE.with_budget(9.0), Suite("other", SUITE.workloads)):
        assert not plan_run(other, store=store, resume=True).finished
    assert not plan_run(SUITE, store=store, resume=True, only="batch 1").finished
    assert plan_run(SUITE, store=store, resume=True).finished


def test_the_newest_run_is_the_one_that_goes_on(store, measured):
    take(run_suite(plan_run(SUITE, store=store)), 2)
    newer = plan_run(SUITE, store=store)
    take(run_suite(newer), 1)
    assert plan_run(SUITE, store=store, resume=True).run == newer.run


def test_a_result_is_set_against_the_last_run(store, measured):
    first = list(run_suite(plan_run(SUITE, store=store)))
    second = list(run_suite(plan_run(SUITE, store=store)))
    assert {outcome.time_ratio for outcome in first} == {None}
    assert {outcome.time_ratio for outcome in second} == {1.0}
    assert second[0].previous.hash == first[0].record.hash


def test_unlike_machines_are_not_compared(store, measured, monkeypatch):
    list(run_suite(plan_run(SUITE, store=store)))

    def answer(entry, *, timeout_s):
        environment = environment_here() | {"fingerprint": "another", "cpu_model": "Z80"}
        return EntryAnswer({"latency": Samples("latency", (1.0,))}, environment)

    monkeypatch.setattr(suite_run, "run_entry", answer)
    outcome = next(run_suite(plan_run(SUITE, store=store)))
    assert outcome.time_ratio is None
    assert "Z80" in outcome.not_compared


def test_rates_with_a_bound_of_their_own_are_not_compared(store, measured):
    suite = Suite("zoo", [SuiteWorkload("mlp", scenarios=["server"])], scenarios=[Server()])
    for _ in range(2):
        (outcome,) = run_suite(plan_run(suite, store=store))
    assert outcome.previous is None
    assert "its bound follows the latency of each run" in outcome.not_compared


def test_a_failure_is_recorded_and_the_suite_goes_on(store, measured, monkeypatch):
    broken = EntryAnswer(failure="it broke")
    monkeypatch.setattr(suite_run, "run_entry", lambda entry, *, timeout_s: broken)
    outcomes = list(run_suite(plan_run(SUITE, store=store)))
    assert [outcome.failure for outcome in outcomes] == ["it broke"] * 3
    assert all(not outcome.record.samples for outcome in outcomes)
    with open_store(store) as opened:
        assert len(opened.find(kind=ENTRY_KIND)) == 3


def test_fail_fast_ends_with_the_first_failure(store, monkeypatch):
    broken = EntryAnswer(failure="it broke")
    monkeypatch.setattr(suite_run, "run_entry", lambda entry, *, timeout_s: broken)
    assert len(list(run_suite(plan_run(SUITE, store=store), fail_fast=True))) == 1


def test_the_timeout_is_that_of_the_suite_or_the_one_given(store, monkeypatch):
    seen = []

    def answer(entry, *, timeout_s):
        seen.append(timeout_s)
        return EntryAnswer(failure="it broke")

    monkeypatch.setattr(suite_run, "run_entry", answer)
    list(run_suite(plan_run(SUITE, store=store, only="batch 1")))
    list(run_suite(plan_run(SUITE, store=store, only="batch 1"), timeout_s=7))
    assert seen == [300.0, 7]


def test_a_store_that_fails_in_the_middle_loses_nothing(store, measured, monkeypatch, tmp_path):
    plan = plan_run(SUITE, store=store)
    refuge = tmp_path / "refuge.jsonl"
    monkeypatch.setattr("tinytorch.records.store.refuge_path", lambda: refuge)
    store.write_text("no database any more", "utf-8")
    outcomes = list(run_suite(plan))
    assert len(refuge.read_text("utf-8").splitlines()) == 3
    assert all(str(refuge) in outcome.kept_note for outcome in outcomes)


def test_a_store_that_cannot_be_read_is_noticed_before_measuring(store):
    store.write_text("no database", "utf-8")
    with pytest.raises(RecordError):
        plan_run(SUITE, store=store)


def test_entries_are_chosen_by_text_or_pattern():
    entries = SUITE.entries()
    assert [entry.batch_size for entry in select_entries(entries, "batch 2")] == [2]
    assert len(select_entries(entries, "mlp*stream")) == 3
    assert select_entries(entries, "*stream*") == select_entries(entries, None) == entries
    with pytest.raises(SettingError, match=r"no entry fits 'batch 9'.*'mlp/batch"):
        select_entries(entries, "batch 9")


# ---------------------------------------------------------------- killed for real


def finished_runs(store):
    """Count the records of each entry, run by run."""
    with open_store(store) as opened:
        found = Counter((record.run, record.name) for record in opened.find(kind=ENTRY_KIND))
        assert opened.check() == ()
    return found


def bench(file, store, *more):
    command = [sys.executable, "-m", "tinytorch", "bench", str(file), "--store", str(store)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [*command, "--quiet", *more],
        cwd=file.parent,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_and_resume(tmp_path, *, kills, sizes, longest_s):
    file, store = write_suite(tmp_path, f"fine {sizes}"), tmp_path / "records.sqlite"
    chance = random.Random(7)
    for _ in range(kills):
        process = bench(file, store, "--resume")
        time.sleep(chance.uniform(0, longest_s))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert bench(file, store, "--resume").wait() == 0
    names = [entry.name for entry in load_suite(str(file)).entries()]
    return names, finished_runs(store)


def check_each_exactly_once(names, found):
    assert set(found.values()) == {1}
    runs = {run for run, _ in found}
    # One run after the other: only where one had been killed after its last entry there are two.
    assert {run for run in runs if any((run, name) not in found for name in names)} == set()
    assert runs


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_a_killed_suite_goes_on_and_has_every_entry_once(tmp_path):
    names, found = kill_and_resume(tmp_path, kills=3, sizes=[1, 2], longest_s=1.2)
    check_each_exactly_once(names, found)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_however_often_it_is_killed(tmp_path):
    sizes = list(range(1, 13))
    names, found = kill_and_resume(tmp_path, kills=25, sizes=sizes, longest_s=2.5)
    check_each_exactly_once(names, found)
