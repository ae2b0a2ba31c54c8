"""The texts of a compact weights file: JSON, deflated, with words of most files known before."""

from __future__ import annotations

import zlib

from tinytorch.formats.tensor_file import LARGEST_HEADER_BYTES, compact_json, json_object

__all__ = ["pack_texts", "unpack_texts"]

KNOWN_WORDS = (
    b'codebook minus coded8 group= zero F16 axis=0 "__user":"{\\"bits\\":8}"}x3x3 axis=0 '
    b'","layers.3.bias":"plain 32","layers.2.weight":"coded4 64x10 axis=1 '
    b'{"layers.0.bias":"plain 128","layers.0.weight":"coded4 128x64 axis=1 '
)
"""A preset dictionary of deflate. It is part of the format: another one cannot read the file."""

RAW_DEFLATE = -15


def pack_texts(texts: dict[str, str]) -> bytes:
    """Give texts as bytes that say themselves where they end."""
    packer = zlib.compressobj(9, zlib.DEFLATED, RAW_DEFLATE, zdict=KNOWN_WORDS)
    return packer.compress(compact_json(texts).encode()) + packer.flush()


def unpack_texts(content: bytes) -> tuple[dict[str, str], int]:
    """Give the texts at the beginning of some bytes, and how many of the bytes they take.

    The bytes may be anything: a ValueError or a TypeError says that they are no texts.
    """
    unpacker = zlib.decompressobj(RAW_DEFLATE, zdict=KNOWN_WORDS)
    try:
        raw = unpacker.decompress(content, LARGEST_HEADER_BYTES)
    except zlib.error as error:
        raise ValueError(f"its texts cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise ValueError("its texts do not end")
    texts = json_object(raw)
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("its texts are none")
    return texts, len(content) - len(unpacker.unused_data)
