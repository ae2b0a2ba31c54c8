import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.kernels.reference_quantized import (
    check_codes,
    code_bytes,
    codebook_lookup,
    codebook_lookup_backward,
    pack_codes,
    unpack_codes,
)
from tinytorch.errors import DTypeError, SettingError, ShapeError

entries_and_codes = st.integers(1, 256).flatmap(
    lambda entries: st.tuples(st.just(entries), st.lists(st.integers(0, entries - 1), max_size=40))
)


@given(entries_and_codes)
def test_codes_come_back_as_they_were_packed(drawn):
    entries, codes = drawn[0], np.array(drawn[1], np.int64)
    packed = pack_codes(codes, entries)
    assert packed.dtype == np.uint8
    assert packed.nbytes == code_bytes(codes.size, entries)
    back = unpack_codes(packed, size=codes.size, entries=entries)
    np.testing.assert_array_equal(back, codes)


def test_sixteen_entries_take_half_a_byte_each():
    assert code_bytes(10, 16) == 5
    assert code_bytes(11, 16) == 6
    assert code_bytes(11, 17) == 11


@given(entries_and_codes)
def test_looking_up_is_indexing_and_its_gradient_the_sum_over_each_code(drawn):
    entries, codes = drawn[0], np.array(drawn[1], np.int64)
    rng = np.random.default_rng(entries)
    codebook, grad = rng.normal(size=entries), rng.normal(size=codes.size)
    packed = pack_codes(codes, entries)
    values = codebook_lookup(packed, codebook, size=codes.size)
    np.testing.assert_array_equal(values, codebook[codes])
    slopes = codebook_lookup_backward(grad, packed, entries=entries)
    expected = [grad[codes == entry].sum() for entry in range(entries)]
    np.testing.assert_allclose(slopes, expected, rtol=0, atol=1e-14 * max(1, codes.size))


def test_what_cannot_be_packed_says_why():
    with pytest.raises(SettingError, match="codes from 0 to 4 do not fit a codebook of 4"):
        pack_codes(np.array([0, 4]), 4)
    with pytest.raises(SettingError, match="1 to 256 entries, not 300"):
        pack_codes(np.array([0]), 300)
    with pytest.raises(DTypeError, match="integers, got float64"):
        pack_codes(np.array([0.5]), 4)


def test_codes_of_another_size_are_an_error():
    with pytest.raises(
        ShapeError, match=r"10 codes of 16 entries take 5 bytes in a row, not \(4,\)"
    ):
        codebook_lookup(np.zeros(4, np.uint8), np.zeros(16), size=10)


@given(entries_and_codes)
def test_packed_codes_are_good(drawn):
    entries, codes = drawn[0], np.array(drawn[1], np.int64)
    packed = pack_codes(codes, entries)
    assert check_codes(packed, size=codes.size, entries=entries) is None


@pytest.mark.parametrize(("entries", "code"), [(5, 15), (17, 255)])
def test_codes_beyond_the_codebook_are_refused(entries, code):
    packed = np.full(code_bytes(7, entries), 255, np.uint8)
    with pytest.raises(SettingError, match=f"a code of {code} among the 7 .* only {entries} ent"):
        check_codes(packed, size=7, entries=entries)


def test_the_last_half_byte_of_an_odd_number_of_codes_means_nothing():
    packed = pack_codes(np.array([4, 0, 4]), 5) | np.array([0, 0xF0], np.uint8)
    assert check_codes(packed, size=3, entries=5) is None


def test_codes_of_another_type_or_size_are_refused():
    with pytest.raises(DTypeError, match="packed codes are uint8, got int64"):
        check_codes(np.zeros(4, np.int64), size=4, entries=20)
    with pytest.raises(ShapeError, match="take 5 bytes"):
        check_codes(np.zeros(4, np.uint8), size=5, entries=20)
