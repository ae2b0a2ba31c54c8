"""Questions: private ones from a seed, public ones from the zoo, and the scores of answers."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import require_part

from tinytorch.competition.events import (
    EVENTS,
    PROMPT,
    Questions,
    calibration,
    draw_questions,
    is_text,
    most_heats,
    public_questions,
    score_answers,
    warm_up_questions,
)
from tinytorch.competition.rounds import PRACTICE, Round, commitment_of, new_round
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, SettingError, ShapeError
from tinytorch.models.digits import draw_digits
from tinytorch.models.zoo import as_inputs, digit_data, load_zoo, text_data, tokenizer

MLP, CNN, GPT = (EVENTS[name] for name in ("mlp_sprint", "cnn_marathon", "transformer_decathlon"))
SMALL = {event.name: replace(event, examples=20) for event in EVENTS.values()}
ROUNDS = st.binary(min_size=32, max_size=32).map(
    lambda seed: Round("drawn", commitment_of("drawn", seed.hex()), seed.hex())
)


def rows(array):
    return {hashlib.sha256(np.ascontiguousarray(row)).digest() for row in array}


# ---------------------------------------------------------------- private questions


@pytest.mark.parametrize("name", EVENTS)
def test_the_same_seed_gives_the_same_questions(name):
    one, two = (draw_questions(SMALL[name], PRACTICE, heats=2) for _ in range(2))
    assert one.sha256 == two.sha256
    assert np.array_equal(one.inputs, two.inputs)
    assert np.array_equal(one.targets, two.targets)


@settings(max_examples=10)
@given(ROUNDS, ROUNDS)
def test_different_seeds_give_different_questions(one, two):
    if one == two:
        return
    for event in (SMALL["mlp_sprint"], SMALL["transformer_decathlon"]):
        drawn = [draw_questions(event, each, heats=1) for each in (one, two)]
        assert drawn[0].sha256 != drawn[1].sha256


def test_the_mlp_and_the_cnn_are_asked_different_images():
    mlp, cnn = (draw_questions(SMALL[name], PRACTICE, heats=1) for name in (MLP.name, CNN.name))
    assert mlp.inputs.shape == (20, 784)
    assert cnn.inputs.shape == (20, 1, 28, 28)
    assert not rows(mlp.inputs) & rows(cnn.inputs.reshape(20, -1))


@settings(max_examples=5)
@given(ROUNDS)
def test_private_images_are_in_no_public_block(drawn_from):
    private = rows(draw_questions(replace(MLP, examples=250), drawn_from, heats=1).inputs)
    for seed in (0, 1, 2):
        public = as_inputs(draw_digits(250, seed=seed)[0], flat=True)
        assert not private & rows(public)


@pytest.mark.slow
@pytest.mark.parametrize("event", [MLP, CNN], ids=lambda event: event.name)
def test_no_private_image_is_public_or_asked_twice(event):
    private = draw_questions(event, PRACTICE, heats=10)
    seen = rows(private.inputs)
    assert len(seen) == 10 * event.examples
    for held_out in (True, False):
        public = digit_data(held_out=held_out, flat=event is MLP).tensors[0].data
        assert not seen & rows(public)


@settings(max_examples=20)
@given(ROUNDS)
def test_no_character_of_the_text_is_asked_in_two_windows(drawn_from):
    private = draw_questions(GPT, drawn_from, heats=10)
    assert private.inputs.shape == private.targets.shape == (1000, 64)
    assert private.prompts is not None
    assert private.prompts.shape == (100, PROMPT)
    starts = {start for window in private.inputs for start in _places(window)}
    # Each window is found where the drawn grid says; 64 apart, so none overlap.
    (offset,) = set.intersection(
        *({start % 64 for start in _places(window)} for window in private.inputs)
    )
    assert offset != 0
    assert len([start for start in starts if start % 64 == offset]) >= 1000


def _places(window, held_out=[]):  # noqa: B006 - the text is made once
    if not held_out:
        ids = text_data(held_out=True).tensors[0].data.reshape(-1)
        held_out.append(ids.astype(np.uint8).tobytes())
    found, place = [], -1
    needle = window[:40].astype(np.uint8).tobytes()
    while (place := held_out[0].find(needle, place + 1)) >= 0:
        found.append(place)
    return found


def test_private_windows_are_none_of_the_public_ones():
    private = draw_questions(GPT, PRACTICE, heats=10)
    assert not rows(private.inputs) & rows(text_data(held_out=True).tensors[0].data)
    assert not rows(private.inputs) & rows(text_data(held_out=False).tensors[0].data)


def test_targets_of_a_text_are_its_next_characters():
    private = draw_questions(GPT, PRACTICE, heats=1)
    assert np.array_equal(private.inputs[:, 1:], private.targets[:, :-1])


def test_prompts_are_english():
    private = draw_questions(GPT, PRACTICE, heats=10)
    assert private.prompts is not None
    text = "".join(tokenizer().decode(list(prompt)) for prompt in private.prompts)
    assert 0.1 < text.count(" ") / len(text) < 0.25


def test_ten_heats_are_what_the_text_is_enough_for():
    assert most_heats(GPT) == 10
    assert most_heats(MLP) is None
    with pytest.raises(SettingError, match="new questions for 10 heats of Transformer Decathlon"):
        draw_questions(GPT, PRACTICE, heats=11)
    with pytest.raises(SettingError, match="at least one"):
        draw_questions(GPT, PRACTICE, heats=0)


def test_a_secret_seed_is_asked_for():
    with pytest.raises(SettingError, match="the seed of round 'spring' is not known here"):
        draw_questions(MLP, new_round("spring").public(), heats=1)


# ---------------------------------------------------------------- parts and hashes


@settings(max_examples=20)
@given(st.integers(1, 5))
def test_parts_are_all_questions_and_none_twice(of):
    event = replace(GPT, examples=60)
    whole = draw_questions(event, PRACTICE, heats=of)
    parts = [whole.part(number, of) for number in range(of)]
    assert all(len(part) == 60 for part in parts)
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs)
    assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets)
    prompts = [part.prompts for part in parts if part.prompts is not None]
    assert np.array_equal(np.concatenate(prompts), whole.prompts)
    assert len({part.sha256 for part in parts}) == of


@pytest.mark.parametrize(("number", "of"), [(-1, 2), (2, 2), (0, 0)])
def test_a_part_that_is_not_there_is_refused(number, of):
    with pytest.raises(SettingError, match="parts count from 0"):
        warm_up_questions(GPT).part(number, of)


def test_parts_are_equal():
    with pytest.raises(SettingError, match="do not make 3 equal parts"):
        warm_up_questions(GPT).part(0, 3)


def test_every_label_counts_in_the_hash():
    questions = warm_up_questions(MLP)
    other = questions.targets.copy()
    other[7] = (other[7] + 1) % 10
    assert Questions(questions.inputs, other).sha256 != questions.sha256


def test_the_hash_is_the_same_where_processors_round_differently():
    questions = warm_up_questions(MLP)
    # Measured without AVX2: 0.2% of the pixels differ, by up to 6e-6 of the ink.
    moved = questions.inputs + np.float32(6e-6 / 0.3) * (np.arange(784) % 500 == 0)
    assert not np.array_equal(moved, questions.inputs)
    assert Questions(moved.astype(np.float32), questions.targets).sha256 == questions.sha256


def test_the_hash_of_the_practice_round_is_known():
    """A change here breaks every record of a round that was revealed."""
    found = {name: draw_questions(event, PRACTICE, heats=1).sha256 for name, event in SMALL.items()}
    assert found == {
        "mlp_sprint": "591d23dc2d9b153e6924d12705c21befa954eaec1a524301e7efc99755b42d7d",
        "cnn_marathon": "a4ffa45ea93ac9b72d1b62550c660085b1057f4f778f8ec3afd53ae1206db5d9",
        "transformer_decathlon": "54d8455301ad0c578ebdc866c8ddc5d7e3d2b1c54cd7b9227fa2545a99de58fc",
    }


def test_questions_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        warm_up_questions(MLP).inputs[0] = 0


# ---------------------------------------------------------------- public questions


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_warm_up_and_calibration_come_from_training_data(event):
    inputs = warm_up_questions(event).inputs
    if is_text(event):
        training = rows(text_data(held_out=False).tensors[0].data)
    else:
        training = rows(as_inputs(draw_digits(500, seed=0)[0], flat=event is MLP))
    assert rows(inputs) <= training
    batches = [batch.data for (batch,) in calibration(event)]
    assert len(batches) == 8
    assert rows(np.concatenate(batches)) <= training


def test_warm_up_texts_have_prompts():
    prompts = warm_up_questions(GPT).prompts
    assert prompts is not None
    assert prompts.shape == (40, PROMPT)


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_public_questions_are_what_the_zoo_is_scored_on(event):
    workload = load_zoo(event.model)
    questions = public_questions(event)
    outputs = workload.model(Tensor(questions.inputs)).data
    scores = score_answers(event, outputs, questions.targets)
    assert workload.evaluate is not None
    assert scores == pytest.approx(workload.evaluate(workload.model), rel=1e-4)


# ---------------------------------------------------------------- scores


def test_a_digit_is_right_where_the_largest_output_is_its_own():
    outputs = np.eye(10)[[3, 4, 5]]
    assert score_answers(MLP, outputs, np.array([3, 4, 6])).tolist() == [1, 1, 0]
    assert score_answers(MLP, (10 * outputs).astype(np.int8), np.array([3, 4, 6])).sum() == 2


@pytest.mark.parametrize("wildcard", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(10))
def test_one_number_that_is_not_finite_is_never_a_hit(wildcard, place):
    outputs = np.eye(10, dtype=np.float32)[[3, 3]]
    outputs[0, place] = wildcard
    scores = score_answers(CNN, outputs, np.array([3, 3]))
    assert np.isnan(scores[0])
    assert scores[1] == 1


def test_one_nan_spoils_its_window_and_no_other():
    outputs = np.zeros((2, 64, 5))
    outputs[1, 60, 4] = np.nan
    scores = score_answers(GPT, outputs, np.zeros((2, 64), dtype=int))
    assert scores[0] == pytest.approx(-np.log(5))
    assert np.isnan(scores[1])


def test_likelihoods_are_those_of_scipy(rng):
    special = require_part("scipy.special")
    logits = rng.normal(0, 3, (4, 64, 70))
    targets = rng.integers(0, 70, (4, 64))
    each = np.take_along_axis(special.log_softmax(logits, axis=-1), targets[..., None], axis=-1)
    expected = each[..., 0].mean(axis=-1)
    assert score_answers(GPT, logits, targets) == pytest.approx(expected, rel=1e-12)


def test_the_largest_floats_are_scored_without_a_warning():
    outputs = np.full((1, 64, 3), -1.7e308)
    outputs[..., 0] = 1.7e308
    assert score_answers(GPT, outputs, np.zeros((1, 64), dtype=int)).tolist() == [0.0]
    assert score_answers(GPT, outputs, np.ones((1, 64), dtype=int)).tolist() == [-np.inf]


@pytest.mark.parametrize("shape", [(3, 10), (2,), (2, 9), (2, 1, 10), ()])
def test_answers_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match="give one number for each class"):
        score_answers(MLP, np.zeros(shape), np.array([1, 9]))


@pytest.mark.parametrize("dtype", [complex, bool, object, "U3"])
def test_answers_that_are_no_real_numbers_are_refused(dtype):
    with pytest.raises(DTypeError, match="give real numbers"):
        score_answers(MLP, np.zeros((2, 10)).astype(dtype), np.array([1, 9]))
