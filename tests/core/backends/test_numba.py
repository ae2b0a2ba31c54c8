"""The compiled backend as a whole: every kernel against the reference, and what happens if not."""

import numpy as np
import pytest
from compiled_checks import check_every_call
from parts import require_part

require_part("numba")

from numba.core.errors import NumbaError, TypingError

from tinytorch.core.kernels import NUMPY, REFERENCE
from tinytorch.core.kernels import numba as compiled
from tinytorch.core.kernels.numba import COMPILED, NUMBA


@pytest.mark.parametrize("kind", sorted(COMPILED))
def test_a_kernel_computes_what_the_reference_computes(kind):
    check_every_call(NUMBA.kernels, kind)


def test_what_is_not_compiled_is_that_of_numpy():
    inherited = NUMBA.kernels.keys() - COMPILED.keys()
    assert inherited
    assert all(NUMBA.kernels[kind] is NUMPY.kernels[kind] for kind in inherited)
    assert NUMBA.kernels.keys() == REFERENCE.kernels.keys()


def test_a_kernel_that_cannot_be_compiled_is_told_and_computed_by_numpy():
    def broken(x, *, axis):
        raise TypingError("no such instruction")

    kernel = compiled._or_numpy("softmax", broken)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.warns(RuntimeWarning, match="'softmax' cannot be compiled here.*no such instr"):
        result = kernel(x, axis=-1)
    np.testing.assert_array_equal(result, NUMPY.kernels["softmax"](x, axis=-1))
    # told once; after that it is not even tried
    np.testing.assert_array_equal(kernel(x, axis=-1), result)


def test_other_errors_are_not_hidden():
    def strict(x):
        raise ValueError("a shape that does not fit")

    with pytest.raises(ValueError, match="does not fit"):
        compiled._or_numpy("relu", strict)(np.ones(3))
    assert not issubclass(ValueError, NumbaError)
