from fractions import Fraction
from numbers import Rational

import pytest

from tinytorch.errors import SettingError
from tinytorch.reporting.document import are_many, row_for

TABLE = {"numbers.Rational": "a ratio", "builtins.dict": "a dictionary"}


def test_a_row_is_found_by_the_type_or_one_that_it_derives_from():
    assert row_for({}, TABLE) == "a dictionary"
    assert issubclass(Fraction, Rational)
    assert row_for(Fraction(1, 2), TABLE) == "a ratio"


def test_the_first_of_several_decides():
    assert row_for([{}, {}], TABLE) == "a dictionary"


def test_a_word_is_one_thing_and_a_tuple_many():
    assert (are_many("word"), are_many(("a", "b"))) == (False, True)


def test_what_is_in_no_row_is_refused_with_what_is():
    with pytest.raises(SettingError, match="a str has no report; there is one for: Rational, dict"):
        row_for("word", TABLE)


def test_nothing_cannot_be_reported():
    with pytest.raises(SettingError, match="nothing to report"):
        row_for([], TABLE)
