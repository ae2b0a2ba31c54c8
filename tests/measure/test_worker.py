import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tinytorch.errors import SettingError
from tinytorch.measure import worker
from tinytorch.measure.child_process import (
    CRASHED,
    OUT_OF_MEMORY,
    RAISED,
    TIMED_OUT,
    Child,
    ChildError,
    import_path,
)

SERVICE = """
import os, pickle, signal, subprocess, sys, tempfile, time

def add(a, b):
    print("adding")
    return a + b

def fail(kind):
    raise {"memory": MemoryError, "exit": SystemExit, "value": ValueError}[kind]("no", "more")

class Counter:
    def __init__(self, service):
        self.service, self.count = service, 0

    def up(self):
        self.count += 1
        return self.count

    def received(self):
        return pickle.load(self.service.requests)

    def scratch(self):
        return tempfile.gettempdir()

    def pids(self):
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        return [os.getpid(), child.pid]

    def leave(self, code):
        print("going", file=sys.stderr, flush=True)
        os._exit(code)

    def crash(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def fork(self):
        if not os.fork():
            return "copy"
        os.wait()
        return "original"

    def sleep(self):
        time.sleep(600)
"""
PATIENCE_S = 60.0


@pytest.fixture
def child(tmp_path):
    (tmp_path / "service.py").write_text(SERVICE, "utf-8")
    made = []

    def make(name="Counter", **settings):
        made.append(Child(f"{tmp_path / 'service.py'}:{name}", **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def is_gone(pid):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_a_function_answers_and_what_it_prints_is_kept_apart(child):
    asked = child("add")
    assert asked.ask(timeout_s=PATIENCE_S, a=1, b=2) == 3
    assert asked.heard() in ("adding\n", "")  # what is in a buffer comes when it is full


def test_an_object_keeps_its_state_between_requests(child):
    asked = child()
    assert [asked.ask("up", timeout_s=PATIENCE_S) for _ in range(3)] == [1, 2, 3]


def test_requests_may_be_sent_before_answers_are_read(child):
    asked = child()
    for _ in range(3):
        asked.send("up")
    assert [asked.answer(PATIENCE_S) for _ in range(3)] == [1, 2, 3]


def test_something_may_follow_a_request(child):
    import pickle

    asked = child()
    sent = {"rows": list(range(100_000))}
    asked.send("received", followed_by=lambda pipe: pickle.dump(sent, pipe))
    assert asked.answer(PATIENCE_S) == sent
    assert asked.ask("up", timeout_s=PATIENCE_S) == 1


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        ("memory", OUT_OF_MEMORY, "MemoryError: ('no', 'more')"),
        ("value", RAISED, "ValueError: ('no', 'more')"),
        ("exit", RAISED, "SystemExit: ('no', 'more')"),
    ],
)
def test_what_is_raised_is_an_answer_with_its_kind(child, raised, kind, words):
    asked = child("fail")
    for _ in range(2):  # the process goes on
        with pytest.raises(ChildError) as error:
            asked.ask(timeout_s=PATIENCE_S, kind=raised)
        assert (error.value.kind, str(error.value)) == (kind, words)


@pytest.mark.parametrize(
    ("do", "settings", "words"),
    [
        ("leave", {"code": 3}, "its process ended with code 3; it said: going"),
        ("crash", {}, "its process was killed by SIGSEGV; it said: nothing"),
    ],
)
def test_a_process_that_ends_is_a_crash(child, do, settings, words):
    asked = child()
    with pytest.raises(ChildError) as error:
        asked.ask(do, timeout_s=PATIENCE_S, **settings)
    assert (error.value.kind, str(error.value)) == (CRASHED, words)


def test_a_late_answer_ends_the_process_and_all_it_has_started(child):
    asked = child()
    pids = asked.ask("pids", timeout_s=PATIENCE_S)
    seen = []
    asked.send("sleep")
    with pytest.raises(ChildError) as error:
        asked.answer(0.05, lambda: seen.append(1))
    assert error.value.kind == TIMED_OUT
    assert seen
    assert all(map(is_gone, pids))


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to a thread")
def test_an_interrupt_leaves_nothing_behind(child, request):
    # A shell lets what it starts in the background ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    asked = child()
    pids = asked.ask("pids", timeout_s=PATIENCE_S)
    asked.send("sleep")
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        asked.answer(PATIENCE_S)
    interrupt.join()
    assert all(map(is_gone, pids))


