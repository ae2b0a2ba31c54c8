import itertools
import threading
import weakref

import numpy as np
import pytest

from tinytorch.core import dispatch
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import (
    ArraySpec,
    active_backend,
    phase,
    recording,
    run,
    set_backend,
    use_backend,
)
from tinytorch.core.kernels import BACKENDS, NUMPY
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.optimizers import SGD
from tinytorch.core.tensor import Tensor
from tinytorch.errors import BackendError


@pytest.fixture
def process_backend():
    """Put the backend of the process back after the test."""
    before = dispatch._process_backend.name
    yield
    set_backend(before)


def in_another_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    (result,) = results
    return result


def recorded(function):
    calls = []
    with recording(calls.append):
        function()
    return calls


class Block(Module):
    def __init__(self):
        self.inner = Sequential(Linear(3, 4, rng=0), ReLU())
        self.last = Linear(4, 2, rng=0)

    def forward(self, x):
        return self.last(self.inner(x)).sum()


# ---------------------------------------------------------------- what a recorder sees


def test_a_recorder_sees_what_ran_on_what():
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 5))
    (call,) = recorded(lambda: run("matmul", a, b))
    assert call.kind == "matmul"
    assert call.inputs == (
        ArraySpec((2, 3), np.dtype("float32")),
        ArraySpec((3, 5), np.dtype("float64")),
    )
    assert call.outputs == (ArraySpec((2, 5), np.dtype("float64")),)
    assert (call.phase, call.path, call.backend) == ("forward", None, active_backend().name)
    assert not call.settings


def test_a_recorder_sees_settings_numbers_lists_and_several_results():
    x = np.zeros((2, 3), np.float32)
    (joined,) = recorded(lambda: run("concatenate", (x, x), axis=0))
    (summed,) = recorded(lambda: run("sum", x, axis=None))
    (losses,) = recorded(lambda: run("cross_entropy", x, np.array([0, 1])))
    assert [spec.shape for spec in joined.inputs] == [(2, 3), (2, 3)]
    assert joined.settings == {"axis": 0}
    assert summed.outputs == (ArraySpec((), np.dtype("float32")),)
    assert [spec.shape for spec in losses.outputs] == [(2,), (2, 3)]


def test_what_has_no_result_has_no_outputs():
    settings = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    (call,) = recorded(lambda: run("sgd_step", np.ones(2), np.ones(2), None, **settings))
    assert call.outputs == ()
    assert len(call.inputs) == 2


@pytest.mark.parametrize(
    ("shape", "dtype", "nbytes"), [((2, 3), "float32", 24), ((), "float64", 8), ((0, 5), "int8", 0)]
)
def test_a_spec_knows_its_bytes(shape, dtype, nbytes):
    assert ArraySpec(shape, np.dtype(dtype)).nbytes == nbytes == np.zeros(shape, dtype).nbytes


def test_calls_come_in_order_and_take_no_negative_time():
    x = Tensor(np.ones((4, 4)), requires_grad=True)
    calls = recorded(lambda: ((x @ x).exp().sum()).backward())
    starts = [call.start for call in calls]
    assert starts == sorted(starts)
    assert all(call.duration >= 0 for call in calls)
    for call, following in itertools.pairwise(calls):
        assert call.start + call.duration <= following.start


def test_a_recorder_sees_forward_backward_and_update():
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    optimizer = SGD([x], lr=0.1)

    def train():
        (x * x).sum().backward()
        optimizer.step()
        _ = x + 1

    seen = [(call.phase, call.kind) for call in recorded(train)]
    phases = list(dict.fromkeys(phase for phase, _ in seen))
    assert phases == ["forward", "backward", "update"]
    assert seen[:2] == [("forward", "multiply"), ("forward", "sum")]
    assert ("update", "sgd_step") in seen
    assert seen[-1] == ("forward", "add")


def test_kernels_carry_the_path_of_their_module():
    model, x = Block(), Tensor(np.ones((2, 3), np.float32))
    calls = recorded(lambda: model(x))
    assert [(call.path, call.kind) for call in calls] == [
        ("inner.layers.0", "linear"),
        ("inner.layers.1", "relu"),
        ("last", "linear"),
        ("", "sum"),
    ]


def test_backward_kernels_carry_the_path_of_their_forward():
    model, x = Block(), Tensor(np.ones((2, 3), np.float32))
    calls = []
    with recording(calls.append):
        model(x).backward()
    paths = {(call.path, call.kind) for call in calls if call.phase == "backward"}
    assert ("inner.layers.1", "relu_backward") in paths
    assert ("inner.layers.0", "matmul") in paths
    assert ("last", "matmul") in paths
    assert dispatch.state.path is None


