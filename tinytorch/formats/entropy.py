"""Entropy coding: symbols that are more or less likely, in as few bits as they need."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import numpy as np

from tinytorch.core.kernels.backend import Array
from tinytorch.errors import DTypeError
from tinytorch.formats.affine import QuantizedArray, scale_shape
from tinytorch.formats.encodings import (
    MAIN,
    Encoded,
    Encoding,
    check_quantized,
    has_bits,
    scheme_of,
    scheme_words,
)
from tinytorch.formats.encodings import Shape as EncodingShape
from tinytorch.formats.tensor_file import DTYPES, TensorSpec, code_of

# ---------------------------------------------------------------- what a file must at least hold:
# the entropy of the values of an array

BITS_OF_BYTE = 8


def entropy_bytes(values: Any) -> float:
    """Compute the zeroth-order entropy of an array in bytes: n values, -log2 of its share for each.

    No code that knows how often each value occurs, but nothing about the order, is shorter on
    average. What the shares themselves take is not counted. For a pruned array it is the entropy of
    the mask plus that of the values that are left. Floats count as different if any bit differs.

    >>> entropy_bytes([0, 0, 0, 1] * 100)
    40.56390622295664
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"an array of {array.dtype} has no entropy here; give numbers or truths")
    if array.dtype.kind == "f":
        array = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    counts = np.unique(array, return_counts=True)[1]
    return float(np.sum(counts * np.log2(array.size / counts))) / BITS_OF_BYTE


# ---------------------------------------------------------------- bits with known chances as
# bytes: range ANS in lanes, within a byte per lane of the entropy
#
# The coder is a stack (J. Duda, Asymmetric numeral systems, 2013): what is encoded last is decoded
# first, so the encoder collects all bits and works backwards. Lanes are independent states that
# take bits in turn, so that NumPy works on all of them at once; they share one row of words.
#
# A state begins with 16 bits of its own choice. They carry bytes that had to be stored anyway, such
# as scales, instead of nothing: a lane would cost three bytes otherwise.

CHANCE_BITS = 14
CHANCES = 1 << CHANCE_BITS
"""A chance is a whole number of these, at least one and less than all."""

WORD_BITS = 16
LOWEST_STATE = 1 << WORD_BITS
"""States lie between this and its square."""

BYTES_PER_LANE = 100
"""A lane costs about a byte: this keeps that near one percent of the file, and steps few."""

MOST_BITS_PER_LANE = 8192
"""So many bits at most take turns in a lane, unless there are the most lanes. Bits that are nearly
certain take no bytes, but each turn takes time: a small file must not keep its reader busy."""

MOST_LANES = 4096
FIRST_STATE_BYTE = 1  # after the number of lanes
STATE = np.dtype("<u4")
WORD = np.dtype("<u2")

# States are numbers of 32 bits, and so is all that meets them, so that no step makes wider ones.
FULL_SHIFT = np.uint32(2 * WORD_BITS - CHANCE_BITS)
WORD_SHIFT = np.uint32(WORD_BITS)
CHANCE_SHIFT = np.uint32(CHANCE_BITS)
SLOT_BITS = np.uint32(CHANCES - 1)
ALL_CHANCES = np.uint32(CHANCES)

COSTS = -np.log2(np.maximum(np.arange(CHANCES), 1) / CHANCES)
"""The bits that a bit takes, by its chance."""


