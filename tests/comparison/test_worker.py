import json
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from parts import require_part

from tinytorch.comparison import worker
from tinytorch.comparison.processes import WORKER as SERVE
from tinytorch.core.tensor import Tensor
from tinytorch.measure.child_process import WORKER
from tinytorch.models.core import CoreAdapter
from tinytorch.models.workload import Workload

torch = require_part("torch")
SETTINGS = json.dumps({"serve": SERVE})


def answers(*requests, **settings):
    """Run a worker on some requests and give its answers."""
    ran = subprocess.run(
        [sys.executable, str(WORKER), SETTINGS],
        input="".join(json.dumps(each) + "\n" for each in requests),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        **settings,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()], ran.stderr


def test_requests_are_answered_line_by_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def make():\n    print('made')\n    return (lambda x: print('called')), 1\n", "utf-8"
    )
    (built, timed), said = answers(
        {"do": "build", "target": "mine.py:make"},
        {"do": "time", "loops": 3, "before": 2},
        cwd=tmp_path,
    )
    assert built["answer"]["python"] == sys.version.split()[0]
    assert timed["answer"]["seconds"] > 0
    assert said.split() == ["made", *["called"] * 6]


def test_a_request_that_makes_no_sense_is_an_answer(tmp_path):
    (found,), _ = answers({"do": "dance"}, cwd=tmp_path)
    assert found["error"]["class"] == "AttributeError"


def test_it_needs_nothing_but_the_standard_library(tmp_path):
    (tmp_path / "mine.py").write_text("def make():\n    return (lambda x: x), 1\n", "utf-8")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(WORKER), SETTINGS],
        input=json.dumps({"do": "build", "target": "mine:make"})
        + "\n"
        + json.dumps({"do": "time", "loops": 1, "before": 0}),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    assert [list(json.loads(line)) for line in ran.stdout.splitlines()] == [["answer"]] * 2


def test_a_workload_is_called_without_a_graph():
    model = torch.nn.Linear(2, 2)
    function, context = worker.runner(Workload("w", model, (torch.ones(1, 2),)))
    with context:
        assert not function().requires_grad


def test_a_pair_is_called_without_a_graph_too():
    function, context = worker.runner((torch.nn.Linear(2, 2), (torch.ones(1, 2),)))
    with context:
        assert not function().requires_grad


def test_outputs_are_the_same_without_tinytorch(monkeypatch):
    output = {
        "a": [torch.ones(2, dtype=torch.bfloat16), np.arange(3)],
        "b": (Tensor([1.5]), 4, "text", None),
    }
    expected = worker.arrays_in(output)
    # As in a version of tinytorch from before adapters could do that.
    monkeypatch.setattr(CoreAdapter, "arrays", property(), raising=False)
    from tinytorch.models.pytorch import TorchAdapter

    monkeypatch.setattr(TorchAdapter, "arrays", property(), raising=False)
    alone = worker.arrays_in(output)
    assert len(alone) == len(expected) == 4
    for one, other in zip(alone, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_factory_gives_one_input_several_or_named_ones(tmp_path, monkeypatch):
    file = tmp_path / "forms.py"
    file.write_text(
        "def one(): return min, [3, 4]\n"
        "def several(): return min, (3, 4)\n"
        "def named(): return dict, {'x': 3}\n",
        "utf-8",
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = {name: worker.load_alone(f"{file}:{name}") for name in ("one", "several", "named")}
    called = {name: worker.runner(pair)[0]() for name, pair in found.items()}
    assert called == {"one": 3, "several": 3, "named": {"x": 3}}


@pytest.mark.slow
def test_it_ends_with_the_process_that_asks(tmp_path):
    (tmp_path / "hanging.py").write_text(
        "import os, time\n"
        "def make():\n"
        "    open('pid', 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n",
        "utf-8",
    )
    request = json.dumps({"do": "build", "target": "hanging.py:make"})
    asking = (
        "import subprocess, sys, time\n"
        f"worker = subprocess.Popen([sys.executable, {str(WORKER)!r}, {SETTINGS!r}],\n"
        "    stdin=subprocess.PIPE,\n"
        "    text=True, start_new_session=True)\n"
        f"worker.stdin.write({request!r} + chr(10)); worker.stdin.flush()\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", asking], cwd=tmp_path)
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text())
    parent.kill()
    parent.wait()
    wait_until(lambda: not psutil.pid_exists(int(pid.read_text())))
    assert not psutil.pid_exists(int(pid.read_text()))


def wait_until(is_so, patience_s=60.0):
    end = time.monotonic() + patience_s
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)


@pytest.mark.parametrize(("one_by_one", "waits"), [(True, 5), (False, 2)])
def test_calls_on_a_device_are_waited_for_one_by_one_or_together(monkeypatch, one_by_one, waits):
    counted = []
    cuda = SimpleNamespace(synchronize=lambda: counted.append(None))
    monkeypatch.setattr(worker, "running_cuda", lambda: cuda)
    own = worker.Worker(None)
    own.function = lambda: None
    own.time(loops=3, before=1, one_by_one=one_by_one)
    assert len(counted) == waits
