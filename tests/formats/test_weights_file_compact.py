"""Compact weights files: near the entropy, read without a flag, and safe whatever they say."""

import hashlib
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import require_part

from tinytorch.errors import CheckpointError
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array
from tinytorch.formats.entropy import entropy_bytes
from tinytorch.formats.tensor_file import Tensor, TensorSpec, write_tensors
from tinytorch.formats.weights_file import (
    ENCODINGS,
    describe_weights,
    pack_texts,
    read_weights,
    unpack_texts,
    write_weights,
)

MLP = [(784, 128), (128,), (128, 64), (64,), (64, 10), (10,)]


def pruned_model(rng, density=0.1):
    """Give the arrays of a pruned model of 4 bits."""
    arrays = {}
    for place, shape in enumerate(MLP):
        array = rng.normal(size=shape).astype(np.float32)
        if len(shape) > 1:
            array[rng.random(shape) >= density] = 0
            arrays[f"layers.{place}.weight"] = quantize_array(array, Scheme(4, True, axis=1))
        else:
            arrays[f"layers.{place - 1}.bias"] = array
    return arrays


def bound(arrays):
    """Give the entropy of whole numbers, and the bytes of floats."""
    return sum(
        entropy_bytes(array.values) + array.scale.nbytes
        if isinstance(array, QuantizedArray)
        else array.nbytes
        for array in arrays.values()
    )


def assert_same(found, array):
    if isinstance(array, QuantizedArray):
        assert found.scheme == array.scheme
        for field in ("values", "scale", "zero_point"):
            assert_same(getattr(found, field), getattr(array, field))
        return
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def encodings_of(path):
    return {array.name: array.encoding for array in describe_weights(path).arrays}


def test_a_pruned_model_takes_two_percent_more_than_its_entropy_at_most(tmp_path, rng):
    """Although these zeros have no pattern that could be learned."""
    arrays = pruned_model(rng)
    size = write_weights(tmp_path / "a", arrays, {"bits": 4}, compact=True)
    bytes_of_header = 220
    assert size - bytes_of_header <= 1.02 * bound(arrays)
    found = read_weights(tmp_path / "a")
    assert (found.version, found.metadata) == (2, {"bits": 4})
    for name, array in arrays.items():
        assert_same(found.arrays[name], array)


def test_each_array_has_the_encoding_that_takes_the_fewest_bytes(tmp_path, rng):
    dense = rng.normal(size=(80, 90)).astype(np.float32)
    arrays = {
        "bias": rng.normal(size=9).astype(np.float32),
        "pruned": np.where(np.abs(dense) > 1.5, dense, np.float32(0)),
        "shared": rng.normal(size=16)[rng.integers(0, 16, (50, 60))],
        "small": quantize_array(dense[:2, :2], Scheme(bits=4)),
        "int4": quantize_array(dense, Scheme(4, True, 1)),
        "int8": quantize_array(dense, Scheme(8, False, 1)),
        "mask": dense > 2,
        "random": np.frombuffer(rng.bytes(4000), np.uint32),
    }
    size = write_weights(tmp_path / "a", arrays, compact=True)
    assert encodings_of(tmp_path / "a") == {
        "bias": "plain",
        "int4": "coded4",
        "int8": "coded8",
        "mask": "coded",
        "pruned": "coded",
        "random": "plain",
        "shared": "codebook",
        "small": "int4",
    }
    assert size < write_weights(tmp_path / "b", arrays)
    for name, array in read_weights(tmp_path / "a").arrays.items():
        assert_same(array, arrays[name])


