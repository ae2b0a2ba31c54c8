import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from parts import require_part

from tinytorch.errors import SettingError
from tinytorch.transforms.prune.layers import (
    ZERO_ALREADY,
    ranks_within_outputs,
    relative_scores,
    share_out,
    smallest,
    weight_scores,
)

torch = require_part("torch")
BOTH = pytest.mark.parametrize("made", [np.asarray, torch.tensor], ids=["numpy", "torch"])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=6)
# few values, so that many are equal
WEIGHTS = hnp.arrays(
    np.float32, SHAPES, elements=st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0])
)


@BOTH
@given(weight=WEIGHTS, share=st.floats(0, 1))
def test_exactly_so_many_are_marked_and_none_is_larger_than_one_that_is_not(made, weight, share):
    ranked = weight_scores(made(weight))
    count = round(share * weight.size)
    scores, marked = np.asarray(ranked), np.asarray(smallest(ranked, count))
    assert marked.sum() == count
    assert marked.shape == weight.shape
    expected = np.zeros(weight.size, bool)
    expected[np.argsort(scores.reshape(-1), kind="stable")[:count]] = True  # ties by position
    np.testing.assert_array_equal(marked.reshape(-1), expected)


@BOTH
@given(weights=st.lists(WEIGHTS, min_size=1, max_size=4), share=st.floats(0, 1))
def test_the_smallest_of_all_layers_are_the_smallest_of_each(made, weights, share):
    ranked = [weight_scores(made(each)) for each in weights]
    alive = [each.any() for each in weights]
    count = round(share * (sum(each.size for each in weights) - sum(alive)))
    shares = share_out(ranked, count)
    assert sum(shares) == count
    pairs = zip(ranked, shares, strict=True)
    marked = [np.asarray(smallest(each, number)) for each, number in pairs]
    scores = list(map(np.asarray, ranked))
    for chosen, lives in zip(marked, alive, strict=True):
        assert not (lives and chosen.all())  # a layer never loses everything
    taken = max(
        (each[m].max() for each, m in zip(scores, marked, strict=True) if m.any()), default=-2
    )
    for each, chosen in zip(scores, marked, strict=True):
        left = np.sort(each[~chosen])
        # what stays is as large, but for the one that a layer always keeps
        assert (left[:-1] >= taken).all()


@BOTH
def test_more_than_there_are_is_an_error(made):
    with pytest.raises(SettingError, match="4 scores are asked for, there are 3"):
        share_out([made(np.ones(4))], 4)
    assert share_out([], 0) == []


@BOTH
def test_zeros_come_before_weights_whose_input_is_always_zero(made):
    weight = np.array([[3.0, 0.0], [1.0, 2.0]], np.float32)
    scores = weight_scores(made(weight), made(np.array([[0.0], [1.0]])))
    np.testing.assert_array_equal(scores, [[0, ZERO_ALREADY], [1, 2]])


@BOTH
def test_tiny_weights_do_not_become_equal_by_rounding(made):
    weight = made(np.array([1e-30, 2e-30], np.float32))
    scores = weight_scores(weight, made(np.array([1e-20, 1e-20])))
    assert 0 < scores[0] < scores[1]


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_cannot_be_ranked(made, bad):
    with pytest.raises(SettingError, match="NaN or infinity"):
        weight_scores(made(np.array([1.0, bad])))


@BOTH
@given(weight=WEIGHTS, factor=st.sampled_from([0.25, 2.0, 1024.0]))
def test_relative_scores_do_not_depend_on_the_scale_of_a_layer(made, weight, factor):
    scores = (weight_scores(made(each)) for each in (weight, weight * factor))
    plain, scaled = (np.asarray(relative_scores(each)) for each in scores)
    np.testing.assert_allclose(plain, scaled, rtol=1e-6)  # float32 division and norm
    alive = plain[plain >= 0]
    if alive.size:
        assert np.sum(alive.astype(float) ** 2) == pytest.approx(1, rel=1e-6)


@BOTH
@given(
    weight=hnp.arrays(np.float32, (5, 4, 3), elements=st.integers(1, 9).map(float)),
    axis=st.integers(0, 2),
    share=st.floats(0, 1),
)
def test_ranks_give_each_output_the_same_number_up_to_one(made, weight, axis, share):
    ranks = ranks_within_outputs(weight_scores(made(weight)), axis)
    marked = np.asarray(smallest(ranks, round(share * weight.size)))
    others = tuple(each for each in range(3) if each != axis)
    counts = marked.sum(axis=others)
    assert counts.max() - counts.min() <= 1
    for index in range(weight.shape[axis]):
        chosen, values = marked.take(index, axis), weight.take(index, axis)
        if chosen.any() and not chosen.all():
            assert values[chosen].max() <= values[~chosen].min()


@BOTH
def test_an_empty_layer_has_no_share(made):
    full = [weight_scores(made(each)) for each in (np.array([1.0, 3.0]), np.ones(2))]
    assert share_out([full[0], made(np.empty((0, 4))), full[1]], 2) == [1, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_ranked_exactly(dtype):
    weight = torch.linspace(-1, 1, 101).to(dtype).reshape(1, -1)
    assert share_out([weight_scores(weight)], 50) == [50]
    marked = smallest(weight_scores(weight), 50)
    assert weight[marked].abs().max() <= weight[~marked].abs().min()
    mixed = [weight_scores(w) for w in (weight, weight.double() * 3)]
    assert sum(share_out(mixed, 90)) == 90


def test_half_precision_of_numpy_is_ranked_exactly():
    weight = np.linspace(-1, 1, 101).astype(np.float16)
    marked = smallest(weight_scores(weight), 50)
    assert abs(weight[marked]).max() <= abs(weight[~marked]).min()
