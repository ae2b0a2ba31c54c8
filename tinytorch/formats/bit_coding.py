"""Bits with known chances as bytes: range ANS in lanes, within a byte per lane of the entropy.

The coder is a stack (J. Duda, Asymmetric numeral systems, 2013): what is encoded last is decoded
first, so the encoder collects all bits and works backwards. Lanes are independent states that take
bits in turn, so that NumPy works on all of them at once; they share one row of words.

A state begins with 16 bits of its own choice. They carry bytes that had to be stored anyway, such
as scales, instead of nothing: a lane would cost three bytes otherwise.
"""

from __future__ import annotations

import math

import numpy as np

from tinytorch.core.backends.backend import Array

__all__ = ["CHANCES", "BitDecoder", "BitEncoder"]

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
        """Take bits (bool), each with its chance to be true, and give them back."""
        self._steps.append((chances.astype(np.uint16), bits.copy()))
        self._bits += bits.size
        return bits

    def finish(self, carried: bytes = b"") -> bytes:
        """Give the bytes; they hold `carried`, too. What is missing for all lanes is zeros."""
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
        """Give the power of two that keeps what lanes cost small, for so many carried bytes."""
        cost = sum(float(COSTS[_sizes(*step)].sum()) for step in self._steps)
        wanted = cost / 8 / BYTES_PER_LANE
        # Where nothing is left to carry, a lane costs three times as much.
        wanted = min(wanted, max(wanted / 3, carried / WORD.itemsize), MOST_LANES)
        lanes = 1 << int(math.log2(max(wanted, 1)))
        while lanes < MOST_LANES and self._bits > lanes * MOST_BITS_PER_LANE:
            lanes *= 2
        return lanes


def _sizes(chances: Array, bits: Array) -> Array:
    """Give how many of all chances each bit has, as it is."""
    # No np.where(): bits that nobody can foresee make it slow, a product does not.
    return chances + (np.uint16(CHANCES) - 2 * chances) * ~bits


def _push(states: Array, sizes: Array, starts: Array) -> Array:
    """Put a bit onto each of the first states, in place; returns the words that had to go.

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
    """Gives bits back, for the same chances in the same order as the encoder had them.

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
        """Give the carried bytes, and the zeros behind them."""
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
