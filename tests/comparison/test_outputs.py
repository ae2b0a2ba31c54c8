import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tinytorch.comparison import outputs
from tinytorch.comparison.outputs import OutputDifference, attention_mask_of, compare_outputs
from tinytorch.errors import DTypeError
from tinytorch.models.workload import Workload

ANY_FLOATS = arrays.arrays(
    np.float32, arrays.array_shapes(max_dims=3), elements=st.floats(width=32)
)


# ---------------------------------------------------------------- equal outputs


@given(ANY_FLOATS)
def test_an_output_is_identical_to_itself_whatever_it_holds(x):
    found = compare_outputs((x,), (x.copy(),))
    assert found.is_identical
    assert (found.max_error, found.max_relative_error, found.sqnr_db) == (0, 0, math.inf)
    assert found.top1_agreement in (1.0, None)


@given(ANY_FLOATS)
def test_both_directions_have_the_same_largest_error(x):
    y = np.roll(x, 1)
    one, other = compare_outputs((x,), (y,)), compare_outputs((y,), (x,))
    assert one.max_error == other.max_error
    assert one.is_identical is other.is_identical


def test_the_sign_of_zero_is_no_difference():
    assert compare_outputs([np.array([0.0])], [np.array([-0.0])]).is_identical


# ---------------------------------------------------------------- numbers


def test_errors_are_absolute_and_relative_to_the_largest_magnitude():
    found = compare_outputs([np.array([1.0, -4.0])], [np.array([1.5, -4.0])])
    assert found.max_error == 0.5
    assert found.max_relative_error == 0.125
    assert found.sqnr_db == pytest.approx(10 * math.log10(17 / 0.25))
    assert not found.is_identical


def test_noise_of_a_tenth_of_the_signal_is_twenty_decibels(rng):
    x = rng.standard_normal(100_000)
    found = compare_outputs([x], [x + 0.1 * rng.standard_normal(100_000)])
    # The power of 100,000 normal numbers is known to 0.45% each: 0.03 dB, times four.
    assert found.sqnr_db == pytest.approx(20, abs=0.12)


def test_rounding_to_eight_bits_has_the_noise_that_theory_says(rng):
    x = rng.uniform(-1, 1, 100_000)
    step = 2 / 255
    found = compare_outputs([x], [np.round(x / step) * step])
    assert found.max_error <= step / 2 + 1e-12
    expected = 10 * math.log10((1 / 3) / (step**2 / 12))  # uniform signal, uniform error
    assert found.sqnr_db == pytest.approx(expected, abs=0.1)


def test_a_baseline_of_zeros_has_no_scale():
    found = compare_outputs([np.zeros(3)], [np.full(3, 0.1)])
    assert found.max_relative_error == math.inf
    assert found.sqnr_db == -math.inf


def test_many_small_pieces_give_what_one_gives(rng, monkeypatch):
    x, y = rng.standard_normal((2, 10, 33))
    whole = compare_outputs([x], [y])
    monkeypatch.setattr(outputs, "CHUNK", 7)
    pieces = compare_outputs([x], [y])
    assert pieces.max_error == whole.max_error
    assert pieces.sqnr_db == pytest.approx(whole.sqnr_db, rel=1e-12)  # the order of adding


def test_tiny_and_huge_numbers_do_not_get_lost():
    found = compare_outputs([np.array([1e-40], np.float32)], [np.array([2e-40], np.float32)])
    assert found.sqnr_db == pytest.approx(0, abs=1e-3)  # denormal numbers are rounded
    found = compare_outputs([np.array([3e38], np.float32)], [np.array([-3e38], np.float32)])
    assert found.max_relative_error == pytest.approx(2)


def test_complex_outputs_are_compared_by_magnitude():
    found = compare_outputs([np.array([[3 + 4j, 1]])], [np.array([[3 + 4j, 1 + 1j]])])
    assert (found.max_error, found.max_relative_error) == (1, 0.2)
    assert found.top1_agreement is None


def test_a_whole_number_beside_a_fraction_is_compared_as_a_number():
    found = compare_outputs([np.array([1.5])], [np.array([1])])
    assert (found.max_error, found.equal_share) == (0.5, None)


# ---------------------------------------------------------------- the largest value in a row