def test_backward_inside_a_module_leaves_the_path_of_the_module():
    class Solver(Module):
        def forward(self, x):
            (x * x).sum().backward()
            return x + 1

    model = Sequential(Solver())
    calls = recorded(lambda: model(Tensor(np.ones(2), requires_grad=True)))
    assert (calls[-1].kind, calls[-1].path, calls[-1].phase) == ("add", "layers.0", "forward")


def test_a_backward_pass_that_fails_leaves_path_and_phase_as_they_were(monkeypatch):
    model, x = Block(), Tensor(np.ones((2, 3), np.float32))
    with recording(lambda call: None):
        output = model(x)
        monkeypatch.setattr("tinytorch.core.operations.ReLU.backward", None)
        with pytest.raises(TypeError):
            output.backward()
    assert (dispatch.state.path, dispatch.state.phase) == (None, "forward")


def test_results_do_not_depend_on_being_watched():
    model, x = Block(), Tensor(np.ones((2, 3), np.float32))
    plain = model(x).data
    with recording(lambda call: None):
        watched = model(x).data
    assert plain == watched


def test_phases_nest_and_end_with_an_error():
    calls = []
    with recording(calls.append):
        with phase("update"):
            with pytest.raises(KeyError), phase("backward"):
                raise KeyError("on purpose")
            run("add", 1, 2)
        run("add", 1, 2)
    assert [call.phase for call in calls] == ["update", "forward"]


# ---------------------------------------------------------------- when a recorder is called


def test_nothing_is_recorded_after_the_block():
    calls = []
    with recording(calls.append):
        run("add", 1, 2)
    run("add", 1, 2)
    assert len(calls) == 1


def test_nothing_is_recorded_after_a_block_that_raised():
    calls = []
    with pytest.raises(KeyError), recording(calls.append):
        raise KeyError("on purpose")
    run("add", 1, 2)
    assert calls == []
    assert dispatch.state.recorders == ()


def test_a_module_that_raises_leaves_no_path_behind():
    model = Sequential(Linear(3, 2, rng=0))
    with recording(lambda call: None):
        with pytest.raises(ValueError, match=r"4"):
            model(Tensor(np.ones((2, 4), np.float32)))
        (call,) = recorded(lambda: run("add", 1, 2))
    assert call.path is None


def test_two_recorders_see_the_same_calls():
    outer, inner = [], []
    with recording(outer.append):
        run("add", 1, 2)
        with recording(inner.append):
            run("negative", 1)
        run("exp", 1.0)
    assert [call.kind for call in outer] == ["add", "negative", "exp"]
    assert inner == outer[1:2]


def test_a_recorder_sees_only_its_own_thread():
    calls = []
    with recording(calls.append):
        in_another_thread(lambda: run("add", 1, 2))
        assert calls == []
        assert in_another_thread(lambda: len(recorded(lambda: run("add", 1, 2)))) == 1
        run("add", 1, 2)
    assert len(calls) == 1


def test_recording_also_works_without_gradients():
    x = Tensor([1.0], requires_grad=True)
    with no_grad():
        calls = recorded(lambda: x * 2)
    assert [call.kind for call in calls] == ["multiply"]


# ---------------------------------------------------------------- choosing a backend


@pytest.mark.parametrize("name", BACKENDS)
def test_a_block_computes_with_its_backend(name):
    before = active_backend()
    with use_backend(name) as backend:
        assert backend is active_backend() is BACKENDS[name]
        (call,) = recorded(lambda: run("add", 1, 2))
        assert call.backend == name
    assert active_backend() is before


def test_run_uses_the_kernels_of_the_active_backend():
    odd = NUMPY.extended("odd", {"add": lambda a, b: np.asarray(42.0)})
    with use_backend(odd) as used:
        assert used is odd
        assert (Tensor([1.0]) + 2).item() == 42
    assert (Tensor([1.0]) + 2).item() == 3


def test_blocks_nest_and_end_with_an_error():
    before = active_backend()
    with use_backend("reference"):
        with pytest.raises(KeyError), use_backend("numpy"):
            raise KeyError("on purpose")
        assert active_backend().name == "reference"
    assert active_backend() is before


@pytest.mark.usefixtures("process_backend")
def test_a_block_holds_for_its_thread_and_set_backend_for_all():
    set_backend("numpy")
    with use_backend("reference"):
        assert in_another_thread(lambda: active_backend().name) == "numpy"
    set_backend("reference")
    assert active_backend().name == "reference"
    assert in_another_thread(lambda: active_backend().name) == "reference"
    with use_backend("numpy"):
        assert active_backend().name == "numpy"


@pytest.mark.usefixtures("process_backend")
@pytest.mark.parametrize("choose", [set_backend, lambda name: use_backend(name).__enter__()])
def test_an_unknown_backend_is_an_error_that_lists_the_known(choose):
    before = active_backend()
    with pytest.raises(BackendError) as caught:
        choose("cuda")
    assert "'cuda'" in str(caught.value)
    assert all(name in str(caught.value) for name in BACKENDS)
    assert active_backend() is before


