import numpy as np
import pytest
from oracles import unigram_entropy

from tinytorch.core.checkpoints import read_arrays
from tinytorch.core.layers import Dropout, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import TargetError
from tinytorch.models import zoo
from tinytorch.models.digits import draw_digits
from tinytorch.models.zoo import load_corpus, split_corpus

PARAMETERS = {
    "mlp": 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10,
    "cnn": 16 * 9 + 16 + 32 * 16 * 9 + 32 + 32 * 7 * 7 * 10 + 10,
    # tokens and positions; four blocks of 12 d^2 weights, 9 d biases and 4 d norms; the last norm
    "gpt": 73 * 128 + 64 * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128,
}


@pytest.mark.parametrize("name", zoo.ZOO)
def test_a_model_has_the_promised_shape(name):
    assert zoo.load_zoo(name).model.num_parameters() == PARAMETERS[name]


@pytest.mark.parametrize("name", zoo.ZOO)
def test_a_workload_runs_and_is_in_evaluation_mode(name):
    workload = zoo.load_zoo(name)
    assert not workload.model.training
    assert np.isfinite(workload.run().data).all()
    for arguments in workload.calibration:
        assert arguments[0].shape[1:] == workload.inputs[0].shape[1:]


@pytest.mark.parametrize(("name", "least"), [("mlp", 0.96), ("cnn", 0.98)])
def test_shipped_weights_read_held_out_digits(name, least):
    workload = zoo.load_zoo(name)
    scores = workload.evaluate(workload.model)
    assert scores.shape == (5000,)
    assert set(np.unique(scores)) <= {0.0, 1.0}
    # above 99.5% an optimization that costs accuracy could no longer be seen
    assert least <= scores.mean() <= 0.995


def test_shipped_gpt_is_clearly_below_the_entropy_of_single_characters():
    workload = zoo.load_zoo("gpt")
    scores = workload.evaluate(workload.model)
    entropy = unigram_entropy(split_corpus(load_corpus())[1])
    assert -scores.mean() < 0.6 * entropy


@pytest.mark.parametrize("name", zoo.ZOO)
def test_the_recorded_score_is_the_score(name):
    workload = zoo.load_zoo(name)
    _, metadata = read_arrays(zoo.WEIGHTS / f"{name}.safetensors")
    scores = workload.evaluate(workload.model)
    assert len(scores) == metadata["held_out_examples"]
    # another BLAS may flip an image that lies on the border
    assert scores.mean() == pytest.approx(metadata["held_out_score"], abs=1e-3)


def test_scores_of_a_constant_model_are_what_a_constant_scores():
    workload = zoo.load_zoo("mlp")
    always_three = np.eye(10, dtype=np.float32)[3]
    scores = workload.evaluate(lambda x: Tensor(np.tile(always_three, (len(x), 1))))
    assert scores.mean() == pytest.approx(0.1)


def test_training_and_held_out_digits_are_disjoint():
    training, _ = draw_digits(250, seed=zoo.TRAINING_SEED)
    held_out, _ = draw_digits(250, seed=zoo.HELD_OUT_SEED)
    assert not {image.tobytes() for image in training} & {image.tobytes() for image in held_out}


def test_text_windows_continue_by_one_character():
    inputs, targets = zoo.text_data(held_out=True)[:10]
    np.testing.assert_array_equal(inputs.data[:, 1:], targets.data[:, :-1])


def test_held_out_text_is_not_in_the_training_windows():
    training, held_out = split_corpus(load_corpus())
    first = zoo.tokenizer().decode(zoo.text_data(held_out=True).tensors[0].data[0])
    assert held_out.startswith(first)
    assert first not in training


def test_two_loads_do_not_share_weights():
    first, second = zoo.load_zoo("mlp"), zoo.load_zoo("mlp")
    first.model.layers[0].weight.data[:] = 0
    assert second.model.layers[0].weight.data.any()


def test_an_unknown_name_is_an_error_that_lists_the_zoo():
    with pytest.raises(TargetError, match="no 'resnet'; it has mlp, cnn, gpt"):
        zoo.load_zoo("resnet")


def test_a_model_is_scored_in_evaluation_mode_and_left_as_it_was():
    workload = zoo.load_zoo("mlp")
    dropout = Dropout(0.9, rng=0)
    model = Sequential(dropout, workload.model).train()
    scores = workload.evaluate(model)
    np.testing.assert_array_equal(scores, workload.evaluate(workload.model))
    assert dropout.training


def test_a_model_with_forward_only_can_be_scored():
    workload = zoo.load_zoo("mlp")

    class OnlyForward:
        forward = workload.model.forward

    np.testing.assert_array_equal(
        workload.evaluate(OnlyForward()), workload.evaluate(workload.model)
    )