class BitEncoder:
    """Collects bits with their chances, and gives the bytes for all of them."""

    def __init__(self) -> None:
        self._steps: list[tuple[Array, Array]] = []
        self._bits = 0

    def code(self, chances: Array, bits: Array) -> Array:
        """Encode bits (bool), each with its probability to be true, and return them."""
        self._steps.append((chances.astype(np.uint16), bits.copy()))
        self._bits += bits.size
        return bits

    def finish(self, carried: bytes = b"") -> bytes:
        """Return the bytes; they hold `carried`, too. What is missing for all lanes is zeros."""
        lanes = self._lanes(len(carried))
        carried = carried.ljust(lanes * WORD.itemsize, b"\0")
        states = np.frombuffer(carried, WORD, lanes).astype(np.uint32) + np.uint32(LOWEST_STATE)
        words: list[Array] = []
        for chances, bits in reversed(self._steps):
            sizes = _sizes(chances, bits).astype(np.uint32)
            starts = chances * ~bits  # of the slots of these bits
            for start in reversed(range(0, bits.size, lanes)):
                piece = slice(start, start + lanes)
                words.append(_push(states, sizes[piece], starts[piece]))
        words.reverse()
        return b"".join(
            [
                bytes([lanes.bit_length() - 1]),
                states.astype(STATE).tobytes(),
                np.concatenate([np.empty(0, WORD), *words]).tobytes(),
                carried[lanes * WORD.itemsize :],
            ]
        )

    def _lanes(self, carried: int) -> int:
        """Return the power of two that keeps the cost of lanes small, for `carried` bytes."""
        cost = sum(float(COSTS[_sizes(*step)].sum()) for step in self._steps)
        wanted = cost / 8 / BYTES_PER_LANE
        # Where nothing is left to carry, a lane costs three times as much.
        wanted = min(wanted, max(wanted / 3, carried / WORD.itemsize), MOST_LANES)
        lanes = 1 << int(math.log2(max(wanted, 1)))
        while lanes < MOST_LANES and self._bits > lanes * MOST_BITS_PER_LANE:
            lanes *= 2
        return lanes


def _sizes(chances: Array, bits: Array) -> Array:
    """Return how many of all chances each bit has."""
    # No np.where(): unpredictable bits make it slow, a product does not.
    return chances + (np.uint16(CHANCES) - 2 * chances) * ~bits


def _push(states: Array, sizes: Array, starts: Array) -> Array:
    """Push a bit onto each of the first states, in place; return the words that had to go.

    A bit is as many of the slots of a state as its chance says, from its start on.
    """
    own = states[: sizes.size]
    full = np.flatnonzero(own >> FULL_SHIFT >= sizes)
    large = own[full]
    own[full] = large >> WORD_SHIFT
    # Floats divide faster, and are exact here: a quotient below a whole number is so by more than
    # a 2**32th of itself.
    quotient = (own / sizes).astype(np.uint32)
    own += quotient * (ALL_CHANCES - sizes) + starts
    return large.astype(WORD)  # of each its lower half


class BitDecoder:
    """Decodes bits, for the same chances in the same order as the encoder had them.

    The bytes may be anything: then the bits are, or a ValueError says that the bytes are too few.
    """

    def __init__(self, content: bytes) -> None:
        lanes = 1 << content[0] if content and content[0] <= MOST_LANES.bit_length() else 0
        self._start = FIRST_STATE_BYTE + lanes * STATE.itemsize
        if not 1 <= lanes <= MOST_LANES or len(content) < self._start:
            raise ValueError(f"{len(content)} coded bytes do not begin with their lanes")
        self._content = content
        self._states = np.frombuffer(content, STATE, lanes, FIRST_STATE_BYTE).astype(np.uint32)
        rest = (len(content) - self._start) // WORD.itemsize
        self._words = np.frombuffer(content, WORD, rest, self._start)
        self._used = 0
        self._bits = 0

    def code(self, chances: Array, bits: Array) -> Array:
        """Fill `bits` (bool), each of which has its chance to be true, and give them back."""
        lanes = self._states.size
        self._bits += bits.size
        if lanes < MOST_LANES and self._bits > lanes * MOST_BITS_PER_LANE:
            raise ValueError(
                f"more than {lanes * MOST_BITS_PER_LANE:,} bits are coded in lanes for so many"
            )
        chances = chances.astype(np.uint32, copy=False)
        for start in range(0, bits.size, lanes):
            self._pop(chances[start : start + lanes], bits[start : start + lanes])
        return bits

    def finish(self) -> bytes:
        """Return the carried bytes, and the zeros behind them."""
        inside = self._states.astype(np.int64) - LOWEST_STATE
        if inside.min() < 0 or inside.max() >= LOWEST_STATE:
            raise ValueError("coded bytes do not end where they should")
        rest = self._content[self._start + self._used * WORD.itemsize :]
        return inside.astype(WORD).tobytes() + rest

    def _pop(self, chances: Array, bits: Array) -> None:
        states = self._states[: bits.size]
        slots = states & SLOT_BITS
        np.less(slots, chances, out=bits)
        parts = (states >> CHANCE_SHIFT) * chances  # of the state, for a true bit
        true = parts + slots
        states -= parts
        states -= chances  # for a false bit; whole numbers may wrap on the way
        true -= states
        true *= bits
        states += true
        empty = np.flatnonzero(states < LOWEST_STATE)
        if empty.size:
            words = self._words[self._used : self._used + empty.size]
            if words.size < empty.size:
                raise ValueError("coded bytes end too early")
            self._used += empty.size
            states[empty] = states[empty] << WORD_SHIFT | words


