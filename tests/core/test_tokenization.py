"""Tokenizers: any text comes back, and merges are the ones that a slow reader would choose."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.core.tensor import Tensor
from tinytorch.core.tokenization import WORDS, BPETokenizer, CharTokenizer
from tinytorch.errors import CheckpointError, SettingError, ShapeError, TokenError

SMALL_TEXT = st.text(alphabet="ab c\né😀", max_size=40)
TEXT = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox does not.\n"
    "Naïve café, 😀😀 and 東京 -- twice: 😀😀 and 東京.\n\n   the end   "
)


def slow_merges(text, vocab_size):
    """Learn merges the obvious way: count every pair anew before each merge."""
    words = [list(word.encode()) for word in WORDS.findall(text)]
    merges = []
    while 256 + len(merges) < vocab_size:
        counts = Counter(pair for ids in words for pair in pairwise(ids))
        # The most frequent pair; of equally frequent ones, the one with the smallest ids.
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        if best is None or counts[best] < 2:
            break
        merges.append(best)
        words = [slow_replace(ids, best, 255 + len(merges)) for ids in words]
    return merges


def slow_replace(ids, pair, new_id):
    for position in range(len(ids) - 1):
        if (ids[position], ids[position + 1]) == pair:
            rest = slow_replace(ids[position + 2 :], pair, new_id)
            return [*ids[:position], new_id, *rest]
    return ids


def slow_encode(text, merges):
    words = [list(word.encode()) for word in WORDS.findall(text)]
    for number, pair in enumerate(merges):
        words = [slow_replace(ids, pair, 256 + number) for ids in words]
    return [number for ids in words for number in ids]


# ---------------------------------------------------------------- byte pairs


@given(st.text())
def test_any_text_comes_back(text):
    for tokenizer in (BPETokenizer(), BPETokenizer.train(TEXT, 300)):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= number < tokenizer.vocab_size for number in ids)


@given(SMALL_TEXT)
def test_text_that_was_learned_from_comes_back(text):
    tokenizer = BPETokenizer.train(text, 280)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(SMALL_TEXT, st.integers(256, 275))
def test_merges_are_those_of_the_slow_way(text, vocab_size):
    assert BPETokenizer.train(text, vocab_size).merges == slow_merges(text, vocab_size)


@given(SMALL_TEXT)
def test_encoding_applies_the_merges_in_turn(text):
    merges = BPETokenizer.train(TEXT + "abab abc caca", 320).merges
    assert BPETokenizer(merges).encode(text) == slow_encode(text, merges)


def test_a_longer_text_gives_the_merges_of_the_slow_way():
    assert BPETokenizer.train(3 * TEXT, 330).merges == slow_merges(3 * TEXT, 330)


def test_training_gives_the_vocabulary_that_was_asked_for_and_shorter_texts():
    tokenizer = BPETokenizer.train(3 * TEXT, 320)
    assert tokenizer.vocab_size == 320
    assert len(tokenizer.encode(TEXT)) < 0.6 * len(TEXT.encode())


def test_training_stops_when_no_pair_occurs_twice():
    assert BPETokenizer.train("abc", 300).vocab_size == 256
    assert BPETokenizer.train("", 300).vocab_size == 256
    assert BPETokenizer.train("abab", 300).merges == [(97, 98)]


def test_merges_stay_inside_words():
    tokenizer = BPETokenizer.train("a b a b a b. a b.", 300)
    pieces = [tokenizer.decode([number]) for number in range(256, tokenizer.vocab_size)]
    assert pieces == [" b", " a"] or set(pieces) == {" a", " b"}


def test_bytes_that_are_no_text_become_the_replacement_character():
    tokenizer = BPETokenizer()
    assert tokenizer.decode([0xFF]) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.decode([104, 105, 0xE2, 0x82]) == "hi\N{REPLACEMENT CHARACTER}"
    assert tokenizer.decode(b"\xf0\x9f\x98\x80") == "😀"


@pytest.mark.parametrize("text", ["\ud800", "fine \udfff"])
def test_half_a_surrogate_pair_is_an_error_that_shows_it(text):
    for use in (BPETokenizer().encode, lambda t: BPETokenizer.train(t, 256)):
        with pytest.raises(TokenError, match=r"'\\ud[8f][0f][0f]' is half of a surrogate pair"):
            use(text)


@pytest.mark.parametrize(
    "merges", [[(97, 256)], [(97, 98), (258, 97)], [(-1, 97)], [(97, 98), (97, 300)]]
)
def test_a_merge_of_a_token_that_comes_later_is_an_error(merges):
    with pytest.raises(SettingError, match=r"merge \(-?\d+, \d+\) uses a token that comes later"):
        BPETokenizer(merges)


def test_a_vocabulary_without_room_for_the_bytes_is_an_error():
    with pytest.raises(SettingError, match=r"at least 256 \(the bytes\), got 255"):
        BPETokenizer.train("text", 255)


# ---------------------------------------------------------------- characters


@given(st.text(alphabet=st.characters()))
def test_text_of_the_alphabet_comes_back(text):
    tokenizer = CharTokenizer.train(text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text)
    assert tokenizer.vocab_size == len(set(text))


def test_ids_follow_the_order_of_the_characters():
    assert CharTokenizer("cabba").encode("abc") == [0, 1, 2]


def test_a_character_outside_of_the_alphabet_is_an_error_that_shows_it():
    with pytest.raises(TokenError, match="character 'é' is not in the alphabet of 3"):
        CharTokenizer("abc").encode("aé")


# ---------------------------------------------------------------- both

BOTH = [CharTokenizer("abcdé😀"), BPETokenizer.train("abcd abcd abcd", 260)]


@pytest.mark.parametrize("tokenizer", BOTH)
@pytest.mark.parametrize(
    "kind", [list, tuple, iter, np.array, Tensor, lambda ids: Tensor(np.array(ids))]
)
def test_decoding_takes_lists_arrays_and_tensors(tokenizer, kind):
    assert tokenizer.decode(kind(tokenizer.encode("dcba"))) == "dcba"
    assert tokenizer.decode(kind([])) == ""


@pytest.mark.parametrize("tokenizer", BOTH)
def test_an_id_outside_of_the_vocabulary_is_an_error_that_shows_it(tokenizer):
    for wrong in (-1, tokenizer.vocab_size):
        message = rf"{wrong} is outside of the vocabulary 0\.\.{tokenizer.vocab_size - 1}"
        with pytest.raises(TokenError, match=message):
            tokenizer.decode([0, wrong])


@pytest.mark.parametrize("tokenizer", BOTH)
def test_an_id_that_is_not_whole_is_an_error(tokenizer):
    with pytest.raises(TokenError, match=r"integers, got 1\.5"):
        tokenizer.decode([1.5])


@pytest.mark.parametrize("tokenizer", BOTH)
def test_a_batch_is_no_sequence(tokenizer):
    with pytest.raises(ShapeError, match=r"one sequence of token ids, got shape \(1, 2\)"):
        tokenizer.decode(np.zeros((1, 2), int))


@pytest.mark.parametrize("tokenizer", BOTH)
def test_a_saved_tokenizer_comes_back(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = type(tokenizer).load(str(path))
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode("abcd") == tokenizer.encode("abcd")
    other = CharTokenizer if isinstance(tokenizer, BPETokenizer) else BPETokenizer
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer .* the kind"):
        other.load(path)


@pytest.mark.parametrize("kind", [CharTokenizer, BPETokenizer])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'"characters"', b"{}"])
def test_a_broken_file_is_an_error_that_names_it(kind, content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer file"):
        kind.load(path)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (CharTokenizer, {"kind": "characters"}),
        (CharTokenizer, {"kind": "characters", "alphabet": ["a"]}),
        (BPETokenizer, {"kind": "byte-pairs"}),
        (BPETokenizer, {"kind": "byte-pairs", "merges": [[1, 2, 3]]}),
        (BPETokenizer, {"kind": "byte-pairs", "merges": [[1, 999]]}),
        (BPETokenizer, {"kind": "byte-pairs", "merges": [1]}),
    ],
)
def test_a_file_without_its_content_is_an_error_that_names_it(kind, content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json holds no (alphabet|list of merges)"
    ):
        kind.load(path)


@pytest.mark.parametrize("kind", [CharTokenizer, BPETokenizer])
def test_a_missing_file_is_an_error_that_names_it(kind, tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.json is not a tokenizer file: .*No such"):
        kind.load(tmp_path / "none.json")
