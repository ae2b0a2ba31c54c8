"""Token and position embeddings, and what counts as a token."""

import numpy as np
import pytest
from parts import require_part
from torch_twins import assert_same

from tinytorch.core.dispatch import use_backend
from tinytorch.core.embeddings import (
    CheckedIds,
    Embedding,
    PositionalEmbedding,
    SinusoidalEncoding,
    token_ids,
)
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, ShapeError, TokenError

DTYPES = [np.float32, np.float64]


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_integers_of_any_width_are_token_ids(dtype):
    given = np.array([[0, 3], [2, 1]], dtype)
    np.testing.assert_array_equal(token_ids(Tensor(given), 4), given)
    np.testing.assert_array_equal(token_ids(given, 4), given)


@pytest.mark.parametrize("tokens", [Tensor([1.0, 2.0]), np.array([1.0, 2.0]), [1.0, 2.0], (1, 2)])
def test_whole_floats_and_lists_are_token_ids(tokens):
    ids = token_ids(tokens, 3)
    assert ids.dtype.kind == "i"
    assert ids.tolist() == [1, 2]


@pytest.mark.parametrize("wrong", [0.5, -0.25, float("nan"), float("inf")])
def test_a_float_that_is_not_whole_is_an_error_that_shows_it(wrong):
    with pytest.raises(TokenError, match=f"token ids must be integers, got {wrong}"):
        token_ids(Tensor([1.0, wrong]), 10)


@pytest.mark.parametrize("wrong", [-1, 10, 11.0])
def test_a_token_outside_of_the_vocabulary_is_an_error_that_shows_it(wrong):
    message = rf"token id {int(wrong)} is outside of the vocabulary 0\.\.9"
    with pytest.raises(TokenError, match=message):
        token_ids([0, wrong], 10)
    with pytest.raises(IndexError, match=message):
        Embedding(10, 2)([[wrong]])


def test_text_is_no_token():
    with pytest.raises(TokenError, match="token ids must be integers, got <U1"):
        token_ids(["a"], 10)


def test_rows_of_unequal_length_are_an_error_that_says_so():
    with pytest.raises(ShapeError, match="rows of token ids must have equal lengths"):
        token_ids([[1, 2], [3]], 10)


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids", [[3], [0, 3, 3, 3, 1], [[4, 4], [0, 4]], [[[2]]]])
def test_embedding_is_that_of_pytorch_also_for_repeated_ids(ids, dtype, backend, rng):
    torch = require_part("torch")
    ours, theirs = Embedding(5, 4, rng=rng).astype(dtype), torch.nn.Embedding(5, 4)
    theirs.weight.data = torch.tensor(ours.weight.data)
    with use_backend(backend):
        y_ours, y_theirs = ours(np.array(ids)), theirs(torch.tensor(ids))
        assert_same(y_ours, y_theirs)
        slope = rng.standard_normal(y_ours.shape).astype(dtype)
        y_ours.backward(slope)
        y_theirs.backward(torch.tensor(slope))
    assert_same(ours.weight.grad, theirs.weight.grad)


def test_no_tokens_give_no_rows_and_zero_gradients():
    table = Embedding(5, 4)
    found = table(np.zeros((2, 0), np.int64))
    assert found.shape == (2, 0, 4)
    found.sum().backward()
    assert not table.weight.grad.any()


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_an_embedding_needs_sizes_of_at_least_one(sizes):
    with pytest.raises(SettingError, match="Embedding needs sizes of at least 1, got"):
        Embedding(*sizes)


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
@pytest.mark.parametrize("start", [0, 2])
def test_learned_positions_are_added_and_get_the_sum_of_the_gradients(start, shape, dtype, rng):
    layer = PositionalEmbedding(6, 4, rng=rng).astype(dtype)
    x = Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)
    y = layer(x, start)
    np.testing.assert_array_equal(y.data, x.data + layer.weight.data[start : start + 3])
    slope = rng.standard_normal(shape).astype(dtype)
    y.backward(slope)
    np.testing.assert_array_equal(x.grad, slope)
    wanted = np.zeros((6, 4), dtype)
    wanted[start : start + 3] = slope.reshape(-1, 3, 4).sum(axis=0)
    # The sum of two numbers of order one: one rounding.
    np.testing.assert_allclose(layer.weight.grad, wanted, atol=4 * np.finfo(dtype).eps)


