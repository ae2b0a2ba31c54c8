from contextlib import ExitStack

import numpy as np
import pytest
from classic_models import KINDS, leaving_no_trace, make_input, make_model
from parts import require_part

from tinytorch import Tensor
from tinytorch.benchmarking.examples import read_examples
from tinytorch.benchmarking.subject import make_subject, ready_together
from tinytorch.core.layers import Linear
from tinytorch.errors import BackendError, ModelError, SettingError, TargetError
from tinytorch.models.workload import Workload

EXAMPLES = read_examples((np.ones((40, 8), np.float32), np.zeros(40, int)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_measured_as_it_is_used_and_left_as_it_was(kind):
    model = make_model(kind)
    subject = make_subject("it", model, examples=EXAMPLES)
    with leaving_no_trace(model), subject.ready():
        subject.check()
        subject.memory()
        first, second = (np.asarray(subject.adapter.arrays(subject())[0]) for _ in range(2))
        scored = subject.evaluate()
        assert np.array_equal(first, second), "no dropout in evaluation mode"
        assert not getattr(subject(), "requires_grad", False)
    assert len(scored.scores) == 40
    assert (subject.examples, first.shape) == (32, (32, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_modes_come_back_after_an_error(kind):
    model = make_model(kind)
    subject = make_subject("it", model, examples=EXAMPLES)
    with leaving_no_trace(model), pytest.raises(RuntimeError, match="stop"), subject.ready():
        raise RuntimeError("stop")
    assert subject.device == "cpu"


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_parameters_inputs_and_what_is_made(kind):
    subject = make_subject("it", make_model(kind), examples=read_examples(make_input(kind)))
    with subject.ready():
        memory = subject.memory()
    weights, inputs, hidden = 4 * (8 * 16 + 16 + 16 * 4 + 4), 4 * 6 * 8, 4 * 6 * 16
    assert memory.held_bytes == weights
    # The product, the sum with the bias and the result of ReLU may live at the same time.
    assert weights + inputs + hidden <= memory.peak_bytes <= weights + inputs + 4 * hidden
    assert memory.notes == ()


def test_memory_of_plain_functions_is_what_numpy_allocates():
    subject = make_subject("it", lambda x: x @ x.T, examples=read_examples(np.ones((100, 8))))
    with subject.ready():
        memory = subject.memory()
    made, given = 8 * 100 * 100, 8 * 100 * 8
    assert made + given <= memory.peak_bytes < made + given + 10_000
    assert "NumPy" in memory.notes[0]


def test_a_workload_brings_inputs_and_score_along():
    work = Workload(
        "work",
        Linear(3, 2),
        (),
        keywords={"x": Tensor(np.ones((5, 3), np.float32))},
        evaluate=lambda model: np.array([0.25, 0.75]),
        metric="luck",
    )
    subject = make_subject("work", work)
    with subject.ready():
        subject.check()
        scored = subject.evaluate()
    assert (scored.metric, scored.scores, subject.examples) == ("luck", (0.25, 0.75), 5)
    other = make_subject("work", work, examples=read_examples(np.ones((2, 3))))
    assert (other.evaluate, other.examples) == (None, 2)


def test_targets_are_loaded_and_wrong_ones_refused():
    assert make_subject("mlp", "mlp").inputs[0].shape == (1, 784)
    with pytest.raises(TargetError, match="no-such-model"):
        make_subject("x", "no-such-model")
    with pytest.raises(SettingError, match="no model"):
        make_subject("x", 7)


def test_shapes_make_inputs():
    assert make_subject("it", Linear(3, 2), shapes=((4, 3),)).inputs[0].shape == (4, 3)


def test_a_failing_layer_is_named():
    torch = require_part("torch")

    class Fails(torch.nn.Module):
        def forward(self, x):
            raise ValueError("crossed")

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Fails())
    subject = make_subject("it", model, examples=EXAMPLES)
    with subject.ready(), pytest.raises(ModelError, match=r"layer '1' \(Fails\).*crossed"):
        subject.check()


def test_a_model_that_computes_nothing_is_refused():
    torch = require_part("torch")
    with pytest.raises(BackendError, match="meta"):
        make_subject("it", torch.nn.Linear(8, 2, device="meta"), examples=EXAMPLES).check()
    lazily = make_subject("it", lambda x: (each for each in x), examples=EXAMPLES)
    with pytest.raises(ModelError, match="computed nothing yet"):
        lazily.check()


def test_those_that_fail_do_not_stop_the_others(broken):
    makers = {
        "bad": lambda: make_subject("bad", broken(), examples=EXAMPLES),
        "none": lambda: make_subject("none", 7),
        "good": lambda: make_subject("good", Linear(8, 2), examples=EXAMPLES),
    }
    with ExitStack() as stack:
        subjects, failures = ready_together(makers, stack)
    assert list(subjects) == ["good"]
    assert "the wires are crossed" in failures["bad"]
    assert "no model" in failures["none"]
