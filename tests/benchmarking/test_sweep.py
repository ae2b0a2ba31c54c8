import itertools

import pytest
from executed_trials import write_services

from tinytorch.benchmarking import sweep as sweeps
from tinytorch.benchmarking.suite_file import Suite, SuiteWorkload
from tinytorch.benchmarking.sweep import Sweep, plan_sweep, sweep_result
from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure.executor import LocalExecutor, TrialCall, usable_core_numbers
from tinytorch.records.store import open_store

CORES = usable_core_numbers()
ARRIVAL = TrialCall("arrival", "services:arrival")


@pytest.fixture(autouse=True)
def services(tmp_path, monkeypatch):
    write_services(tmp_path)
    (tmp_path / "pyproject.toml").write_text("", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TINYTORCH_RECORDS", raising=False)


def suite(*targets):
    return Suite("tiny", [SuiteWorkload(f"t.py:{each}") for each in targets])


def run(plan, groups=(CORES[:1],)):
    with LocalExecutor(groups, arrival=ARRIVAL) as executor:
        done = list(Sweep(plan, executor, serve="services:entry").run())
        return done, executor.slots


def asked(folder):
    return sorted((folder / "asked").read_text().split())


def test_every_trial_is_stored_once_and_a_failure_is_a_result(tmp_path):
    plan = plan_sweep(suite("fine", "broken", "other"))
    done, slots = run(plan)
    result = sweep_result(plan, slots)
    (outcomes,) = result.machines.values()
    assert [each.target for each in outcomes] == ["t.py:fine", "t.py:broken", "t.py:other"]
    assert [each.failure is None for each in outcomes] == [True, False, True]
    assert "the wires are crossed" in outcomes[1].failure
    assert result.is_complete
    assert len(result.failed) == 1
    assert [each.is_doubled for each in done] == [False] * 3
    assert len(asked(tmp_path)) == 3


def test_an_interrupted_sweep_goes_on_with_what_is_missing(tmp_path):
    given = suite("a", "b", "c", "d")
    first = plan_sweep(given)
    with LocalExecutor([CORES[:1]], arrival=ARRIVAL) as executor:
        running = Sweep(first, executor, serve="services:entry").run()
        list(itertools.islice(running, 2))
        running.close()
    second = plan_sweep(given)
    assert second.is_resumed
    assert second.run == first.run
    kept = {each.name for each in sweep_result(second).outcomes}
    done, _ = run(second)
    assert {each.name for each in done} == {entry.name for entry in second.entries} - kept
    assert len(sweep_result(second).outcomes) == 4
    assert sweep_result(second).is_complete


def test_a_complete_sweep_is_not_repeated_in_its_run():
    first = plan_sweep(suite("a"))
    run(first)
    second = plan_sweep(suite("a"))
    assert not second.is_resumed
    assert second.run != first.run
    assert plan_sweep(suite("a"), again=True).run != second.run
    assert plan_sweep(suite("a")).is_resumed
    assert not plan_sweep(suite("a", "b")).is_resumed


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core")
def test_unlike_machines_have_results_of_their_own():
    plan = plan_sweep(suite("a", "b"))
    _, slots = run(plan, (CORES[:1], CORES[1:2]))
    result = sweep_result(plan, slots)
    assert sorted(result.machines) == sorted(each.machine for each in slots)
    assert [len(found) for found in result.machines.values()] == [2, 2]
    once = plan_sweep(suite("a", "b"), machines="any")
    run(once, (CORES[:1], CORES[1:2]))
    assert len(sweep_result(once).outcomes) == 2


def test_what_another_driver_has_stored_is_not_doubled():
    plan = plan_sweep(suite("a"))
    with LocalExecutor([CORES[:1]], arrival=ARRIVAL) as executor:
        slower = Sweep(plan, executor, serve="services:entry")
        with open_store(plan.store) as store:
            while not slower._offered:  # its trial is under way
                executor.wait(0.05)
                slower._offer_trials(store)
        run(plan)
        (done,) = slower.run()
    assert done.is_doubled
    assert len(sweep_result(plan).outcomes) == 1


def test_without_a_slot_it_ends_and_says_why():
    plan = plan_sweep(suite("a"))
    clock = iter(range(0, 10_000, 10))
    failing = TrialCall("arrival", "services:fails")
    with (
        LocalExecutor(arrival=failing) as executor,
        pytest.raises(MeasurementError, match="the wires are crossed"),
    ):
        list(Sweep(plan, executor, clock=lambda: next(clock)).run())
    assert plan_sweep(suite("a")).is_resumed


def test_an_unknown_choice_of_machines_is_refused():
    with pytest.raises(SettingError, match="each and any"):
        plan_sweep(suite("a"), machines="some")


@pytest.mark.slow
def test_the_arrival_of_a_slot_has_comparisons_of_equal_things():
    call = sweeps.arrival_call(1, budget_s=0.05)
    with LocalExecutor([CORES[:1]], arrival=call) as executor:
        while not (slot := executor.slots[0]).machine:
            executor.wait(0.05)
    assert slot.checks == 1
    assert slot.alarms in (0, 1)
    assert slot.foreign_load >= 0
    assert slot.environment["usable_cores"] == 1
