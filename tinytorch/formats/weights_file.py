"""The weights file: named arrays, some of them quantized, in one file with a checksum.

It is a safetensors file: nothing in it is ever executed, and any safetensors reader finds arrays in
it. `encodings.py` says how an array is kept as parts, `tensor_file.py` writes and reads tensors;
here parts become tensors. docs/file_format.md says what each byte means."""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinytorch.core.kernels.backend import Array
from tinytorch.errors import CheckpointError, DTypeError, SettingError, TinyTorchError
from tinytorch.formats import tensor_file
from tinytorch.formats.affine import QuantizedArray
from tinytorch.formats.encodings import MAIN, QUANTIZED, Encoded, Encoding
from tinytorch.formats.encodings import Shape as EncodingShape
from tinytorch.formats.entropy import CODED

# ---------------------------------------------------------------- how arrays are kept in a weights
# file: each encoding is a row of the table `ENCODINGS`


def _encode_plain(array: Any) -> Encoded:
    array = np.asarray(array)
    code = tensor_file.code_of(array.dtype)
    if code is None:
        raise DTypeError(f"numbers of {array.dtype} cannot be stored; convert them, say to float32")
    return Encoded(array.shape, "" if code == "F32" else code, {MAIN: array})


def _plain_layout(shape: EncodingShape, settings: str) -> dict[str, tensor_file.TensorSpec]:
    if settings and settings not in tensor_file.DTYPES:
        raise ValueError(f"{settings!r} is not a dtype")
    return {MAIN: tensor_file.TensorSpec(settings or "F32", shape)}


def _decode_plain(encoded: Encoded) -> Array:
    return encoded.parts[MAIN]


def _is_plain(array: Any) -> bool:
    return not isinstance(array, QuantizedArray)


ENCODINGS: dict[str, Encoding] = {
    **QUANTIZED,
    "plain": Encoding(_is_plain, _encode_plain, _plain_layout, _decode_plain),
    **CODED,
}
"""By their names in the file. The first one that accepts an array keeps it, in a compact file the
one that takes the fewest bytes."""


# ---------------------------------------------------------------- the texts of a compact weights
# file: JSON, deflated, with words of most files known before

KNOWN_WORDS = (
    b'codebook minus coded8 group= zero F16 axis=0 "__user":"{\\"bits\\":8}"}x3x3 axis=0 '
    b'","layers.3.bias":"plain 32","layers.2.weight":"coded4 64x10 axis=1 '
    b'{"layers.0.bias":"plain 128","layers.0.weight":"coded4 128x64 axis=1 '
)
"""A preset dictionary of deflate. It is part of the format: another one cannot read the file."""

RAW_DEFLATE = -15


