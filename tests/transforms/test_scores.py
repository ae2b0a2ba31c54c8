import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinytorch.errors import SettingError
from tinytorch.transforms.prune.layers import (
    ZERO_ALREADY,
    ranks_within_outputs,
    relative_scores,
    share_out,
    smallest,
    weight_scores,
)

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)
# few values, so that many are equal
WEIGHTS = hnp.arrays(
    np.float32, SHAPES, elements=st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0])
)


@given(weight=WEIGHTS, share=st.floats(0, 1))
def test_exactly_so_many_are_marked_and_none_is_larger_than_one_that_is_not(weight, share):
    scores = weight_scores(weight)
    count = round(share * weight.size)
    marked = smallest(scores, count)
    assert marked.sum() == count
    assert marked.shape == weight.shape
    expected = np.zeros(weight.size, bool)
    expected[np.argsort(scores.reshape(-1), kind="stable")[:count]] = True  # ties by position
    np.testing.assert_array_equal(marked.reshape(-1), expected)


@given(weights=st.lists(WEIGHTS, min_size=1, max_size=4), share=st.floats(0, 1))
def test_the_smallest_of_all_layers_are_the_smallest_of_each(weights, share):
    scores = [weight_scores(each) for each in weights]
    alive = [each.any() for each in weights]
    count = round(share * (sum(each.size for each in weights) - sum(alive)))
    shares = share_out(scores, count)
    assert sum(shares) == count
    marked = [smallest(each, number) for each, number in zip(scores, shares, strict=True)]
    for chosen, lives in zip(marked, alive, strict=True):
        assert not (lives and chosen.all())  # a layer never loses everything
    taken = max(
        (each[m].max() for each, m in zip(scores, marked, strict=True) if m.any()), default=-2
    )
    for each, chosen in zip(scores, marked, strict=True):
        left = np.sort(each[~chosen])
        # what stays is as large, but for the one that a layer always keeps
        assert (left[:-1] >= taken).all()


def test_more_than_there_are_is_an_error():
    with pytest.raises(SettingError, match="4 scores are asked for, there are 3"):
        share_out([np.ones(4)], 4)
    assert share_out([], 0) == []


def test_zeros_come_before_weights_whose_input_is_always_zero():
    scores = weight_scores(np.array([[3.0, 0.0], [1.0, 2.0]], np.float32), np.array([[0.0], [1.0]]))
    np.testing.assert_array_equal(scores, [[0, ZERO_ALREADY], [1, 2]])


def test_tiny_weights_do_not_become_equal_by_rounding():
    weight = np.array([1e-30, 2e-30], np.float32)
    scores = weight_scores(weight, np.array([1e-20, 1e-20]))
    assert 0 < scores[0] < scores[1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_cannot_be_ranked(bad):
    with pytest.raises(SettingError, match="NaN or infinity"):
        weight_scores(np.array([1.0, bad]))


@given(weight=WEIGHTS, factor=st.sampled_from([0.25, 2.0, 1024.0]))
def test_relative_scores_do_not_depend_on_the_scale_of_a_layer(weight, factor):
    plain, scaled = (relative_scores(weight_scores(w)) for w in (weight, weight * factor))
    np.testing.assert_allclose(plain, scaled, rtol=1e-6)  # float32 division and norm
    alive = plain[plain >= 0]
    if alive.size:
        assert np.sum(alive.astype(float) ** 2) == pytest.approx(1, rel=1e-6)


@given(
    weight=hnp.arrays(np.float32, (5, 4, 3), elements=st.integers(1, 9).map(float)),
    axis=st.integers(0, 2),
    share=st.floats(0, 1),
)
def test_ranks_give_each_output_the_same_number_up_to_one(weight, axis, share):
    ranks = ranks_within_outputs(weight_scores(weight), axis)
    marked = smallest(ranks, round(share * weight.size))
    others = tuple(each for each in range(3) if each != axis)
    counts = marked.sum(axis=others)
    assert counts.max() - counts.min() <= 1
    for index in range(weight.shape[axis]):
        chosen, values = marked.take(index, axis), weight.take(index, axis)
        if chosen.any() and not chosen.all():
            assert values[chosen].max() <= values[~chosen].min()


def test_an_empty_layer_has_no_share():
    scores = [weight_scores(np.array([1.0, 3.0])), np.empty((0, 4)), weight_scores(np.ones(2))]
    assert share_out(scores, 2) == [1, 0, 1]
