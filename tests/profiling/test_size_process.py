import os

import psutil
import pytest
import sized_targets

from tinytorch import Workload
from tinytorch.errors import MeasurementError, SettingError, TargetError
from tinytorch.measure import child_process
from tinytorch.models.workload import Preparation
from tinytorch.profiling.size_runs import ENDED, LATE, CannotSendError, SizeProcess


def target(name):
    return f"{sized_targets.FILE}:{name}"


@pytest.fixture
def started():
    """Start processes that end with the test."""
    found = []

    def start(*arguments):
        found.append(SizeProcess(*arguments))
        return found[-1]

    yield start
    for each in found:
        each.close()


def children():
    return {each.pid for each in psutil.Process(os.getpid()).children(recursive=True)}


def test_a_target_is_measured_in_a_process_that_ends(started):
    before = children()
    process = started(target("chatty"), "batch")  # what it prints does no harm
    with process.environment():
        assert len(children() - before) == 1
        assert process.facts.name.endswith("sized_targets.py:chatty")
        assert process.facts.framework == "core"
        found = process.attempt(4)
        assert found.works
        assert found.peak_bytes > process.facts.resident_bytes
        assert process.time(4, 2) > 0
        assert process.free_bytes() > 0
    assert children() - before == set()


def test_a_workload_is_sent_over_without_what_is_not_called(started):
    workload = Workload("sent", sized_targets.plain().model, sized_targets.plain().inputs)
    object.__setattr__(workload, "evaluate", lambda model: None)  # cannot be pickled
    process = started(workload, "batch")
    assert process.facts.name == "sent"
    assert process.attempt(3).works


def test_a_process_that_dies_is_the_answer_and_is_started_anew(started):
    process = started(target("vanishing"), "batch")
    found = process.attempt(5)
    assert found.kind == ENDED
    assert "its process was killed by SIGKILL" in found.failure
    assert process.attempt(4).works
    with pytest.raises(MeasurementError, match="its process was killed by SIGKILL"):
        process.time(5, 1)


@pytest.mark.slow
def test_what_a_target_has_started_ends_with_us(started):
    process = started(target("breeding"), "batch")
    (grandchild,) = psutil.Process(process._child.process.pid).children()
    process._child.process.stdin.close()  # as if we were gone
    psutil.wait_procs([grandchild], timeout=10)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_copies_that_a_model_leaves_behind_do_not_answer(started):
    process = started(target("forking"), "batch")
    assert process.attempt(3).works
    assert process.time(3, 5) > 0
    assert process.free_bytes() > 0
    assert process.attempt(4).size == 4


@pytest.mark.slow
def test_somebody_who_watches_sees_life(monkeypatch):
    monkeypatch.setattr(child_process, "WATCHED_EVERY_S", 0.01)
    seen = []
    process = SizeProcess("mlp", "batch", while_waiting=lambda: seen.append(1))
    process.close()
    assert seen


@pytest.mark.slow
def test_a_process_that_is_gone_is_a_failed_measurement(started):
    process = started(target("vanishing"), "batch")
    process._child.process.kill()
    with pytest.raises(MeasurementError, match="its process was killed by SIGKILL"):
        process.free_bytes()
    assert process.free_bytes() > 0  # started anew


@pytest.mark.slow
def test_a_call_that_does_not_return_is_ended(started):
    process = started(target("hanging"), "batch")
    process.timeout_s = 0.5
    found = process.attempt(5)
    assert found.kind == LATE
    assert "gave no answer within 0.5 s and was ended" in found.failure


def test_memory_runs_out_there_and_not_here(started):
    process = started(target("holding"), "batch")
    assert process.attempt(1).works
    if not process.fence(100 << 20):
        pytest.skip("this system has no fence")
    assert process.attempt(10).works
    found = process.attempt(1000)
    assert found.kind == "memory"
    assert process.attempt(10).works


def test_what_cannot_be_pickled_cannot_be_sent(started):
    workload = Workload("own", lambda x: x, sized_targets.plain().inputs)
    with pytest.raises(CannotSendError, match="cannot be sent to another process"):
        started(workload, "batch")


def test_what_was_prepared_here_is_not_sent(started):
    workload = sized_targets.plain()
    workload.model.preparations = (Preparation("compiled", 1.0),)
    with pytest.raises(CannotSendError, match=r"prepared in this process \(compiled\)"):
        started(workload, "batch")


@pytest.mark.slow
def test_errors_keep_their_class(started):
    with pytest.raises(TargetError, match="there is no file"):
        started("nowhere.py:model", "batch")
    with pytest.raises(SettingError, match="no input has an axis 7"):
        started("mlp", "batch", 7)
