"""Tensors and texts in one safetensors file with a version and a checksum over all of it.

Header and payload are written and read here, and not by the safetensors package, because the
checksum covers every byte of both and the same contents must always give the same bytes.
docs/file_format.md says what each byte means.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinytorch import reading
from tinytorch.core.files import write_atomically
from tinytorch.core.kernels.backend import Array
from tinytorch.errors import CheckpointError

FORMAT_VERSION = 2
"""The newest one that can be read; files that need nothing new are written as version 1."""

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""What safetensors calls the dtypes that NumPy has too."""

LENGTH_BYTES = 8
HEADER_START = b'{"__metadata__":{"__tinytorch":"'
SIGNATURE = re.compile(re.escape(HEADER_START) + rb'([0-9]{1,9}) ([^"]*)"')
SIGNATURE_KEY = "__tinytorch"
CHECKSUM_DIGITS = 16
LARGEST_HEADER_BYTES = 100_000_000  # as in the safetensors package
MOST_AXES = 64  # as in NumPy
MOST_ELEMENTS = 2**59  # NumPy counts bytes in 63 bits, and ignores axes of length 0 in this

Shape = tuple[int, ...]


class TensorSpec(NamedTuple):
    """What a tensor looks like: its dtype, by its name in `DTYPES`, and its shape."""

    code: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.code].itemsize

    def empty(self) -> Array:
        """Return an uninitialised array of this dtype and shape."""
        return np.empty(self.shape, DTYPES[self.code])


class Tensor(NamedTuple):
    """A tensor to write. Its bytes are those of its pieces, one after another."""

    name: str
    spec: TensorSpec
    pieces: list[Array]


@dataclass(frozen=True, eq=False)
class Header:
    """The header of a file. Tensors are in the order of the file."""

    version: int
    checksum: str
    zeroed: bytes
    """All bytes before the payload, with zeros for the checksum."""
    texts: dict[str, str]
    tensors: dict[str, TensorSpec]
    file_bytes: int


def write_tensors(
    path: str | Path, tensors: list[Tensor], texts: dict[str, str], *, version: int = 1
) -> int:
    """Write tensors and texts atomically; returns the bytes written."""
    header = header_bytes(tensors, texts, version=version)
    digest = hashlib.sha256(header)
    pieces = [_little_endian(piece) for tensor in tensors for piece in tensor.pieces]
    for piece in pieces:
        digest.update(piece)
    start = LENGTH_BYTES + _checksum_start(version)
    checksum = digest.hexdigest()[:CHECKSUM_DIGITS].encode()
    try:
        with write_atomically(Path(path)) as temporary, temporary.open("wb") as file:
            file.write(header[:start] + checksum + header[start + CHECKSUM_DIGITS :])
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    return len(header) + sum(piece.nbytes for piece in pieces)


def header_bytes(tensors: Iterable[Tensor], texts: dict[str, str], *, version: int = 1) -> bytes:
    """Return the length and the JSON, padded to whole words, with zeros for the checksum."""
    signature = {SIGNATURE_KEY: f"{version} {'0' * CHECKSUM_DIGITS}"}
    table: dict[str, Any] = {"__metadata__": signature | texts}
    end = 0
    for name, spec, _ in tensors:
        start, end = end, end + spec.nbytes
        table[name] = {"dtype": spec.code, "shape": spec.shape, "data_offsets": [start, end]}
    raw = compact_json(table).encode()
    raw += b" " * (-len(raw) % LENGTH_BYTES)
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw


@contextmanager
def opened(path: str | Path) -> Iterator[BufferedReader]:
    """Open a file for reading; errors in the block become a CheckpointError that names the file."""
    if not Path(path).is_file():
        raise CheckpointError(f"there is no weights file at {path}")
    try:
        with Path(path).open("rb") as file:
            yield file
    except CheckpointError as error:
        raise CheckpointError(f"{path} {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except MemoryError as error:
        raise CheckpointError(
            f"{path} holds more than the memory has room for ({error}); close other programs, or "
            "read it on a larger machine"
        ) from error
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path} {_damaged(f'its header is wrong ({error})')}") from error


def read_header(file: BufferedReader) -> Header:
    """Read the header, and check that the tensors fill the file exactly."""
    file_bytes = os.fstat(file.fileno()).st_size
    prefix = file.read(LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < LENGTH_BYTES or length > min(file_bytes, LARGEST_HEADER_BYTES):
        raise CheckpointError(
            f"is not a weights file, or truncated: it has {file_bytes} bytes, "
            f"and its first {LENGTH_BYTES} announce a header of {length}"
        )
    raw = file.read(length)
    version, checksum = _signature(raw)
    table = json_object(raw)
    texts = table.pop("__metadata__")
    if not (isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())):
        raise TypeError("its metadata are not texts")
    del texts[SIGNATURE_KEY]
    tensors = _tensor_specs(table, file_bytes - LENGTH_BYTES - length)
    start = _checksum_start(version)
    zeroed = prefix + raw[:start] + b"0" * CHECKSUM_DIGITS + raw[start + CHECKSUM_DIGITS :]
    return Header(version, checksum, zeroed, texts, tensors, file_bytes)