def test_a_copy_of_the_process_does_not_answer(child):
    asked = child()
    assert asked.ask("fork", timeout_s=PATIENCE_S) == "original"
    assert asked.ask("up", timeout_s=PATIENCE_S) == 1


def test_a_service_that_is_not_there_is_an_answer(child):
    for place in ("missing", "Counter.nothing"):
        with pytest.raises(ChildError, match="AttributeError"):
            child(place).ask("up", timeout_s=PATIENCE_S)


def test_temporary_files_go_to_the_scratch_folder(child, tmp_path):
    assert child(scratch=tmp_path).ask("scratch", timeout_s=PATIENCE_S) == str(tmp_path)


def test_errors_of_tinytorch_keep_their_class_and_words():
    asked = Child("tinytorch.models.targets:load_workload", path=import_path())
    try:
        with pytest.raises(ChildError, match="there is no file") as error:
            asked.ask(timeout_s=PATIENCE_S, target="nowhere.py:make")
    finally:
        asked.close()
    assert (error.value.kind, error.value.raised) == (RAISED, "TargetError")


def test_a_python_that_is_not_there_is_a_wrong_setting(child):
    with pytest.raises(SettingError, match="/no/python cannot be started to see"):
        child(python="/no/python", purpose="to see")


def test_closing_twice_is_fine(child):
    asked = child()
    asked.close()
    asked.close()
    assert asked.process.poll() is not None


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError("no room"), True),
        (RuntimeError("CUDA out of memory. Tried"), True),
        (OSError("Cannot allocate memory"), True),
        (type("OutOfMemoryError", (Exception,), {})(), True),
        (ValueError("out of range"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_failures(error, is_memory):
    assert worker.is_out_of_memory(error) is is_memory
    wrapped = RuntimeError("layer failed")
    wrapped.__cause__ = error
    assert worker.is_out_of_memory(wrapped) is is_memory


def test_an_answer_that_nobody_reads_ends_the_process(tmp_path):
    (tmp_path / "service.py").write_text(SERVICE, "utf-8")
    settings = f'{{"serve": "{tmp_path / "service.py"}:Counter"}}'
    process = subprocess.Popen(
        [sys.executable, worker.__file__, settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    process.stdout.close()
    process.stdin.write(b'{"do": "up"}\n')
    process.stdin.flush()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    process.stdin.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("raises", [False, True])
def test_a_copy_of_the_process_ends_where_the_function_returns(raises):
    process, codes = os.getpid(), []

    def fork():
        pid = os.fork()
        if pid:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        elif raises:
            raise ValueError("in the copy")

    try:
        before = worker.Forks.count
        worker.ending_copies(fork)()
    finally:
        if os.getpid() != process:
            os._exit(17)
    assert codes == [0]
    assert worker.Forks.count == before + 1


ASKS_AND_WAITS = """
import sys
from tinytorch.measure.child_process import Child
child = Child(sys.argv[1])
print(*child.ask("pids", timeout_s=60), flush=True)
child.ask("compute", timeout_s=600)
"""
COMPUTES = """
import os, subprocess, sys

class Computing:
    def __init__(self, service):
        pass

    def pids(self):
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        return [os.getpid(), child.pid]

    def compute(self):
        while True:
            pass
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_parent_ends_a_worker_in_the_middle_of_computing(tmp_path, number):
    (tmp_path / "computing.py").write_text(COMPUTES)
    command = [sys.executable, "-c", ASKS_AND_WAITS, f"{tmp_path / 'computing.py'}:Computing"]
    path = {"PYTHONPATH": os.pathsep.join(import_path())}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | path)
    workers = [psutil.Process(int(each)) for each in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.1)
    parent.send_signal(number)
    assert parent.wait(30) == -number
    _, left = psutil.wait_procs(workers, timeout=30)
    for each in left:
        each.kill()
    assert left == []
    parent.stdout.close()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux waits for a process by a file")
def test_waiting_for_the_end_of_a_process_takes_no_looking_around(monkeypatch):
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: pytest.fail("it polls"))
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(os, "getppid", lambda: process.pid)
    waiting = threading.Thread(target=worker.wait_for_end, args=(process.pid,))
    waiting.start()
    assert waiting.is_alive()
    process.communicate(b"\n")
    waiting.join(30)
    assert not waiting.is_alive()


# ---------------------------------------------------------------- in this process, step by step


@pytest.fixture
def service_file(tmp_path):
    file = tmp_path / "answering.py"
    file.write_text(SERVICE, "utf-8")
    return file


def test_a_function_and_an_object_answer_in_this_process_as_well(service_file):
    function = worker.Service(f"{service_file}:add", io.BytesIO())
    assert function.reply({"a": 1, "b": 2}) == {"answer": 3}
    counter = worker.Service(f"{service_file}:Counter", io.BytesIO())
    assert [counter.reply({"do": "up"}) for _ in range(2)] == [{"answer": 1}, {"answer": 2}]
    assert counter.reply({"do": "down"})["error"]["class"] == "AttributeError"
    assert str(service_file.parent) not in sys.path


@pytest.mark.parametrize("is_gone", [False, True])
def test_requests_are_answered_line_by_line_until_nobody_asks(monkeypatch, service_file, is_gone):
    class Answers(io.StringIO):
        def flush(self):
            if is_gone:
                raise BrokenPipeError

    lines = [json.dumps({"a": number, "b": 1}).encode() + b"\n" for number in range(2)]
    answers, ended = Answers(), []
    settings = {"serve": f"{service_file}:add", "path": list(sys.path)}
    monkeypatch.setattr(sys, "argv", ["worker", json.dumps(settings)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    channels = (io.BytesIO(b"".join(lines)), answers)
    monkeypatch.setattr(worker, "private_channels", lambda: channels)
    monkeypatch.setattr(worker, "end_with_parent", lambda *_: None)
    monkeypatch.setattr(worker, "end_with_group", lambda: ended.append(True))
    worker.main()
    found = [json.loads(line)["answer"] for line in answers.getvalue().splitlines()]
    assert (found, ended) == ([1] if is_gone else [1, 2], [True])


@pytest.mark.parametrize("has_scratch", [False, True])
def test_what_ends_with_its_parent_takes_its_folder_along(monkeypatch, tmp_path, has_scratch):
    folder, done = tmp_path / "scratch", []
    folder.mkdir()
    monkeypatch.setattr(worker, "wait_for_end", lambda parent: done.append(parent))
    monkeypatch.setattr(worker, "end_with_group", lambda: done.append("group"))
    monkeypatch.setattr(worker.os, "_exit", lambda code: done.append(code))
    worker.end_with_parent(7, str(folder) if has_scratch else None)
    assert done == [7, "group", 1]
    assert folder.exists() != has_scratch


@pytest.mark.parametrize("leads", [False, True])
def test_only_the_leader_of_a_group_ends_it(monkeypatch, leads):
    killed = []
    monkeypatch.setattr(worker.os, "getpgid", lambda pid: os.getpid() + (not leads))
    monkeypatch.setattr(worker.os, "killpg", lambda *given: killed.append(given))
    worker.end_with_group()
    assert killed == ([(0, signal.SIGKILL)] if leads else [])


def test_without_a_wait_of_the_system_the_parent_is_looked_for(monkeypatch):
    parents, pauses = [7, 7, 1], []

    def refuse(pid):
        raise OSError("no pidfd")

    monkeypatch.setattr(worker.os, "pidfd_open", refuse, raising=False)
    monkeypatch.setattr(worker.os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(worker.time, "sleep", pauses.append)
    worker.wait_for_end(7)
    assert pauses == [worker.PARENT_CHECKED_EVERY_S] * 2


def test_a_function_that_makes_no_copies_is_called_without_a_check(monkeypatch):
    def quick():
        return 3

    service = worker.Service("x:y", io.BytesIO())
    assert service.guarded(quick) is quick

    def copying():
        worker.Forks.add()

    monkeypatch.setattr(worker.Forks, "count", 0)
    assert service.guarded(copying) is not copying
