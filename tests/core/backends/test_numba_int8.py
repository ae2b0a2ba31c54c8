"""Compiled INT8 products, against plain NumPy and against whole numbers of 64 bits."""

import numpy as np
import pytest
from compiled_checks import signatures_of
from hypothesis import given
from hypothesis import strategies as st
from kernel_calls import kernel_calls
from oracles import VARIANTS, assert_close
from parts import require_part

require_part("numba")

from tinytorch.core.dispatch import run, use_backend
from tinytorch.core.kernels.numba import int8 as numba_int8
from tinytorch.core.kernels.numba.compile import PARALLEL_WORK, THREADS
from tinytorch.core.kernels.numba.int8 import TILE_ROWS
from tinytorch.core.kernels.numba.int8_simd import PORTABLE
from tinytorch.core.kernels.numpy import NUMPY
from tinytorch.core.kernels.packing import PANEL_COLUMNS, pack_int8
from tinytorch.core.kernels.reference import REFERENCE
from tinytorch.core.kernels.reference_quantized import quantize_by, quantize_rows
from tinytorch.errors import ShapeError

KERNELS = numba_int8.KERNELS
CALLS = {dtype: kernel_calls(dtype) for dtype in (np.float32, np.float64)}
LAYERS = ("int8_linear_weight_only", "int8_linear_dynamic")
PACKED = pack_int8(np.ones((8, 5), np.int8), np.ones(5, np.float32))
EXTREMES = (-128, -127, -1, 0, 1, 127, 128, 255)


@pytest.fixture(params=[None, PORTABLE], ids=["fastest", "portable"])
def way(request, monkeypatch):
    monkeypatch.setattr(numba_int8, "WAY", request.param)
    return request.param


def check(ours, theirs, terms):
    if theirs.dtype == np.int32:
        assert ours.dtype == np.int32
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert_close(ours, theirs, terms=terms)


@pytest.mark.parametrize(("dtype", "layout"), VARIANTS)
@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_a_kernel_computes_what_the_reference_computes(kind, dtype, layout):
    for call in CALLS[dtype][kind]:
        used = call.copied(layout)
        ours = KERNELS[kind](*used.arguments, **used.settings)
        theirs = REFERENCE.kernels[kind](*call.arguments, **call.settings)
        check(ours, theirs, call.terms)
        for after, before in zip(used.arguments, call.arguments, strict=True):
            np.testing.assert_array_equal(after, before)  # inputs are not changed


# ---------------------------------------------------------------- exactness


def check_exact(rows, inputs, outputs, seed):
    rng = np.random.default_rng(seed)
    weight = rng.choice(EXTREMES[:6], (inputs, outputs)).astype(np.int8)
    packed = pack_int8(weight, np.ones(outputs, np.float32))
    for kind in (np.int8, np.uint8):
        possible = [each for each in EXTREMES if np.iinfo(kind).min <= each <= np.iinfo(kind).max]
        x = rng.choice(possible, (rows, inputs)).astype(kind)
        product = numba_int8.int8_matmul(x, packed.values, packed.sums)
        np.testing.assert_array_equal(product, x.astype(np.int64) @ weight.astype(np.int64))


@given(st.integers(1, 70), st.integers(1, 140), st.integers(1, 140), st.integers(0, 99))
def test_integers_are_exact(rows, inputs, outputs, seed):
    check_exact(rows, inputs, outputs, seed)


@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 130, 70), (65, 66, 200), (3, 1030, 65)], ids=str)
def test_integers_are_exact_in_both_ways(way, shape):
    check_exact(*shape, 7)


def test_the_largest_sums_fit(way):
    inputs = 65_793
    packed = pack_int8(np.full((inputs, 1), -128, np.int8), np.ones(1, np.float32))
    x = np.full((2, inputs), 255, np.uint8)
    product = numba_int8.int8_matmul(x, packed.values, packed.sums)
    assert product.tolist() == [[-128 * 255 * inputs]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 5, 64, 128])
def test_many_threads_compute_what_one_does(rows, rng, monkeypatch):
    weight = rng.integers(-128, 128, (300, 900)).astype(np.int8)
    packed = pack_int8(weight, np.full(900, 0.01, np.float32))
    assert packed.values.size // 4 > PARALLEL_WORK
    assert (300 * rows > PARALLEL_WORK) == (rows == 128)  # where rows are quantized in parallel too
    x = rng.normal(size=(rows, 300)).astype(np.float32)
    together = [KERNELS[kind](x, *packed.arrays) for kind in LAYERS]
    for kernel in (numba_int8.multiply_packed, numba_int8.quantize_and_multiply):
        monkeypatch.setattr(kernel, "parallel", kernel.serial)
    alone = [KERNELS[kind](x, *packed.arrays) for kind in LAYERS]
    np.testing.assert_array_equal(together, alone)


