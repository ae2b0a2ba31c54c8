import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from two_sides import are_gone, children

from tinytorch.comparison.processes import THREAD_VARIABLES, Isolated, ProcessSide
from tinytorch.errors import MeasurementError, ModelError, SettingError

SINGLE_THREADED = dict.fromkeys(THREAD_VARIABLES, "1")

TARGETS = """
import os, subprocess, sys, time

def model(x):
    return x + 1

def plain():
    return model, 1

def printing():
    print("hello from the target", flush=True)
    os.system("echo hello from its shell")
    def speak(x):
        print("called")
        os.write(1, b"raw\\\\n")
        return x
    return speak, 1

def reading():
    def read(x):
        return len(sys.stdin.read()) + len(subprocess.run(["cat"], capture_output=True).stdout)
    return read, 1

def leaving():
    sys.stderr.write("last words\\\\n")
    os._exit(3)

def crashing():
    def crash(x):
        os.kill(os.getpid(), 11)
    return crash, 1

def ending():
    def stop(x):
        raise SystemExit(5)
    return stop, 1

def raising():
    def fail(x):
        raise ZeroDivisionError("in the target")
    return fail, 1

def late():
    calls = []
    def fail(x):
        calls.append(x)
        if len(calls) > 50:
            raise ZeroDivisionError("in the target")
    return fail, 1

def hanging():
    def hang(x):
        time.sleep(600)
    return hang, 1

def hanging_import():
    time.sleep(600)

def hanging_with_child():
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    time.sleep(600)

def forking():
    def fork(x):
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        return x
    return fork, 1

def settings():
    return (lambda x: x), os.environ.get("COLOUR", "none")

def by_name():
    return (lambda *, x: x * 2), {"x": 21}

def only_forward():
    class Model:
        def forward(self, x):
            return x * 3
    return Model(), 5

def nested():
    return (lambda x: {"a": [x, 2.5], "b": "text"}), 1

def slower():
    return (lambda x: sum(range(20_000))), 1

def faster():
    return (lambda x: sum(range(200))), 1
"""


@pytest.fixture
def folder(tmp_path):
    """Give a folder of targets, in which tinytorch cannot be imported: workers start fast."""
    (tmp_path / "targets.py").write_text(TARGETS.replace("\\\\n", "\\n"), "utf-8")
    (tmp_path / "tinytorch").mkdir()
    hidden = tmp_path / "tinytorch" / "__init__.py"
    hidden.write_text('raise ImportError("tinytorch is not installed here")', "utf-8")
    return tmp_path


@pytest.fixture
def side(folder):
    """Make sides for targets of the folder, and end their processes."""
    made = []

    def make(target, *, name="candidate", variables=None, **settings):
        isolated = Isolated(
            target=f"targets:{target}" if ":" not in target else target,
            folder=folder,
            variables=SINGLE_THREADED | (variables or {}),
            **settings,
        )
        made.append(ProcessSide(isolated, name=name))
        return made[-1]

    before = children()
    yield make
    for each in made:
        each.close()
    assert are_gone(before)


def process_of(side):
    return psutil.Process(side._worker.process.pid)


def is_heard(side, line):
    """Say whether a process said something; a moment is its own."""
    end = time.monotonic() + 10
    while line not in side._worker.heard().splitlines() and time.monotonic() < end:
        time.sleep(0.01)
    return line in side._worker.heard().splitlines()


# ---------------------------------------------------------------- what works


def test_a_target_is_timed_in_a_process_of_its_own(side):
    timed = side("plain")
    timed.build()
    reading = timed.time(100, before=2)
    assert 0 < reading.seconds < 10
    assert 0 <= reading.lost_s < reading.seconds


def test_every_round_has_a_fresh_process(side):
    timed = side("plain")
    timed.build()
    first = process_of(timed)
    timed.release()
    timed.build()
    assert process_of(timed).pid != first.pid
    assert not first.is_running()


def test_a_file_is_a_target_as_well(side, folder):
    file = side(f"{folder / 'targets.py'}:plain")
    file.build()
    assert file.time(1).seconds > 0


@pytest.mark.parametrize(
    ("target", "expected"), [("by_name", [42]), ("only_forward", [15]), ("nested", [1, 2.5])]
)
def test_without_tinytorch_inputs_and_outputs_have_many_forms(side, target, expected):
    _, found = side(target).arrays("outputs")
    assert [found[str(index)].item() for index in range(len(found))] == expected


def test_what_a_target_prints_does_not_disturb(side):
    talking = side("printing")
    talking.build()
    assert talking.time(3).seconds > 0
    assert is_heard(talking, "hello from its shell")


def test_a_target_that_reads_gets_nothing_and_takes_no_requests(side):
    _, found = side("reading", timeout_s=20.0).arrays("outputs")
    assert found["0"] == 0


def test_variables_take_effect_and_an_empty_one_removes(side, monkeypatch):
    monkeypatch.setenv("COLOUR", "red")
    for variables, length in (({}, 3), ({"COLOUR": "green"}, 5), ({"COLOUR": ""}, 4)):
        isolated = Isolated("x", variables=variables)
        assert len(isolated.environment.get("COLOUR", "none")) == length


def test_a_variable_reaches_the_target(side):
    seen = side("settings", variables={"COLOUR": "blue"})
    seen.build()
    answer, found = seen.arrays("outputs")
    assert (answer, found) == (0, {})  # a text is no array
    assert process_of(seen).environ()["COLOUR"] == "blue"


def test_processes_run_in_their_folder(side, folder):
    running = side("plain")
    running.build()
    assert Path(process_of(running).cwd()) == folder.resolve()


