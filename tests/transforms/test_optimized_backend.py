import copy
import threading

import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor, use_backend
from tinytorch.comparison.sequential import Raced
from tinytorch.core.checkpointing import checkpoint_layers
from tinytorch.core.dispatch import recording
from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.losses import CrossEntropyLoss
from tinytorch.core.optimizers import Adam
from tinytorch.core.transformers import GPT
from tinytorch.errors import BackendError, SettingError, ShapeError
from tinytorch.transforms import kernel_choice as choosing
from tinytorch.transforms.kernel_choice import ONLY_ONE, set_model_backend
from tinytorch.transforms.optimized_backend import OptimizedBackend

PAIR = ("reference", "numpy")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))


@pytest.fixture
def x(rng):
    return rng.standard_normal((6, 8)).astype(np.float32)


@pytest.fixture
def counted(monkeypatch):
    """Count how often something is measured, and let the last implementation win."""
    measured = []

    def race(op, kernels, arguments, settings, default, race):
        measured.append(op)
        seconds = {name: 1.0 / (1 + place) for place, name in enumerate(kernels)}
        return Raced(default, {name: [each] * 10 for name, each in seconds.items()})

    monkeypatch.setattr(choosing, "_race", race)
    return measured


# ---------------------------------------------------------------- computing


def test_arrays_give_arrays_and_tensors_tensors(x):
    backend = OptimizedBackend(PAIR)
    expected = REFERENCE.kernels["softmax"](x, axis=-1)
    for result in (backend.softmax(x), backend.dispatch("softmax", x, axis=-1)):
        assert type(result) is np.ndarray
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7)
    assert isinstance(backend.softmax(Tensor(x)), Tensor)
    assert backend.concatenate((x, x), axis=1).shape == (6, 16)
    assert isinstance(backend.concatenate([Tensor(x), x]), Tensor)


def test_operations_with_one_result_for_the_user_give_one(x):
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    backend = OptimizedBackend(PAIR)
    assert backend.layer_norm(x, ones, zeros).shape == x.shape
    assert backend.attention(x, x, x).shape == x.shape


def test_gradients_flow_through_tensors(x):
    backend = OptimizedBackend(PAIR)
    tensor = Tensor(x, requires_grad=True)
    seen = []
    loss = backend.sum(backend.gelu(tensor))
    with recording(lambda call: seen.append(call.backend)):
        loss.backward()
    assert tensor.grad.shape == x.shape
    assert set(seen) == {"optimized"}
    assert {"gelu", "conv2d"} <= OptimizedBackend.differentiable
    assert "adam_step" not in OptimizedBackend.differentiable


def test_other_operations_run_without_a_graph(x):
    backend = OptimizedBackend(PAIR)
    assert backend.greater(Tensor(x), 0.0).data.dtype == bool
    assert type(backend.greater(x, 0.0)) is np.ndarray
    assert backend.relu_backward(x, x).shape == x.shape


def test_an_unknown_operation_is_an_error():
    with pytest.raises(BackendError, match="unknown operation 'fly'; known are absolute, ad"):
        OptimizedBackend(PAIR).dispatch("fly")


def test_shapes_that_do_not_fit_are_explained_and_nothing_is_kept(x):
    backend = OptimizedBackend(PAIR)
    with pytest.raises(ShapeError, match=r"Linear cannot use shapes \(6, 8\) and \(6, 8\)"):
        backend.linear(Tensor(x), Tensor(x))
    assert backend.report().rows == ()


def test_unknown_backends_are_errors():
    with pytest.raises(BackendError, match="unknown backend 'nothing'"):
        OptimizedBackend(["nothing"])
    with pytest.raises(SettingError, match="backends is empty"):
        OptimizedBackend([])


# ---------------------------------------------------------------- choosing


def test_the_first_call_of_a_size_class_measures_and_no_other(counted, x):
    backend = OptimizedBackend(PAIR)
    for rows in (6, 7, 6, 4):  # 48, 56 and 32 elements: one class
        backend.gelu(np.ones((rows, 8), np.float32))
    assert counted == ["gelu"]
    backend.gelu(np.ones((8, 8), np.float32))
    backend.gelu(np.ones((8, 8), np.float32), approximate="none")
    assert counted == ["gelu"] * 3


def test_what_all_backends_compute_alike_is_not_measured(counted, x):
    backend = OptimizedBackend(PAIR)
    assert backend.as_backend().kernels["add"] is REFERENCE.kernels["add"]
    backend.add(x, x)
    assert counted == []


def test_the_backend_of_the_process_is_the_default(counted, x):
    for name, others in (("reference", PAIR), ("numpy", PAIR), ("numpy", ["reference"])):
        with use_backend(name):
            backend = OptimizedBackend(others, keep=False)
        assert backend._default.name == (name if name in others else others[-1])


def test_choices_are_kept_on_disk_for_the_next_process(counted, x):
    OptimizedBackend(PAIR).gelu(x)
    OptimizedBackend(PAIR).gelu(x)
    assert counted == ["gelu"]
    assert [row.op for row in OptimizedBackend(PAIR).report().rows] == ["gelu"]
    OptimizedBackend(PAIR, keep=False).gelu(x)
    assert counted == ["gelu"] * 2


def test_another_set_of_implementations_is_measured_again(counted, x):
    OptimizedBackend(PAIR).gelu(x)
    other = NUMPY.extended("other", {"gelu": lambda x, **form: NUMPY.kernels["gelu"](x, **form)})
    backend = OptimizedBackend([*PAIR, other])
    backend.gelu(x)
    assert counted == ["gelu"] * 2
    assert backend.report().rows[0].chosen == "other"


