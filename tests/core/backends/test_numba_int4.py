"""Compiled INT4 products, against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_calls import kernel_calls
from oracles import VARIANTS, assert_close
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba.int4 import KERNELS, int4_linear_weight_only
from tinytorch.core.kernels.packing import pack_int4
from tinytorch.core.kernels.reference import REFERENCE
from tinytorch.errors import ShapeError

KIND = "int4_linear_weight_only"
CALLS = {dtype: kernel_calls(dtype)[KIND] for dtype in (np.float32, np.float64)}


@pytest.mark.parametrize(("dtype", "layout"), VARIANTS)
def test_it_computes_what_the_reference_computes(dtype, layout):
    for call in CALLS[dtype]:
        used = call.copied(layout)
        ours = KERNELS[KIND](*used.arguments, **used.settings)
        theirs = REFERENCE.kernels[KIND](*call.arguments, **call.settings)
        assert_close(ours, theirs, terms=call.terms)


@given(st.integers(1, 9), st.integers(1, 140), st.integers(1, 140), st.sampled_from([8, 32]))
def test_whole_numbers_are_exact(rows, inputs, outputs, group_size):
    rng = np.random.default_rng(rows + inputs)
    weight = rng.integers(-8, 8, (inputs, outputs)).astype(np.int8)
    scales = rng.integers(1, 4, (-(-inputs // group_size), outputs)).astype(np.float32)
    packed = pack_int4(weight, scales, group_size=group_size)
    x = rng.integers(-9, 9, (rows, inputs)).astype(np.float32)
    exact = x @ (weight * np.repeat(scales, group_size, axis=0)[:inputs])
    ours = int4_linear_weight_only(x, *packed.arrays, group_size=group_size)
    np.testing.assert_array_equal(ours, exact)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 70])
def test_large_products_are_shared_among_threads(rows, rng):
    weight = rng.integers(-8, 8, (512, 900)).astype(np.int8)
    scales = rng.uniform(0.01, 0.02, (4, 900)).astype(np.float32)
    packed = pack_int4(weight, scales, group_size=128)
    x = rng.normal(size=(rows, 512)).astype(np.float32)
    theirs = REFERENCE.kernels[KIND](x, *packed.arrays, group_size=128)
    ours = int4_linear_weight_only(x, *packed.arrays, group_size=128)
    assert_close(ours, theirs, terms=512)


def test_nan_stays_in_its_row(rng):
    weight = rng.integers(1, 8, (8, 5)).astype(np.int8)
    packed = pack_int4(weight, np.ones((1, 5), np.float32), group_size=8)
    x = np.ones((3, 8), np.float32)
    x[1, 3] = np.nan
    result = int4_linear_weight_only(x, *packed.arrays, group_size=8)
    assert np.isnan(result).all(axis=1).tolist() == [False, True, False]


def test_a_weight_of_another_shape_is_refused():
    packed = pack_int4(np.ones((8, 5), np.int8), np.ones((1, 5), np.float32), group_size=8)
    with pytest.raises(ShapeError, match="packed weight of 12 inputs and 5 outputs"):
        int4_linear_weight_only(np.ones((2, 17), np.float32), *packed.arrays, group_size=8)
