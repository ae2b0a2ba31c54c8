import asyncio
import copy
import gc
import os
import signal
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
from parts import require_part
from two_sides import are_gone, children

from tinytorch.comparison.sides import LocalSide, WorkloadSide, function_name
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import MeasurementError, ModelError
from tinytorch.measure.interleaving import Reading
from tinytorch.models.workload import Workload

torch = require_part("torch")
nn = torch.nn

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def finished(function, **settings):
    return LocalSide("candidate", lambda: function, can_rebuild=False, **settings)


def rebuilt(make, **settings):
    return LocalSide("candidate", make, can_rebuild=True, **settings)


def core_workload(inputs=None):
    model = Sequential(Linear(8, 16, rng=0), ReLU(), Linear(16, 4, rng=0))
    return Workload("mlp", model, inputs or (Tensor(np.ones((2, 8), np.float32)),))


def torch_workload(model=None, inputs=None, **settings):
    model = model or nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return Workload("mlp", model, inputs or (torch.ones(2, 8),), **settings)


# ---------------------------------------------------------------- building and calling


def test_a_finished_function_is_made_once():
    made = []
    side = LocalSide("a", lambda: made.append(1) or (lambda: 42), can_rebuild=False)
    for _ in range(3):
        side.release()
        side.build()
    assert side.call() == 42
    assert made == [1]


def test_a_factory_builds_anew_and_frees_the_old_first():
    alive = []

    class Counted:
        def __init__(self):
            alive.append(self)

        def __call__(self):
            return len(alive)

    side = rebuilt(Counted)
    side.build()
    first = side._function
    side.build()
    assert len(alive) == 2
    assert side._function is not first


def test_released_memory_is_free():
    import weakref

    references = []

    def make():
        array = np.ones(1000)
        references.append(weakref.ref(array))
        return lambda: array.sum()

    side = rebuilt(make)
    side.build()
    side.call()
    side.release()
    assert references[0]() is None


def test_calls_are_counted_and_those_before_are_not_timed():
    calls = []
    side = finished(lambda: calls.append(1))
    side.build()
    side.time(1)  # proves the function, with one call more
    calls.clear()
    found = side.time(10, before=3)
    assert isinstance(found, Reading)
    assert len(calls) == 13


def test_a_function_that_was_called_with_all_checks_is_not_checked_again():
    calls = []
    side = finished(lambda: calls.append(1))
    side.call()
    side.time(1)
    assert len(calls) == 2


def test_a_factory_that_builds_no_function_is_told():
    with pytest.raises(ModelError, match=r"candidate built a int, which cannot be called"):
        rebuilt(lambda: 3).build()


# ---------------------------------------------------------------- failures


def test_a_failure_names_the_side_and_keeps_its_cause():
    def broken():
        raise ZeroDivisionError("nothing left")

    side = finished(broken)
    side.build()
    with pytest.raises(ModelError, match=r"candidate raised: ZeroDivisionError: nothing left") as e:
        side.time(1)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_factory_that_raises_is_named():
    def broken():
        raise ValueError("no weights")

    with pytest.raises(ModelError, match=r"candidate could not be built: ValueError: no weights"):
        rebuilt(broken).build()


@pytest.mark.parametrize("use", ["time", "call_untested"])
def test_a_function_that_raises_late_is_named(use):
    calls = []

    def broken():
        calls.append(1)
        if len(calls) == 50:
            raise ZeroDivisionError("the fiftieth")

    side = finished(broken)
    side.build()

    def use_often():
        for _ in range(60):
            side.time(1) if use == "time" else side.call_untested()

    with pytest.raises(ModelError, match=r"candidate raised: ZeroDivisionError: the fiftieth"):
        use_often()
    assert len(calls) == 50


@pytest.mark.parametrize(
    ("workload", "layer"),
    [
        (core_workload((Tensor(np.ones((2, 7), np.float32)),)), "0"),
        (torch_workload(inputs=(torch.ones(2, 7),)), r"layer '0' \(Linear\)"),
    ],
    ids=["core", "pytorch"],
)
def test_a_model_that_raises_names_the_side_and_the_layer(workload, layer):
    side = WorkloadSide(workload, name="candidate")
    side.build()
    with pytest.raises(ModelError, match=rf"candidate raised.*{layer}"):
        side.call()


def test_a_stop_of_the_user_is_no_failure_of_the_model():
    def stop():
        raise KeyboardInterrupt

    side = finished(stop, timeout_s=30.0)
    side.build()
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt):
        side.time(1)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("proven", [False, True])
def test_a_call_that_hangs_is_given_up(proven):
    hangs = [not proven]

    def maybe():
        while hangs[0]:
            pass

    side = finished(maybe, timeout_s=0.05)
    side.build()
    if proven:
        side.time(1)
        hangs[0] = True
    with pytest.raises(MeasurementError, match=r"candidate did not return within 0.05 s"):
        side.time(1)