def test_a_file_that_is_as_short_in_the_old_version_has_that(tmp_path):
    write_weights(tmp_path / "a", {"a": np.ones(2)}, compact=True)
    write_weights(tmp_path / "b", {"a": np.ones(2)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_weights(tmp_path / "a").version == 1


def test_the_order_of_contents_does_not_matter(tmp_path, rng):
    arrays = pruned_model(rng)
    write_weights(tmp_path / "a", arrays, {"a": 1, "b": 2}, compact=True)
    found = read_weights(tmp_path / "a").arrays
    write_weights(tmp_path / "b", dict(reversed(found.items())), {"b": 2, "a": 1}, compact=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_safetensors_reader_opens_it_and_finds_large_plain_arrays(tmp_path, rng):
    numpy_format = require_part("safetensors.numpy")
    arrays = pruned_model(rng) | {"large": np.frombuffer(rng.bytes(40_000), np.uint64)}
    write_weights(tmp_path / "a", arrays, compact=True)
    assert read_weights(tmp_path / "a").version == 2
    found = numpy_format.load_file(tmp_path / "a")
    assert found.keys() == {"__gathered", "large"}
    np.testing.assert_array_equal(found["large"], arrays["large"])
    assert_same(read_weights(tmp_path / "a").arrays["large"], arrays["large"])


# ---------------------------------------------------------------- golden bytes

# Rebuild in this folder with the tests on the path:
# PYTHONPATH=.. python -c "import test_weights_file_compact as t; print(t.show_golden())"
GOLDEN_ARRAYS = {
    "coded": np.array([[0, 1, 0, -2], [0, 0.5, -0.0, 0]], np.float32),
    "codebook": np.array([[1.5, -1, 1.5], [0, 1.5, -1]], np.float16),
    "coded8": quantize_array([[0.0, 2, -3], [0, 1, 3]], Scheme(8, False, 1)),
    "coded4": quantize_array([[0.0, 2, -3], [0, 1, 3]], Scheme(4, True, 0)),
}
GOLDEN = {
    "coded": "minus 16: 00aaaa3201aace00a000010000000000",
    "codebook": "F16 3 11: 00340901000080003e00bc",
    "coded8": "axis=1 zero 22: 0022224900228a0020803f8180003cc1c0c03c0080ff",
    "coded4": "axis=0 13: 0036345900b7cddb3eb76ddb3e",
}


def show_golden():
    """Give the settings and the bytes of each array as this version writes them."""
    found = {}
    for name, array in GOLDEN_ARRAYS.items():
        encoded = ENCODINGS[name].encode(array)
        found[name] = f"{encoded.settings}: {encoded.parts[''].tobytes().hex()}"
    return found


def test_coded_bytes_stay_what_they_are():
    assert show_golden() == GOLDEN


GOLDEN_TABLE = (
    "6d90c10d002008035771850231ece6f202d2f0f1cb41c3f5d438dd7aa334253e4d235d4064d52513025af780"
    "4d68932f63092577721f8ed79ca4f1a7328bca2e"
)


def test_a_file_of_this_version_stays_readable(tmp_path):
    """Its packed texts are fixed here, since another deflate may pack them in another way."""
    parts = [bytes.fromhex(GOLDEN[name].rpartition(": ")[2]) for name in sorted(GOLDEN)]
    write_gathered(tmp_path / "a", bytes.fromhex(GOLDEN_TABLE), *parts)
    found = read_weights(tmp_path / "a")
    assert found.metadata == {"bits": 4}
    assert list(found.arrays) == sorted(GOLDEN)
    for name, array in GOLDEN_ARRAYS.items():
        assert_same(found.arrays[name], array)


# ---------------------------------------------------------------- what is wrong with a file


def write_gathered(path, *contents, texts=None, version=2):
    piece = np.frombuffer(b"".join(contents), np.uint8)
    tensor = Tensor("__gathered", TensorSpec("U8", piece.shape), [piece])
    write_tensors(path, [tensor], texts or {}, version=version)


LIES = {
    "a huge array": {"a": f"coded {2**40} 8"},
    "an array that is larger than memory": {"a": f"coded {2**58} 8"},
    "a huge array of none": {"a": f"coded8 {2**58}x0 axis=0 8"},
    "an unknown encoding": {"a": "coded9 2 8"},
    "no number of bytes": {"a": "coded 2"},
    "more bytes than there are": {"a": "coded 2 9"},
    "fewer bytes than there are": {"a": "coded 2 7"},
    "absurdly many bytes": {"a": "coded 2 " + "9" * 18},
    "bytes in many digits": {"a": "coded 2 " + "9" * 5000},
    "an unknown dtype": {"a": "coded 2 F33 8"},
    "a codebook of nothing": {"a": "codebook 2 0 8"},
    "an axis that is not there": {"a": "coded4 2 axis=1 8"},
    "metadata that are no JSON": {"a": "plain 2", "__user": "{"},
    "a reserved name": {"a": "plain 2", "__new": "text"},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("read", [read_weights, describe_weights])
def test_a_file_that_lies_about_its_arrays_is_an_error(lie, read, tmp_path):
    write_gathered(tmp_path / "a", pack_texts(LIES[lie]), bytes([0, 0, 0, 1, 0, 0, 0, 0]))
    if lie == "a huge array of none" and read is describe_weights:
        assert describe_weights(tmp_path / "a").arrays[0].nbytes == 8
        return
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"a (is damaged|holds)"):
            read(tmp_path / "a")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_tells_the_truth_is_read(tmp_path):
    """The lies above fail because of what they say, not of how they are written."""
    write_gathered(tmp_path / "a", pack_texts({"a": "coded 0 8"}), bytes([0, 0, 0, 1, 0, 0, 0, 0]))
    assert read_weights(tmp_path / "a").arrays["a"].shape == (0,)


@pytest.mark.parametrize("read", [read_weights, describe_weights])
@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff", pack_texts({"a": "plain 2"})[:-3]])
def test_texts_that_cannot_be_unpacked_are_an_error(read, content, tmp_path):
    write_gathered(tmp_path / "a", content)
    with pytest.raises(CheckpointError, match="a is damaged: its header is wrong"):
        read(tmp_path / "a")


def test_texts_must_be_where_the_version_has_them(tmp_path):
    write_gathered(tmp_path / "a", pack_texts({}), texts={"a": "plain 0"})
    write_tensors(tmp_path / "b", [], {}, version=2)
    write_gathered(tmp_path / "c", pack_texts({"a": "plain 0"}), version=1)
    for name in "abc":
        for read in (read_weights, describe_weights):
            with pytest.raises(CheckpointError, match=f"{name} is damaged"):
                read(tmp_path / name)


def test_a_bomb_of_packed_texts_is_defused(tmp_path, monkeypatch):
    monkeypatch.setattr("tinytorch.formats.tensor_file.LARGEST_HEADER_BYTES", 10_000)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    write_gathered(tmp_path / "a", packer.compress(b" " * 10_000_000) + packer.flush())
    with pytest.raises(CheckpointError, match="its texts do not end"):
        read_weights(tmp_path / "a")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("compact") / "a"
    rng = np.random.default_rng(1)
    arrays = {
        "a": quantize_array(rng.normal(size=(9, 8)), Scheme(4, False, 1)),
        "b": quantize_array(rng.normal(size=(40, 8)), Scheme(8, True, 0)),
        "c": np.where(rng.random((9, 9)) < 0.2, 1.5, 0) * rng.normal(size=(9, 9)),
        "d": rng.normal(size=3)[rng.integers(0, 3, 99)],
    }
    write_weights(path, arrays, {"k": "v"}, compact=True)
    assert read_weights(path).version == 2
    assert "codebook" in encodings_of(path).values()
    return path


@pytest.mark.slow
@settings(max_examples=300)
@given(choices=st.data())
def test_any_damage_is_an_error_or_harmless_even_if_the_checksum_holds(choices, good):
    content = bytearray(good.read_bytes())
    for _ in range(choices.draw(st.integers(1, 3))):
        content[choices.draw(st.integers(58, len(content) - 1))] = choices.draw(st.integers(0, 255))
    content[42:58] = b"0" * 16
    content[42:58] = hashlib.sha256(content).hexdigest()[:16].encode()
    path = good.with_name("b")
    path.write_bytes(content)
    try:
        found = read_weights(path)
    except CheckpointError:
        return
    assert len(found.arrays) == len(describe_weights(path).arrays)


def test_a_small_file_does_not_fill_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    write_weights(path, {"x": np.zeros((1 << 24,), np.float32)}, compact=True)
    assert path.stat().st_size < 1 << 17
    with pytest.raises(CheckpointError, match="TINYTORCH_DECODED_BYTES=67108864"):
        read_weights(path)
    assert describe_weights(path).arrays[0].shape == (1 << 24,)
    monkeypatch.setenv("TINYTORCH_DECODED_BYTES", str(1 << 26))
    assert read_weights(path).arrays["x"].nbytes == 1 << 26


def test_texts_do_not_unpack_to_more_than_a_file_is_worth():
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(b'{"a":"' + bytes(60 << 20) + b'"}') + packer.flush()
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="do not end"):
        unpack_texts(bomb)
