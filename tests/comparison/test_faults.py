"""What a side may do wrong: a clear message, no false verdict, and nothing left behind."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
from two_sides import (
    CORE_X,
    LITTLE,
    MUCH,
    SHORT,
    TIME_ALONE,
    TORCH_X,
    WIDE,
    children,
    core_model,
    nn,
    torch,
    torch_model,
    work,
)

from tinytorch import Isolated, compare
from tinytorch.comparison import evidence, sides
from tinytorch.errors import MeasurementError, ModelError
from tinytorch.measure.estimate import INCONCLUSIVE, SLOWER
from tinytorch.measure.timing import StandardClock
from tinytorch.models.workload import Workload


@pytest.fixture
def untouched(tmp_path, monkeypatch):
    """Check that gc, signals, processes and temporary files are as before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handlers = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)
    before = children()
    yield
    assert gc.isenabled()
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)) == handlers
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    end = time.monotonic() + 10
    while children() - before and time.monotonic() < end:
        time.sleep(0.01)
    assert not children() - before
    assert list(tmp_path.iterdir()) == []


def failing_at(call, error=None):
    calls = []

    def function(*inputs):
        calls.append(1)
        if len(calls) >= call:
            raise error or ZeroDivisionError("at last")
        return sum(range(200))

    return function


@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3, 50])
@pytest.mark.parametrize("form", ["function", "factory", "model"])
@pytest.mark.usefixtures("untouched")
def test_a_side_that_raises_gets_no_verdict(form, call, with_evidence):
    failing = failing_at(call)
    pair, settings = {
        "function": ((LITTLE, failing), {}),
        "factory": ((lambda: LITTLE, lambda: failing), {"factories": True}),
        "model": ((lambda x: x, failing), {"inputs": 1}),
    }[form]
    with pytest.raises(ModelError, match=r"candidate.*ZeroDivisionError: at last"):
        compare(*pair, budget_s=0.05, evidence=with_evidence, **settings)


@pytest.mark.usefixtures("untouched")
def test_a_side_that_raises_among_the_single_calls_is_named(monkeypatch):
    broken = []
    original = sides.LocalSide.call_untested

    def call_untested(self):
        if self.name == "candidate":
            self._function = failing_at(1)
            broken.append(1)
        return original(self)

    monkeypatch.setattr(sides.LocalSide, "call_untested", call_untested)
    with pytest.raises(ModelError, match="candidate raised: ZeroDivisionError: at last"):
        compare(LITTLE, MUCH, **SHORT)
    assert broken


@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.usefixtures("untouched")
def test_a_layer_that_raises_is_named(with_evidence):
    wrong = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(15, 4)))
    with pytest.raises(
        ModelError, match=r"candidate raised: layer '1.1' \(Linear\) raised Runtime"
    ):
        compare(torch_model(), wrong, inputs=TORCH_X, budget_s=0.05, evidence=with_evidence)


@pytest.mark.parametrize("form", ["function", "model"])
@pytest.mark.usefixtures("untouched")
def test_a_side_that_hangs_gets_no_verdict(form):
    def hang(*inputs):
        while True:
            pass

    settings = {"inputs": 1} if form == "model" else {}
    quick = (lambda x: x) if form == "model" else LITTLE
    with pytest.raises(MeasurementError, match=r"candidate did not return within 0.1 s"):
        compare(quick, hang, timeout_s=0.1, **SHORT, **settings)


@pytest.mark.usefixtures("untouched")
def test_a_side_that_hangs_among_the_single_calls_is_given_up(monkeypatch):
    def hang(self):
        while True:
            pass

    monkeypatch.setattr(sides.LocalSide, "call_untested", hang)
    monkeypatch.setattr(evidence, "CALLS_OF_STAGE", 1)
    with pytest.raises(MeasurementError, match="baseline or candidate did not return"):
        compare(LITTLE, MUCH, timeout_s=0.7, **SHORT)


