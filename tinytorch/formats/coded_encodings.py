"""Arrays in as few bytes as their entropy allows, bit for bit: for compact weights files.

Each array is one part of coded bytes. `symbol_coding.py` makes them from a mask of what is not zero
and a small number for each of the others; what has no pattern, such as scales or the lower bits of
floats, is carried along as it is.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.formats.affine import QuantizedArray, scale_shape
from tinytorch.formats.encoding import MAIN, Encoded, Encoding, Shape
from tinytorch.formats.quantized_encodings import (
    check_quantized,
    has_bits,
    scheme_of,
    scheme_words,
)
from tinytorch.formats.symbol_coding import decode_symbols, encode_symbols
from tinytorch.formats.tensor_file import DTYPES, TensorSpec, code_of

__all__ = ["CODED"]

MOST_ELEMENTS_PER_BYTE = 1024
"""As in deflate. A small file cannot make its reader fill the memory with zeros."""

MINUS, MINUS_ZERO = "minus", 1
"""The setting that a leading byte 0 is minus zero, and its bits when they are rotated. Weights that
were multiplied with a mask have many of them."""

LARGEST_CODEBOOK = 256
CODEBOOK_PROBE = 4096
"""Elements whose different values are counted before those of the whole array."""


def _coded(shape: Shape, words: str, content: bytes) -> Encoded:
    """Give coded bytes as the only part, with their number as the last setting."""
    content = content.ljust(math.ceil(math.prod(shape) / MOST_ELEMENTS_PER_BYTE), b"\0")
    settings = f"{words} {len(content)}".lstrip()
    return Encoded(shape, settings, {MAIN: np.frombuffer(content, np.uint8)})


def _coded_layout(shape: Shape, settings: str) -> tuple[str, dict[str, TensorSpec]]:
    """Give the settings without the number of coded bytes, and what the part looks like."""
    words, _, length = settings.rpartition(" ")
    if not re.fullmatch("[0-9]{1,18}", length):
        raise ValueError(f"{settings!r} does not end with the number of coded bytes")
    if math.prod(shape) > MOST_ELEMENTS_PER_BYTE * int(length):
        raise ValueError(f"{length} coded bytes hold no array of shape {shape}")
    return words, {MAIN: TensorSpec("U8", (int(length),))}


def _cut(carried: bytes, length: int) -> bytes:
    """Give the first of the carried bytes; only zeros may follow them."""
    if len(carried) < length or any(carried[length:]):
        raise ValueError(f"{len(carried)} bytes are carried where {length} should be")
    return carried[:length]


# ---------------------------------------------------------------- quantized arrays


def _encode_quantized(array: QuantizedArray) -> Encoded:
    check_quantized(array)
    scheme = array.scheme
    numbers = np.ascontiguousarray(array.values).view(np.uint8) & (2**scheme.bits - 1)
    carried = array.scale.astype("<f4").tobytes()
    if not scheme.symmetric:
        carried += array.zero_point.astype(np.int8).tobytes()
    mask = (numbers != 0).reshape(array.values.shape)
    content = encode_symbols(mask, numbers[numbers != 0], bits=scheme.bits, carried=carried)
    return _coded(array.values.shape, scheme_words(scheme), content)


def _quantized_layout(bits: int, shape: Shape, settings: str) -> dict[str, TensorSpec]:
    words, specs = _coded_layout(shape, settings)
    scheme = scheme_of(bits, words)
    if scheme.group_size is not None and shape and shape[0] % scheme.group_size:
        raise ValueError(f"groups of {scheme.group_size} do not divide {shape[0]} rows")
    scale_shape(shape, scheme)
    return specs


def _decode_quantized(bits: int, encoded: Encoded) -> QuantizedArray:
    scheme = scheme_of(bits, encoded.settings.rpartition(" ")[0])
    scales = TensorSpec("F32", scale_shape(encoded.shape, scheme))
    mask, symbols, carried = decode_symbols(encoded.parts[MAIN].tobytes(), encoded.shape, bits=bits)
    count = math.prod(scales.shape)
    carried = _cut(carried, scales.nbytes + (0 if scheme.symmetric else count))
    scale, zero_point = scales.empty(), np.zeros(scales.shape, np.int32)
    scale.reshape(-1)[:] = np.frombuffer(carried, "<f4", count)
    if not scheme.symmetric:
        zero_point.reshape(-1)[:] = np.frombuffer(carried, np.int8, count, scales.nbytes)
    values = np.zeros(encoded.shape, np.int8)
    sign = np.uint8(1 << bits - 1)
    values[mask] = ((symbols ^ sign) - sign).view(np.int8)
    return QuantizedArray(values, scale, zero_point, scheme)


# ---------------------------------------------------------------- floats and other numbers


def _is_storable(array: Any) -> bool:
    return not isinstance(array, QuantizedArray) and code_of(np.asarray(array).dtype) is not None


def _patterns(array: Any) -> tuple[Array, str]:
    """Give the bits of each element as a whole number, and the code of the dtype."""
    code = code_of(np.asarray(array).dtype)
    assert code is not None
    own = np.array(array, DTYPES[code], order="C")
    return own.view(_unsigned(code)), code


def _unsigned(code: str) -> np.dtype[Any]:
    return np.dtype(f"<u{DTYPES[code].itemsize}")


def _rotated(patterns: Array, code: str, places: int) -> Array:
    """Rotate the bits of floats to the left, so that the sign is the last and exponents lead."""
    if DTYPES[code].kind != "f":
        return patterns
    bits = 8 * patterns.itemsize
    one, others = (patterns.dtype.type(count % bits) for count in (places, -places))
    return patterns << one | patterns >> others


def _encode_plain(array: Any) -> Encoded:
    patterns, code = _patterns(array)
    mask = patterns != 0
    rotated = _rotated(patterns[mask], code, 1).astype(_unsigned(code))
    planes = rotated.view(np.uint8).reshape(-1, patterns.itemsize)
    leading = planes[:, -1]
    words = [] if code == "F32" else [code]
    if DTYPES[code].kind == "f" and np.array_equal(leading == 0, rotated == MINUS_ZERO):
        words.append(MINUS)
        planes = planes[leading != 0]
    content = encode_symbols(
        mask, leading, bits=_leading_bits(code), carried=planes[:, :-1].tobytes()
    )
    return _coded(mask.shape, " ".join(words), content)


def _leading_bits(code: str) -> int:
    return 1 if code == "BOOL" else 8


def _plain_words(words: str) -> tuple[str, bool]:
    """Give the dtype, and whether the leading byte 0 means minus zero."""
    code = words.removesuffix(MINUS).rstrip() or "F32"
    is_minus = words.endswith(MINUS)
    if code not in DTYPES or (is_minus and DTYPES[code].kind != "f"):
        raise ValueError(f"{words!r} is no dtype")
    return code, is_minus


def _plain_layout(shape: Shape, settings: str) -> dict[str, TensorSpec]:
    words, specs = _coded_layout(shape, settings)
    _plain_words(words)
    return specs


def _decode_plain(encoded: Encoded) -> Array:
    code, is_minus = _plain_words(encoded.settings.rpartition(" ")[0])
    mask, symbols, carried = decode_symbols(
        encoded.parts[MAIN].tobytes(), encoded.shape, bits=_leading_bits(code)
    )
    planes = np.zeros((symbols.size, DTYPES[code].itemsize), np.uint8)
    planes[:, -1] = symbols
    carriers = symbols != 0 if is_minus else np.ones(symbols.size, np.bool_)
    shape = int(np.count_nonzero(carriers)), planes.shape[1] - 1
    planes[carriers, :-1] = np.frombuffer(_cut(carried, math.prod(shape)), np.uint8).reshape(shape)
    rotated = planes.reshape(-1).view(_unsigned(code))
    rotated[~carriers] = MINUS_ZERO
    array = np.zeros(encoded.shape, DTYPES[code])
    array.view(_unsigned(code))[mask] = _rotated(rotated, code, -1)
    return array


# ---------------------------------------------------------------- arrays of few different values


def _has_few_values(array: Any) -> bool:
    if not _is_storable(array) or not np.size(array) or np.asarray(array).dtype == np.bool_:
        return False
    patterns = _patterns(array)[0].reshape(-1)
    return all(
        np.unique(some).size <= LARGEST_CODEBOOK for some in (patterns[:CODEBOOK_PROBE], patterns)
    )


def _encode_codebook(array: Any) -> Encoded:
    patterns, code = _patterns(array)
    book, places = np.unique(patterns, return_inverse=True)
    numbers = places.astype(np.uint8).reshape(patterns.shape)
    mask = numbers != 0
    content = encode_symbols(
        mask,
        numbers[mask],
        bits=_number_bits(book.size),
        carried=book.astype(_unsigned(code)).tobytes(),
    )
    words = [] if code == "F32" else [code]
    return _coded(patterns.shape, " ".join([*words, str(book.size)]), content)


def _number_bits(size: int) -> int:
    return (size - 1).bit_length()


def _codebook_words(words: str) -> tuple[str, int]:
    """Give the dtype and the number of different values."""
    code, _, size = words.rpartition(" ")
    if code and (code not in DTYPES or code == "BOOL"):
        raise ValueError(f"{code!r} is no dtype of a codebook")
    if not re.fullmatch("[0-9]{1,3}", size) or not 1 <= int(size) <= LARGEST_CODEBOOK:
        raise ValueError(f"{size!r} is no size of a codebook; it has 1 to {LARGEST_CODEBOOK}")
    return code or "F32", int(size)


def _codebook_layout(shape: Shape, settings: str) -> dict[str, TensorSpec]:
    words, specs = _coded_layout(shape, settings)
    _codebook_words(words)
    return specs


def _decode_codebook(encoded: Encoded) -> Array:
    code, size = _codebook_words(encoded.settings.rpartition(" ")[0])
    mask, symbols, carried = decode_symbols(
        encoded.parts[MAIN].tobytes(), encoded.shape, bits=_number_bits(size)
    )
    book = np.frombuffer(_cut(carried, size * DTYPES[code].itemsize), _unsigned(code))
    if symbols.max(initial=0) >= size:
        raise ValueError(f"number {symbols.max()} of a codebook of {size}")
    array = np.empty(encoded.shape, DTYPES[code])
    patterns = array.view(_unsigned(code))
    patterns[...] = book[0]
    patterns[mask] = book[symbols]
    return array


def _coded_quantized(bits: int) -> Encoding:
    return Encoding(
        accepts=partial(has_bits, bits),
        encode=_encode_quantized,
        layout=partial(_quantized_layout, bits),
        decode=partial(_decode_quantized, bits),
    )


CODED = {
    "coded8": _coded_quantized(8),
    "coded4": _coded_quantized(4),
    "coded": Encoding(_is_storable, _encode_plain, _plain_layout, _decode_plain),
    "codebook": Encoding(_has_few_values, _encode_codebook, _codebook_layout, _decode_codebook),
}
"""The encodings of compact files, by their names there."""
