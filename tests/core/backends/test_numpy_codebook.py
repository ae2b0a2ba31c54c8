import numpy as np
import pytest
from compiled_checks import check_every_call

from tinytorch.core.kernels import numpy_quantized as numpy_codebook
from tinytorch.core.kernels.reference_quantized import pack_codes
from tinytorch.errors import ShapeError


def test_it_looks_up_what_the_reference_looks_up():
    check_every_call(numpy_codebook.CODEBOOK_KERNELS, "codebook_lookup")


def test_a_code_without_an_entry_gives_no_plausible_number():
    codes = pack_codes(np.array([0, 15]), 16)  # as in a damaged file
    found = numpy_codebook.codebook_lookup(codes, np.array([2.0, 3.0]), size=2)
    np.testing.assert_array_equal(found, [2.0, np.nan])


def test_codes_of_another_size_are_an_error():
    with pytest.raises(ShapeError, match="10 codes of 16 entries take 5 bytes"):
        numpy_codebook.codebook_lookup(np.zeros(4, np.uint8), np.zeros(16), size=10)