@pytest.mark.parametrize("call", [1, 30])
@pytest.mark.usefixtures("untouched")
def test_a_stop_of_the_user_stops_and_leaves_everything_as_it_was(call):
    model = torch_model()
    model[0].weight.grad = torch.ones(16, 8)
    stopping = failing_at(call, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        compare((model, TORCH_X), stopping, timeout_s=30.0, **SHORT)
    assert model[0].weight.grad.sum() == 16 * 8
    assert torch.is_grad_enabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.usefixtures("untouched")
def test_a_function_that_forks_and_returns_leaves_no_copies(with_evidence):
    process = os.getpid()

    def fork():
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)

    try:
        found = compare(work(2000), fork, budget_s=0.01, evidence=with_evidence)
    finally:
        if os.getpid() != process:
            os._exit(17)
    assert found.verdict == SLOWER
    assert any("candidate starts other processes" in note for note in found.notes)


@pytest.mark.usefixtures("untouched")
def test_a_function_that_runs_a_program_is_compared():
    run = [sys.executable, "-S", "-c", ""]
    found = compare(work(100_000), lambda: subprocess.run(run, check=True), **TIME_ALONE)
    assert found.verdict == SLOWER


@pytest.mark.slow
def test_a_function_that_leaks_is_told():
    leaked = []

    def leak():
        leaked.append(np.ones(1 << 21))  # 16 MiB

    found = compare(lambda: np.ones(1 << 21).sum(), leak, **TIME_ALONE)
    assert len(leaked) * 16 > 100
    assert any("memory leak" in note for note in found.notes)


def test_a_function_that_gives_other_results_each_time_is_told():
    rng = np.random.default_rng(0)
    found = compare(lambda: 1.0, lambda: rng.standard_normal(1000), **SHORT)
    assert any("candidate is not deterministic" in note for note in found.notes)
    assert not any("baseline is not deterministic" in note for note in found.notes)


def test_outputs_of_other_shapes_are_told():
    found = compare(lambda: np.ones(3), lambda: np.ones(4), **SHORT)
    assert "shape (3,)" in found.outputs.mismatch


@pytest.mark.parametrize("amount", [500, 20_000])
def test_wildly_bimodal_times_of_one_side_are_neither_the_same_nor_faster(amount):
    calls = []

    def bimodal():
        calls.append(1)
        return sum(range(20 * amount if len(calls) % 7 == 0 else amount))

    found = compare(work(amount), bimodal, budget_s=0.4, evidence=False)
    assert found.verdict in (SLOWER, INCONCLUSIVE)


async def promise():
    return 1


def generate():
    yield 1


@pytest.mark.parametrize("with_evidence", [False, True])
@pytest.mark.parametrize("lazy", [promise, generate])
@pytest.mark.usefixtures("untouched")
def test_what_only_promises_a_result_gets_no_verdict(lazy, with_evidence):
    with pytest.raises(ModelError, match=r"candidate returned a .*computed nothing yet"):
        compare(LITTLE, lazy, budget_s=0.05, evidence=with_evidence)
    gc.collect()


@pytest.mark.usefixtures("untouched")
def test_a_clock_that_is_set_back_gives_no_verdict(monkeypatch):
    readings = []

    def read_ns():
        readings.append(1)
        step_back = -(10**12) if len(readings) > 500 else 0
        return time.perf_counter_ns() + step_back * (len(readings) - 500)

    clock = StandardClock("stepping", read_ns, 1e-9)
    monkeypatch.setattr(sides, "fitting_clock", lambda: clock)
    with pytest.raises(MeasurementError, match="it was set back or is too coarse"):
        compare(LITTLE, LITTLE, budget_s=60.0, evidence=False, is_known=lambda ratio: False)


@pytest.mark.usefixtures("untouched")
def test_a_failing_process_leaves_nothing_behind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    (folder / "mine.py").write_text(
        "import os\ndef fine():\n    return (lambda x: x), 1\n"
        "def fatal():\n    return (lambda x: os._exit(9)), 1\n",
        "utf-8",
    )
    (folder / "tinytorch.py").write_text("raise ImportError", "utf-8")
    with pytest.raises(ModelError, match="candidate: its process ended with code 9"):
        compare(
            Isolated("mine:fine", folder=folder), Isolated("mine:fatal", folder=folder), **SHORT
        )


@pytest.mark.usefixtures("untouched")
def test_failures_in_evaluate_cost_the_accuracy_alone():
    def evaluate(model):
        raise OSError("no data")

    found = compare(
        Workload("a", core_model(), (CORE_X,), evaluate=evaluate),
        Workload("b", core_model(WIDE), (CORE_X,), evaluate=evaluate),
        **SHORT,
    )
    assert found.accuracy is None
    assert "no data" in str(found.not_measured["accuracy"])
