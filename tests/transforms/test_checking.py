import numpy as np
import pytest
from kernel_calls import IN_PLACE as IN_PLACE_IN_TESTS
from kernel_calls import kernel_calls

from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.transforms.kernel_choice import IN_PLACE, Check, copied

GELU = REFERENCE.kernels["gelu"]
TANH = {"approximate": "tanh"}


def check(kernel, *arguments, kind="gelu", settings=TANH):
    return Check(kind, REFERENCE.kernels[kind], arguments, settings).why_wrong(kernel)


@pytest.fixture
def x(rng):
    return rng.standard_normal((5, 7)).astype(np.float32)


def test_operations_in_place_are_those_of_the_table():
    assert IN_PLACE == IN_PLACE_IN_TESTS


@pytest.mark.parametrize("kind", kernel_calls(np.float32))
def test_the_kernels_of_numpy_are_right(kind):
    for call in kernel_calls(np.float32)[kind]:
        reason = check(NUMPY.kernels[kind], *call.arguments, kind=kind, settings=call.settings)
        assert reason is None


def test_a_little_rounding_is_allowed_and_a_wrong_formula_is_not(x):
    assert check(lambda x, approximate: GELU(x, approximate=approximate) * (1 + 1e-6), x) is None
    reason = check(lambda x, approximate: GELU(x, approximate=approximate) * 1.001, x)
    assert reason.startswith("result 0 is off by 1.0e-03 of the largest element, the reference by")


def test_the_other_form_of_gelu_is_not_right(x):
    assert "is off by" in check(lambda x, approximate: GELU(x, approximate="none"), x)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (
            lambda x, approximate: x[:-1],
            r"result 0 is float32 (4, 7), the reference's float32 (5, 7)",
        ),
        (lambda x, approximate: x.astype(np.float64), "result 0 is float64 (5, 7), the ref"),
        (lambda x, approximate: None, "result 0 is nothing, the reference's float32"),
        (lambda x, approximate: (x, x), "gives 2 results, the reference 1"),
        (lambda x, approximate: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda x, approximate: np.multiply(x, 0, out=x), "changes its inputs"),
        (lambda x, approximate: np.full_like(x, np.nan), "is off by inf"),
    ],
)
def test_a_kernel_that_cannot_be_used_has_a_reason(kernel, reason, x):
    assert reason in check(kernel, x)


def test_the_arguments_stay_as_they_were(x):
    before = x.copy()
    check(lambda x, approximate: np.multiply(x, 0, out=x), x)
    np.testing.assert_array_equal(x, before)


def test_nan_and_infinity_must_be_where_the_reference_has_them():
    x = np.array([1.0, np.nan, np.inf], np.float32)

    def cleaned(x):
        return np.nan_to_num(np.exp(x))

    assert check(np.exp, x, kind="exp", settings={}) is None
    assert "is off by inf" in check(cleaned, x, kind="exp", settings={})


def test_results_that_are_no_floats_must_be_equal(x):
    def almost(a, b):
        result = np.equal(a, b)
        result[0, 0] = not result[0, 0]
        return result

    assert check(np.equal, x, x, kind="equal", settings={}) is None
    assert check(almost, x, x, kind="equal", settings={}) == "result 0 differs from the reference"


def test_a_long_sum_is_judged_by_the_exact_one(rng):
    """Both are further apart than a few roundings, and neither is further from the truth."""
    x = rng.standard_normal(200_001).astype(np.float32)
    one_by_one = {"axis": 0}

    def backwards(x, axis):
        return x[::-1].cumsum(axis=axis)[-1]

    check = Check("sum", lambda x, axis: x.cumsum(axis=axis)[-1], (x,), one_by_one)
    assert check.why_wrong(backwards) is None
    assert "is off by" in check.why_wrong(lambda x, axis: backwards(x, axis) * np.float32(1.5))


def test_where_the_reference_overflows_others_must_too():
    x = np.array([100.0, 1.0], np.float32)
    with np.errstate(over="ignore"):
        check = Check("exp", np.exp, (x,), {})
        assert check.why_wrong(lambda x: np.exp(x)) is None
        assert "is off by inf" in check.why_wrong(lambda x: np.minimum(np.exp(x), np.float32(9)))


def test_a_step_in_place_is_judged_by_what_it_changed(x, rng):
    call = kernel_calls(np.float32)["sgd_step"][2]
    settings = call.settings

    def forgetful(parameter, grad, velocity, **settings):
        parameter -= settings["lr"] * grad

    right = check(NUMPY.kernels["sgd_step"], *call.arguments, kind="sgd_step", settings=settings)
    wrong = check(forgetful, *call.arguments, kind="sgd_step", settings=settings)
    assert right is None
    assert "is off by" in wrong


def test_what_the_reference_cannot_compute_raises(x):
    with pytest.raises(ValueError, match="matmul"):
        Check("matmul", REFERENCE.kernels["matmul"], (x, x), {})


def test_copies_share_no_memory(x):
    one, (two, none) = copied((x, (x, None)))
    assert not np.shares_memory(one, x)
    assert not np.shares_memory(two, x)
    assert none is None


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[:, ::-2],
        lambda x: x[::-1, ::-1],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[0], (3, 7)),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1),
        lambda x: x[2, 3],
    ],
)
def test_copies_lie_in_memory_like_the_originals(view, x):
    odd = np.asanyarray(view(x))
    (copy,) = copied((odd,))
    np.testing.assert_array_equal(copy, odd)
    assert copy.strides == odd.strides
    assert not np.shares_memory(copy, x)


def test_a_kernel_that_takes_gaps_for_elements_is_wrong(x):
    def careless(x, approximate):
        dense = np.lib.stride_tricks.as_strided(x, strides=np.empty(x.shape, x.dtype).strides)
        return GELU(dense, approximate=approximate)

    assert check(careless, x) is None
    assert "is off by" in check(careless, x[:, ::2])