def read_tensors(file: BufferedReader, header: Header) -> dict[str, Array]:
    """Read the payload and check it, together with the header, against the checksum."""
    digest = hashlib.sha256(header.zeroed)
    tensors = {}
    for name, spec in header.tensors.items():
        tensors[name] = spec.empty()
        target = tensors[name].reshape(-1).view(np.uint8).data
        if file.readinto(target) != target.nbytes:
            raise CheckpointError(_damaged(f"it ends within tensor {name!r}"))
        digest.update(target)
    found = digest.hexdigest()[:CHECKSUM_DIGITS]
    if found != header.checksum:
        raise CheckpointError(
            _damaged(f"its checksum is {header.checksum}, but its bytes have {found}")
        )
    return tensors


def read_tensor(file: BufferedReader, header: Header, name: str) -> Array:
    """Read one tensor, without the others; the checksum is not checked."""
    start = len(header.zeroed)
    for other, spec in header.tensors.items():
        if other == name:
            break
        start += spec.nbytes
    file.seek(start)
    tensor = header.tensors[name].empty()
    target = tensor.reshape(-1).view(np.uint8).data
    if file.readinto(target) != target.nbytes:
        raise CheckpointError(_damaged(f"it ends within tensor {name!r}"))
    return tensor


def _signature(raw: bytes) -> tuple[int, str]:
    """Return the version of the format and the checksum, with which every header begins."""
    found = SIGNATURE.match(raw)
    if found is None:
        raise CheckpointError(_what_else(raw))
    version, checksum = int(found[1]), found[2].decode()
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"has version {version} of the format, and this TinyTorch reads up to "
            f"{FORMAT_VERSION}; update TinyTorch (unless the file is damaged)"
        )
    is_checksum = re.fullmatch(f"[0-9a-f]{{{CHECKSUM_DIGITS}}}", checksum)
    if version < 1 or found[1] != b"%d" % version or not is_checksum:
        raise CheckpointError(_damaged(f"it begins with {found[0].decode()}"))
    return version, checksum


def _what_else(raw: bytes) -> str:
    """Describe a file whose header does not begin as expected."""
    try:
        json_object(raw)
    except (ValueError, TypeError, RecursionError):
        return "is not a weights file, or damaged: its header is not one of write_weights"
    return (
        "is a safetensors file, but not one of write_weights; load_checkpoint and read_arrays "
        "(tinytorch.core.checkpoints) read such files"
    )


def _tensor_specs(table: dict[str, Any], payload: int) -> dict[str, TensorSpec]:
    """Check and return the tensors of a header, in the order of the file."""
    ranges = {}
    for name, row in table.items():
        start, end = map(_whole_number, row["data_offsets"])
        if row["dtype"] not in DTYPES:
            raise ValueError(f"tensor {name!r} has the unknown dtype {row['dtype']!r}")
        spec = TensorSpec(row["dtype"], checked_shape(row["shape"]))
        if end - start != spec.nbytes:
            raise ValueError(f"tensor {name!r} has {spec.nbytes} bytes in {end - start}")
        ranges[name] = (start, end, spec)
    specs, reached = {}, 0
    for name, (start, end, spec) in sorted(ranges.items(), key=lambda each: each[1][:2]):
        if start != reached:
            raise ValueError(f"tensor {name!r} begins at byte {start}, not at {reached}")
        specs[name], reached = spec, end
    if reached != payload:
        raise CheckpointError(
            _damaged(f"its header is followed by {payload} bytes, it should be {reached}")
        )
    return specs


def checked_shape(lengths: Iterable[Any]) -> Shape:
    """Validate a shape read from a file; raise unless an array can have it."""
    shape = tuple(map(_whole_number, lengths))
    if len(shape) > MOST_AXES or math.prod(max(length, 1) for length in shape) > MOST_ELEMENTS:
        raise ValueError(f"no array has a shape of {len(shape)} axes as long as {max(shape)}")
    return shape


def _whole_number(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MOST_ELEMENTS:
        raise ValueError(f"{number!r} is not a length or offset")
    return number


def code_of(dtype: np.dtype[Any]) -> str | None:
    """Return the name in `DTYPES` of a dtype in any byte order, or None if it has none."""
    kind = f"{dtype.kind}{dtype.itemsize}"
    return next((code for code, own in DTYPES.items() if f"{own.kind}{own.itemsize}" == kind), None)


def compact_json(value: Any, **settings: Any) -> str:
    """Return JSON without spaces, not restricted to ASCII."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, **settings)


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return the dictionary in a JSON text; raise a ValueError or TypeError if there is none."""
    found = reading.parse_json(text, reading.HEADER)
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} where an object should be")
    return found


def _damaged(what: str) -> str:
    return f"is damaged: {what}; copy it again from where it came, or write it anew"


def _checksum_start(version: int) -> int:
    """Return where in the header the digits of the checksum begin."""
    return len(HEADER_START) + len(f"{version} ")


def _little_endian(array: Array) -> memoryview:
    """Return the bytes of an array in little-endian C order, without a copy where possible."""
    dtype = array.dtype.newbyteorder("<")
    return np.asarray(array, dtype, order="C").reshape(-1).view(np.uint8).data
