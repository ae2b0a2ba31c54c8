import math

import numpy as np
import pytest
from oracles import (
    BACKENDS,
    Case,
    assert_close,
    check_against_torch,
    check_central_differences,
    each,
    every_way,
    torch,
)

from tinytorch.core import operations as products
from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor, apply
from tinytorch.errors import ShapeError

FACTORS = [
    ((3,), (3,)),
    ((1,), (1,)),
    ((3,), (3, 5)),
    ((2, 3), (3,)),
    ((2, 3), (3, 5)),
    ((1, 3), (3, 1)),
    ((7, 1), (1, 7)),
    ((4, 2, 3), (4, 3, 5)),
    ((4, 2, 3), (3, 5)),
    ((2, 3), (4, 3, 5)),
    ((4, 1, 2, 3), (1, 6, 3, 5)),
    ((1, 2, 3), (4, 3, 5)),
    ((6, 1, 2, 3), (4, 3, 1)),
    ((3,), (4, 3, 5)),
    ((4, 2, 3), (3,)),
    ((3,), (2, 4, 3, 1)),
    ((0, 3), (3, 5)),
    ((0, 2, 3), (3, 5)),
    ((2, 3), (3, 0)),
    ((2, 0), (0, 5)),
]
ROWS = [(3,), (1, 3), (5, 3), (2, 5, 3), (2, 1, 4, 3), (0, 3), (2, 0, 3)]

MINUS_INFINITY = -np.inf
HOLES = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)
BLIND = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], bool)
QUERIES = (2, 2, 3, 4)
KEYS = (2, 2, 5, 4)
VALUES = (2, 2, 5, 6)
ONE_LENGTH = ((2, 3, 5, 4),) * 3
THREE_OF_FIVE = (QUERIES, KEYS, VALUES)


def additive(visible):
    return np.where(visible, 0.0, MINUS_INFINITY)


def causal_bias(queries, keys):
    return additive(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries)


def slopes(*shape):
    return np.asarray(np.random.default_rng(11).normal(size=shape))


# name -> (shapes, bias, causal)
ATTENTIONS = {
    "plain": (ONE_LENGTH, None, False),
    "causal": (ONE_LENGTH, None, True),
    "one head": (((5, 4),) * 3, None, True),
    "fewer queries than keys": (THREE_OF_FIVE, None, False),
    "causal with fewer queries than keys": (THREE_OF_FIVE, None, True),
    "causal with one query": (((2, 1, 4), (2, 5, 4), (2, 5, 4)), None, True),
    "causal with more queries than keys": (((2, 5, 4), (2, 3, 4), (2, 3, 6)), None, True),
    "holes": (THREE_OF_FIVE, additive(HOLES), False),
    "holes for each head": (THREE_OF_FIVE, additive(np.stack([HOLES, ~HOLES])), False),
    "holes and causal": (THREE_OF_FIVE, additive(HOLES), True),
    "a row that sees nothing": (THREE_OF_FIVE, additive(BLIND), False),
    "numbers to add": (THREE_OF_FIVE, slopes(2, 1, 3, 5), False),
    "numbers to add and causal": (THREE_OF_FIVE, slopes(3, 5), True),
    "numbers for each key": (THREE_OF_FIVE, slopes(1, 5), False),
    "numbers for each query": (THREE_OF_FIVE, slopes(3, 1), False),
    "keys and values shared by the heads": (((2, 3, 4, 5), (2, 1, 6, 5), (2, 1, 6, 5)), None, True),
    "a bias for more heads than there are": (((5, 4),) * 3, slopes(2, 5, 5), False),
    "no examples": (((0, 2, 3, 4), (0, 2, 5, 4), (0, 2, 5, 4)), None, True),
    "no keys": (((2, 3, 4), (2, 0, 4), (2, 0, 4)), None, False),
}


def attend(bias, causal):
    def ours(query, key, value):
        typed = None if bias is None else bias.astype(query.dtype)
        scale = 1 / math.sqrt(query.shape[-1])
        return apply(products.Attention(typed, scale, causal), query, key, value)

    return ours


def attend_in_torch(bias, causal):
    def theirs(query, key, value):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if bias is not None:
            scores = scores + torch.tensor(bias, dtype=scores.dtype)
        if causal:
            scores = scores + torch.tensor(causal_bias(*scores.shape[-2:]), dtype=scores.dtype)
        blind = torch.isinf(scores).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
        return weights @ value

    return theirs