@given(st.integers(1, 3000), st.integers(1, 5000))
def test_blocks_are_whole_tiles_and_enough_for_all_threads(rows, columns):
    block = numba_int8.choose_block_rows(rows, columns)
    assert block % TILE_ROWS == 0
    assert TILE_ROWS <= block <= numba_int8.BLOCK_ROWS
    tasks = -(-rows // block) * -(-columns // PANEL_COLUMNS)
    most = -(-rows // TILE_ROWS) * -(-columns // PANEL_COLUMNS)
    assert tasks >= min(THREADS, most)


# ---------------------------------------------------------------- quantization


IDENTITY = pack_int8(np.eye(37, dtype=np.int8), np.ones(37, np.float32))


@given(st.integers(0, 999), st.integers(-20, 20))
def test_rows_become_the_same_whole_numbers_as_in_the_reference(seed, exponent):
    x = np.random.default_rng(seed).normal(size=(3, 37)) * 10.0**exponent
    x = x.astype(np.float32)
    x[0, :9] = x[0, 10] * np.arange(-4, 5) / 8  # also some ties
    found = numba_int8.int8_linear_dynamic(x, *IDENTITY.arrays)
    np.testing.assert_array_equal(found, np.multiply(*quantize_rows(x)))
    scale, zero_point = float(np.float32(10.0**exponent / 50)), seed % 256 - 128
    found = numba_int8.int8_linear_static(x, *IDENTITY.arrays, scale=scale, zero_point=zero_point)
    whole, steps = quantize_by(x, scale, zero_point)
    np.testing.assert_array_equal(found, (whole.astype(np.float32) - zero_point) * steps)


@given(st.integers(1, 5), st.integers(1, 140), st.booleans())
def test_a_whole_bias_is_added_exactly(rows, outputs, has_activation):
    rng = np.random.default_rng(outputs)
    packed = pack_int8(rng.integers(-128, 128, (24, outputs)).astype(np.int8), np.ones(outputs))
    bias = rng.integers(-(2**20), 2**20, outputs).astype(np.int32)
    x = rng.normal(size=(rows, 24)).astype(np.float32)
    settings = {"scale": 0.5, "zero_point": 7, "activation": "relu" if has_activation else None}
    found = KERNELS["int8_linear_static"](x, *packed.arrays, bias, **settings)
    expected = REFERENCE.kernels["int8_linear_static"](x, *packed.arrays, bias, **settings)
    np.testing.assert_array_equal(found, expected)  # whole numbers, and halves of them


def test_ties_go_to_the_even_step():
    packed = pack_int8(np.eye(6, dtype=np.int8), np.ones(6, np.float32))
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32)
    rounded = [[127, 0, 2, 2, 0, -2]]
    assert numba_int8.int8_linear_dynamic(x, *packed.arrays).tolist() == rounded
    assert numba_int8.int8_linear_static(x, *packed.arrays, scale=1.0).tolist() == rounded


@pytest.mark.parametrize("kind", [*LAYERS, "int8_linear_static"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, 1e-40, 0.0])
def test_odd_numbers_are_treated_as_in_the_reference(kind, bad, rng):
    packed = pack_int8(rng.integers(1, 100, (9, 20)).astype(np.int8), np.ones(20, np.float32))
    x = rng.normal(size=(3, 9)).astype(np.float32)
    x[1] = 0
    x[1, 4] = bad
    settings = {"scale": 0.01, "zero_point": -3} if kind.endswith("static") else {}
    with np.errstate(over="ignore", invalid="ignore"):
        ours = KERNELS[kind](x, *packed.arrays, **settings)
        theirs = REFERENCE.kernels[kind](x, *packed.arrays, **settings)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-3)
    if np.isnan(bad):
        assert np.isnan(ours).all(axis=1).tolist() == [False, True, False]


# ---------------------------------------------------------------- accuracy, and other arrays


@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "gelu", "tanh", "sigmoid"])
@pytest.mark.parametrize("kind", LAYERS)
def test_activations_follow_at_once(kind, activation, rng):
    packed = pack_int8(
        rng.integers(-128, 128, (70, 81)).astype(np.int8), np.full(81, 0.002, np.float32)
    )
    x, bias = rng.normal(size=(5, 70)).astype(np.float32), rng.normal(size=81).astype(np.float32)
    arguments = (x, *packed.arrays, bias)
    ours = KERNELS[kind](*arguments, activation=activation)
    assert_close(ours, REFERENCE.kernels[kind](*arguments, activation=activation), terms=70)


