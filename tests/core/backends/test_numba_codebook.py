import numpy as np
import pytest
from compiled_checks import check_every_call
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba import int8 as numba_codebook
from tinytorch.core.kernels.reference_quantized import codebook_lookup, pack_codes
from tinytorch.errors import ShapeError


def test_it_looks_up_what_the_reference_looks_up():
    check_every_call(numba_codebook.CODEBOOK_KERNELS, "codebook_lookup")


@pytest.mark.parametrize("size", [1, 2, 8191, 8192, 8193, 100_001])
def test_every_code_is_looked_up_whatever_the_size(size):
    rng = np.random.default_rng(size)
    codes = pack_codes(rng.integers(0, 16, size), 16)
    codebook = rng.normal(size=16).astype(np.float32)
    found = numba_codebook.codebook_lookup(codes, codebook, size=size)
    np.testing.assert_array_equal(found, codebook_lookup(codes, codebook, size=size))
    assert found.dtype == np.float32


def test_a_code_without_an_entry_reads_nothing_outside_of_the_table():
    codes = pack_codes(np.array([0, 15]), 16)  # as in a damaged file
    found = numba_codebook.codebook_lookup(codes, np.array([2, 3], np.float32), size=2)
    np.testing.assert_array_equal(found, [2, np.nan])


def test_codes_of_another_size_are_an_error():
    with pytest.raises(ShapeError, match="10 codes of 16 entries take 5 bytes"):
        numba_codebook.codebook_lookup(np.zeros(4, np.uint8), np.zeros(16, np.float32), size=10)
