"""Searches whose attempts are trials of an executor."""

from dataclasses import replace

import pytest

from tinytorch import Workload, optimize
from tinytorch.errors import Failure, MeasurementError, SettingError
from tinytorch.measure.executor import (
    ARRIVAL,
    LocalExecutor,
    SlotReport,
    TrialResult,
    usable_core_numbers,
)
from tinytorch.models.targets import load_workload
from tinytorch.records.store import RecordStore
from tinytorch.tuning import elsewhere
from tinytorch.tuning.attempt import FAILED

CORES = usable_core_numbers()


class CountedExecutor(LocalExecutor):
    """Counts what is submitted."""

    def __init__(self, *given, **settings):
        self.submitted = []
        super().__init__(*given, **settings)

    def submit(self, call):
        self.submitted.append(call.arguments["step"])
        super().submit(call)


def test_a_workload_without_a_target_is_refused():
    found = load_workload("mlp")
    given = Workload(found.name, found.model, found.inputs)
    with LocalExecutor() as executor, pytest.raises(SettingError, match="target"):
        optimize(given, executor=executor, budget_s=1, only=["fused-layers"])


class HereExecutor:
    """An executor that answers in this process, in the order in which it was asked."""

    reports = False

    def __init__(self, broken=()):
        self._calls, self._broken = [], broken
        self.slots = (SlotReport("here", "this machine", CORES, {"usable_cores": 1}),)

    def submit(self, call):
        self._calls.append(call)

    def wait(self, timeout_s=None):
        calls, self._calls = self._calls, []
        return [self._result(each) for each in calls]

    def _result(self, call):
        if call.arguments["stack"] in self._broken:
            return TrialResult(call.key, failure=Failure("the slot is broken", "ended", "here"))
        return TrialResult(call.key, elsewhere.answer(**call.arguments))


@pytest.mark.parametrize("is_broken", [False, True])
def test_answers_of_an_executor_become_attempts(is_broken):
    executor = HereExecutor([["fused-layers"]] if is_broken else [])
    found = optimize("mlp", executor=executor, only=["fused-layers"], budget_s=2)
    (attempt,) = found.attempts
    assert attempt.stack == ("fused-layers",)
    assert (attempt.outcome == FAILED) is is_broken
    assert (attempt.comparison is None) is is_broken
    assert ("the slot is broken" in attempt.reason) is is_broken


def test_without_a_usable_slot_a_search_says_what_is_in_the_way():
    executor = HereExecutor()
    executor.slots = (replace(executor.slots[0], obstacle="its cores are taken"),)
    with pytest.raises(MeasurementError, match="its cores are taken"):
        optimize("mlp", executor=executor, only=["fused-layers"], budget_s=1)


def test_a_search_does_not_wait_for_slots_for_ever(monkeypatch):
    executor = HereExecutor()
    executor.slots, executor.reports = (), True
    monkeypatch.setattr(elsewhere, "PATIENCE_S", -1.0)
    with pytest.raises(MeasurementError, match="no slot"):
        optimize("mlp", executor=executor, only=["fused-layers"], budget_s=1)


@pytest.mark.slow
def test_attempts_are_trials_of_the_executor_and_are_stored_as_of_its_machine(tmp_path):
    with (
        RecordStore(tmp_path / "x.sqlite") as store,
        CountedExecutor([CORES[:1]], arrival=ARRIVAL) as executor,
    ):
        only = ["fused-layers", "low-rank"]
        found = optimize("mlp", executor=executor, only=only, budget_s=120, store=store)
        (slot,) = executor.slots
        records = store.find(kind="attempt")
    assert {each.stack for each in found.attempts} >= {(name,) for name in only}
    assert all(each.comparison or each.reason for each in found.attempts)
    assert executor.submitted[:2] == ["attempt", "attempt"]
    assert ("confirm" in executor.submitted) is bool(found.confirmations)
    assert found.environment["usable_cores"] == 1
    assert {each.machine for each in records} == {slot.machine}
    assert found.model is not None
