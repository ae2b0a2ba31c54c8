import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.reporting.quantities import (
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
)

WRITERS = [bytes_text, count_text, factor_text, percent_text, rate_text, seconds_text]
PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.2e-10, "0.320 ns"),
        (8.5e-6, "8.50 us"),
        (2.69e-3, "2.69 ms"),
        (0.455, "455 ms"),
        (0.9999, "1.00 s"),
        (9.996e-4, "1.00 ms"),
        (12.345, "12.3 s"),
        (125, "2 min 5 s"),
        (7260, "2 h 1 min"),
        (-2.69e-3, "-2.69 ms"),
    ],
)
def test_times_have_the_unit_of_their_size(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (3_243_520, "3.09 MiB"),
        (1023.9 * 2**20, "1.00 GiB"),
        (65536, "64 KiB"),
    ],
)
def test_sizes_in_memory_are_powers_of_1024(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (640, "640"), (1.5, "1.50"), (109_184, "109k"), (55_123_968, "55.1M")],
)
def test_counts_are_exact_while_they_are_short(count, text):
    assert count_text(count) == text


def test_rates_carry_their_unit():
    assert rate_text(41.2e9) == "41.2 GFLOP/s"
    assert rate_text(48.57e9, "B/s") == "48.6 GB/s"
    assert rate_text(372.0, "examples/s") == "372 examples/s"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0.0%"),
        (1e-5, "<0.1%"),
        (-1e-5, ">-0.1%"),
        (0.2017, "20.2%"),
        (1.0, "100.0%"),
        (12.0, "1,200%"),
    ],
)
def test_a_tiny_share_is_not_shown_as_nothing(share, text):
    assert percent_text(share) == text


def test_factors_are_times():
    assert factor_text(1.2519) == "1.25x"
    assert factor_text(12345.0) == "12,345x"


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_not_known_is_a_dash(write):
    assert write(None) == write(math.nan) == "-"


@pytest.mark.parametrize("write", WRITERS)
def test_infinity_is_named(write):
    assert write(math.inf) == "inf"
    assert write(-math.inf) == "-inf"


@given(st.floats(min_value=1, max_value=9e17))
def test_three_digits_are_kept(number):
    text = count_text(number)
    digits, prefix = (text[:-1], text[-1]) if text[-1].isalpha() else (text, "")
    # Half of the third digit is at most 1/200 of the number.
    assert float(digits) * PREFIXES[prefix] == pytest.approx(number, rel=0.0051)
    assert len(digits.replace(".", "")) <= 4


@given(st.floats(min_value=1e-8, max_value=59))
def test_times_are_short_enough_for_a_table(seconds):
    assert len(seconds_text(seconds)) <= 7
