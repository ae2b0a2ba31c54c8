"""An encoding is a row of functions; anything that offers them is one."""

import numpy as np

from tinytorch.formats.encodings import MAIN, Encoded, Encoding
from tinytorch.formats.tensor_file import TensorSpec


def test_a_new_encoding_is_a_row():
    row = Encoding(
        accepts=lambda array: not array.any(),
        encode=lambda array: Encoded(array.shape, "", {MAIN: np.empty(0, np.uint8)}),
        layout=lambda shape, settings: {MAIN: TensorSpec("U8", (0,))},
        decode=lambda encoded: np.zeros(encoded.shape),
    )
    encoded = row.encode(np.zeros((2, 3)))
    np.testing.assert_array_equal(row.decode(encoded), np.zeros((2, 3)))
