"""Tensors in a file: every byte of it is checked, and a header that lies gets nowhere."""

import hashlib
import json
import os
import tracemalloc

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.checkpoints import write_arrays
from tinytorch.core.layers import Linear
from tinytorch.errors import CheckpointError
from tinytorch.formats.tensor_file import (
    DTYPES,
    FORMAT_VERSION,
    Tensor,
    TensorSpec,
    checked_shape,
    code_of,
    compact_json,
    header_bytes,
    json_object,
    opened,
    read_header,
    read_tensor,
    read_tensors,
    write_tensors,
)

START = b'{"__metadata__":{"__tinytorch":"1 '
WORDS = np.arange(6, dtype=np.float64).reshape(2, 3)
BYTES = np.arange(5, dtype=np.uint8)
TENSORS = [
    Tensor("words", TensorSpec("F64", (2, 3)), [WORDS]),
    Tensor("bytes", TensorSpec("U8", (5,)), [BYTES[:2], BYTES[2:]]),
]


def read(path):
    with opened(path) as file:
        header = read_header(file)
        return read_tensors(file, header), header.texts


def signed(raw, payload):
    """Give a file whose checksum holds, whatever its header says."""
    digits = len(START)
    raw = raw[:digits] + b"0" * 16 + raw[digits + 16 :]
    length = len(raw).to_bytes(8, "little")
    checksum = hashlib.sha256(length + raw + payload).hexdigest()[:16].encode()
    return length + raw[:digits] + checksum + raw[digits + 16 :] + payload


def header_of(tensors, **metadata):
    texts = {"__tinytorch": "1 " + "0" * 16} | metadata
    return json.dumps({"__metadata__": texts} | tensors, separators=(",", ":")).encode()


def row(code, shape, *offsets):
    return {"dtype": code, "shape": shape, "data_offsets": list(offsets)}


def test_tensors_and_texts_come_back(tmp_path):
    size = write_tensors(tmp_path / "a", TENSORS, {"é": '"text"\n\''})
    tensors, texts = read(tmp_path / "a")
    assert size == (tmp_path / "a").stat().st_size
    np.testing.assert_array_equal(tensors["words"], WORDS)
    np.testing.assert_array_equal(tensors["bytes"], BYTES)
    assert texts == {"é": '"text"\n\''}


def test_the_safetensors_package_reads_it(tmp_path):
    numpy_format = require_part("safetensors.numpy")
    write_tensors(tmp_path / "a", TENSORS, {"text": "é"})
    found = numpy_format.load_file(tmp_path / "a")
    assert found.keys() == {"words", "bytes"}
    np.testing.assert_array_equal(found["words"], WORDS)
    np.testing.assert_array_equal(found["bytes"], BYTES)


def test_a_file_without_tensors_is_one(tmp_path):
    write_tensors(tmp_path / "a", [], {})
    assert read(tmp_path / "a") == ({}, {})


