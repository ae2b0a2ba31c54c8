import numpy as np
import pytest
from compiled_checks import check_every_call, check_like_reference, signatures_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_calls import Call
from oracles import assert_close, torch
from parts import require_part

require_part("numba")

from tinytorch.core.kernels import REFERENCE
from tinytorch.core.kernels.numba import elementwise as rows
from tinytorch.core.kernels.numba.elementwise import ROW_KERNELS

EPS = np.finfo(np.float32).eps
AXIS = {"axis": -1}


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def call_of(kind, rng, count, width):
    """Give a call of a kind on so many rows of such a width."""
    x, y = normal(rng, count, width), normal(rng, count, width)
    targets = rng.integers(0, width, count)
    return {
        "softmax": Call((4 * x,), AXIS, width),
        "softmax_backward": Call((x, y), AXIS, width),
        "log_softmax": Call((4 * x,), AXIS, width),
        "log_softmax_backward": Call((x, -np.abs(y)), AXIS, width),
        "cross_entropy": Call((4 * x, targets), {}, width),
        "cross_entropy_backward": Call((normal(rng, count), np.abs(y), targets)),
    }[kind]


@pytest.mark.parametrize("kind", ROW_KERNELS)
def test_a_kernel_computes_what_the_reference_computes(kind):
    check_every_call(ROW_KERNELS, kind)


@pytest.mark.parametrize("kind", ROW_KERNELS)
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 9), width=st.integers(2, 150), seed=st.integers(0, 999))
def test_rows_of_any_length_are_exact(kind, count, width, seed):
    check_like_reference(
        ROW_KERNELS, kind, call_of(kind, np.random.default_rng(seed), count, width)
    )


@pytest.mark.parametrize(("count", "width"), [(1, 50_257), (333, 257), (2049, 31)])
@pytest.mark.parametrize("kind", ROW_KERNELS)
def test_many_and_long_rows_are_exact(kind, count, width, rng):
    check_like_reference(ROW_KERNELS, kind, call_of(kind, rng, count, width))


@pytest.mark.parametrize("width", [3, 40, 50_000])
@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_numbers_that_are_not_finite_spoil_only_their_row(kind, width, rng):
    x = normal(rng, 6, width)
    x[1, width // 2], x[2, 0], x[3] = np.nan, np.inf, -np.inf
    x[4, 1:] = -np.inf
    computed = ROW_KERNELS[kind](x, axis=-1)
    assert np.isnan(computed[1:4]).all()
    assert np.isfinite(computed[[0, 5]]).all()
    expected = [1, 0] if kind == "softmax" else [0, -np.inf]
    np.testing.assert_array_equal(computed[4], np.repeat(expected, [1, width - 1]))


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF])
@pytest.mark.parametrize("place", [0, 1, 100, 127, 128, 129])
def test_a_nan_is_never_overlooked_wherever_it_stands(place, bits, rng):
    x = normal(rng, 2, 130)
    x.view(np.uint32)[1, place] = bits
    for kind in ("softmax", "log_softmax"):
        computed = ROW_KERNELS[kind](x, axis=-1)
        assert np.isfinite(computed[0]).all()
        assert np.isnan(computed[1]).all()


def test_large_scores_do_not_overflow(rng):
    x = 1e4 * normal(rng, 5, 70)
    exact = REFERENCE.kernels["softmax"](x.astype(np.float64), axis=-1)
    # the rounding of x - highest, some 1e4, is what an exponential cannot mend
    np.testing.assert_allclose(ROW_KERNELS["softmax"](x, axis=-1), exact, rtol=0, atol=4 * EPS * 70)
    assert_close(ROW_KERNELS["softmax"](x + 1e30, axis=-1).sum(axis=-1), np.ones(5, np.float32))


def test_probabilities_are_exact_to_a_few_units_in_the_last_place(rng):
    x = 5 * normal(rng, 50, 1000)
    exact = REFERENCE.kernels["softmax"](x.astype(np.float64), axis=-1)
    # x - highest is at most 40, and rounded to its last place before it is an exponent
    np.testing.assert_allclose(ROW_KERNELS["softmax"](x, axis=-1), exact, rtol=40 * EPS, atol=1e-37)


def test_a_target_that_does_not_exist_is_refused(rng):
    logits = normal(rng, 3, 5)
    with pytest.raises(IndexError, match="out of bounds"):
        ROW_KERNELS["cross_entropy"](logits, np.array([0, 5, 1]))
    with pytest.raises(IndexError, match="out of bounds"):
        ROW_KERNELS["cross_entropy_backward"](logits[:, 0], logits, np.array([0, 5, 1]))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.int64])
def test_targets_may_be_any_whole_numbers(dtype, rng):
    logits, targets = normal(rng, 4, 6), np.array([5, 0, 3, 3], dtype)
    check_like_reference(ROW_KERNELS, "cross_entropy", Call((logits, targets), {}, 6))


def test_cross_entropy_agrees_with_pytorch(rng):
    logits, targets = 3 * normal(rng, 40, 65), rng.integers(0, 65, 40)
    grad = normal(rng, 40)
    twin = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(twin, torch.tensor(targets), reduction="none")
    expected.backward(torch.tensor(grad))
    losses, probabilities = ROW_KERNELS["cross_entropy"](logits, targets)
    assert_close(losses, expected, terms=65)
    computed = ROW_KERNELS["cross_entropy_backward"](grad, probabilities, targets)
    assert_close(computed, twin.grad, terms=65)


def test_each_loop_is_compiled_for_one_set_of_types():
    assert set(signatures_of(rows).values()) <= {0, 1}


@pytest.mark.parametrize("kind", ["cross_entropy", "cross_entropy_backward"])
@pytest.mark.parametrize(
    ("logits", "targets"), [((4, 5, 3), (4,)), ((4, 5), (4, 1)), ((4, 5), (3,)), ((6,), (6,))]
)
def test_losses_of_other_shapes_are_what_they_are_with_numpy(kind, logits, targets, rng):
    scores = rng.normal(size=logits).astype(np.float32)
    arguments = (scores, np.zeros(targets, np.int64))
    if kind == "cross_entropy_backward":
        arguments = (np.ones(targets, np.float32), *arguments)
    outcomes = []
    for kernels in (ROW_KERNELS, rows.NUMPY):
        try:
            outcomes.append(kernels[kind](*arguments))
        except (ValueError, IndexError) as error:
            outcomes.append(repr(error))
    ours, theirs = outcomes
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrong", [5, -6])
def test_targets_that_are_no_class_are_refused(wrong, rng):
    logits, targets = rng.normal(size=(4, 5)).astype(np.float32), np.array([0, 1, wrong, 2])
    with pytest.raises(IndexError):
        ROW_KERNELS["cross_entropy"](logits, targets)
    with pytest.raises(IndexError):
        ROW_KERNELS["cross_entropy_backward"](np.ones(4, np.float32), logits, targets)


def test_a_gradient_of_another_shape_is_refused(rng):
    probabilities = rng.uniform(size=(4, 5)).astype(np.float32)
    with pytest.raises((ValueError, IndexError)):
        ROW_KERNELS["cross_entropy_backward"](
            np.ones((4, 2), np.float32), probabilities, np.zeros(4, np.int64)
        )