# ---------------------------------------------------------------- arrays of small whole numbers as
# bytes, below the entropy of their values where zeros cluster
#
# A mask of what is not zero comes first, then the bits of the others, the highest first. The chance
# of each bit is learned from the bits before it in the same context, so no table of frequencies is
# stored. A bit of a number has the higher bits of the number as its context. A bit of the mask has
# the one above it, and how many there are in the row above: in a pruned layer, zeros come in rows
# and columns (the border of an image, say).
#
# One walk serves both ways: the encoder hands the bits on, the decoder fills them in.

FIRST_PIECE, GROWTH, LARGEST_PIECE = 8, 4, 1 << 16
"""Chances are learned anew after each piece of bits: this many, a quarter of those before, ..."""

BAND_ELEMENTS, MOST_BANDS = 128, 1024
"""Rows far from each other are coded together, this many elements at least, in this many steps."""

DENSITIES = np.array([1, 4, 8, 16, 32])
"""Rows with more elements than this in 64 have another context."""

Coder = BitEncoder | BitDecoder
Shape = tuple[int, ...]


def encode_symbols(mask: Array, symbols: Array, *, bits: int, carried: bytes) -> bytes:
    """Encode a mask (bool, of any shape) and a symbol of `bits` bits for each true.

    The bytes hold `carried`, too, perhaps with zeros behind it.
    """
    coder = BitEncoder()
    _code_mask(coder, mask.reshape(_rows_of(mask.shape)))
    _code_symbols(coder, symbols, bits)
    return coder.finish(carried)


def decode_symbols(content: bytes, shape: Shape, *, bits: int) -> tuple[Array, Array, bytes]:
    """Return mask, symbols (uint8) and carried bytes; raise ValueError where bytes are too few."""
    coder = BitDecoder(content)
    mask = np.zeros(shape, np.bool_)
    _code_mask(coder, mask.reshape(_rows_of(shape)))
    symbols = np.zeros(np.count_nonzero(mask), np.uint8)
    _code_symbols(coder, symbols, bits)
    return mask, symbols, coder.finish()