def test_waves_are_those_of_the_paper():
    table = SinusoidalEncoding(50, 8).table.data
    for position in (0, 1, 7, 49):
        for pair in range(4):
            angle = position / 10000 ** (2 * pair / 8)
            # One rounding to float32 of a number that is at most 1.
            assert table[position, 2 * pair] == pytest.approx(np.sin(angle), abs=6e-8)
            assert table[position, 2 * pair + 1] == pytest.approx(np.cos(angle), abs=6e-8)


def test_waves_pass_gradients_and_are_not_learned(rng):
    layer = SinusoidalEncoding(10, 5)
    x = Tensor(rng.standard_normal((2, 3, 5)).astype(np.float32), requires_grad=True)
    y = layer(x, start=4)
    np.testing.assert_array_equal(y.data, x.data + layer.table.data[4:7])
    slope = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(slope)
    np.testing.assert_array_equal(x.grad, slope)
    assert layer.parameters() == []
    assert list(layer.state_dict()) == ["table"]


@pytest.mark.parametrize("layer", [PositionalEmbedding(6, 4), SinusoidalEncoding(6, 4)])
def test_positions_that_do_not_exist_are_an_error_that_counts_them(layer):
    with pytest.raises(ShapeError, match=r"\(6, 4\) has 6 positions, the sequence needs 7"):
        layer(Tensor(np.zeros((1, 3, 4), np.float32)), start=4)


@pytest.mark.parametrize("layer", [PositionalEmbedding(6, 4), SinusoidalEncoding(6, 4)])
@pytest.mark.parametrize("shape", [(4,), (3, 5)])
def test_positions_for_another_width_are_an_error_that_shows_it(layer, shape):
    with pytest.raises(ShapeError) as caught:
        layer(Tensor(np.zeros(shape, np.float32)))
    assert str(caught.value) == f"{layer!r} needs (..., time, 4), got {shape}"


@pytest.mark.parametrize("kind", [PositionalEmbedding, SinusoidalEncoding])
@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (-1, 4)])
def test_positions_need_sizes_of_at_least_one(kind, sizes):
    with pytest.raises(SettingError, match=f"{kind.__name__} needs sizes of at least 1, got"):
        kind(*sizes)


# ---------------------------------------------------------------- checked once


def test_what_was_checked_is_not_checked_again():
    wrong = CheckedIds.of(np.array([9, 9]), 4)  # believed
    found = token_ids(wrong, 4)
    assert type(found) is np.ndarray
    assert found.tolist() == [9, 9]


def test_a_smaller_vocabulary_checks_again():
    with pytest.raises(TokenError, match=r"3 is outside of the vocabulary 0\.\.2"):
        token_ids(CheckedIds.of(np.array([0, 3]), 4), 3)


@pytest.mark.parametrize(
    "derive", [lambda ids: ids + 9, lambda ids: ids[:1], lambda ids: ids.copy(), np.negative]
)
def test_what_is_computed_from_checked_ids_is_not_believed(derive):
    derived = derive(CheckedIds.of(np.array([1, 2]), 4))
    assert derived.limit is None
    checked = np.asarray(derived)
    if (checked < 0).any() or (checked >= 4).any():
        with pytest.raises(TokenError):
            token_ids(derived, 4)
    else:
        np.testing.assert_array_equal(token_ids(derived, 4), checked)


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("layer", [PositionalEmbedding(9, 4, rng=0), SinusoidalEncoding(9, 4)])
def test_rows_count_from_their_own_first_token(layer, rng):
    x = Tensor(rng.standard_normal((2, 5, 4)).astype(np.float32))
    found = layer(x, 1, np.array([3, 0])).data
    np.testing.assert_array_equal(found[1], layer(x[1], 1).data)
    np.testing.assert_array_equal(found[0, 2:], layer(x[0, 2:], 0).data)  # position 3 is its first


def test_padding_of_another_batch_is_an_error():
    x = Tensor(np.zeros((2, 5, 4), np.float32))
    with pytest.raises(ShapeError, match=r"padding of 3 rows does not fit x \(2, 5, 4\)"):
        PositionalEmbedding(9, 4)(x, 0, np.array([1, 2, 3]))


def test_positions_after_padding_learn(rng):
    layer = PositionalEmbedding(9, 4, rng=0)
    layer(Tensor(np.zeros((2, 3, 4), np.float32)), 0, np.array([2, 0])).sum().backward()
    # Row 0 has position 0 three times (two are empty), row 1 has 0, 1 and 2.
    assert layer.weight.grad[:, 0].tolist() == [4, 1, 1, 0, 0, 0, 0, 0, 0]
