"""Packed texts: short, exact, and any bytes are safe to unpack."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.formats.weights_file import KNOWN_WORDS, pack_texts, unpack_texts


@given(texts=st.dictionaries(st.text(), st.text()), behind=st.binary(max_size=9))
def test_texts_come_back_with_their_length(texts, behind):
    packed = pack_texts(texts)
    assert unpack_texts(packed + behind) == (texts, len(packed))


def test_the_texts_of_a_small_model_take_few_bytes():
    texts = {f"layers.{place}.bias": "plain 64" for place in range(3)}
    texts |= {f"layers.{place}.weight": "coded4 64x64 axis=1 2000" for place in range(3)}
    assert len(pack_texts(texts)) < 60


@given(content=st.binary(max_size=60))
def test_any_bytes_are_texts_or_an_error(content):
    try:
        texts, length = unpack_texts(content)
    except (ValueError, TypeError):
        return
    assert isinstance(texts, dict)
    assert length <= len(content)


def packed(raw):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=KNOWN_WORDS)
    return packer.compress(raw) + packer.flush()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", ValueError, "do not end"),
        (packed(b"{}")[:-1], ValueError, "do not end"),
        (b"\xff" * 9, ValueError, "cannot be unpacked"),
        (packed(b"[]"), TypeError, "list where an object should be"),
        (packed(b'{"a":1}'), TypeError, "its texts are none"),
        (packed(b"{"), ValueError, "property name"),
        (packed(b"\xff\xff"), ValueError, "decode"),
    ],
)
def test_what_is_no_text_is_an_error(content, error, message):
    with pytest.raises(error, match=message):
        unpack_texts(content)


def test_texts_without_end_are_not_unpacked(monkeypatch):
    monkeypatch.setattr("tinytorch.formats.tensor_file.LARGEST_HEADER_BYTES", 1000)
    with pytest.raises(ValueError, match="do not end"):
        unpack_texts(packed(b" " * 100_000 + b"{}"))