def test_weights_are_multiplied_as_exactly_as_floats_allow(rng):
    weight = rng.integers(-128, 128, (500, 65)).astype(np.int8)
    packed = pack_int8(weight, rng.uniform(0.001, 0.01, 65).astype(np.float32))
    x = rng.normal(size=(6, 500)).astype(np.float32)
    exact = x.astype(np.float64) @ weight * packed.scales
    size = np.abs(x).astype(np.float64) @ np.abs(weight.astype(np.float64)) * packed.scales
    ours = numba_int8.int8_linear_weight_only(x, *packed.arrays)
    # each addition is off by at most eps times the sum of sizes
    assert (np.abs(ours - exact) <= 500 * np.finfo(np.float32).eps * size).all()


def test_arrays_that_cannot_be_written_need_no_other_kernel(rng):
    packed = pack_int8(rng.integers(-9, 9, (8, 5)).astype(np.int8), np.ones(5, np.float32))
    x = rng.normal(size=(2, 8)).astype(np.float32)
    expected = [KERNELS[kind](x, *packed.arrays) for kind in LAYERS]
    compiled = signatures_of(numba_int8)
    for array in (x, *packed.arrays):
        array.flags.writeable = False
    for kind, result in zip(LAYERS, expected, strict=True):
        np.testing.assert_array_equal(KERNELS[kind](x, *packed.arrays), result)
    assert signatures_of(numba_int8) == compiled


def test_given_steps_and_those_of_rows_share_a_kernel(rng):
    packed = pack_int8(rng.integers(-9, 9, (8, 5)).astype(np.int8), np.ones(5, np.float32))
    x = rng.normal(size=(2, 8)).astype(np.float32)
    numba_int8.int8_linear_dynamic(x, *packed.arrays)
    compiled = signatures_of(numba_int8)
    for bias in (None, np.ones(5, np.float32), np.ones(5, np.int32)):
        numba_int8.int8_linear_static(x, *packed.arrays, bias, scale=0.1, zero_point=np.int8(3))
    assert signatures_of(numba_int8) == compiled


@pytest.mark.parametrize("kind", LAYERS)
def test_a_bias_that_is_broadcast_is_left_to_numpy(kind, rng):
    packed = pack_int8(rng.integers(-9, 9, (8, 5)).astype(np.int8), np.ones(5, np.float32))
    x, bias = rng.normal(size=(2, 8)).astype(np.float32), np.ones((2, 1), np.float32)
    expected = REFERENCE.kernels[kind](x, *packed.arrays, bias)
    assert_close(KERNELS[kind](x, *packed.arrays, bias), expected, terms=8)


@pytest.mark.parametrize("kind", [*LAYERS, "int8_linear_static"])
@pytest.mark.parametrize("wrong", ["scales", "bias", "sums"])
def test_columns_that_do_not_match_are_never_read(kind, wrong):
    """Loops know no bounds, so arrays that are too short must not get there."""
    arrays = dict(zip(("values", "scales", "sums"), PACKED.arrays, strict=True))
    arrays["bias"] = np.ones(5, np.float32)
    arrays[wrong] = arrays[wrong][:3]
    settings = {"scale": 0.1} if kind.endswith("static") else {}
    if (kind, wrong) == ("int8_linear_weight_only", "sums"):  # which it does not need
        assert KERNELS[kind](np.ones((2, 8), np.float32), **arrays).shape == (2, 5)
        return
    with pytest.raises(ValueError, match=r"shape|broadcast|dimension|packed"):
        KERNELS[kind](np.ones((2, 8), np.float32), **arrays, **settings)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_weight_of_another_shape_is_refused(kind):
    packed = pack_int8(np.ones((8, 5), np.int8), np.ones(5, np.float32))
    with pytest.raises(ShapeError, match="packed weight of 9 inputs and 5 outputs"):
        KERNELS[kind](np.ones((2, 9), np.float32), *packed.arrays)


def test_the_kernels_run_in_a_backend(rng):
    packed = pack_int8(rng.integers(-9, 9, (8, 5)).astype(np.int8), np.ones(5, np.float32))
    x = rng.normal(size=(2, 8)).astype(np.float32)
    with use_backend(NUMPY.extended("mine", KERNELS)):
        ours = run("int8_linear_dynamic", x, *packed.arrays, activation="relu")
    theirs = REFERENCE.kernels["int8_linear_dynamic"](x, *packed.arrays, activation="relu")
    assert_close(ours, theirs, terms=8)


@pytest.mark.parametrize("zero_point", [np.int8(-100), np.uint8(200)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
def test_a_zero_point_may_be_a_number_of_few_bits(zero_point, dtype, rng):
    packed = pack_int8(rng.integers(-128, 128, (24, 16)).astype(np.int8), np.ones(16, np.float32))
    x = rng.integers(0, 100, (3, 24)).astype(dtype)
    few, many = (
        KERNELS["int8_linear_static"](x, *packed.arrays, scale=np.float32(0.1), zero_point=number)
        for number in (zero_point, int(zero_point))
    )
    np.testing.assert_array_equal(few, many)
