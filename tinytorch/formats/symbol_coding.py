"""Arrays of small whole numbers as bytes, below the entropy of their values where zeros cluster.

A mask of what is not zero comes first, then the bits of the others, the highest first. The chance
of each bit is learned from the bits before it in the same context, so no table of frequencies is
stored. A bit of a number has the higher bits of the number as its context. A bit of the mask has
the one above it, and how many there are in the row above: in a pruned layer, zeros come in rows and
columns (the border of an image, say).

One walk serves both ways: the encoder hands the bits on, the decoder fills them in.
"""

from __future__ import annotations

import math

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.formats.bit_coding import CHANCES, BitDecoder, BitEncoder

__all__ = ["decode_symbols", "encode_symbols"]

FIRST_PIECE, GROWTH, LARGEST_PIECE = 8, 4, 1 << 16
"""Chances are learned anew after each piece of bits: so many, a quarter of those before, ..."""

BAND_ELEMENTS, MOST_BANDS = 128, 1024
"""Rows far from each other are coded together, so many elements at least, in so many steps."""

DENSITIES = np.array([1, 4, 8, 16, 32])
"""Rows with more elements than so many in 64 have another context."""

Coder = BitEncoder | BitDecoder
Shape = tuple[int, ...]


def encode_symbols(mask: Array, symbols: Array, *, bits: int, carried: bytes) -> bytes:
    """Give the bytes for a mask (bool, of any shape) and a symbol of `bits` bits for each true.

    The bytes hold `carried`, too, perhaps with zeros behind it.
    """
    coder = BitEncoder()
    _code_mask(coder, mask.reshape(_rows_of(mask.shape)))
    _code_symbols(coder, symbols, bits)
    return coder.finish(carried)


def decode_symbols(content: bytes, shape: Shape, *, bits: int) -> tuple[Array, Array, bytes]:
    """Give mask, symbols (uint8) and carried bytes; a ValueError where bytes are too few."""
    coder = BitDecoder(content)
    mask = np.zeros(shape, np.bool_)
    _code_mask(coder, mask.reshape(_rows_of(shape)))
    symbols = np.zeros(np.count_nonzero(mask), np.uint8)
    _code_symbols(coder, symbols, bits)
    return mask, symbols, coder.finish()


def _rows_of(shape: Shape) -> Shape:
    """Give the shape of an array as a matrix: all axes but the first are one."""
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
