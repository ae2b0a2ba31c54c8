"""Tokenizers: text to integers and back."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tinytorch import reading
from tinytorch.core.embeddings import token_ids
from tinytorch.core.files import write_atomically
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError, ShapeError, TokenError

__all__ = ["BPETokenizer", "CharTokenizer"]


class CharTokenizer:
    """One token per character of a fixed alphabet.

    >>> CharTokenizer("abc").encode("cab")
    [2, 0, 1]
    """

    def __init__(self, alphabet: str) -> None:
        self.alphabet = "".join(sorted(set(alphabet)))
        self._ids = {character: index for index, character in enumerate(self.alphabet)}

    @classmethod
    def train(cls, text: str) -> CharTokenizer:
        """Take the alphabet from a text."""
        return cls(text)

    @property
    def vocab_size(self) -> int:
        return len(self.alphabet)

    def encode(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise TokenError(
                f"character {error.args[0]!r} is not in the alphabet of {self.vocab_size}"
            ) from None

    def decode(self, ids: Iterable[Any]) -> str:
        """Return the text of a sequence of ids: numbers, an array or a tensor."""
        return "".join(self.alphabet[number] for number in _numbers(ids, self.vocab_size))

    def save(self, path: str | os.PathLike[str]) -> None:
        _write_json(path, {"kind": "characters", "alphabet": self.alphabet})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CharTokenizer:
        alphabet = _read_json(path, "characters").get("alphabet")
        if not isinstance(alphabet, str):
            raise CheckpointError(f"{path} holds no alphabet")
        return cls(alphabet)


Pair = tuple[int, int]

# Merges stay inside words: a word takes the space before it, runs of spaces stay together.
WORDS = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")


class BPETokenizer:
    """Byte-pair encoding: bytes, and the pairs that were most frequent in a text, merged in turn.

    Any text can be encoded, since every byte is a token. Ids 0..255 are the bytes; id 256 + i is
    the i-th merge.
    """

    def __init__(self, merges: Iterable[Pair] = ()) -> None:
        self.merges: list[Pair] = [(int(left), int(right)) for left, right in merges]
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._bytes: list[bytes] = [bytes([value]) for value in range(256)]
        for left, right in self.merges:
            if not 0 <= min(left, right) <= max(left, right) < len(self._bytes):
                raise SettingError(f"merge ({left}, {right}) uses a token that comes later")
            self._bytes.append(self._bytes[left] + self._bytes[right])

    @classmethod
    def train(cls, text: str, vocab_size: int) -> BPETokenizer:
        """Learn merges until the vocabulary has `vocab_size` tokens or no pair occurs twice."""
        if vocab_size < 256:
            raise SettingError(f"vocab_size must be at least 256 (the bytes), got {vocab_size}")
        counts = Counter(WORDS.findall(text))
        words = [(list(_utf8(word)), count) for word, count in counts.items()]
        pairs: Counter[Pair] = Counter()
        for ids, count in words:
            _count_pairs(pairs, ids, count)
        merges: list[Pair] = []
        while 256 + len(merges) < vocab_size and pairs:
            best = max(pairs, key=lambda pair: (pairs[pair], (-pair[0], -pair[1])))
            if pairs[best] < 2:
                break
            new_id = 256 + len(merges)
            merges.append(best)
            for position, (ids, count) in enumerate(words):
                merged = _merge(ids, best, new_id)
                if len(merged) != len(ids):
                    _count_pairs(pairs, ids, -count)
                    _count_pairs(pairs, merged, count)
                    words[position] = (merged, count)
            del pairs[best]
        return cls(merges)

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        known: dict[str, list[int]] = {}
        ids: list[int] = []
        for word in WORDS.findall(text):
            if word not in known:
                known[word] = self._encode_word(word)
            ids.extend(known[word])
        return ids

    def _encode_word(self, word: str) -> list[int]:
        ids = list(_utf8(word))
        while len(ids) > 1:
            never = len(self.merges)
            rank = min(self._ranks.get(pair, never) for pair in pairwise(ids))
            if rank == never:
                break
            ids = _merge(ids, self.merges[rank], 256 + rank)
        return ids

    def decode(self, ids: Iterable[Any]) -> str:
        """Return the text; bytes that are not UTF-8 become the replacement character."""
        pieces = [self._bytes[number] for number in _numbers(ids, self.vocab_size)]
        return b"".join(pieces).decode(errors="replace")

    def save(self, path: str | os.PathLike[str]) -> None:
        _write_json(path, {"kind": "byte-pairs", "merges": self.merges})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BPETokenizer:
        merges: Any = _read_json(path, "byte-pairs").get("merges")
        try:
            return cls(merges)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path} holds no list of merges: {error}") from error


def _numbers(ids: Iterable[Any], vocab_size: int) -> list[int]:
    """Check a sequence of token ids as the layers do."""
    known = ids if isinstance(ids, Tensor) else list(ids)
    array = token_ids(known, vocab_size)
    if array.ndim != 1:
        raise ShapeError(f"decode takes one sequence of token ids, got shape {array.shape}")
    return list(array.tolist())


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        lone = text[error.start]
        raise TokenError(f"{lone!r} is half of a surrogate pair, not a character") from None


def _count_pairs(pairs: Counter[Pair], ids: list[int], count: int) -> None:
    for pair in pairwise(ids):
        pairs[pair] += count


def _merge(ids: list[int], pair: Pair, new_id: int) -> list[int]:
    """Replace each occurrence of a pair, from the left."""
    merged: list[int] = []
    position = 0
    while position < len(ids):
        if tuple(ids[position : position + 2]) == pair:
            merged.append(new_id)
            position += 2
        else:
            merged.append(ids[position])
            position += 1
    return merged


def _write_json(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    with write_atomically(Path(path)) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def _read_json(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    try:
        content = reading.read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a tokenizer file: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise CheckpointError(f"{path} is not a tokenizer file of the kind {kind!r}")
    return content