def test_the_model_itself_has_an_empty_path_and_code_outside_of_it_has_none():
    calls = []
    model = Linear(2, 2, rng=0)
    with recording(calls.append):
        model(Tensor([[1.0, 2.0]])).sum()
    assert [(call.kind, call.path) for call in calls] == [("linear", ""), ("sum", None)]


def test_what_a_recorder_computes_is_not_recorded():
    kinds = []

    def recorder(call):
        kinds.append(call.kind)
        Tensor([1.0]) + 1

    with recording(recorder):
        Tensor([1.0]) * 2
        Tensor([1.0]) / 2
    assert kinds == ["multiply", "divide"]


def test_a_view_is_told_from_memory_that_was_allocated():
    calls = []
    x = Tensor(np.zeros((2, 3), np.float32))
    with recording(calls.append):
        x.transpose()
        x.reshape(6)
        x[0]
        x + 1
        Linear(3, 4, rng=0)(x.reshape(1, 2, 3))
    views = [(call.kind, call.outputs[0].is_view) for call in calls]
    assert views == [
        ("transpose", True),
        ("reshape", True),
        ("getitem", True),
        ("add", False),
        ("reshape", True),
        ("linear", False),
    ]


def test_the_backward_pass_runs_on_the_backend_of_its_forward_pass():
    calls = []
    x = Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    with use_backend("reference"):
        loss = (x * x).sum()
    with recording(calls.append):
        loss.backward()
    assert {call.backend for call in calls} == {"reference"}


# ---------------------------------------------------------------- the arrays themselves


def test_a_watcher_of_arrays_sees_what_a_kernel_read_and_gave_before_the_recorder_is_called():
    seen = []
    a, b = np.ones((2, 3), np.float32), np.ones((3, 5), np.float32)
    with recording(lambda call: seen.append(call.kind), arrays=lambda *both: seen.append(both)):
        result = run("matmul", a, b)
    (((first, second), (given,)), kind) = seen
    assert first is a
    assert second is b
    assert given is result
    assert kind == "matmul"


def test_arrays_come_in_the_order_of_the_descriptions():
    calls, shapes = [], []

    def watch(arrays_in, arrays_out):
        shapes.append(([each.shape for each in arrays_in], [each.shape for each in arrays_out]))

    x = np.ones((2, 3), np.float32)
    with recording(calls.append, arrays=watch):
        run("cross_entropy", x, np.array([0, 1]))
        run("concatenate", (x, x), axis=0)
        run("sum", x, axis=None)
    assert shapes == [
        ([spec.shape for spec in call.inputs], [spec.shape for spec in call.outputs])
        for call in calls
    ]


def test_watching_arrays_ends_with_its_block_also_when_that_raises():
    seen = []
    with pytest.raises(KeyError), recording(lambda call: None, arrays=lambda *both: seen.append(1)):
        raise KeyError("on purpose")
    run("add", 1, 2)
    with recording(lambda call: None):
        run("add", 1, 2)
    assert seen == []
    assert dispatch.state.array_watchers == ()


def test_watchers_of_arrays_nest_and_a_recorder_inside_needs_none():
    outer, inner, calls = [], [], []
    with recording(calls.append, arrays=lambda *both: outer.append(1)):
        with recording(calls.append):
            run("add", 1, 2)
        with recording(calls.append, arrays=lambda *both: inner.append(1)):
            run("add", 1, 2)
        run("add", 1, 2)
    assert (len(outer), len(inner), len(calls)) == (3, 1, 5)


def test_what_a_watcher_of_arrays_computes_is_not_recorded():
    calls = []
    with recording(calls.append, arrays=lambda *both: run("exp", 1.0)):
        run("add", 1, 2)
    assert [call.kind for call in calls] == ["add"]


def test_a_watcher_that_raises_leaves_the_recorders_as_they_were():
    def fail(arrays_in, arrays_out):
        raise KeyError("on purpose")

    calls = []
    with recording(calls.append):
        with pytest.raises(KeyError), recording(calls.append, arrays=fail):
            run("add", 1, 2)
        run("negative", 1)
    assert [call.kind for call in calls] == ["negative"]


def test_a_watcher_that_keeps_nothing_lets_arrays_die():
    alive = []

    def watch(arrays_in, arrays_out):
        alive.extend(weakref.ref(array) for array in arrays_out)

    with recording(lambda call: None, arrays=watch):
        x = Tensor(np.ones(3, np.float32))
        for _ in range(3):
            x = x + 1
        assert [each() is not None for each in alive] == [False, False, True]


def test_a_watcher_of_arrays_sees_only_its_own_thread():
    seen = []
    with recording(lambda call: None, arrays=lambda *both: seen.append(1)):
        in_another_thread(lambda: run("add", 1, 2))
    assert seen == []