@pytest.mark.parametrize("home", ["models", "workloads"])  # today's, and that of older commits
def test_the_package_of_the_folder_wins_over_an_installed_one(tmp_path, home):
    package = tmp_path / "tinytorch" / home
    package.mkdir(parents=True)
    (tmp_path / "tinytorch" / "__init__.py").write_text("", "utf-8")
    (package / "__init__.py").write_text("", "utf-8")
    (package / "targets.py").write_text(
        "def load_workload(target):\n    return (lambda x: 1234), (1,)\n", "utf-8"
    )
    other = ProcessSide(Isolated("mlp", folder=tmp_path), name="other")
    try:
        _, found = other.arrays("outputs")
    finally:
        other.close()
    assert found["0"] == 1234


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}])
def test_the_users_path_is_kept(tmp_path, folder, variables):
    library = tmp_path / "library"
    library.mkdir()
    (library / "wanted.py").write_text("def plain():\n    return (lambda x: x), 7\n", "utf-8")
    isolated = Isolated(
        "wanted:plain", folder=folder, variables={"PYTHONPATH": str(library)} | variables
    )
    running = ProcessSide(isolated, name="a")
    try:
        _, found = running.arrays("outputs")
    finally:
        running.close()
    assert found["0"] == 7


def test_our_own_modules_are_not_in_the_way(side, folder):
    (folder / "outputs.py").write_text("def plain():\n    return (lambda x: x), 8\n", "utf-8")
    _, found = side("outputs:plain").arrays("outputs")
    assert found["0"] == 8


def test_with_one_thread_nobody_waits_for_others_to_sleep():
    single = ProcessSide(Isolated("x", variables=SINGLE_THREADED), name="a")
    assert single.least_turn_s < 0.01
    many = ProcessSide(Isolated("x", variables=dict.fromkeys(THREAD_VARIABLES, "4")), name="a")
    assert many.least_turn_s > single.least_turn_s or os.cpu_count() == 1


# ---------------------------------------------------------------- what fails


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("leaving", r"candidate: its process ended with code 3; it said: last words"),
        ("crashing", r"candidate: its process was killed by SIGSEGV"),
        ("raising", r"candidate raised ZeroDivisionError: in the target"),
        ("ending", r"candidate raised SystemExit: 5"),
        ("missing", r"candidate raised AttributeError.*missing"),
        ("nowhere:plain", r"candidate raised ModuleNotFoundError"),
        ("mlp:", r"candidate raised"),
    ],
)
def test_a_target_that_fails_is_named_with_what_it_said(side, target, message):
    broken = side(target)
    with pytest.raises(ModelError, match=message):
        broken.build()


def test_a_built_in_target_without_tinytorch_says_what_is_missing(side, folder):
    isolated = Isolated("mlp", folder=folder)
    alone = ProcessSide(isolated, name="a")
    with pytest.raises(ModelError, match="'mlp' needs tinytorch"):
        alone.build()


def test_a_target_that_raises_late_is_named(side):
    broken = side("late")
    broken.build()
    with pytest.raises(ModelError, match="candidate raised ZeroDivisionError"):
        broken.time(100)


@pytest.mark.parametrize("target", ["hanging", "hanging_import", "hanging_with_child"])
def test_a_target_that_gives_no_answer_is_ended_with_its_children(side, target):
    before = children()
    silent = side(target, timeout_s=0.7)
    with pytest.raises(MeasurementError, match=r"candidate gave no answer within 0.7 s"):
        silent.build()
    assert are_gone(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_target_that_forks_leaves_no_copies_that_answer(side):
    forking = side("forking", timeout_s=30.0)
    forking.build()
    for _ in range(3):
        assert forking.time(3).seconds > 0
    assert process_of(forking).children() == []


def test_after_a_failure_the_next_request_has_a_fresh_process(side):
    broken = side("late")
    with pytest.raises(ModelError):
        broken.ask("time", loops=100, before=0)
    assert broken.ask("time", loops=10, before=0)["seconds"] > 0


def test_a_python_that_is_not_there_is_a_wrong_setting(side):
    with pytest.raises(SettingError, match="/no/such/python cannot be started: No such file"):
        side("plain", python="/no/such/python").build()


def test_a_program_that_is_no_python_is_told(side):
    with pytest.raises(ModelError, match="its process ended with code"):
        side("plain", python="/bin/false").build()


def test_a_folder_that_is_not_there_is_a_wrong_setting():
    with pytest.raises(SettingError, match="there is no folder /no/such/folder"):
        Isolated("x", folder="/no/such/folder")


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
def test_a_timeout_must_be_positive(timeout_s):
    with pytest.raises(SettingError, match="timeout_s="):
        Isolated("x", timeout_s=timeout_s)


def test_no_files_are_left_behind(side, tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    side("plain").arrays("outputs")
    with pytest.raises(ModelError):
        side("raising").arrays("outputs")
    assert list(place.iterdir()) == []


def test_closing_twice_or_before_anything_ran_is_fine(side):
    closed = side("plain")
    closed.close()
    closed.build()
    closed.close()
    closed.close()
    assert closed._worker is None


def test_an_isolated_target_says_what_it_is():
    isolated = Isolated("mlp", python="python3")
    assert isolated == Isolated("mlp", python="python3")
    assert json.dumps(isolated.variables) == "{}"
    assert Isolated("mlp").python == sys.executable


# ---------------------------------------------------------------- with tinytorch


@pytest.mark.slow
def test_the_zoo_runs_in_processes_of_its_own():
    zoo = ProcessSide(Isolated("mlp"), name="a")
    try:
        _, outputs = zoo.arrays("outputs")
        metric, scores = zoo.arrays("evaluate")
        assert zoo.ask("environment")["python"]
    finally:
        zoo.close()
    assert outputs["0"].shape[-1] == 10
    assert metric == "accuracy"
    assert 0.9 < np.mean(scores["scores"]) <= 1