def _rows_of(shape: Shape) -> Shape:
    """Return the shape of an array as a matrix: all axes but the first are one."""
    count = math.prod(shape)
    return (shape[0], count // shape[0]) if count and shape else (count, 1)


def _code_mask(coder: Coder, mask: Array) -> None:
    """Code a matrix of bits, row by row; of a large or narrow one several rows at once."""
    rows, width = mask.shape
    together = math.ceil(max(BAND_ELEMENTS, mask.size / MOST_BANDS) / width)
    height = math.ceil(rows / together)
    model = _Model(coder, 2 * (DENSITIES.size + 1))
    above = np.zeros((math.ceil(rows / max(height, 1)), width), np.bool_)
    for row in range(height):
        band = mask[row::height]  # (rows that are coded together, width)
        above = above[: len(band)]
        counts = np.count_nonzero(above, axis=1, keepdims=True)
        density = np.count_nonzero(64 * counts >= width * DENSITIES, axis=1, keepdims=True)
        bits = band.reshape(-1)
        model.code((2 * density + above).reshape(-1), bits)
        above = band[...] = bits.reshape(band.shape)


def _code_symbols(coder: Coder, symbols: Array, bits: int) -> None:
    """Code symbols bit by bit: first the highest of all of them."""
    prefix = np.zeros(symbols.size, np.uint8)
    for place in reversed(range(bits)):
        model = _Model(coder, 1 << bits - 1 - place)
        chosen = (symbols >> place & 1).astype(np.bool_)
        model.code(prefix, chosen)
        prefix = 2 * prefix + chosen
    symbols[:] = prefix


class _Model:
    """Chances of bits, learned in each context from those that came before."""

    def __init__(self, coder: Coder, contexts: int) -> None:
        self._coder = coder
        self._ones = np.zeros(contexts, np.int64)
        self._all = np.zeros(contexts, np.int64)
        self._seen = 0

    def code(self, contexts: Array, bits: Array) -> None:
        """Code bits, each in its context."""
        start = 0
        while start < bits.size:
            length = min(max(FIRST_PIECE, self._seen // GROWTH), LARGEST_PIECE)
            piece = slice(start, start + length)
            self._code_piece(contexts[piece], bits[piece])
            start += length

    def _code_piece(self, contexts: Array, bits: Array) -> None:
        # Krichevsky and Trofimov's estimate, in whole numbers: the same on every machine.
        chances = (2 * self._ones + 1) * CHANCES // (2 * self._all + 2)
        np.clip(chances, 1, CHANCES - 1, out=chances)
        contexts = contexts.astype(np.intp, copy=False)
        bits[:] = self._coder.code(chances.astype(np.uint16)[contexts], bits)
        found = np.bincount(2 * contexts + bits, minlength=2 * self._all.size).reshape(-1, 2)
        self._all += found.sum(axis=1)
        self._ones += found[:, 1]
        self._seen += bits.size


# ---------------------------------------------------------------- arrays in as few bytes as their
# entropy allows, bit for bit: for compact weights files
#
# Each array is one part of coded bytes. The coder above makes them from a mask of what is not
# zero and a small number for each of the others; what has no pattern, such as scales or the lower
# bits of floats, is carried along uncoded.

MOST_ELEMENTS_PER_BYTE = 1024
"""As in deflate. A small file cannot make its reader fill the memory with zeros."""

MINUS, MINUS_ZERO = "minus", 1
"""The setting that a leading byte 0 is minus zero, and its bits when they are rotated. Weights that
were multiplied with a mask have many of them."""

LARGEST_CODEBOOK = 256
CODEBOOK_PROBE = 4096
"""Elements whose different values are counted before those of the whole array."""


def _coded(shape: EncodingShape, words: str, content: bytes) -> Encoded:
    """Return coded bytes as the only part, with their number as the last setting."""
    content = content.ljust(math.ceil(math.prod(shape) / MOST_ELEMENTS_PER_BYTE), b"\0")
    settings = f"{words} {len(content)}".lstrip()
    return Encoded(shape, settings, {MAIN: np.frombuffer(content, np.uint8)})


def _coded_layout(shape: EncodingShape, settings: str) -> tuple[str, dict[str, TensorSpec]]:
    """Return the settings without the number of coded bytes, and the layout of the part."""
    words, _, length = settings.rpartition(" ")
    if not re.fullmatch("[0-9]{1,18}", length):
        raise ValueError(f"{settings!r} does not end with the number of coded bytes")
    if math.prod(shape) > MOST_ELEMENTS_PER_BYTE * int(length):
        raise ValueError(f"{length} coded bytes hold no array of shape {shape}")
    return words, {MAIN: TensorSpec("U8", (int(length),))}


def _cut(carried: bytes, length: int) -> bytes:
    """Return the first of the carried bytes; only zeros may follow them."""
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


def _quantized_layout(bits: int, shape: EncodingShape, settings: str) -> dict[str, TensorSpec]:
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
    """Return the bits of each element as an integer, and the code of the dtype."""
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


def _plain_words(written: str) -> tuple[str, bool]:
    """Return the dtype, and whether the leading byte 0 means minus zero."""
    code = written.removesuffix(MINUS).rstrip() or "F32"
    is_minus = written.endswith(MINUS)
    if code not in DTYPES or (is_minus and DTYPES[code].kind != "f"):
        raise ValueError(f"{written!r} is no dtype")
    return code, is_minus


def _plain_layout(shape: EncodingShape, settings: str) -> dict[str, TensorSpec]:
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
    """Return the dtype and the number of different values."""
    code, _, size = words.rpartition(" ")
    if code and (code not in DTYPES or code == "BOOL"):
        raise ValueError(f"{code!r} is no dtype of a codebook")
    if not re.fullmatch("[0-9]{1,3}", size) or not 1 <= int(size) <= LARGEST_CODEBOOK:
        raise ValueError(f"{size!r} is no size of a codebook; it has 1 to {LARGEST_CODEBOOK}")
    return code or "F32", int(size)


def _codebook_layout(shape: EncodingShape, settings: str) -> dict[str, TensorSpec]:
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
