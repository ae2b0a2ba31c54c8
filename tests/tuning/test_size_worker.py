import io
import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
import sized_targets

from tinytorch.errors import SettingError, TargetError
from tinytorch.tuning import size_worker
from tinytorch.tuning.size_worker import SizeWorker, main

REQUEST = {"target": "mlp", "kind": "batch", "axis": None, "backend": "numpy", "torch": None}


def worker(**changes):
    return SizeWorker(REQUEST | changes, io.BytesIO())


def test_a_request_is_answered():
    found = worker().reply({"do": "attempt", "size": 4, "briefly": False})["answer"]
    assert (found["size"], found["kind"]) == (4, "")
    assert found["seconds"] > 0
    assert json.dumps(found)


def test_a_time_and_the_free_memory_are_numbers():
    found = worker()
    assert found.reply({"do": "time", "size": 4, "loops": 2})["answer"] > 0
    assert found.reply({"do": "free_bytes"})["answer"] > 0


def test_what_fails_is_an_answer_that_names_the_class_of_the_error():
    reply = worker(target=f"{sized_targets.FILE}:refusing").reply
    assert reply({"do": "time", "size": 13, "loops": 1}) == {
        "error": "ValueError: too many examples",
        "class": "ModelError",
    }
    assert reply({"do": "attempt", "size": 13, "briefly": True})["answer"]["kind"] == "refused"


def test_a_workload_may_come_over_the_pipe():
    sent = io.BytesIO(pickle.dumps(sized_targets.plain()))
    found = SizeWorker(REQUEST | {"target": None}, sent)
    assert (found.trial.facts.name, found.trial.facts.usual) == ("plain", 2)


def test_what_cannot_be_loaded_is_an_error():
    with pytest.raises(TargetError, match="there is no file"):
        worker(target="nowhere.py:model")
    with pytest.raises(SettingError, match="no input has an axis 7"):
        worker(axis=7)


@pytest.mark.slow
def test_a_process_answers_until_it_is_asked_no_more():
    request = REQUEST | {"path": sys.path}
    code = (
        "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request['path']; "
        f"from {main.__module__} import main; main(request)"
    )
    asked = [{"do": "free_bytes"}, {"do": "attempt", "size": 2, "briefly": True}]
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    ran = subprocess.run(
        [sys.executable, "-c", code, json.dumps(request)],
        input=lines,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert ran.returncode == -signal.SIGKILL  # with all that its target may have started
    facts, free, attempt = (json.loads(line)["answer"] for line in ran.stdout.splitlines())
    assert facts["name"] == "mlp"
    assert free > 0
    assert attempt["size"] == 2


def test_an_answer_that_nobody_reads_ends_the_whole_group(monkeypatch):
    ended = []
    monkeypatch.setattr(size_worker, "end_with_group", lambda: ended.append(True))
    reading, writing = os.pipe()
    os.close(reading)
    answers = os.fdopen(writing, "w", buffering=1 << 20)
    with pytest.raises(BrokenPipeError):
        size_worker._write(answers, {"answer": 1})
    assert ended
    with suppress(BrokenPipeError):
        answers.close()
