"""Compiled INT8 convolution, against NumPy and the reference, and itself in other ways."""

import numpy as np
import pytest
from compiled_checks import check_every_call, signatures_of
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_convolutions import (
    KINDS,
    SHAPES,
    SMALL,
    STATIC,
    WRONG,
    Shape,
    draw_layer,
    draw_weight,
    packed,
    settings_of,
    shapes,
    wrong_call,
)
from oracles import assert_close, laid_out
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba import int8_convolution as convolution
from tinytorch.core.kernels.numba import int8_convolution as layout
from tinytorch.core.kernels.numba.compile import PARALLEL_WORK, THREADS
from tinytorch.core.kernels.numpy import NUMPY
from tinytorch.core.kernels.numpy_quantized import convolve_integers
from tinytorch.core.kernels.reference import REFERENCE

KERNELS = convolution.KERNELS
SEVERAL = Shape((7, 3, 9, 11), 21, padding=(1, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_computes_what_the_reference_computes(kind):
    check_every_call(KERNELS, kind)


# ---------------------------------------------------------------- exactness


def check_exact(shape, images, weight, zero_point=0):
    """Whole numbers with steps of 1 come out as whole numbers, so that every bit counts."""
    result = convolution.int8_conv2d_static(
        images.astype(np.float32), *packed(weight).arrays, scale=1.0, zero_point=zero_point,
        **shape.settings,
    )  # fmt: skip
    # which tests/core/backends/test_numpy_int8_convolution.py holds against PyTorch
    np.testing.assert_array_equal(result, convolve_integers(images, weight, **shape.how))


@settings(max_examples=60)
@given(shapes(), st.integers(0, 99))
def test_any_convolution_of_whole_numbers_is_exact(shape, seed):
    rng = np.random.default_rng(seed)
    check_exact(shape, rng.integers(-128, 128, shape.images), draw_weight(shape, rng))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_numbers_are_exact_with_any_zero_point(shape, rng):
    zero_point = -37
    images = rng.integers(-128, 128, shape.images) - zero_point
    check_exact(shape, images, draw_weight(shape, rng), zero_point)


@pytest.mark.parametrize("zero_point", [-128, 127])
def test_the_largest_sums_are_exact(zero_point):
    shape = Shape((1, 56, 4, 5), 9, padding=(1, 1))
    weight = np.full(shape.weight, -128, np.int8)
    weight[:, :, 0, 0] = 127
    images = np.full(shape.images, 127 if zero_point < 0 else -128) - zero_point
    check_exact(shape, images, weight, zero_point)


@pytest.mark.parametrize("layer_layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_floats_are_convolved_as_by_numpy(kind, shape, layer_layout, rng):
    layer, _, images = draw_layer(shape, rng)
    bias = rng.normal(size=shape.outputs).astype(np.float32)
    arrays = [laid_out(array, layer_layout) for array in (images, *layer.arrays, bias)]
    ours = KERNELS[kind](*arrays, **settings_of(kind, shape))
    theirs = NUMPY.kernels[kind](images, *layer.arrays, bias, **settings_of(kind, shape))
    assert_close(ours, theirs, terms=int(np.prod(shape.weight[1:])))


# ---------------------------------------------------------------- odd numbers


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, 1e-40, 0.0])
def test_odd_numbers_are_treated_as_in_the_reference(kind, bad, rng):
    layer, _, images = draw_layer(SMALL, rng)
    images[1] = 0
    images[1, 1, 4, 5] = bad
    with np.errstate(over="ignore", invalid="ignore"):
        ours = KERNELS[kind](images, *layer.arrays, **settings_of(kind))
        theirs = REFERENCE.kernels[kind](images, *layer.arrays, **settings_of(kind))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    if np.isnan(bad):
        assert np.isnan(ours).all(axis=(1, 2, 3)).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_image_is_convolved_alone_as_it_is_in_a_batch(kind, rng):
    layer, _, images = draw_layer(SEVERAL, rng)
    together = KERNELS[kind](images, *layer.arrays, **settings_of(kind, SEVERAL))
    for image, result in zip(images, together, strict=True):
        alone = KERNELS[kind](image[None], *layer.arrays, **settings_of(kind, SEVERAL))
        np.testing.assert_array_equal(alone[0], result)


# ---------------------------------------------------------------- other ways to the same result


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_batch_is_convolved_in_parts(kind, rng, monkeypatch):
    layer, _, images = draw_layer(SEVERAL, rng)
    images[5, 0, 3, 3] = np.nan
    whole = KERNELS[kind](images, *layer.arrays, **settings_of(kind, SEVERAL))
    plan = layout.make_plan(SEVERAL.images[1:], SEVERAL.outputs, window_of(SEVERAL))
    monkeypatch.setattr(convolution, "IMAGE_BYTES", 3 * 3 * plan.plane_bytes)  # three images
    in_parts = KERNELS[kind](images, *layer.arrays, **settings_of(kind, SEVERAL))
    np.testing.assert_array_equal(in_parts, whole)


@pytest.mark.parametrize("shape", [SEVERAL, SHAPES[3], SHAPES[7], SHAPES[9]], ids=str)
@pytest.mark.parametrize("threads", [2, 5, 64])
def test_any_number_of_jobs_gives_the_same(threads, shape, rng, monkeypatch):
    layer, _, images = draw_layer(shape, rng)
    kind = "int8_conv2d_static"
    expected = NUMPY.kernels[kind](images, *layer.arrays, **settings_of(kind, shape))
    monkeypatch.setattr(convolution, "THREADS", threads)
    ours = KERNELS[kind](images, *layer.arrays, **settings_of(kind, shape))
    assert_close(ours, expected, terms=int(np.prod(shape.weight[1:])))


@given(st.integers(1, 500), st.integers(1, 300), st.integers(1, 70))
def test_jobs_are_no_more_than_threads_and_all_have_work(vectors, outputs, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "THREADS", threads)
        parts, chunks = convolution.choose_jobs(vectors, outputs)
    assert 1 <= parts * chunks <= threads
    assert parts <= vectors
    assert (chunks - 1) * convolution.TILE_OUTPUTS < outputs


@pytest.mark.slow
@pytest.mark.skipif(THREADS == 1, reason="needs more than one thread")
def test_many_threads_compute_what_one_does(rng, monkeypatch):
    shape = Shape((3, 32, 20, 20), 48, padding=(1, 1))
    layer, _, images = draw_layer(shape, rng)
    assert images.size > PARALLEL_WORK
    together = [KERNELS[kind](images, *layer.arrays, **settings_of(kind, shape)) for kind in KINDS]
    for loop in (convolution.slide, convolution.lay_out, convolution.unpack_floats):
        monkeypatch.setattr(loop, "parallel", loop.serial)
    alone = [KERNELS[kind](images, *layer.arrays, **settings_of(kind, shape)) for kind in KINDS]
    np.testing.assert_array_equal(together, alone)


def window_of(shape):
    return convolution.Window(shape.kernel, *shape.how.values())


# ---------------------------------------------------------------- other arrays


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_what_does_not_fit_is_refused_as_by_the_reference(kind, wrong, error, message):
    with pytest.raises(error, match=message):
        KERNELS[kind](**wrong_call(kind, wrong))


@pytest.mark.parametrize(
    "other",
    [
        {"sums": np.zeros(0, np.int32)},
        {"sums": np.zeros(4, np.int64)},
        {"scales": np.ones(4, np.float64)},
        {"bias": np.ones(4, np.float16)},
    ],
)
def test_arrays_of_other_kinds_are_left_to_numpy(other):
    for kind in KINDS:
        given = wrong_call(kind, other)
        assert_close(KERNELS[kind](**given), REFERENCE.kernels[kind](**given), terms=18)


@pytest.mark.parametrize("zero_point", [np.int8(-100), np.uint8(100)])
def test_a_zero_point_may_be_a_number_of_few_bits(zero_point, rng):
    layer, _, images = draw_layer(SMALL, rng)
    few, many = (
        convolution.int8_conv2d_static(
            images, *layer.arrays, scale=np.float32(0.1), zero_point=number, **SMALL.settings
        )
        for number in (zero_point, int(zero_point))
    )
    np.testing.assert_array_equal(few, many)


def test_a_bias_of_integers_counts_steps(rng):
    layer, _, images = draw_layer(SMALL, rng)
    bias = np.array([3, -700, 0, 9], np.int32)
    arguments = (images, *layer.arrays, bias)
    ours = convolution.int8_conv2d_static(*arguments, **STATIC, **SMALL.settings)
    theirs = REFERENCE.kernels["int8_conv2d_static"](*arguments, **STATIC, **SMALL.settings)
    assert_close(ours, theirs, terms=18)


def test_each_loop_is_compiled_for_one_set_of_types(rng):
    layer, _, images = draw_layer(SMALL, rng)
    bias = np.ones(4, np.float32)
    for kind in KINDS:
        KERNELS[kind](images, *layer.arrays, bias, **settings_of(kind))
        for array in (images, *layer.arrays, bias):
            array.flags.writeable = False
        KERNELS[kind](images, *layer.arrays, **settings_of(kind))
    counts = signatures_of(convolution)
    assert {"slide", "lay_out", "unpack_floats"} <= counts.keys()
    assert max(counts.values()) == 1
