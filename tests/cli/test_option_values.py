import argparse

import pytest

from tinytorch.cli import options as read
from tinytorch.errors import SettingError


@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        (read.number, "-1.5", -1.5),
        (read.share, "5%", 0.05),
        (read.share, "0", 0.0),
        (read.positive_share, "0.05", 0.05),
        (read.confidence, "99%", 0.99),
        (read.margin, "5%", 0.05),
        (read.margin, "5", 5.0),
        (read.seconds, "0.5", 0.5),
        (read.positive_count, "3", 3),
        (read.variable, "A=b=c", ("A", "b=c")),
        (read.variable, "A=", ("A", "")),
    ],
)
def test_what_fits_is_read(value, text, expected):
    assert value(text) == expected


@pytest.mark.parametrize(
    ("value", "text", "message"),
    [
        (read.number, "soon", "'soon'"),
        (read.number, "nan", "'nan'"),
        (read.share, "5", "5 percent is '5%'"),
        (read.positive_share, "0", "'0'"),
        (read.confidence, "5%", "'5%'"),
        (read.margin, "-1", "'-1'"),
        (read.margin, "inf", "'inf'"),
        (read.seconds, "0", "'0'"),
        (read.seconds, "5%", "'5%'"),
        (read.positive_count, "0", "'0'"),
        (read.positive_count, "1.5", "is not a positive integer"),
        (read.variable, "X", "'X' is not NAME=VALUE"),
        (read.variable, "=1", "NAME=VALUE"),
    ],
)
def test_anything_else_is_refused_with_what_was_written(value, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        value(text)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["8,16,32", "8 16 32", "8, 16,  32"])
def test_sizes_are_separated_by_commas_or_spaces(text):
    assert read.whole_numbers(text) == (8, 16, 32)


def test_no_sizes_are_none():
    assert read.whole_numbers(None) is None


@pytest.mark.parametrize("text", ["", ",", "8,x", "-1", "1.5"])
def test_what_are_no_sizes_is_refused_as_it_was_written(text):
    with pytest.raises(SettingError, match="--sizes"):
        read.whole_numbers(text)
