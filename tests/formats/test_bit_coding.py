"""Coded bits: they come back, take what their chances say, and any bytes are safe to decode."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.formats import entropy as bit_coding
from tinytorch.formats.entropy import CHANCES, MOST_LANES, BitDecoder, BitEncoder


def random_steps(rng, lengths, chance=None):
    """Give chances and bits that follow them."""
    steps = []
    for length in lengths:
        chances = rng.integers(1, CHANCES, length) if chance is None else np.full(length, chance)
        steps.append((chances, rng.integers(0, CHANCES, length) < chances))
    return steps


def encoded(steps, carried=b""):
    coder = BitEncoder()
    for chances, bits in steps:
        np.testing.assert_array_equal(coder.code(chances, bits), bits)
    return coder.finish(carried)


def decoded(content, steps):
    coder = BitDecoder(content)
    bits = [coder.code(chances, np.empty(len(chances), np.bool_)) for chances, _ in steps]
    return bits, coder.finish()


def entropy_bits(steps):
    return sum(
        -math.log2((chance if bit else CHANCES - chance) / CHANCES)
        for chances, bits in steps
        for chance, bit in zip(chances.tolist(), bits.tolist(), strict=True)
    )


def slowly_decoded(content, steps):
    """Decode with whole numbers of Python, a bit at a time."""
    lanes = 1 << content[0]
    states = [
        int.from_bytes(content[place : place + 4], "little") for place in range(1, 4 * lanes, 4)
    ]
    place, result = 1 + 4 * lanes, []
    for chances, _ in steps:
        for number, chance in enumerate(chances.tolist()):
            lane = number % lanes
            quotient, slot = divmod(states[lane], CHANCES)
            bit = slot < chance
            result.append(bit)
            first, size = (0, chance) if bit else (chance, CHANCES - chance)
            states[lane] = quotient * size + slot - first
            if number % lanes == lanes - 1 or number == len(chances) - 1:
                for full in range(lane + 1):  # Words are read once all lanes had their turn.
                    if states[full] < 2**16:
                        word = int.from_bytes(content[place : place + 2], "little")
                        states[full], place = states[full] * 2**16 + word, place + 2
    carried = b"".join((state - 2**16).to_bytes(2, "little") for state in states)
    return result, carried + content[place:]


def one_number(steps):
    """Encode all bits as one whole number of any length, which is as short as it gets."""
    state = 1
    for chances, bits in reversed(steps):
        for chance, bit in zip(chances.tolist()[::-1], bits.tolist()[::-1], strict=True):
            first, size = (0, chance) if bit else (chance, CHANCES - chance)
            state = state // size * CHANCES + first + state % size
    return state


@pytest.mark.parametrize("lengths", [[], [0], [1], [3, 0, 200], [5000, 1, 77]])
@pytest.mark.parametrize("carried", [b"", b"abc", bytes(range(256)) * 20])
def test_bits_and_carried_bytes_come_back(lengths, carried, rng):
    steps = random_steps(rng, lengths)
    bits, rest = decoded(encoded(steps, carried), steps)
    for found, (_, wanted) in zip(bits, steps, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert rest.startswith(carried)
    assert not any(rest[len(carried) :])


@pytest.mark.parametrize("per_lane", [1, 5, 100])
def test_a_slow_decoder_finds_the_same(per_lane, rng, monkeypatch):
    monkeypatch.setattr(bit_coding, "BYTES_PER_LANE", per_lane)
    steps = random_steps(rng, [1, 40, 300, 7])
    content = encoded(steps, b"carried bytes")
    bits, rest = decoded(content, steps)
    assert slowly_decoded(content, steps) == (np.concatenate(bits).tolist(), rest)


@pytest.mark.parametrize("chance", [1, 30, 2000, CHANCES // 2, CHANCES - 1])
def test_the_length_is_that_of_one_long_number_and_a_byte_for_each_lane(chance, rng):
    steps = random_steps(rng, [3000], chance)
    content = encoded(steps, bytes(8192))
    shortest = one_number(steps).bit_length() / 8
    # A lane: 32 bits for a state of 16 to 32, a bit or less for what it carries, and one byte for
    # the number of lanes. Up to a tenth of a percent is lost where states are divided.
    assert len(content) - 8192 <= shortest * 1.001 + 1 + 2.2 * (1 << content[0])
    # The first bits find a small number, which divides badly: that costs as much as a chance has.
    assert shortest == pytest.approx(entropy_bits(steps) / 8, rel=0.001, abs=2)


def test_many_bits_have_many_lanes_and_few_have_one(rng):
    assert encoded(random_steps(rng, [10]))[0] == 0
    assert encoded(random_steps(rng, [100_000], CHANCES // 2), bytes(9999))[0] == 6
    assert encoded(random_steps(rng, [100_000], CHANCES // 2))[0] == 5


def test_what_is_nearly_certain_takes_hardly_anything():
    steps = [(np.full(16384, 1), np.zeros(16384, np.bool_))]
    assert len(encoded(steps)) <= 9


@settings(max_examples=200)
@given(content=st.binary(max_size=80), lengths=st.lists(st.integers(0, 50), max_size=5))
def test_any_bytes_decode_to_something_or_are_refused(content, lengths):
    steps = random_steps(np.random.default_rng(0), lengths)
    try:
        bits, _ = decoded(content, steps)
    except ValueError:
        return
    assert [len(each) for each in bits] == lengths


@pytest.mark.parametrize("content", [b"", b"\0", b"\0abc", b"\x0d" + bytes(40_000), b"\xff" * 99])
def test_bytes_without_their_lanes_are_refused(content):
    with pytest.raises(ValueError, match="do not begin with their lanes"):
        BitDecoder(content)


def test_bytes_that_end_too_early_or_go_on_are_refused(rng):
    steps = random_steps(rng, [500], CHANCES // 2)
    content = encoded(steps)
    with pytest.raises(ValueError, match="end too early"):
        decoded(content[:-4], steps)
    with pytest.raises(ValueError, match="do not end where they should"):
        decoded(content, steps[:0])


# ---------------------------------------------------------------- turns


def test_bits_that_take_no_bytes_have_lanes_all_the_same():
    steps = [(np.ones(length, np.int64), np.zeros(length, np.bool_)) for length in (8192, 1)]
    assert encoded(steps[:1])[0] == 0
    assert encoded(steps)[0] == 1
    assert encoded(steps[:1] * 100)[0] == 7


@pytest.mark.slow
def test_there_are_never_more_than_the_most_lanes():
    length = 8192 * MOST_LANES + 1
    steps = [(np.ones(length, np.uint16), np.zeros(length, np.bool_))]
    content = encoded(steps)
    assert 1 << content[0] == MOST_LANES
    assert not decoded(content, steps)[0][0].any()


def test_more_bits_than_lanes_may_hold_are_refused():
    """A valid file, but made so that its reader would be busy without end."""
    content = bytes([0]) + (2**32 - 1).to_bytes(4, "little")
    coder, chances = BitDecoder(content), np.ones(4096, np.uint16)
    for _ in range(2):
        assert not coder.code(chances, np.empty(4096, np.bool_)).any()
    with pytest.raises(ValueError, match="more than 8,192 bits"):
        coder.code(chances[:1], np.empty(1, np.bool_))
