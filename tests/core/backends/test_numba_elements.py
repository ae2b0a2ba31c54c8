import numpy as np
import pytest
from compiled_checks import check_every_call, check_like_reference, signatures_of
from kernel_calls import Call
from oracles import assert_close, torch
from parts import require_part

require_part("numba")

from tinytorch.core.kernels import REFERENCE
from tinytorch.core.kernels.numba import elementwise as elements
from tinytorch.core.kernels.numba.elementwise import KERNELS

EPS = np.finfo(np.float32).eps
SIZES = [1, 15, 16, 17, 4097, 200_003]
"""Less than a vector, one more than some vectors, and enough for several threads."""

FORMS = {"gelu": [{"approximate": "tanh"}, {"approximate": "none"}]}
UNARY = ["relu", "sigmoid", "gelu", "silu"]
SLOPES = [kind for kind in KERNELS if kind.endswith("_backward")]


def forms_of(kind):
    return FORMS.get(kind.removesuffix("_backward"), [{}])


@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_computes_what_the_reference_computes(kind):
    check_every_call(KERNELS, kind)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KERNELS)
def test_any_size_is_computed_to_its_last_element(kind, size, rng):
    count = 1 if kind in UNARY else 2
    for form in forms_of(kind):
        arrays = tuple(rng.uniform(0.1, 0.9, size).astype(np.float32) for _ in range(count))
        check_like_reference(KERNELS, kind, Call(arrays, form))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("shape", [(90, 257), (3, 30, 257), (700, 513)])
def test_a_row_is_added_to_each_row(shape, layout, rng):
    x, row = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[-1])
    check_like_reference(KERNELS, "add", Call((x, row.astype(np.float32))), layout)


def test_all_other_shapes_and_dtypes_are_left_to_numpy(rng):
    large = rng.normal(size=(400, 500)).astype(np.float32)
    for other in (
        large,
        large[:1],
        large[:, :1],
        large.astype(np.float64),
        large[0].astype(np.float64),
        large[None],
        np.float32(2),
        np.ones(1, np.float32),
    ):
        for pair in ((large, other), (other, large)):
            expected = REFERENCE.kernels["add"](*pair)
            computed = KERNELS["add"](*pair)
            assert computed.dtype == expected.dtype
            np.testing.assert_array_equal(computed, expected)


def test_shapes_that_do_not_fit_are_refused(rng):
    large = rng.normal(size=(400, 500)).astype(np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        KERNELS["add"](large, np.ones(400, np.float32))


@pytest.mark.parametrize("size", [5, 300_000])
@pytest.mark.parametrize("kind", [*UNARY, *SLOPES])
def test_nan_and_infinity_go_where_the_reference_sends_them(kind, size):
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], np.float32), size)
    arrays = (np.ones_like(x), x) if kind in SLOPES else (x,)
    for form in forms_of(kind):
        with np.errstate(invalid="ignore", over="ignore"):
            expected = REFERENCE.kernels[kind](*arrays, **form)
        computed = KERNELS[kind](*arrays, **form)
        np.testing.assert_allclose(computed, expected, rtol=4 * EPS, equal_nan=True)


@pytest.mark.parametrize("kind", [*UNARY, *SLOPES])
def test_a_gradient_that_is_nan_stays_nan(kind):
    grad, x = np.full(50, np.nan, np.float32), np.full(50, 0.5, np.float32)
    arrays = (grad, x) if kind in SLOPES else (grad,)
    for form in forms_of(kind):
        assert np.isnan(KERNELS[kind](*arrays, **form)).all()


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_is_as_exact_as_float32_allows(approximate):
    x = np.linspace(-12, 12, 100_001, dtype=np.float32)
    exact = REFERENCE.kernels["gelu"](x.astype(np.float64), approximate=approximate)
    computed = KERNELS["gelu"](x, approximate=approximate)
    # the share of x is good to 2e-7 and a few roundings
    np.testing.assert_allclose(computed, exact, rtol=8 * EPS, atol=np.abs(x).max() * 2e-7)
    slope = REFERENCE.kernels["gelu_backward"](
        np.ones_like(exact), x.astype(np.float64), approximate=approximate
    )
    computed = KERNELS["gelu_backward"](np.ones_like(x), x, approximate=approximate)
    # where shares are small, the exponent of a few dozen carries its rounding into the result
    np.testing.assert_allclose(computed, slope, rtol=0, atol=32 * EPS)


def test_large_arguments_have_the_limits():
    x = np.array([-3e38, -1e5, -200, 200, 1e5, 3e38], np.float32)
    below = np.array([1, 1, 1, 0, 0, 0], bool)
    np.testing.assert_array_equal(KERNELS["sigmoid"](x), np.where(below, 0, 1))
    for form in forms_of("gelu"):
        np.testing.assert_array_equal(KERNELS["gelu"](x, **form), np.where(below, 0, x))


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_agrees_with_pytorch(approximate, rng):
    x = (3 * rng.normal(size=(64, 33))).astype(np.float32)
    grad = rng.normal(size=(64, 33)).astype(np.float32)
    twin = torch.tensor(x, requires_grad=True)
    expected = torch.nn.functional.gelu(twin, approximate=approximate)
    expected.backward(torch.tensor(grad))
    assert_close(KERNELS["gelu"](x, approximate=approximate), expected)
    assert_close(KERNELS["gelu_backward"](grad, x, approximate=approximate), twin.grad)


def test_each_loop_is_compiled_for_one_set_of_types():
    assert set(signatures_of(elements).values()) <= {0, 1}