def test_the_share_of_rows_with_the_same_winner():
    one = np.array([[1.0, 2.0], [3.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    other = np.array([[0.0, 2.0], [3.0, 2.9], [1.0, 0.0], [9.0, 0.0]])
    assert compare_outputs([one], [other]).top1_agreement == 0.75


def test_either_of_two_equal_winners_is_right():
    one, other = np.array([[2.0, 2.0, 1.0]]), np.array([[1.9, 2.0, 1.0]])
    assert compare_outputs([one], [other]).top1_agreement == 1.0


@pytest.mark.parametrize("shape", [(), (5,), (5, 1), (0, 3)])
def test_without_rows_of_choices_there_is_no_winner(shape):
    assert compare_outputs([np.ones(shape)], [np.ones(shape)]).top1_agreement is None


# ---------------------------------------------------------------- integers


def test_tokens_are_equal_or_not():
    found = compare_outputs([np.array([1, 2, 3, 4])], [np.array([1, 2, 3, 9])])
    assert (found.equal_share, found.max_error, found.sqnr_db) == (0.75, None, None)
    assert not found.is_identical


def test_nothing_differs_in_an_empty_output():
    found = compare_outputs([np.empty(0, int)], [np.empty(0, int)])
    assert (found.equal_share, found.is_identical) == (1.0, True)
    assert compare_outputs([np.empty(0)], [np.empty(0)]).notes == ("output 0: it is empty",)


# ---------------------------------------------------------------- what is no number


def test_a_value_that_only_the_candidate_lacks_is_named():
    one = np.ones((2, 3))
    other = one.copy()
    other[1, 2] = math.nan
    found = compare_outputs([np.ones(1), one], [np.ones(1), other])
    assert (found.max_error, found.sqnr_db) == (math.inf, -math.inf)
    (note,) = found.notes
    assert note.startswith("output 1: 1 of 6 values are infinitely far off; at (1, 2)")
    assert "nan in the candidate" in note


def test_infinities_of_different_sign_are_far_apart():
    found = compare_outputs([np.array([math.inf])], [np.array([-math.inf])])
    assert found.max_error == math.inf
    assert "1 of 1 values are infinitely far off; at (0,) there is inf" in found.notes[0]
    assert not found.is_identical


def test_a_baseline_without_a_finite_value_is_named():
    found = compare_outputs([np.full(3, math.nan)], [np.full(3, math.nan)])
    assert found.is_identical
    assert found.notes == ("output 0: no value of the baseline is finite",)


# ---------------------------------------------------------------- what cannot be compared


def test_another_shape_is_a_sentence_and_no_number():
    found = compare_outputs([np.ones(1), np.ones(3)], [np.ones(1), np.ones(4)])
    assert found.mismatch == ("output 1 has shape (3,) from the baseline, (4,) from the candidate")
    assert found.max_error is None
    assert not found.is_identical


def test_another_number_of_outputs_is_a_mismatch():
    found = compare_outputs([np.ones(1)], [np.ones(1), np.ones(1)])
    assert found.mismatch == "the baseline returned 1 outputs, the candidate 2"


def test_no_output_at_all_is_not_equality():
    found = compare_outputs((), ())
    assert "nothing to compare" in found.mismatch
    assert not found.is_identical


def test_texts_are_refused():
    with pytest.raises(DTypeError, match="cannot be compared"):
        compare_outputs([np.array(["a"])], [np.array(["b"])])


# ---------------------------------------------------------------- what cannot stand in for it


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_longer_finite_break_a_candidate(lost):
    one = np.ones((2, 3))
    other = one.copy()
    other[0] = lost
    found = compare_outputs([np.ones(2), one], [np.ones(2), other])
    assert found.broken == (
        "3 of 6 values are not finite in output 1 of the candidate, but finite in the baseline's"
    )
    assert compare_outputs([one], [np.where(np.arange(6).reshape(2, 3) == 5, lost, 1.0)]).broken


@given(ANY_FLOATS, st.floats(width=32))
def test_only_what_was_finite_can_break(x, value):
    y = np.where(np.isfinite(x), np.float32(value), x)
    is_broken = bool(np.isfinite(x).any()) and not math.isfinite(value)
    assert bool(compare_outputs([x], [y]).broken) is is_broken
    assert not compare_outputs([np.full_like(x, math.nan)], [x]).broken


def test_values_are_counted_over_all_pieces(monkeypatch):
    monkeypatch.setattr(outputs, "CHUNK", 2)
    found = compare_outputs([np.ones(7)], [np.full(7, math.nan)])
    assert found.broken.startswith("7 of 7 values are not finite in output 0")


def test_whole_numbers_that_became_nan_break_too():
    assert compare_outputs([np.array([1, 2])], [np.array([1.0, math.nan])]).broken


@pytest.mark.parametrize(
    ("one", "other"), [([np.ones(3)], [np.ones(4)]), ([np.ones(1)], [np.ones(1)] * 2)]
)
def test_another_shape_or_number_of_outputs_breaks_a_candidate(one, other):
    found = compare_outputs(one, other)
    assert found.broken == found.mismatch != ""


def test_other_numbers_alone_break_nothing():
    assert compare_outputs([np.zeros(3)], [np.full(3, 1e30)]).broken == ""
    assert compare_outputs((), ()).broken == ""


def test_what_was_written_before_anybody_counted_can_be_read():
    fields = compare_outputs([np.ones(2)], [np.ones(2)]).to_dict()
    del fields["broken"], fields["outputs"][0]["not_finite"]
    assert OutputDifference.from_dict(fields).broken == ""


# ---------------------------------------------------------------- several outputs


def test_the_worst_output_speaks_for_all():
    good, bad = np.array([[1.0, 2.0]]), np.array([[2.0, 1.0]])
    found = compare_outputs([good, good, np.array([1])], [good, bad, np.array([1])])
    assert (found.max_error, found.top1_agreement, found.equal_share) == (1.0, 0.0, 1.0)
    assert [each.is_identical for each in found.outputs] == [True, False, True]


def test_a_difference_survives_strict_json():
    one = (np.ones((2, 2)), np.array([1, 2]), np.ones(1))
    other = (np.full((2, 2), math.nan), np.array([1, 3]), np.ones(1))
    for found in (compare_outputs(one, other), compare_outputs(one, one), compare_outputs((), ())):
        text = json.dumps(found.to_dict(), allow_nan=False)
        assert OutputDifference.from_dict(json.loads(text)) == found


# ---------------------------------------------------------------- what an attention mask hides

MASK = np.array([[1, 1, 1], [1, 0, 0]], bool)


def off_where_hidden(shape, by=100.0):
    """Return an output, and one that differs from it by a little, and by much where MASK hides."""
    one = np.random.default_rng(0).normal(size=shape)
    other = one + 0.01
    other[1, 1:] += by
    return one, other


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 3), (2, 3, 4, 5)])
def test_hidden_positions_of_a_sequence_are_not_compared(shape):
    one, other = off_where_hidden(shape)
    assert compare_outputs([one], [other]).max_error > 99
    found = compare_outputs([one], [other], mask=MASK)
    assert found.max_error == pytest.approx(0.01)
    assert found.max_relative_error == pytest.approx(0.01 / np.abs(one[MASK]).max())
    assert (found.outputs[0].left_out, found.outputs[0].shape) == (2, shape)
    (note,) = found.notes
    assert "2 of 6 positions" in note
    assert OutputDifference.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("shape", [(2, 3), (2, 4), (3, 3, 5), (2, 3, 3, 3)])
