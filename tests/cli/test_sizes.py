import pytest

from tinytorch.cli.sizes import whole_numbers
from tinytorch.errors import SettingError


@pytest.mark.parametrize("text", ["8,16,32", "8 16 32", "8, 16,  32"])
def test_numbers_are_separated_by_commas_or_spaces(text):
    assert whole_numbers(text) == (8, 16, 32)


def test_nothing_given_is_nothing():
    assert whole_numbers(None) is None


@pytest.mark.parametrize("text", ["", ",", "8,x", "-1", "1.5"])
def test_anything_else_is_refused_as_it_was_written(text):
    with pytest.raises(SettingError, match="give whole numbers, such as 8,16,32"):
        whole_numbers(text)