def pack_texts(texts: dict[str, str]) -> bytes:
    """Serialise texts to self-delimiting bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, RAW_DEFLATE, zdict=KNOWN_WORDS)
    return packer.compress(tensor_file.compact_json(texts).encode()) + packer.flush()


def unpack_texts(content: bytes) -> tuple[dict[str, str], int]:
    """Return the texts at the beginning of some bytes, and how many of the bytes they take.

    The bytes are untrusted: raises a ValueError or a TypeError if they are not texts.
    """
    unpacker = zlib.decompressobj(RAW_DEFLATE, zdict=KNOWN_WORDS)
    try:
        most = min(tensor_file.LARGEST_HEADER_BYTES, _most_decoded(len(content)))
        raw = unpacker.decompress(content, most)
    except zlib.error as error:
        raise ValueError(f"its texts cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise ValueError("its texts do not end")
    texts = tensor_file.json_object(raw)
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("its texts are none")
    return texts, len(content) - len(unpacker.unused_data)


DECODED_VARIABLE = "TINYTORCH_DECODED_BYTES"
"""The environment variable that allows a small file to hold more."""
SPARE_DECODED_BYTES, MOST_TIMES_DECODED = 32 << 20, 32


def _most_decoded(nbytes: int) -> int:
    """Return how many bytes may be made of so many in a file; the variable raises it."""
    own = os.environ.get(DECODED_VARIABLE, "")
    allowed = int(own) if own.isdecimal() else 0
    return max(SPARE_DECODED_BYTES + MOST_TIMES_DECODED * nbytes, allowed)


def _check_decoded_size(contents: _Contents, file_bytes: int) -> None:
    """Raise where arrays are so much larger than their file that it may be a trap."""
    most = _most_decoded(file_bytes)
    decoded = sum(_decoded_bytes(each) for each in _entries(contents))
    if decoded > most:
        raise CheckpointError(
            f"holds arrays of {decoded:,} bytes in {file_bytes:,}, and {most:,} are allowed; if "
            f"you trust it, set {DECODED_VARIABLE}={decoded}"
        )


def _decoded_bytes(entry: _Entry) -> int:
    if entry.encoding not in CODED:
        return 0  # no smaller in the file
    code = entry.settings.partition(" ")[0]
    is_small = entry.encoding in ("coded8", "coded4")
    size = 1 if is_small else tensor_file.DTYPES.get(code, tensor_file.DTYPES["F32"]).itemsize
    return math.prod(entry.shape) * size


# ---------------------------------------------------------------- the weights file: named arrays,
# some of them quantized, in one file with a checksum

RESERVED = "__"
ESCAPE = "__/"
GATHERED = "__gathered"
USER_KEY = "__user"

PACKED_VERSION = 2
"""From this version of the format on, the texts stand packed before the bytes that are gathered."""

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
    """The contents of the header of a weights file."""

    arrays: tuple[StoredArray, ...]
    metadata: dict[str, Any]
    version: int
    file_bytes: int


def write_weights(
    path: str | Path,
    arrays: Mapping[str, Array | QuantizedArray],
    metadata: Mapping[str, Any] | None = None,
    *,
    compact: bool = False,
) -> int:
    """Write named arrays atomically; returns the bytes written.

    `compact` gives each array the encoding that takes the fewest bytes, and the whole file its
    shortest form. What is read is the same; writing and reading take more time.

    `metadata` must fit into JSON, and comes back as JSON has it (a tuple is a list then). The order
    of arrays and metadata does not matter: the same contents give the same bytes.
    """
    entries, parts = _encoded(arrays, compact)
    user = _metadata_text(metadata or {})
    user_text = {USER_KEY: user} if user else {}
    if not compact:
        tensors = _arranged(entries, parts)
        return tensor_file.write_tensors(path, tensors, _texts(entries, tensors) | user_text)
    form = min(_forms(entries, parts, user_text), key=lambda form: form.nbytes)
    return tensor_file.write_tensors(path, form.tensors, form.texts, version=form.version)


def read_weights(path: str | Path) -> WeightsFile:
    """Read a weights file, all of it, and check it against its checksum."""
    with tensor_file.opened(path) as file:
        header = tensor_file.read_header(file)
        tensors = tensor_file.read_tensors(file, header)
        arrays = {}
        contents = _contents(header, tensors.get(GATHERED))
        _check_decoded_size(contents, header.file_bytes)
        for entry, places in _placed(contents):
            parts = {part: _taken(tensors, place) for part, place in places.items()}
            encoded = Encoded(entry.shape, entry.settings, parts)
            arrays[entry.name] = ENCODINGS[entry.encoding].decode(encoded)
        return WeightsFile(arrays, contents.metadata, header.version)


def describe_weights(path: str | Path) -> WeightsSummary:
    """Return what is in a weights file without reading the arrays; the checksum is not checked."""
    with tensor_file.opened(path) as file:
        header = tensor_file.read_header(file)
        is_packed = header.version >= PACKED_VERSION and GATHERED in header.tensors
        contents = _contents(
            header, tensor_file.read_tensor(file, header, GATHERED) if is_packed else None
        )
        arrays = tuple(
            StoredArray(
                entry.name,
                entry.encoding,
                entry.settings,
                entry.shape,
                tensor_file.DTYPES[places[MAIN].spec.code].name,
                sum(place.spec.nbytes for place in places.values()),
            )
            for entry, places in _placed(contents)
        )
        return WeightsSummary(arrays, contents.metadata, header.version, header.file_bytes)


class _Entry(NamedTuple):
    """How one array is stored, and its text in the file."""

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
            raise ValueError(f"{lengths!r} is not a shape")
        numbers = [] if lengths == "-" else map(int, lengths.split("x"))
        return cls(name, encoding, tensor_file.checked_shape(numbers), settings)


# ---------------------------------------------------------------- writing


def _encoded(
    arrays: Mapping[str, Array | QuantizedArray], compact: bool
) -> tuple[list[_Entry], list[tensor_file.Tensor]]:
    """Return an entry for each array in the order of their names, and a tensor for each part."""
    entries, parts = [], []
    for name in sorted(map(_checked_name, arrays)):
        try:
            entry, encoded = _chosen(name, arrays[name], compact)
        except TinyTorchError as error:
            raise type(error)(f"array {name!r}: {error}") from error
        entries.append(entry)
        for part, spec in ENCODINGS[entry.encoding].layout(entry.shape, entry.settings).items():
            assert encoded.parts[part].shape == spec.shape
            parts.append(tensor_file.Tensor(_tensor_name(name, part), spec, [encoded.parts[part]]))
    return entries, parts


def _chosen(name: str, array: Any, compact: bool) -> tuple[_Entry, Encoded]:
    """Encode an array in the first way that is for it, or in the one that takes fewest bytes."""
    keys = [key for key, row in ENCODINGS.items() if row.accepts(array)]
    found = []
    for key in keys if compact else keys[:1]:
        encoded = ENCODINGS[key].encode(array)
        found.append((_Entry(name, key, encoded.shape, encoded.settings), encoded))
    return min(found, key=lambda pair: _stored_bytes(*pair))


def _stored_bytes(entry: _Entry, encoded: Encoded) -> int:
    return len(entry.text) + sum(part.nbytes for part in encoded.parts.values())


def _arranged(entries: list[_Entry], parts: list[tensor_file.Tensor]) -> list[tensor_file.Tensor]:
    """Return the tensors of the file: the parts, with small ones joined where that is smaller."""

    def header_length(tensors: list[tensor_file.Tensor]) -> int:
        return len(tensor_file.header_bytes(tensors, _texts(entries, tensors)))

    apart = _in_order(parts)
    if header_length(apart) <= LARGEST_HEADER_SHARE * sum(part.spec.nbytes for part in parts):
        return apart
    return min(apart, _in_order(_gathered(parts)), key=header_length)


class _Form(NamedTuple):
    """One way to write a file with the same contents."""

    version: int
    tensors: list[tensor_file.Tensor]
    texts: dict[str, str]

    @property
    def nbytes(self) -> int:
        header = tensor_file.header_bytes(self.tensors, self.texts, version=self.version)
        return len(header) + sum(tensor.spec.nbytes for tensor in self.tensors)


def _forms(
    entries: list[_Entry], parts: list[tensor_file.Tensor], user: dict[str, str]
) -> list[_Form]:
    """Return the forms that a compact file may have, the one that older readers know first."""
    apart, gathered = _in_order(parts), _in_order(_gathered(parts))
    packed = pack_texts(_texts(entries, gathered) | user)
    front = np.frombuffer(packed, np.uint8)
    return [
        _Form(1, apart, _texts(entries, apart) | user),
        _Form(1, gathered, _texts(entries, gathered) | user),
        _Form(PACKED_VERSION, _in_order(_gathered(parts, front)), {}),
    ]


def _gathered(parts: list[tensor_file.Tensor], *front: Array) -> list[tensor_file.Tensor]:
    """Put small parts into one tensor, behind some bytes that come first."""
    large = [part for part in parts if part.spec.nbytes >= GATHER_BELOW_BYTES]
    small = [part for part in parts if part.spec.nbytes < GATHER_BELOW_BYTES]
    length = sum(part.spec.nbytes for part in small) + sum(piece.nbytes for piece in front)
    pieces = [*front, *(piece for part in small for piece in part.pieces)]
    return [*large, tensor_file.Tensor(GATHERED, tensor_file.TensorSpec("U8", (length,)), pieces)]


def _in_order(tensors: list[tensor_file.Tensor]) -> list[tensor_file.Tensor]:
    """Put tensors with long elements first, so that the elements of all are aligned."""
    return sorted(
        tensors, key=lambda each: (-tensor_file.DTYPES[each.spec.code].itemsize, each.name)
    )


def _texts(entries: list[_Entry], tensors: list[tensor_file.Tensor]) -> dict[str, str]:
    """Return the text of each array but those that are plain and a tensor of their own."""
    own = {tensor.name for tensor in tensors}
    keys = [(_tensor_name(entry.name), entry) for entry in entries]
    return {key: entry.text for key, entry in keys if entry.encoding != "plain" or key not in own}


def _metadata_text(metadata: Mapping[str, Any]) -> str:
    if not metadata:
        return ""
    try:
        text = tensor_file.compact_json(dict(metadata), sort_keys=True, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(
            f"the metadata cannot be written as JSON: {error}; pass strings, finite numbers, "
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
    raise SettingError(f"{name!r} cannot name an array; pass a string that UTF-8 can encode")


def _tensor_name(name: str, part: str = MAIN) -> str:
    """Return the unique tensor name of a part in the file."""
    if part != MAIN:
        return f"{RESERVED}{part}/{name}"
    return ESCAPE + name if name.startswith(RESERVED) else name


def _array_name(key: str) -> str:
    """Return the array name of a main part: the inverse of :func:`_tensor_name`."""
    name = key.removeprefix(ESCAPE)
    if _tensor_name(name) != key:
        raise ValueError(f"no array is called {key!r} in a file")
    return name


# ---------------------------------------------------------------- reading


class _Place(NamedTuple):
    """Where a part is: in which tensor, from which byte on."""

    tensor: str
    start: int
    spec: tensor_file.TensorSpec


@dataclass(frozen=True, eq=False)
class _Contents:
    """The description of the arrays in a file: in its header, or packed into its joined bytes."""

    texts: dict[str, str]
    tensors: dict[str, tensor_file.TensorSpec]
    packed_bytes: int

    @property
    def metadata(self) -> dict[str, Any]:
        return tensor_file.json_object(self.texts.get(USER_KEY, "{}"))


def _contents(header: tensor_file.Header, gathered: Array | None) -> _Contents:
    if header.version < PACKED_VERSION:
        return _Contents(header.texts, header.tensors, 0)
    if gathered is None or header.texts:
        raise ValueError(f"its texts are not at the beginning of {GATHERED!r}")
    texts, packed_bytes = unpack_texts(gathered.tobytes())
    return _Contents(texts, header.tensors, packed_bytes)


def _placed(contents: _Contents) -> Iterator[tuple[_Entry, dict[str, _Place]]]:
    """Yield each array, in the order of their names, with the places of its parts."""
    tensors = dict(contents.tensors)
    room = tensors.pop(GATHERED, tensor_file.TensorSpec("U8", (0,)))
    used = contents.packed_bytes
    for entry in _entries(contents):
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


def _entries(contents: _Contents) -> list[_Entry]:
    """Return the arrays by name: those with a text, and plain tensors, which need none."""
    texts = {key: text for key, text in contents.texts.items() if key != USER_KEY}
    for key, (code, shape) in contents.tensors.items():
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
