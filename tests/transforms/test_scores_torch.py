import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from parts import require_part

torch = require_part("torch")

from tinytorch.errors import SettingError
from tinytorch.transforms.prune import layers as scores
from tinytorch.transforms.prune import torch as scores_torch

SHAPES = hnp.array_shapes(min_dims=2, max_dims=4, max_side=5)
WEIGHTS = hnp.arrays(
    np.float32, SHAPES, elements=st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0])
)


@given(weights=st.lists(WEIGHTS, min_size=1, max_size=4), share=st.floats(0, 1))
def test_layers_share_as_they_do_without_torch(weights, share):
    alive = sum(bool(each.any()) for each in weights)
    count = round(share * (sum(each.size for each in weights) - alive))
    expected = scores.share_out([scores.weight_scores(each) for each in weights], count)
    tensors = [scores_torch.weight_scores(torch.tensor(each)) for each in weights]
    assert scores_torch.share_out(tensors, count) == expected


@given(weight=WEIGHTS, share=st.floats(0, 1), axis=st.integers(0, 1))
def test_the_same_weights_are_marked_as_without_torch(weight, share, axis):
    count = round(share * weight.size)
    norms = np.linspace(0, 2, weight.shape[1]).reshape(1, -1, *[1] * (weight.ndim - 2))
    plain = scores.weight_scores(weight, norms)
    tensor = scores_torch.weight_scores(torch.tensor(weight), torch.tensor(norms))
    np.testing.assert_allclose(plain, tensor, rtol=1e-6)  # float32 here, float64 there
    ranked = scores_torch.ranks_within_outputs(
        scores_torch.weight_scores(torch.tensor(weight)), axis
    )
    np.testing.assert_array_equal(
        ranked, scores.ranks_within_outputs(scores.weight_scores(weight), axis)
    )
    marked = scores_torch.smallest(torch.tensor(plain), count)
    np.testing.assert_array_equal(marked, scores.smallest(plain, count))
    relative = scores_torch.relative_scores(torch.tensor(plain))
    np.testing.assert_allclose(relative, scores.relative_scores(plain), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_ranked_exactly(dtype):
    weight = torch.linspace(-1, 1, 101).to(dtype).reshape(1, -1)
    count = scores_torch.share_out([scores_torch.weight_scores(weight)], 50)
    assert count == [50]
    marked = scores_torch.smallest(scores_torch.weight_scores(weight), 50)
    assert weight[marked].abs().max() <= weight[~marked].abs().min()
    mixed = [scores_torch.weight_scores(w) for w in (weight, weight.double() * 3)]
    assert sum(scores_torch.share_out(mixed, 90)) == 90


def test_more_than_there_are_is_an_error():
    with pytest.raises(SettingError, match="4 scores are asked for, there are 3"):
        scores_torch.share_out([torch.ones(4)], 4)
