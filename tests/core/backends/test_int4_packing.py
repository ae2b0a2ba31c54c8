"""The layout of INT4 weights: what goes in comes out, in half a byte each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.kernels.packing import pack_int4, packed_length_int4, unpack_nibbles
from tinytorch.errors import DTypeError, SettingError, ShapeError


@given(st.integers(0, 140), st.integers(0, 140), st.sampled_from([8, 32, 64]), st.integers(0, 9))
def test_unpacking_gives_back_what_was_packed(inputs, outputs, group_size, seed):
    weight = np.random.default_rng(seed).integers(-8, 8, (inputs, outputs)).astype(np.int8)
    scales = np.ones((-(-inputs // group_size), outputs), np.float32)
    packed = pack_int4(weight, scales, group_size=group_size)
    assert unpack_nibbles(packed.values, *packed.shape).dtype == np.int8
    np.testing.assert_array_equal(unpack_nibbles(packed.values, *packed.shape), weight)
    assert packed.values.shape == (packed_length_int4(inputs, outputs),)
    assert packed.nbytes == packed.values.nbytes + scales.nbytes


def test_two_values_share_a_byte():
    assert packed_length_int4(768, 3072) == 768 * 3072 // 2
    weight = np.array([[1], [-2], [3], [4], [5], [6], [7], [-8]], np.int8)
    values = pack_int4(weight, np.ones((1, 1), np.float32), group_size=8).values
    assert values[:4].view(np.uint8).tolist() == [0xE1, 0x43, 0x65, 0x87]


def test_what_cannot_be_packed_is_refused_with_advice():
    scales = np.ones((1, 3), np.float32)
    with pytest.raises(DTypeError, match="weight of float32"):
        pack_int4(np.ones((8, 3), np.float32), scales, group_size=8)
    with pytest.raises(SettingError, match="from 8 to 8 do not fit into 4 bits"):
        pack_int4(np.full((8, 3), 8, np.int8), scales, group_size=8)
    with pytest.raises(ShapeError, match="two axes"):
        pack_int4(np.ones(8, np.int8), scales, group_size=8)
    with pytest.raises(SettingError, match="groups of 12 inputs"):
        pack_int4(np.ones((8, 3), np.int8), scales, group_size=12)
    with pytest.raises(ShapeError, match=r"need scales of shape \(2, 3\), not \(1, 3\)"):
        pack_int4(np.ones((9, 3), np.int8), scales, group_size=8)
