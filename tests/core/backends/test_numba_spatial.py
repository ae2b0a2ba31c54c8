import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_calls import kernel_calls
from oracles import VARIANTS, assert_close, laid_out, torch
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba import spatial
from tinytorch.core.kernels.reference import REFERENCE

PAIRS = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
WIDE = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
DENSE = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1)}


@pytest.mark.parametrize("kind", spatial.KERNELS)
@pytest.mark.parametrize(("dtype", "layout"), VARIANTS)
def test_every_kernel_computes_what_the_reference_computes(kind, dtype, layout):
    for call in kernel_calls(dtype)[kind]:
        given_call = call.copied(layout)
        computed = spatial.KERNELS[kind](*given_call.arguments, **call.settings)
        expected = REFERENCE.kernels[kind](*call.arguments, **call.settings)
        assert_close(computed, expected, terms=call.terms)
        for ours, original in zip(given_call.arguments, call.arguments, strict=True):
            np.testing.assert_array_equal(ours, original)


@st.composite
def pools(draw):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = tuple(draw(st.integers(0, taps // 2)) for taps in kernel)
    size = tuple(draw(st.integers(taps, 40)) for taps in kernel)
    images = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *size)
    stride = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    return images, {"kernel": kernel, "stride": stride, "padding": padding}


@settings(max_examples=40)
@given(pools(), st.booleans())
def test_any_pool_and_its_derivative_are_those_of_the_reference(case, with_ties):
    shape, window = case
    rng = np.random.default_rng(20260)
    x = rng.normal(size=shape).astype(np.float32)
    x = np.round(x) if with_ties else x
    largest = spatial.max_pool2d(x, **window)
    np.testing.assert_array_equal(largest, REFERENCE.kernels["max_pool2d"](x, **window))
    average = REFERENCE.kernels["avg_pool2d"](x, **window)
    assert_close(spatial.avg_pool2d(x, **window), average, terms=16)
    grad = rng.normal(size=largest.shape).astype(np.float32)
    assert_close(
        spatial.max_pool2d_backward(grad, x, largest, **window),
        REFERENCE.kernels["max_pool2d_backward"](grad, x, largest, **window),
        terms=16,
    )
    assert_close(
        spatial.avg_pool2d_backward(grad, input_shape=shape, **window),
        REFERENCE.kernels["avg_pool2d_backward"](grad, input_shape=shape, **window),
        terms=16,
    )


@pytest.mark.parametrize("window", [PAIRS, WIDE, DENSE])
def test_pools_with_nan_and_infinities_are_those_of_the_reference(window, rng):
    x = rng.normal(size=(3, 7, 8, 10)).astype(np.float32)
    special = rng.choice([0.0, np.nan, np.inf, -np.inf], size=x.shape, p=[0.7, 0.1, 0.1, 0.1])
    x = (x + special).astype(np.float32)
    x[0, 0] = -np.inf  # all of it, so that the border may be the first largest element
    with np.errstate(invalid="ignore"):
        largest = REFERENCE.kernels["max_pool2d"](x, **window)
        average = REFERENCE.kernels["avg_pool2d"](x, **window)
    np.testing.assert_array_equal(spatial.max_pool2d(x, **window), largest)
    computed = spatial.avg_pool2d(x, **window)
    np.testing.assert_allclose(computed, average, rtol=1e-5, atol=1e-6)
    grad = rng.normal(size=largest.shape).astype(np.float32)
    grad[1, 1, 1, 1] = np.nan
    np.testing.assert_allclose(
        spatial.max_pool2d_backward(grad, x, largest, **window),
        REFERENCE.kernels["max_pool2d_backward"](grad, x, largest, **window),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.slow
@pytest.mark.parametrize("window", [PAIRS, WIDE])
def test_pools_are_those_of_pytorch_on_many_planes(window, rng):
    x = rng.normal(size=(4, 16, 32, 34)).astype(np.float32)
    twin = torch.tensor(x, requires_grad=True)
    functional = torch.nn.functional
    for name, forward in (("max", spatial.max_pool2d), ("avg", spatial.avg_pool2d)):
        expected = getattr(functional, f"{name}_pool2d")(twin, *window.values())
        output = forward(x, **window)
        assert_close(output, expected, terms=9)
        grad = rng.normal(size=output.shape).astype(np.float32)
        (by_input,) = torch.autograd.grad(expected, twin, torch.from_numpy(grad))
        if name == "max":
            computed = spatial.max_pool2d_backward(grad, x, output, **window)
        else:
            computed = spatial.avg_pool2d_backward(grad, input_shape=x.shape, **window)
        assert_close(computed, by_input, terms=9)


def test_a_kernel_as_large_as_the_image_gives_one_number_for_each_plane(rng):
    x = rng.normal(size=(2, 5, 7, 7)).astype(np.float32)
    window = {"kernel": (7, 7), "stride": (7, 7), "padding": (0, 0)}
    assert_close(spatial.avg_pool2d(x, **window)[..., 0, 0], x.mean(axis=(2, 3)), terms=49)
    np.testing.assert_array_equal(spatial.max_pool2d(x, **window)[..., 0, 0], x.max(axis=(2, 3)))


def test_read_only_and_oddly_laid_out_images_are_pooled_and_not_changed(rng):
    x = rng.normal(size=(2, 3, 8, 6)).astype(np.float32)
    expected = REFERENCE.kernels["max_pool2d"](x, **PAIRS)
    for layout in ("contiguous", "transposed", "strided"):
        images = laid_out(x.copy(), layout)
        images.flags.writeable = False
        np.testing.assert_array_equal(spatial.max_pool2d(images, **PAIRS), expected)
        np.testing.assert_array_equal(images, x)


def test_images_stay_writable_after_they_were_pooled(rng):
    x = rng.normal(size=(2, 3, 8, 6)).astype(np.float32)
    largest = spatial.max_pool2d(x, **PAIRS)
    spatial.max_pool2d_backward(largest, x, largest, **PAIRS)
    assert x.flags.writeable
    assert largest.flags.writeable