def test_a_function_that_catches_every_exception_is_given_up_too():
    def stubborn():
        while True:
            try:
                while True:
                    pass
            except Exception:
                pass

    side = finished(stubborn, timeout_s=0.05)
    side.build()
    with pytest.raises(MeasurementError, match=r"candidate did not return within 0.05 s"):
        side.call()


def test_a_factory_that_hangs_is_given_up():
    def hang():
        while True:
            pass

    side = LocalSide("candidate", hang, can_rebuild=True, timeout_s=0.05)
    with pytest.raises(MeasurementError, match=r"^candidate \(building\) did not return within"):
        side.build()


def test_where_a_hang_cannot_be_interrupted_a_note_says_so():
    notes = []
    thread = threading.Thread(
        target=lambda: notes.extend(finished(lambda: None, timeout_s=1.0).notes)
    )
    thread.start()
    thread.join()
    assert "could not be interrupted" in notes[0]
    assert finished(lambda: None, timeout_s=1.0).notes == []


# ---------------------------------------------------------------- what has not computed anything


async def coroutine():
    return 1


def generator():
    yield 1


async def async_generator():
    yield 1


def future():
    return asyncio.Future(loop=LOOP)


LOOP = asyncio.new_event_loop()
LOOP.close()


@pytest.mark.parametrize("lazy", [coroutine, generator, async_generator, future])
def test_what_only_promises_a_result_is_refused(lazy):
    side = finished(lazy)
    side.build()
    with pytest.raises(ModelError, match=r"candidate returned a .*computed nothing yet"):
        side.time(1)
    gc.collect()  # a coroutine that nobody awaits would warn


def test_a_model_that_only_promises_a_result_is_refused():
    class Promising(nn.Module):
        async def forward(self, x):
            return x

    side = WorkloadSide(torch_workload(Promising()), name="candidate")
    side.build()
    with pytest.raises(ModelError, match="returned a coroutine"):
        side.call()
    gc.collect()


# ---------------------------------------------------------------- processes of its own


@forks
@pytest.mark.parametrize("first_fork", [1, 8])
@pytest.mark.parametrize("can_rebuild", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_a_function_that_forks_leaves_no_copies_of_us(first_fork, can_rebuild, raises):
    """A copy that came back from here would run the rest of the tests."""
    process, calls, before = os.getpid(), [], children()

    def fork_and_return():
        calls.append(1)
        if len(calls) < first_fork:
            return
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        elif raises:
            raise ValueError("in the copy")

    side = LocalSide("a", lambda: fork_and_return, can_rebuild=can_rebuild)
    try:
        for _ in range(12):
            if can_rebuild and len(calls) % 4 == 0:
                side.release()
            side.build()
            side.time(1)
        side.time(5)
    finally:
        if os.getpid() != process:
            os._exit(17)
    assert are_gone(before)
    assert len(side.notes) == 1
    assert "a starts other processes" in side.notes[0]


def test_a_function_that_runs_a_program_is_timed():
    before = children()
    side = finished(lambda: subprocess.run([sys.executable, "-S", "-c", ""], check=True))
    side.build()
    assert side.time(1).seconds > 1e-4
    assert are_gone(before)


# ---------------------------------------------------------------- workloads


@pytest.mark.parametrize("make", [core_workload, torch_workload])
def test_model_and_inputs_are_copied_every_time(make):
    workload = make()
    side = WorkloadSide(workload, name="a")
    places = set()
    for _ in range(4):
        side.release()
        side.build()
        model, *inputs = side._function.args
        assert model is not workload.model
        assert inputs[0] is not workload.inputs[0]
        places.add(id(model))
        first = next(iter(model.parameters()))
        assert first is not next(iter(workload.model.parameters()))
    assert places


def test_keywords_are_copied_and_passed_by_name():
    class Scaled(Module):
        def forward(self, x, *, factor):
            return x * factor

    factor = Tensor(np.full(3, 2.0))
    inputs = (Tensor(np.ones(3)),)
    side = WorkloadSide(Workload("s", Scaled(), inputs, keywords={"factor": factor}), name="a")
    side.build()
    assert side.call().data.tolist() == [2, 2, 2]
    assert side._function.keywords["factor"] is not factor


def test_no_graph_is_built_while_timing():
    side = WorkloadSide(torch_workload(), name="a")
    with side.opened():
        side.build()
        assert not side.call().requires_grad
    assert torch.is_grad_enabled()


def test_a_model_that_stays_as_it_is_runs_itself():
    workload = core_workload()
    side = WorkloadSide(workload, name="a")
    side.build()
    side.stay_as_it_is("it is huge")
    side.build()
    assert side._function == workload.run
    assert not side.can_rebuild
    assert side.notes == ["a is not built anew for every round: it is huge"]


def test_the_clock_fits_the_device():
    assert WorkloadSide(torch_workload(), name="a").clock.name == "wall"
    assert finished(lambda: None).least_turn_s > 0


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (len, "len"),
        (partial(partial(copy.copy, 3)), "copy"),
        (lambda: None, "otherwise"),
        (core_workload().model, "Sequential"),
    ],
)
def test_functions_have_their_names(function, name):
    assert function_name(function, "otherwise") == name
