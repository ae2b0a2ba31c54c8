"""How arrays are kept in a weights file: each encoding is a row of the table `ENCODINGS`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.errors import DTypeError
from tinytorch.formats.affine import QuantizedArray
from tinytorch.formats.coded_encodings import CODED
from tinytorch.formats.encoding import MAIN, Encoded, Encoding, Shape
from tinytorch.formats.quantized_encodings import QUANTIZED
from tinytorch.formats.tensor_file import DTYPES, TensorSpec, code_of

__all__ = ["ENCODINGS", "MAIN", "Encoded", "Encoding"]


def _encode_plain(array: Any) -> Encoded:
    array = np.asarray(array)
    code = code_of(array.dtype)
    if code is None:
        raise DTypeError(f"numbers of {array.dtype} cannot be stored; convert them, say to float32")
    return Encoded(array.shape, "" if code == "F32" else code, {MAIN: array})


def _plain_layout(shape: Shape, settings: str) -> dict[str, TensorSpec]:
    if settings and settings not in DTYPES:
        raise ValueError(f"{settings!r} is no dtype")
    return {MAIN: TensorSpec(settings or "F32", shape)}


def _decode_plain(encoded: Encoded) -> Array:
    return encoded.parts[MAIN]


def _is_plain(array: Any) -> bool:
    return not isinstance(array, QuantizedArray)


ENCODINGS: dict[str, Encoding] = {
    **QUANTIZED,
    "plain": Encoding(_is_plain, _encode_plain, _plain_layout, _decode_plain),
    **CODED,
}
"""By their names in the file. The first one that accepts an array keeps it, in a compact file the
one that takes the fewest bytes."""
