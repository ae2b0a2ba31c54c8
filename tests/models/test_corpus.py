"""The text, its split and the bound that a language model must beat."""

import math
from collections import Counter

import pytest

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.models.zoo import load_corpus, split_corpus, unigram_entropy


@pytest.fixture(scope="module")
def text() -> str:
    return load_corpus()


def test_text_is_ascii_with_a_small_character_set(text: str) -> None:
    assert text.isascii()
    assert len(set(text)) <= 80


def test_text_is_the_whole_novel(text: str) -> None:
    lines = text.splitlines()
    headings = [line for line in lines if line.startswith("Chapter ")]
    assert headings == [f"Chapter {number}" for number in range(1, 62)]
    assert lines[0] == "PRIDE AND PREJUDICE"
    assert text.endswith("had been the means of uniting them.\n")


def test_text_carries_no_boilerplate_and_no_italics_marks(text: str) -> None:
    assert "gutenberg" not in text.lower()
    assert "_" not in text


def test_a_paragraph_is_one_line_followed_by_one_blank_line(text: str) -> None:
    assert "\n\n\n" not in text
    paragraphs = text.removesuffix("\n").split("\n\n")
    assert all(paragraph == " ".join(paragraph.split()) for paragraph in paragraphs)


@pytest.mark.parametrize("held_out", [0.01, 0.1, 0.5, 0.9])
def test_split_is_a_partition_in_order(text: str, held_out: float) -> None:
    train, held = split_corpus(text, held_out)
    assert train + held == text
    # The cut moves by at most half of a paragraph; the longest has fewer than 4,000 characters.
    assert len(held) / len(text) == pytest.approx(held_out, abs=2_000 / len(text))


def test_split_cuts_between_paragraphs(text: str) -> None:
    train, held = split_corpus(text)
    assert train.endswith("\n\n")
    assert not held[0].isspace()


def test_split_of_two_paragraphs_holds_out_the_second() -> None:
    assert split_corpus("one\n\ntwo\n", 0.01) == ("one\n\n", "two\n")
    assert split_corpus("one\n\ntwo\n", 0.99) == ("one\n\n", "two\n")


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.1, 10.0, math.nan])
def test_fraction_outside_of_the_unit_interval_is_an_error(held_out: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1") as caught:
        split_corpus("one\n\ntwo\n", held_out)
    assert repr(held_out) in str(caught.value)


def test_text_of_one_paragraph_cannot_be_split() -> None:
    with pytest.raises(TinyTorchError, match="no blank line to cut at"):
        split_corpus("a single paragraph\n")


def test_entropy_equals_the_obvious_sum(text: str) -> None:
    expected = -sum(
        count / len(text) * math.log(count / len(text)) for count in Counter(text).values()
    )
    # Fewer than 80 terms in float64: rounding stays far below this.
    assert unigram_entropy(text) == pytest.approx(expected, rel=1e-12)


def test_entropy_of_english_lies_between_its_known_bounds(text: str) -> None:
    assert 2.5 < unigram_entropy(text) < 3.5


def test_entropy_of_equally_frequent_characters_is_the_log_of_their_number() -> None:
    assert unigram_entropy("abcd" * 10) == pytest.approx(math.log(4))
    assert unigram_entropy("aaaa") == 0.0


def test_entropy_of_nothing_is_an_error() -> None:
    with pytest.raises(SettingError, match="at least one character"):
        unigram_entropy("")