def test_forgetting_measures_again(counted, x):
    backend = OptimizedBackend(PAIR)
    backend.gelu(x)
    backend.forget()
    assert backend.report().rows == ()
    backend.gelu(x)
    assert counted == ["gelu"] * 2


def test_a_broken_file_is_measured_again(counted, x):
    backend = OptimizedBackend(PAIR)
    backend.gelu(x)
    backend._file.write_text("{")
    OptimizedBackend(PAIR).gelu(x)
    assert counted == ["gelu"] * 2


def test_a_folder_that_cannot_be_written_is_noted_and_memory_remembers(
    counted, x, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path / "file"))
    backend = OptimizedBackend(PAIR)
    backend.gelu(x)
    backend.gelu(x)
    backend.exp(x)
    assert counted == ["gelu"]
    assert len(backend.report().rows) == 1
    assert [note[:27] for note in backend.report().notes] == ["not kept for the next time:"]


def test_a_backend_that_is_wrong_is_never_chosen_and_the_report_says_why(x):
    wrong = NUMPY.extended("wrong", {"relu": lambda x: x, "exp": lambda x: 1 / 0})
    backend = OptimizedBackend(["reference", wrong])
    np.testing.assert_array_equal(backend.relu(x), np.maximum(x, 0))
    np.testing.assert_array_equal(backend.exp(x), np.exp(x))
    rows = {row.op: row for row in backend.report().rows}
    assert {row.verdict for row in rows.values()} == {ONLY_ONE}
    assert "is off by" in rows["relu"].rivals[0].note
    assert "raised ZeroDivisionError" in rows["exp"].rivals[0].note


def test_many_shapes_do_not_fill_the_memory(counted, monkeypatch):
    monkeypatch.setattr("tinytorch.transforms.optimized_backend.MOST_SIGNATURES", 3)
    backend = OptimizedBackend(PAIR)
    for rows in range(1, 20):
        backend.gelu(np.ones((rows, 2), np.float32))
    assert len(backend._known["gelu"]) <= 3


def test_threads_share_the_measuring(counted, x):
    backend = OptimizedBackend(PAIR)
    threads = [threading.Thread(target=backend.gelu, args=(x,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == ["gelu"]


# ---------------------------------------------------------------- whole models


def test_a_model_trains_on_it(rng):
    plain = GPT(7, 8, 2, 2, 8, rng=0)
    twin = copy.deepcopy(plain)
    ids = rng.integers(0, 7, (2, 8))
    for model, backend in ((plain, "numpy"), (twin, OptimizedBackend(PAIR).as_backend())):
        with use_backend(backend):
            optimizer = Adam(model.parameters())
            loss = CrossEntropyLoss()(model(ids).reshape(-1, 7), Tensor(ids.reshape(-1)))
            loss.backward()
            optimizer.step()
    for name, array in plain.state_dict().items():
        # One Adam step moves by lr=0.001 whatever the gradient; rounding may turn a zero around.
        np.testing.assert_allclose(twin.state_dict()[name], array, atol=2.1e-3, err_msg=name)


def test_tuning_measures_what_a_forward_pass_runs(counted):
    model = Sequential(Linear(3, 5, rng=0), ReLU(), Linear(5, 2, rng=0))
    backend = OptimizedBackend(PAIR)
    report = backend.tune(model, Tensor(np.ones((4, 3), np.float32)))
    assert [row.op for row in report.rows].count("linear") == 2
    assert counted.count("linear") == 2
    assert backend.tune(model, Tensor(np.ones((4, 3), np.float32))).rows == report.rows
    assert counted.count("linear") == 2


def test_tuning_a_model_with_a_backend_of_its_own_measures_all_the_same(counted):
    model = Sequential(Linear(3, 5, rng=0))
    set_model_backend(model, "reference")
    OptimizedBackend(PAIR).tune(model, Tensor(np.ones((4, 3), np.float32)))
    assert counted == ["linear"]


def test_an_interrupted_tuning_keeps_what_was_finished(counted):
    class Interrupted(Linear):
        def forward(self, x):
            result = super().forward(x)
            if self.countdown == 0:
                raise KeyboardInterrupt
            self.countdown -= 1
            return result

    model = Interrupted(3, 5, rng=0)
    model.countdown = 1
    with pytest.raises(KeyboardInterrupt):
        OptimizedBackend(PAIR).tune(model, Tensor(np.ones((4, 3), np.float32)))
    assert [row.op for row in OptimizedBackend(PAIR).report().rows] == ["linear"]


def test_checkpoints_run_on_it(rng):
    gpt = GPT(7, 8, 2, 2, 8, rng=0)
    checkpoint_layers(gpt)
    set_model_backend(gpt, OptimizedBackend(PAIR))
    gpt(rng.integers(0, 7, (2, 8))).sum().backward()
    assert all(parameter.grad is not None for parameter in gpt.parameters())


def test_compiled_kernels_are_among_the_implementations(rng):
    require_part("numba")
    backend = OptimizedBackend(keep=False)
    a, b = (rng.standard_normal((9, 9)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(backend.matmul(a, b), a @ b, rtol=1e-4, atol=1e-5)
    (row,) = backend.report().rows
    assert "numba" in {row.chosen, *(rival.name for rival in row.rivals)}
