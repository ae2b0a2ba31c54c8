"""What INT8 products mean: exact whole numbers, and steps that are rounded half to even."""

import numpy as np
import pytest
from oracles import assert_close, torch

from tinytorch.core.kernels import reference_quantized as int8
from tinytorch.core.kernels.packing import pack_int8
from tinytorch.core.kernels.reference import REFERENCE


def layer(rng, inputs, outputs):
    weight = rng.integers(-128, 128, (inputs, outputs)).astype(np.int8)
    scales = rng.uniform(0.001, 0.01, outputs).astype(np.float32)
    return pack_int8(weight, scales), weight * scales


def test_the_product_is_that_of_pytorch(rng):
    packed, _ = layer(rng, 24, 16)
    rows = rng.integers(-128, 128, (32, 24)).astype(np.int8)
    weight = int8.unpack_values(packed.values, 24, 16)
    theirs = torch._int_mm(torch.from_numpy(rows), torch.from_numpy(weight.copy()))
    np.testing.assert_array_equal(int8.int8_matmul(rows, packed.values, packed.sums), theirs)


def test_steps_are_rounded_half_to_even():
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32)  # a step of exactly 1
    rows, steps = int8.quantize_rows(x)
    assert steps.tolist() == [[1]]
    assert rows.tolist() == [[127, 0, 2, 2, 0, -2]]
    assert int8.quantize_by(x, 1.0, 0)[0].tolist() == rows.tolist()


def test_a_row_uses_the_whole_range_and_is_off_by_half_a_step_at_most(rng):
    x = rng.normal(size=(9, 50)).astype(np.float32) * 10.0 ** rng.integers(-9, 9, (9, 1))
    x = x.astype(np.float32)
    rows, steps = int8.quantize_rows(x)
    assert (np.abs(rows).max(axis=-1) == 127).all()
    # half a step, and the rounding of a float32 that is up to 127 steps
    assert (np.abs(rows * steps - x) <= steps * (0.5 + 127 * 4 * np.finfo(np.float32).eps)).all()


def test_rows_of_zeros_and_of_next_to_nothing_give_zeros():
    rows, steps = int8.quantize_rows(np.array([[0, 0], [1e-40, -1e-40]], np.float32))
    assert not rows.any()
    assert steps.tolist() == [[1], [1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_row_and_no_other(bad, rng):
    packed, _ = layer(rng, 5, 3)
    x = rng.normal(size=(3, 5)).astype(np.float32)
    x[1, 2] = bad
    result = int8.int8_linear_dynamic(x, *packed.arrays)
    assert np.isnan(result).all(axis=1).tolist() == [False, True, False]


def test_a_given_step_saturates_but_keeps_nan(rng):
    packed, _ = layer(rng, 2, 3)
    x = np.array([[1e9, -1e9], [np.inf, -np.inf], [np.nan, 0]], np.float32)
    rows, _ = int8.quantize_by(x, 0.1, 5)
    assert rows[:2].tolist() == [[127, -128], [127, -128]]
    result = int8.int8_linear_static(x, *packed.arrays, scale=0.1, zero_point=5)
    assert np.isnan(result).all(axis=1).tolist() == [False, False, True]


def test_the_zero_point_means_zero(rng):
    packed, _ = layer(rng, 6, 4)
    zeros = np.zeros((2, 6), np.float32)
    for given in ({"zero_point": -77}, {"zero_point": 0}, {}):
        assert not int8.int8_linear_static(zeros, *packed.arrays, scale=0.3, **given).any()
    for kind, zero_point in ((np.int8, -77), (np.uint8, 200)):
        rows = np.full((2, 6), zero_point, kind)
        settings = {"scale": 0.3, "zero_point": zero_point}
        assert not int8.int8_linear_static(rows, *packed.arrays, **settings).any()


def test_a_bias_of_integers_counts_steps(rng):
    packed, _ = layer(rng, 6, 4)
    x, bias = rng.normal(size=(3, 6)).astype(np.float32), np.array([3, -700, 0, 9], np.int32)
    counted = int8.int8_linear_static(x, *packed.arrays, bias, scale=0.01)
    floats = (bias * packed.scales * 0.01).astype(np.float32)
    assert_close(counted, int8.int8_linear_static(x, *packed.arrays, floats, scale=0.01), terms=6)


@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "gelu", "tanh", "sigmoid"])
@pytest.mark.parametrize("kind", ["weight_only", "dynamic", "static"])
def test_a_layer_is_close_to_the_one_with_floats(kind, activation, rng):
    packed, weight = layer(rng, 64, 8)
    x, bias = rng.normal(size=(4, 64)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    settings = {"scale": float(np.abs(x).max() / 127)} if kind == "static" else {}
    kernels = REFERENCE.kernels
    ours = kernels[f"int8_linear_{kind}"](
        x, *packed.arrays, bias, activation=activation, **settings
    )
    exact = kernels["linear"](x, weight.astype(np.float32), bias, activation=activation)
    step = 0.0 if kind == "weight_only" else float(np.abs(x).max() / 127)
    # each of the rounded inputs is off by half a step; no activation is steeper than 1.13
    bound = 1.13 * 0.5 * step * np.abs(weight).sum(axis=0).max() + 1e-4
    assert ours.dtype == np.float32
    assert np.abs(ours - exact).max() <= bound


@pytest.mark.parametrize("zero_point", [np.int8(-100), np.uint8(200), np.int64(3)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
def test_a_zero_point_may_be_a_number_of_few_bits(zero_point, dtype, rng):
    packed, _ = layer(rng, 24, 16)
    x = rng.integers(0, 100, (3, 24)).astype(dtype)
    few, many = (
        int8.int8_linear_static(x, *packed.arrays, scale=scale, zero_point=number)
        for scale, number in ((np.float64(0.1), zero_point), (0.1, int(zero_point)))
    )
    np.testing.assert_array_equal(few, many)
    assert few.dtype == many.dtype
