"""The text, its split and the bound that a language model must beat."""

import math

import pytest

from tinytorch.errors import SettingError, TinyTorchError
from tinytorch.models.zoo import load_corpus, split_corpus


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