def make_cases():
    for shapes in FACTORS:
        terms = math.prod(shapes[0]) + math.prod(shapes[1])
        yield Case(f"matmul {shapes}", lambda a, b: a @ b, lambda a, b: a @ b, shapes, terms)
    for rows in ROWS:
        terms = math.prod(rows) + 5
        yield Case(
            f"linear {rows}",
            lambda x, w, b: apply(products.Linear(), x, w, b),
            lambda x, w, b: torch.nn.functional.linear(x, w.T, b),
            (rows, (3, 5), (5,)),
            terms,
        )
        yield Case(
            f"linear {rows} without bias",
            lambda x, w: apply(products.Linear(), x, w),
            lambda x, w: torch.nn.functional.linear(x, w.T),
            (rows, (3, 5)),
            terms,
        )
    for name, (shapes, bias, causal) in ATTENTIONS.items():
        yield Case(
            f"attention, {name}",
            attend(bias, causal),
            attend_in_torch(bias, causal),
            shapes,
            terms=math.prod(shapes[0][-3:]),
        )


CASES = list(make_cases())


@every_way
@each(CASES)
def test_values_and_gradients_are_those_of_pytorch(case, dtype, backend, layout):
    check_against_torch(case, dtype=dtype, backend=backend, layout=layout)


@each(CASES)
def test_gradients_are_central_differences(case):
    check_central_differences(case, backend="numpy")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_the_one_that_pytorch_ships(causal, backend):
    case = Case(
        "attention",
        attend(None, causal),
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
        ONE_LENGTH,
        terms=20,
    )
    check_against_torch(case, dtype=np.float32, backend=backend, layout="contiguous")


# Long enough for a backend that handles queries in blocks, and not a multiple of any block.
# (queries, keys) and a bias that fits them
LONG = {
    "no bias": (523, 523, None),
    "fewer queries": (523, 601, None),
    "more queries": (601, 523, None),
    "one key": (523, 1, None),
    "a bias for each pair": (523, 301, slopes(523, 301)),
    "a bias for each head": (523, 301, slopes(2, 523, 301)),
    "a bias for each key": (523, 301, slopes(1, 301)),
    "a bias for each key, without an axis of queries": (523, 301, slopes(301)),
    "a bias for each query": (523, 301, slopes(523, 1)),
    "one bias": (523, 301, slopes()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LONG)
def test_long_attention_without_a_graph_is_that_of_pytorch(name, causal, backend, rng):
    queries, keys, bias = LONG[name]
    arrays = [rng.normal(size=(2, length, 4)) for length in (queries, keys, keys)]
    with use_backend(backend), no_grad():
        mix = attend(bias, causal)(*map(Tensor, arrays))
    expected = attend_in_torch(bias, causal)(*map(torch.tensor, arrays))
    assert_close(mix.data, expected, terms=keys)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_that_sees_nothing_gives_zeros_and_gets_no_gradient(backend):
    query, key, value = (Tensor(np.ones((2, 3)), requires_grad=True) for _ in range(3))
    nothing = np.full((2, 2), MINUS_INFINITY)
    with use_backend(backend):
        mix = attend(nothing, False)(query, key, value)
        mix.sum().backward()
    for array in (mix.data, query.grad, key.grad, value.grad):
        np.testing.assert_array_equal(array, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_later_key_has_no_influence_on_causal_attention(backend, rng):
    query, key, value = rng.normal(size=(3, 6, 4))
    with use_backend(backend):
        before = attend(None, True)(Tensor(query), Tensor(key), Tensor(value)).data
        key[4:], value[4:] = 99, -99
        after = attend(None, True)(Tensor(query), Tensor(key), Tensor(value)).data
    np.testing.assert_array_equal(before[:4], after[:4])
    assert (before[4:] != after[4:]).all()


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5)), ((3,), (4,)), ((2, 2, 3), (3, 3, 5))])
def test_factors_that_do_not_fit_are_an_error_that_names_both_shapes(shapes):
    a, b = (Tensor(np.zeros(shape)) for shape in shapes)
    with pytest.raises(ShapeError) as caught:
        a @ b
    assert f"Matmul cannot use shapes {shapes[0]} and {shapes[1]}" in str(caught.value)


def test_a_number_is_not_a_matrix():
    with pytest.raises(ShapeError, match=r"Matmul cannot use shapes \(2, 3\) and \(\)"):
        Tensor(np.zeros((2, 3))) @ 2.0
