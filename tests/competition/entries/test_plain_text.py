"""Text of others is shown for what it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.competition.entry import as_plain, find_hidden_letter, visible_path

HIDDEN = ["\x1b", "\r", "\x00", "\x7f", "\x9b", "\u202e", "\u2066", "\u200b", "\ufeff", "\u2028"]


@pytest.mark.parametrize("letter", HIDDEN)
def test_a_hidden_letter_is_found_and_replaced(letter):
    assert find_hidden_letter({"a": ["fine", {f"b{letter}": 1}]}) == ascii(letter)
    assert as_plain(f"a{letter}b") == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize("text", ["", "two\nlines\tand more", "Åsa 🐍 你好", "\u0645\u06cc\u200c"])
def test_letters_of_all_languages_stay(text):
    assert as_plain(text) == text
    assert find_hidden_letter([text]) is None


@given(st.text())
def test_what_was_replaced_is_plain(text):
    assert find_hidden_letter(as_plain(text)) is None


@given(st.text(st.characters()))
def test_a_path_is_one_visible_line(text):
    assert visible_path(text).isprintable()


def test_depth_is_no_problem():
    nested = "\x1b"
    for _ in range(100_000):
        nested = [nested]
    assert find_hidden_letter(nested) == ascii("\x1b")
