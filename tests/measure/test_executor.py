import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from executed_trials import write_services

from tinytorch.errors import SettingError
from tinytorch.measure.child_process import CRASHED, RAISED, TIMED_OUT
from tinytorch.measure.executor import (
    DISTURBED,
    NOT_STARTED,
    LocalExecutor,
    Slot,
    TrialCall,
    TrialResult,
    core_groups,
    run_alone,
    usable_core_numbers,
)

CORES = usable_core_numbers()
pinning = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system pins nothing"
)
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="there is one core")


@pytest.fixture(autouse=True)
def services(tmp_path, monkeypatch):
    write_services(tmp_path)
    monkeypatch.chdir(tmp_path)


def call(name, key="a", **arguments):
    return TrialCall(key, f"services:{name}", arguments, timeout_s=60)


def gathered(executor, count):
    found = []
    while len(found) < count:
        found += executor.wait()
    return found


@pinning
def test_each_trial_has_a_fresh_process_on_the_cores_of_its_slot():
    with LocalExecutor([CORES[:1]]) as executor:
        for key in "ab":
            executor.submit(call("where", key))
        found = gathered(executor, 2)
    assert [each.key for each in found] == ["a", "b"]
    assert [each.answer["cores"] for each in found] == [list(CORES[:1])] * 2
    assert len({each.answer["pid"] for each in found} | {os.getpid()}) == 3
    assert all(each.child_s > 0 for each in found)
    assert usable_core_numbers() == CORES  # this process keeps its own


@pytest.mark.parametrize(
    ("name", "timeout_s", "code"),
    [("fails", 60, RAISED), ("dies", 60, CRASHED), ("hangs", 0.01, TIMED_OUT)],
)
def test_a_trial_that_fails_is_a_result_with_a_code(tmp_path, name, timeout_s, code):
    given = {"file": str(tmp_path / "pid")} if name == "hangs" else {}
    found = run_alone(TrialCall("a", f"services:{name}", given, timeout_s))
    assert found.answer is None
    assert found.failure.code == code


def test_a_folder_that_is_not_there_is_a_failure(tmp_path):
    found = run_alone(TrialCall("a", "services:where", folder=str(tmp_path / "none")))
    assert found.failure.code == NOT_STARTED


def test_one_slot_measures_one_thing_at_a_time():
    with LocalExecutor() as executor:
        for key in "abc":
            executor.submit(call("span", key))
        spans = [each.answer for each in gathered(executor, 3)]
    ends = [each["end"] for each in spans]
    assert all(end <= later["start"] for end, later in zip(ends, spans[1:], strict=False))


@pinning
@two_cores
def test_groups_measure_beside_each_other_on_cores_of_their_own():
    with LocalExecutor([CORES[:1], CORES[1:2]]) as executor:
        for key in "abcd":
            executor.submit(call("span", key, seconds=0.3))
        spans = [each.answer for each in gathered(executor, 4)]
    assert {tuple(each["cores"]) for each in spans} == {CORES[:1], CORES[1:2]}
    overlaps = [
        one["start"] < other["end"] and other["start"] < one["end"]
        for place, one in enumerate(spans)
        for other in spans[place + 1 :]
    ]
    assert any(overlaps)


def test_closing_ends_what_is_running(tmp_path):
    file = tmp_path / "pid"
    executor = LocalExecutor()
    executor.submit(call("hangs", file=str(file)))
    while not (file.exists() and file.read_text()):
        time.sleep(0.01)
    assert list(executor.running.values()) == ["a"]
    executor.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
    assert executor.wait() == []


@pinning
def test_a_call_for_another_machine_waits_for_it():
    with LocalExecutor([CORES[:1]], arrival=call("arrival")) as executor:
        executor.submit(TrialCall("there", "services:where", machine="unknown"))
        executor.submit(TrialCall("here", "services:where", machine=f"core{CORES[0]:012d}"))
        found = gathered(executor, 1)
        (slot,) = executor.slots
        assert [each.key for each in found] == ["here"]
        assert found[0].machine == slot.machine
        assert executor.wait(0.05) == []


def test_a_slot_whose_arrival_fails_is_not_used():
    with LocalExecutor(arrival=call("fails")) as executor:
        executor.submit(call("where"))
        while not (slots := executor.slots)[0].obstacle:
            executor.wait(0.05)
        assert executor.wait(0.05) == []
        assert "the wires are crossed" in slots[0].obstacle


@pinning
def test_a_slot_refuses_cores_that_this_process_may_not_use():
    report = Slot([max(CORES) + 1000]).arrive()
    assert report.obstacle
    assert report.machine == ""


@pinning
def test_what_others_take_of_the_cores_marks_the_result():
    burning = f"import os; os.sched_setaffinity(0, [{CORES[0]}])\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", burning])
    try:
        with LocalExecutor([CORES[:1]]) as executor:
            found = run_alone(call("span", seconds=1.0), executor)
    finally:
        other.kill()
        other.wait()
    assert found.is_disturbed
    assert [note.code for note in found.notes] == [DISTURBED]


def test_more_slots_than_cores_are_refused():
    with pytest.raises(SettingError, match="use fewer slots"):
        core_groups([0, 1], 3)


def test_calls_and_results_survive_json():
    given = call("where").from_here()
    assert TrialCall.from_dict(given.to_dict()) == given
    assert given.folder == str(Path.cwd())
    found = run_alone(call("fails"))
    assert TrialResult.from_dict(found.to_dict()) == found
