"""Whole numbers by way of floats: still exact."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_calls import kernel_calls
from oracles import assert_close

from tinytorch.core.kernels import numpy_quantized as numpy_int8
from tinytorch.core.kernels import reference_quantized as reference_int8
from tinytorch.core.kernels.packing import pack_int8
from tinytorch.core.kernels.reference import REFERENCE

CALLS = kernel_calls(np.float32)


@given(st.integers(1, 1200), st.sampled_from([0, 127, -128, 255]), st.sampled_from([-128, 127]))
def test_sums_of_the_largest_products_are_exact(inputs, value, weight):
    packed = pack_int8(np.full((inputs, 3), weight, np.int8), np.ones(3, np.float32))
    x = np.full((2, inputs), value, np.uint8 if value > 127 else np.int8)
    product = numpy_int8.int8_matmul(x, packed.values, packed.sums)
    assert product.dtype == np.int32
    assert (product == inputs * value * weight).all()


@pytest.mark.parametrize("kind", sorted(numpy_int8.KERNELS))
def test_a_kernel_computes_what_the_reference_computes(kind):
    for call in CALLS[kind]:
        ours = numpy_int8.KERNELS[kind](*call.arguments, **call.settings)
        theirs = REFERENCE.kernels[kind](*call.arguments, **call.settings)
        if theirs.dtype == np.int32:
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert_close(ours, theirs, terms=call.terms)


def test_any_sum_is_exact_in_blocks():
    depth = numpy_int8.EXACT_DEPTH
    assert depth * 255 * 128 <= 2**24 < (depth + 1) * 255 * 128
    assert reference_int8.OFFSET == 128


@pytest.mark.parametrize("zero_point", [np.int8(-100), np.uint8(200)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
def test_a_zero_point_may_be_a_number_of_few_bits(zero_point, dtype, rng):
    packed = pack_int8(rng.integers(-128, 128, (24, 16)).astype(np.int8), np.ones(16, np.float32))
    x = rng.integers(0, 100, (3, 24)).astype(dtype)
    few, many = (
        numpy_int8.KERNELS["int8_linear_static"](x, *packed.arrays, scale=0.1, zero_point=number)
        for number in (zero_point, int(zero_point))
    )
    np.testing.assert_array_equal(few, many)
