"""The weights file: named arrays, some of them quantized, in one file with a checksum.

It is a safetensors file: nothing in it is ever executed, and any safetensors reader finds arrays in
it. `encodings.py` says how an array is kept as parts, `tensor_file.py` writes and reads tensors;
here parts become tensors. docs/file_format.md says what each byte means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError
from tinytorch.formats.affine import QuantizedArray
from tinytorch.formats.encodings import ENCODINGS, MAIN, Encoded
from tinytorch.formats.tensor_file import (
    DTYPES,
    Header,
    Tensor,
    TensorSpec,
    checked_shape,
    compact_json,
    header_bytes,
    json_object,
    opened,
    read_header,
    read_tensors,
    write_tensors,
)

__all__ = [
    "StoredArray",
    "WeightsFile",
    "WeightsSummary",
    "describe_weights",
    "read_weights",
    "write_weights",
]

RESERVED = "__"
ESCAPE = "__/"
GATHERED = "__gathered"
USER_KEY = "__user"

LARGEST_HEADER_SHARE = 0.015
GATHER_BELOW_BYTES = 16384
"""Where the header would take a larger share of the file than that, parts below this size share one
tensor. An entry in the header takes some 80 bytes, half a percent of such a part."""

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class WeightsFile:
    """What a weights file held: arrays in the order of their names, and metadata."""

    arrays: dict[str, Array | QuantizedArray]
    metadata: dict[str, Any]
    version: int


@dataclass(frozen=True)
class StoredArray:
    """One array of a weights file.

    The settings are those of its encoding, the dtype is that of the values in the file, and the
    bytes are those of all its parts there.
    """

    name: str
    encoding: str
    settings: str
    shape: Shape
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class WeightsSummary:
    """What the header of a weights file says."""

    arrays: tuple[StoredArray, ...]
    metadata: dict[str, Any]
    version: int
    file_bytes: int


def write_weights(
    path: str | Path,
    arrays: Mapping[str, Array | QuantizedArray],
    metadata: Mapping[str, Any] | None = None,
) -> int:
    """Write named arrays atomically; returns the bytes written.

    `metadata` must fit into JSON, and comes back as JSON has it (a tuple is a list then). The order
    of arrays and metadata does not matter: the same contents give the same bytes.
    """
    entries, parts = _encoded(arrays)
    user = _metadata_text(metadata or {})
    tensors = _arranged(entries, parts)
    texts = _texts(entries, tensors) | ({USER_KEY: user} if user else {})
    return write_tensors(path, tensors, texts)


def read_weights(path: str | Path) -> WeightsFile:
    """Read a weights file, all of it, and check it against its checksum."""
    with opened(path) as file:
        header = read_header(file)
        tensors = read_tensors(file, header)
        arrays = {}
        for entry, places in _placed(header):
            parts = {part: _taken(tensors, place) for part, place in places.items()}
            encoded = Encoded(entry.shape, entry.settings, parts)
            arrays[entry.name] = ENCODINGS[entry.encoding].decode(encoded)
        return WeightsFile(arrays, _metadata(header), header.version)


def describe_weights(path: str | Path) -> WeightsSummary:
    """Give what is in a weights file from its header alone; the checksum is not checked."""
    with opened(path) as file:
        header = read_header(file)
        arrays = tuple(
            StoredArray(
                entry.name,
                entry.encoding,
                entry.settings,
                entry.shape,
                DTYPES[places[MAIN].spec.code].name,
                sum(place.spec.nbytes for place in places.values()),
            )
            for entry, places in _placed(header)
        )
        return WeightsSummary(arrays, _metadata(header), header.version, header.file_bytes)


class _Entry(NamedTuple):
    """How one array is kept, and the text in the file that says so."""

    name: str
    encoding: str
    shape: Shape
    settings: str

    @property
    def text(self) -> str:
        shape = "x".join(map(str, self.shape)) or "-"
        return f"{self.encoding} {shape} {self.settings}".rstrip()

    @classmethod
    def parse(cls, name: str, text: str) -> _Entry:
        encoding, _, rest = text.partition(" ")
        lengths, _, settings = rest.partition(" ")
        if encoding not in ENCODINGS:
            raise CheckpointError(
                f"holds {name!r} as {encoding!r}, an encoding that this TinyTorch does not know "
                f"(it knows {', '.join(ENCODINGS)}); update TinyTorch"
            )
        if not re.fullmatch("-|[0-9x]+", lengths):
            raise ValueError(f"{lengths!r} is no shape")
        numbers = [] if lengths == "-" else map(int, lengths.split("x"))
        return cls(name, encoding, checked_shape(numbers), settings)


# ---------------------------------------------------------------- writing


def _encoded(
    arrays: Mapping[str, Array | QuantizedArray],
) -> tuple[list[_Entry], list[Tensor]]:
    """Give an entry for each array in the order of their names, and a tensor for each part."""
    entries, parts = [], []
    for name in sorted(map(_checked_name, arrays)):
        key = next(key for key, row in ENCODINGS.items() if row.accepts(arrays[name]))
        try:
            encoded = ENCODINGS[key].encode(arrays[name])
        except TinyTorchError as error:
            raise type(error)(f"array {name!r}: {error}") from error
        entries.append(_Entry(name, key, encoded.shape, encoded.settings))
        for part, spec in ENCODINGS[key].layout(encoded.shape, encoded.settings).items():
            assert encoded.parts[part].shape == spec.shape
            parts.append(Tensor(_tensor_name(name, part), spec, [encoded.parts[part]]))
    return entries, parts


def _arranged(entries: list[_Entry], parts: list[Tensor]) -> list[Tensor]:
    """Give the tensors of the file: the parts, or if that takes too much, small ones together."""

    def header_length(tensors: list[Tensor]) -> int:
        return len(header_bytes(tensors, _texts(entries, tensors)))

    apart = _in_order(parts)
    if header_length(apart) <= LARGEST_HEADER_SHARE * sum(part.spec.nbytes for part in parts):
        return apart
    return min(apart, _in_order(_gathered(parts)), key=header_length)


def _gathered(parts: list[Tensor]) -> list[Tensor]:
    large = [part for part in parts if part.spec.nbytes >= GATHER_BELOW_BYTES]
    small = [part for part in parts if part.spec.nbytes < GATHER_BELOW_BYTES]
    spec = TensorSpec("U8", (sum(part.spec.nbytes for part in small),))
    return [*large, Tensor(GATHERED, spec, [piece for part in small for piece in part.pieces])]


def _in_order(tensors: list[Tensor]) -> list[Tensor]:
    """Put tensors with long elements first, so that the elements of all are aligned."""
    return sorted(tensors, key=lambda each: (-DTYPES[each.spec.code].itemsize, each.name))


def _texts(entries: list[_Entry], tensors: list[Tensor]) -> dict[str, str]:
    """Give the text of each array but those that are plain and a tensor of their own."""
    own = {tensor.name for tensor in tensors}
    keys = [(_tensor_name(entry.name), entry) for entry in entries]
    return {key: entry.text for key, entry in keys if entry.encoding != "plain" or key not in own}


def _metadata_text(metadata: Mapping[str, Any]) -> str:
    if not metadata:
        return ""
    try:
        text = compact_json(dict(metadata), sort_keys=True, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(
            f"the metadata does not fit into JSON: {error}; give texts, finite numbers, "
            "booleans, None, and lists and dictionaries of them"
        ) from error
    return text


def _checked_name(name: Any) -> str:
    try:
        if isinstance(name, str):
            name.encode()
            return name
    except UnicodeEncodeError:
        pass
    raise SettingError(f"{name!r} cannot name an array; give a text that UTF-8 can hold")


def _tensor_name(name: str, part: str = MAIN) -> str:
    """Give what a part is called in the file, different for all names and parts."""
    if part != MAIN:
        return f"{RESERVED}{part}/{name}"
    return ESCAPE + name if name.startswith(RESERVED) else name


def _array_name(key: str) -> str:
    """Give the array whose main part is called so in the file."""
    name = key.removeprefix(ESCAPE)
    if _tensor_name(name) != key:
        raise ValueError(f"no array is called {key!r} in a file")
    return name


# ---------------------------------------------------------------- reading


class _Place(NamedTuple):
    """Where a part is: in which tensor, from which byte on."""

    tensor: str
    start: int
    spec: TensorSpec


def _placed(header: Header) -> Iterator[tuple[_Entry, dict[str, _Place]]]:
    """Give each array, in the order of their names, with the places of its parts."""
    tensors = dict(header.tensors)
    room = tensors.pop(GATHERED, TensorSpec("U8", (0,)))
    used = 0
    for entry in _entries(header):
        places = {}
        for part, spec in ENCODINGS[entry.encoding].layout(entry.shape, entry.settings).items():
            tensor = _tensor_name(entry.name, part)
            if tensor not in tensors:
                places[part] = _Place(GATHERED, used, spec)
                used += spec.nbytes
            elif tensors.pop(tensor) == spec:
                places[part] = _Place(tensor, 0, spec)
            else:
                raise ValueError(f"tensor {tensor!r} is not what {entry.text!r} needs")
        if room.code != "U8" or len(room.shape) != 1 or used > room.nbytes:
            raise ValueError(f"{entry.name!r} has no bytes in the file")
        yield entry, places
    if tensors or used != room.nbytes:
        raise ValueError(f"{len(tensors)} tensors, or bytes that were gathered, are of no array")


def _entries(header: Header) -> list[_Entry]:
    """Give the arrays by name: those with a text, and plain tensors, which need none."""
    texts = {key: text for key, text in header.texts.items() if key != USER_KEY}
    for key, (code, shape) in header.tensors.items():
        if key not in texts and (key.startswith(ESCAPE) or not key.startswith(RESERVED)):
            texts[key] = _Entry("", "plain", shape, "" if code == "F32" else code).text
    named = {_array_name(key): text for key, text in texts.items()}
    return [_Entry.parse(name, named[name]) for name in sorted(named)]


def _taken(tensors: dict[str, Array], place: _Place) -> Array:
    if place.tensor != GATHERED:
        return tensors[place.tensor]
    array = place.spec.empty()
    end = place.start + place.spec.nbytes
    array.reshape(-1).view(np.uint8)[:] = tensors[GATHERED][place.start : end]
    return array


def _metadata(header: Header) -> dict[str, Any]:
    return json_object(header.texts.get(USER_KEY, "{}"))