def test_arrays_in_any_byte_order_and_layout_are_written(tmp_path):
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    write_tensors(tmp_path / "a", [Tensor("a", TensorSpec("F32", (3, 2)), [array])], {})
    found = read(tmp_path / "a")[0]["a"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.float32


def test_the_payload_begins_at_a_whole_word():
    lengths = {len(header_bytes(TENSORS, {"a": "x" * count})) % 8 for count in range(9)}
    assert lengths == {0}


def test_the_header_begins_with_version_and_checksum():
    assert header_bytes(TENSORS, {"a": "b"})[8:].startswith(START + b"0" * 16 + b'"')
    newer = header_bytes(TENSORS, {"a": "b"}, version=FORMAT_VERSION)
    assert newer[8:].startswith(START.replace(b"1 ", b"2 ") + b"0" * 16 + b'"')


@pytest.mark.parametrize("version", [1, FORMAT_VERSION])
def test_each_version_is_written_and_read(version, tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {"text": "é"}, version=version)
    with opened(tmp_path / "a") as file:
        header = read_header(file)
        assert (header.version, header.texts) == (version, {"text": "é"})
        np.testing.assert_array_equal(read_tensors(file, header)["words"], WORDS)


def test_one_tensor_is_read_without_the_others(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {})
    with opened(tmp_path / "a") as file:
        header = read_header(file)
        np.testing.assert_array_equal(read_tensor(file, header, "bytes"), BYTES)
        np.testing.assert_array_equal(read_tensor(file, header, "words"), WORDS)


def test_a_tensor_that_was_cut_off_meanwhile_is_noticed(tmp_path):
    long = Tensor("long", TensorSpec("U8", (1_000_000,)), [np.zeros(1_000_000, np.uint8)])
    write_tensors(tmp_path / "a", [long], {})
    with opened(tmp_path / "a") as file:
        header = read_header(file)
        os.truncate(tmp_path / "a", header.file_bytes - 1)
        with pytest.raises(CheckpointError, match="ends within tensor 'long'"):
            read_tensor(file, header, "long")


def test_the_file_is_the_one_that_the_documentation_describes(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {})
    raw = header_bytes(TENSORS, {})[8:]
    assert (tmp_path / "a").read_bytes() == signed(raw, WORDS.tobytes() + BYTES.tobytes())


@pytest.mark.parametrize("code", DTYPES)
def test_each_dtype_has_its_name_in_any_byte_order(code):
    assert code_of(DTYPES[code]) == code_of(DTYPES[code].newbyteorder(">")) == code


@pytest.mark.parametrize("dtype", ["c8", "O", "U3", "M8[s]", "V4"])
def test_a_dtype_that_files_do_not_have_has_no_name(dtype):
    assert code_of(np.dtype(dtype)) is None


# ---------------------------------------------------------------- what is wrong with a file


def test_any_changed_bit_is_noticed(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {"text": "é"})
    good = (tmp_path / "a").read_bytes()
    changed = tmp_path / "changed"
    for place in range(len(good)):
        for change in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed.write_bytes(
                good[:place] + bytes([good[place] ^ change]) + good[place + 1 :],
            )
            with pytest.raises(CheckpointError, match="changed "):
                read(changed)


def test_a_file_cut_anywhere_is_noticed(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {})
    good = (tmp_path / "a").read_bytes()
    for length in range(len(good)):
        (tmp_path / "cut").write_bytes(good[:length])
        with pytest.raises(CheckpointError, match=r"cut is (not a weights file|damaged)"):
            read(tmp_path / "cut")


def test_bytes_behind_the_end_are_noticed(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {})
    with (tmp_path / "a").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(CheckpointError, match="followed by 54 bytes, it should be 53; copy it ag"):
        read(tmp_path / "a")


def test_a_payload_that_shrinks_meanwhile_is_noticed(tmp_path):
    long = np.zeros(10**6, np.uint8)
    size = write_tensors(tmp_path / "a", [Tensor("long", TensorSpec("U8", (10**6,)), [long])], {})
    with opened(tmp_path / "a") as file:
        header = read_header(file)
        os.truncate(tmp_path / "a", size - 1)
        with pytest.raises(CheckpointError, match="is damaged: it ends within tensor 'long'"):
            read_tensors(file, header)


def test_a_missing_file_is_named(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(CheckpointError, match=f"there is no weights file at {path}"):
            read(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be written: .*[Dd]irectory"):
        write_tensors(tmp_path, TENSORS, {})
    assert list(tmp_path.iterdir()) == []


def test_a_safetensors_file_of_another_tool_leads_to_load_checkpoint(tmp_path):
    write_arrays(tmp_path / "a", Linear(2, 2).state_dict())
    with pytest.raises(CheckpointError, match=r"a is a safetensors file.*load_checkpoint"):
        read(tmp_path / "a")


@pytest.mark.parametrize("content", [b"", b"short", b"\x80\x04pickled" * 9, b"\0" * 99])
def test_other_files_are_no_weights_files(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CheckpointError, match="a is not a weights file"):
        read(tmp_path / "a")


def test_a_file_of_a_newer_version_asks_for_an_update(tmp_path):
    raw = b'{"__metadata__":{"__tinytorch":"12 something new"}}'
    (tmp_path / "a").write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(CheckpointError, match=r"version 12 .* reads up to 2; update TinyTorch"):
        read(tmp_path / "a")


LIES = {
    "a gap": header_of({"a": row("U8", [4], 4, 8)}),
    "an overlap": header_of({"a": row("U8", [8], 0, 8), "b": row("U8", [4], 4, 8)}),
    "too long": header_of({"a": row("F32", [2**40], 0, 2**42)}),
    "too short": header_of({"a": row("U8", [4], 0, 4)}),
    "other bytes than the shape": header_of({"a": row("F32", [4], 0, 8)}),
    "huge and empty": header_of(
        {"a": row("F32", [0, 2**62, 2**62], 0, 0), "b": row("U8", [8], 0, 8)}
    ),
    "too many axes": header_of({"a": row("U8", [1] * 64 + [8], 0, 8)}),
    "longer than any array": header_of({"a": row("U8", [10**4000], 0, 8)}),
    "negative": header_of({"a": row("U8", [-2, -4], 0, 8)}),
    "no whole number": header_of({"a": row("U8", [8.0], 0, 8)}),
    "a truth as length": header_of({"a": row("U8", [True, 8], 0, 8)}),
    "three offsets": header_of({"a": row("U8", [8], 0, 4, 8)}),
    "unknown dtype": header_of({"a": row("BF16", [4], 0, 8)}),
    "no dtype": header_of({"a": {"shape": [8], "data_offsets": [0, 8]}}),
    "a dtype that is a list": header_of({"a": row([], [8], 0, 8)}),
    "no object": header_of({"a": 3}),
    "a metadata that is no text": header_of({"a": row("U8", [8], 0, 8)}, number=3),
    "second metadata": header_of({"a": row("U8", [8], 0, 8)})[:-1] + b',"__metadata__":[]}',
    "second metadata without version": header_of({})[:-1] + b',"__metadata__":{}}',
    "nested": header_of({})[:-1] + b',"a":' + b"[" * 100_000 + b"}",
    "no JSON": header_of({})[:-1] + b',"a":',
    "no UTF-8": header_of({})[:-1] + b',"\xff":3}',
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_header_is_an_error_and_allocates_nothing(lie, tmp_path):
    (tmp_path / "a").write_bytes(signed(LIES[lie], b"12345678"))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="a is damaged"):
            read(tmp_path / "a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000  # deep nesting takes most of it


def test_a_header_that_tells_the_truth_is_read(tmp_path):
    """The lies above fail because of what they say, not of how they are written."""
    raw = header_of({"a": row("U8", [2, 4], 0, 8), "b": row("F32", [0, 9], 0, 0)}, x="y")
    (tmp_path / "a").write_bytes(signed(raw, b"12345678"))
    tensors, texts = read(tmp_path / "a")
    assert tensors["a"].tobytes() == b"12345678"
    assert tensors["b"].shape == (0, 9)
    assert texts == {"x": "y"}


def test_a_header_of_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "a").open("wb") as file:
        file.write((10**9).to_bytes(8, "little") + START)
        file.truncate(2 * 10**9)  # a hole: nothing is on the disk
    with pytest.raises(CheckpointError, match="announce a header of 1000000000"):
        read(tmp_path / "a")


def test_shapes_are_tuples_of_lengths():
    assert checked_shape([2, 0]) == (2, 0)
    with pytest.raises(ValueError, match="-1 is not a length"):
        checked_shape([2, -1])
    with pytest.raises(ValueError, match="2 axes as long as 576460752303423488"):
        checked_shape([2**59, 2])


def test_json_is_compact_and_an_object():
    assert compact_json({"é": [1, 2]}) == '{"é":[1,2]}'
    assert json_object('{"a":1}') == {"a": 1}
    with pytest.raises(TypeError, match="list where an object should be"):
        json_object("[]")


def test_a_file_that_is_too_large_for_the_memory_is_said_to_be(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {})
    wanted = pytest.raises(CheckpointError, match="more than the memory has room for")
    with wanted, opened(tmp_path / "a"):
        raise MemoryError("Unable to allocate 9.0 TiB")
