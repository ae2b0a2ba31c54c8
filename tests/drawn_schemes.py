"""Arrays with ways to quantize them, drawn by hypothesis."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from tinytorch.formats.affine import Scheme

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TAME = st.floats(-1e3, 1e3, width=32)
ARRAYS = arrays_of.arrays(
    np.float32, arrays_of.array_shapes(min_dims=0, max_dims=3), elements=NUMBERS
)
MATRICES = arrays_of.arrays(
    np.float32, st.tuples(st.integers(1, 12), st.integers(1, 6)), elements=NUMBERS
)
ROWS = arrays_of.arrays(np.float32, st.integers(1, 40), elements=NUMBERS)
BITS = st.sampled_from([8, 4])


@st.composite
def arrays_and_schemes(draw, arrays=ARRAYS):
    array = draw(arrays)
    axis = draw(st.none() | st.integers(-array.ndim, array.ndim - 1)) if array.ndim else None
    group_size = None
    if array.ndim == 2 and axis in (1, -1):
        divisors = [n for n in range(1, len(array) + 1) if len(array) % n == 0]
        group_size = draw(st.none() | st.sampled_from(divisors))
    return array, Scheme(draw(BITS), draw(st.booleans()), axis, group_size)