def test_pooled_outputs_and_attention_weights_stay_whole(shape):
    one, other = off_where_hidden(shape)
    found = compare_outputs([one], [other], mask=MASK)
    assert found == compare_outputs([one], [other])
    assert found.max_error > 99


def test_nan_at_a_hidden_position_breaks_nothing():
    one, other = off_where_hidden((2, 3, 5), by=math.nan)
    assert compare_outputs([one], [other]).broken
    assert not compare_outputs([one], [other], mask=MASK).broken


class Masked:
    def forward(self, input_ids, attention_mask=None):
        raise AssertionError("nobody calls it")


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32])
@pytest.mark.parametrize("way", ["keyword", "place", "dictionary"])
def test_the_mask_is_found_however_it_is_given(way, dtype):
    ids, mask = np.zeros((2, 3), int), MASK.astype(dtype)
    given = {
        "keyword": {"inputs": (ids,), "keywords": {"attention_mask": mask}},
        "place": {"inputs": (ids, mask)},
        "dictionary": {"inputs": ({"input_ids": ids, "attention_mask": mask},)},
    }[way]
    np.testing.assert_array_equal(attention_mask_of(Workload("x", Masked(), **given)), MASK)


@pytest.mark.parametrize(
    "mask",
    [np.ones((2, 3)), np.zeros((2, 3)), MASK[0], MASK[None], np.where(MASK, 0.0, -1e9), None],
)
def test_what_hides_nothing_or_is_no_mask_of_positions_is_none(mask):
    assert attention_mask_of(Workload("x", Masked(), (np.zeros((2, 3)), mask))) is None
    assert attention_mask_of(Workload("x", len, (mask,))) is None
