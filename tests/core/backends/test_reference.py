import math

import numpy as np
import pytest
from oracles import DTYPES, assert_close, torch
from parts import require_part

from tinytorch.core.kernels import reference
from tinytorch.core.kernels.reference import REFERENCE

special = require_part("scipy.special")

# ---------------------------------------------------------------- against SciPy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        (reference.erf, special.erf),
        (reference.sigmoid, special.expit),
        (lambda x: reference.softmax(x, axis=0), lambda x: special.softmax(x, axis=0)),
        (lambda x: reference.log_softmax(x, axis=0), lambda x: special.log_softmax(x, axis=0)),
        (
            lambda x: reference.gelu(x, approximate="none"),
            lambda x: (x * special.ndtr(x)).astype(x.dtype),
        ),
    ],
    ids=["erf", "sigmoid", "softmax", "log softmax", "gelu"],
)
def test_functions_have_the_values_of_scipy(computed, expected, dtype):
    x = np.linspace(-6, 6, 51, dtype=dtype)
    assert_close(computed(x), expected(x), terms=51)


def test_activations_of_empty_arrays_are_empty():
    assert reference.erf(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert reference.erf(np.zeros((0, 3), np.float32)).dtype == np.float32


# ---------------------------------------------------------------- against plain loops


def attend_by_loops(query, key, value, visible):
    """Mix values, one query after the other."""
    result = np.zeros((len(query), value.shape[1]))
    for row, q in enumerate(query):
        seen = [k for k in range(len(key)) if visible(row, k)]
        weights = [math.exp(sum(q * key[k])) for k in seen]
        for k, weight in zip(seen, weights, strict=True):
            result[row] += weight / sum(weights) * value[k]
    return result


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (2, 5), (5, 2), (1, 3)])
def test_causal_attention_lets_the_last_query_see_every_key(queries, keys, rng):
    query, key, value = (rng.normal(size=(n, 3)) for n in (queries, keys, keys))
    settings = {"scale": 1.0, "causal": True, "keep_weights": True}
    mix, weights = reference.attention(query, key, value, None, **settings)
    expected = attend_by_loops(
        query, key, value, lambda row, column: column - (keys - 1) <= row - (queries - 1)
    )
    assert_close(mix, expected, terms=keys)
    # Each row adds up to one, or to zero where it sees nothing.
    sums = [1.0 if row + keys - queries >= 0 else 0.0 for row in range(queries)]
    np.testing.assert_allclose(weights.sum(axis=-1), sums, atol=keys * np.finfo(float).eps)


def test_weights_are_kept_only_on_request(rng):
    query = rng.normal(size=(3, 2))
    settings = {"scale": 1.0, "causal": False}
    assert reference.attention(query, query, query, None, keep_weights=False, **settings)[1] is None
    kept = reference.attention(query, query, query, None, keep_weights=True, **settings)[1]
    assert kept.shape == (3, 3)


def test_normalised_rows_have_mean_zero_and_deviation_one(rng):
    x = rng.normal(5, 3, size=(4, 50))
    output, mean, inverse = reference.layer_norm(x, np.full(50, 2.0), np.ones(50), eps=0.0)
    normalised = (output - 1) / 2
    # sums of 50 numbers of the order of 1
    np.testing.assert_allclose(normalised.mean(axis=-1), 0, atol=50 * np.finfo(float).eps)
    np.testing.assert_allclose(normalised.std(axis=-1), 1, atol=50 * np.finfo(float).eps)
    np.testing.assert_allclose(inverse[:, 0], 1 / x.std(axis=-1), rtol=50 * np.finfo(float).eps)
    np.testing.assert_array_equal(mean[:, 0], x.mean(axis=-1))


def test_rows_that_are_looked_up_twice_add_up():
    grad = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    total = reference.embedding_backward(grad, np.array([2, 0, 2]), count=4)
    assert total.tolist() == [[10, 20], [0, 0], [101, 202], [0, 0]]


# ---------------------------------------------------------------- optimizer steps

STEPS = 5


def descend(kind, slots, dtype, **settings):
    """Take a few steps of ours on fixed gradients."""
    rng = np.random.default_rng(20260)
    parameter = rng.normal(size=(3, 4)).astype(dtype)
    state = [np.zeros_like(parameter) for _ in range(slots)]
    for step in range(1, STEPS + 1):
        grad = rng.normal(size=(3, 4)).astype(dtype)
        counted = {"step": step} if kind == "adam_step" else {}
        REFERENCE.kernels[kind](parameter, grad, *(state or [None]), **counted, **settings)
    return parameter


def descend_in_torch(kind, dtype, **settings):
    rng = np.random.default_rng(20260)
    parameter = torch.tensor(rng.normal(size=(3, 4)).astype(dtype), requires_grad=True)
    optimizer = getattr(torch.optim, kind)([parameter], **settings)
    for _ in range(STEPS):
        parameter.grad = torch.tensor(rng.normal(size=(3, 4)).astype(dtype))
        optimizer.step()
    return parameter


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_steps_are_those_of_pytorch(weight_decay, momentum, dtype):
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    ours = descend("sgd_step", 1 if momentum else 0, dtype, **settings)
    assert_close(ours, descend_in_torch("SGD", dtype, **settings), terms=STEPS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_steps_are_those_of_pytorch(weight_decay, decoupled, dtype):
    settings = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": weight_decay}
    ours = descend("adam_step", 2, dtype, decoupled=decoupled, **settings)
    theirs = descend_in_torch("AdamW" if decoupled else "Adam", dtype, **settings)
    assert_close(ours, theirs, terms=STEPS)
