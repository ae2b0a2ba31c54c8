import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch import Tensor
from tinytorch.benchmarking.examples import (
    ACCURACY,
    NEGATIVE_ERROR,
    read_examples,
    score_examples,
    score_outputs,
)
from tinytorch.core.layers import Linear
from tinytorch.errors import ModelError

LOGITS = np.array([[0.1, 2.0, 0.3], [5.0, 1.0, 2.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    "targets",
    [
        np.array([1, 0, 0]),
        np.array([1.0, 0.0, 0.0], np.float32),
        np.array([[1], [0], [0]]),
        np.array([[0, 1, 0], [1, 0, 0], [1, 0, 0]]),
        np.array([[0, 1, 0], [1, 0, 0], [1, 0, 0]], np.float32),
    ],
    ids=["classes", "whole floats", "a column", "one-hot", "one-hot floats"],
)
def test_the_largest_output_is_the_answer(targets):
    metric, scores = score_outputs(LOGITS, targets)
    assert (metric, scores.tolist()) == (ACCURACY, [1.0, 1.0, 0.0])


def test_predicted_classes_are_answers_too():
    assert score_outputs(np.array([1, 2]), np.array([1, 0]))[1].tolist() == [1, 0]
    assert score_outputs(np.array([[1], [2]]), np.array([[1], [2]]))[1].tolist() == [1, 1]


def test_a_text_scores_the_share_of_right_characters():
    outputs = np.eye(4)[[[0, 1], [2, 3]]]  # (batch, time, classes)
    assert score_outputs(outputs, np.array([[0, 1], [2, 0]]))[1].tolist() == [1.0, 0.5]


def test_images_may_have_classes_on_their_second_axis():
    outputs = np.eye(3)[[[[0, 1]], [[2, 2]]]].transpose(0, 3, 1, 2)  # (batch, classes, 1, 2)
    assert score_outputs(outputs, np.array([[[0, 1]], [[2, 0]]]))[1].tolist() == [1.0, 0.5]


def test_an_answer_with_nan_is_wrong():
    outputs = np.array([[np.nan, 1.0], [0.0, 1.0]])
    assert score_outputs(outputs, np.array([0, 1]))[1].tolist() == [0.0, 1.0]
    assert score_outputs(outputs, np.array([1, 1]))[1].tolist() == [0.0, 1.0]


def test_values_are_scored_by_their_squared_error_which_is_no_accuracy():
    metric, scores = score_outputs(
        np.array([[1.0, 2.0], [0.5, 0.0]]), np.array([[1.0, 4.0], [0.5, 0]])
    )
    assert (metric, scores.tolist()) == (NEGATIVE_ERROR, [-2.0, 0.0])
    metric, scores = score_outputs(np.array([[1.0], [3.0]]), np.array([1.5, 3.0]))
    assert (metric, scores.tolist()) == (NEGATIVE_ERROR, [-0.25, 0.0])
    assert score_outputs(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]))[0] == NEGATIVE_ERROR


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (np.ones((3, 1)), np.array([0, 0, 0]), "one output for each class"),
        (np.ones(3), np.array([0, 1, 0]), "one output for each class"),
        (LOGITS, np.array([0, 1]), "for 2 examples"),
        (np.float64(1.0), np.array([0, 1]), "for 2 examples"),
        (LOGITS, np.array([0.5, 1.0, 0.0]), "do not fit targets"),
        (np.array([np.nan, 1.0]), np.array([0.5, 0.5]), "not finite"),
    ],
)
def test_outputs_that_do_not_fit_are_an_error_and_no_score(outputs, targets, message):
    with pytest.raises(ModelError, match=message):
        score_outputs(np.asarray(outputs), targets)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=50), st.integers(0, 4))
def test_a_constant_scores_what_a_constant_scores(labels, answer):
    targets = np.array(labels)
    scores = score_outputs(np.tile(np.eye(5)[answer], (len(targets), 1)), targets)[1]
    assert scores.mean() == pytest.approx(np.mean(targets == answer), abs=1e-15)


def test_all_batches_are_scored_in_order():
    model = Linear(3, 3, bias=False)
    model.weight.data = np.eye(3, dtype=np.float32)
    targets = np.array([1, 0, 0] * 200)
    examples = read_examples((np.tile(LOGITS, (200, 1)), targets))
    scored = score_examples(model, examples)
    assert scored.scores == (1.0, 1.0, 0.0) * 200
    assert (scored.metric, scored.mean, scored.notes) == (ACCURACY, pytest.approx(2 / 3), ())


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x.tolist(),
        lambda x: (x, "cache"),
        lambda x: {"loss": 3.0, "logits": x},
        lambda x: Tensor(x),
    ],
    ids=["lists", "a tuple", "logits by name", "a tensor"],
)
def test_outputs_come_in_many_forms(answer):
    assert score_examples(answer, read_examples((LOGITS, [1, 0, 0]))).scores == (1.0, 1.0, 0.0)


def test_a_model_of_pytorch_is_scored_like_its_twin():
    torch = require_part("torch")
    model = torch.nn.Linear(3, 3, bias=False)
    model.weight.data = torch.eye(3)
    assert score_examples(model, read_examples((LOGITS, [1, 0, 0]))).scores == (1.0, 1.0, 0.0)


def test_broken_outputs_are_counted():
    outputs = np.array([[np.inf, 1.0], [np.nan, 0.0], [0.0, 1.0]])
    scored = score_examples(lambda x: outputs, read_examples((LOGITS, [0, 0, 1])))
    assert scored.scores == (1.0, 0.0, 1.0)
    assert scored.notes == ("2 of 3 outputs are not finite",)


def test_nothing_to_score_is_an_error():
    with pytest.raises(ModelError, match="holds no numbers"):
        score_examples(lambda x: None, read_examples((LOGITS, [0, 0, 1])))


def test_a_failing_layer_is_named():
    model = Linear(4, 3)
    with pytest.raises(ValueError, match="4"):
        score_examples(model, read_examples((LOGITS, [0, 0, 1])))


def test_batches_that_are_scored_differently_are_refused():
    batches = [(LOGITS, np.array([0, 1, 2])), (LOGITS, LOGITS + 0.5)]
    with pytest.raises(ModelError, match="another by negative mean squared error"):
        score_examples(lambda x: x, read_examples(batches))
