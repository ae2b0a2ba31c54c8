"""The weights file: small, exact, the same bytes for the same contents, and safe to read."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from parts import require_part

from tinytorch.core.checkpoints import write_arrays
from tinytorch.errors import CheckpointError, DTypeError, SettingError
from tinytorch.formats import weights_file
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array, scale_shape
from tinytorch.formats.tensor_file import DTYPES, Tensor, TensorSpec, code_of, write_tensors
from tinytorch.formats.weights_file import (
    ENCODINGS,
    MAIN,
    Encoded,
    Encoding,
    StoredArray,
    describe_weights,
    read_weights,
    unpack_texts,
    write_weights,
)

MLP = [(784, 128), (128,), (128, 64), (64,), (64, 10), (10,)]
CNN = [(16, 1, 3, 3), (16,), (32, 16, 3, 3), (32,), (1568, 10), (10,)]


def model(shapes, bits=8):
    """Give the arrays of a model of three layers, with the names that a model gives them."""
    rng = np.random.default_rng(5)
    arrays = {}
    for place, shape in enumerate(shapes):
        array = rng.normal(size=shape).astype(np.float32)
        if len(shape) > 1:
            scheme = Scheme(bits=bits, symmetric=True, axis=1 if len(shape) == 2 else 0)
            arrays[f"layers.{place}.weight"] = quantize_array(array, scheme)
        else:
            arrays[f"layers.{place - 1}.bias"] = array
    return arrays


def ideal_bytes(arrays, bits=8):
    total = 0
    for array in arrays.values():
        if isinstance(array, QuantizedArray):
            total += -(-array.values.size * bits // 8) + array.scale.nbytes
        else:
            total += array.nbytes
    return total


def assert_same(found, array):
    if isinstance(array, QuantizedArray):
        assert found.scheme == array.scheme
        for field in ("values", "scale", "zero_point"):
            assert_same(getattr(found, field), getattr(array, field))
        return
    assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)
    assert found.tobytes() == array.astype(found.dtype).tobytes()
    assert found.flags.c_contiguous
    assert found.flags.owndata
    assert found.flags.writeable


def assert_same_arrays(found, arrays):
    assert list(found) == sorted(arrays)
    for name, array in arrays.items():
        assert_same(found[name], array)


# ---------------------------------------------------------------- what comes back

TRICKY_NAMES = [
    *("", "a", "a.scale", "layers.0.weight", "décoder/Größe/重み", 'quote"\\\n\0', "/", "checksum"),
    *("__", "__/", "__metadata__", "__tinytorch", "__gathered", "__user"),
    *("__scale/a", "__zero_point/a", "__/a", "__/__/a", "__/__scale/a"),
]


def random_array(rng, shape, code):
    """Give an array of random bits: floats are NaN with any payload, infinite, subnormal, ..."""
    spec = TensorSpec(code, shape)
    array = spec.empty()
    array.reshape(-1).view(np.uint8)[:] = np.frombuffer(rng.bytes(spec.nbytes), np.uint8)
    return array.view(np.uint8) % 2 == 1 if code == "BOOL" else array


def random_quantized(rng, shape, scheme):
    top = 2 ** (scheme.bits - 1)
    scales = scale_shape(shape, scheme)
    zeros = 0 if scheme.symmetric else rng.integers(-top, top, scales)
    return QuantizedArray(
        rng.integers(-top, top, shape, np.int8),
        random_array(rng, scales, "F32"),
        np.broadcast_to(zeros, scales).astype(np.int32),
        scheme,
    )


@st.composite
def schemes(draw, shape):
    axis = draw(st.sampled_from([None, *range(-len(shape), len(shape))]))
    group = None
    if len(shape) == 2 and axis in (1, -1):
        group = draw(st.sampled_from([None, *(n for n in range(1, 9) if shape[0] % n == 0)]))
    return Scheme(draw(st.sampled_from([8, 4])), draw(st.booleans()), axis, group)


@st.composite
def arrays_of_any_kind(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    if draw(st.booleans()):
        return random_quantized(rng, shape, draw(schemes(shape)))
    return random_array(rng, shape, draw(st.sampled_from(sorted(DTYPES))))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@settings(max_examples=150)
@given(
    arrays=st.dictionaries(
        st.sampled_from(TRICKY_NAMES) | st.text(), arrays_of_any_kind(), max_size=6
    ),
    metadata=st.dictionaries(st.text(), JSON, max_size=3),
    share=st.sampled_from([0, 0.015, 10**9]),
    compact=st.booleans(),
)
def test_everything_comes_back_bit_for_bit(arrays, metadata, share, compact, folder):
    path = folder / "any"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_file, "LARGEST_HEADER_SHARE", share)
        size = write_weights(path, arrays, metadata, compact=compact)
    found = read_weights(path)
    assert found.version == 1 or compact
    assert_same_arrays(found.arrays, arrays)
    assert found.metadata == metadata
    assert size == path.stat().st_size
    summary = describe_weights(path)
    assert [each.name for each in summary.arrays] == sorted(arrays)
    assert (summary.metadata, summary.file_bytes) == (metadata, size)
    assert summary.version == found.version
    with path.open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
        file.seek(header)
        packed = unpack_texts(file.read())[1] if found.version == 2 else 0
    assert header + packed + sum(each.nbytes for each in summary.arrays) == size


@pytest.mark.parametrize("share", [0, 10**9])
def test_names_like_those_inside_of_the_file_do_not_collide(share, tmp_path, monkeypatch):
    monkeypatch.setattr(weights_file, "LARGEST_HEADER_SHARE", share)
    rng = np.random.default_rng(1)
    arrays = {
        name: random_quantized(rng, (place, 3), Scheme(axis=1))
        for place, name in enumerate(TRICKY_NAMES)
    }
    write_weights(tmp_path / "a", arrays)
    assert_same_arrays(read_weights(tmp_path / "a").arrays, arrays)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=np.float64)[::-2],
        np.arange(3, dtype=">i4"),
        np.broadcast_to(np.float16(2), (3, 3)),
        np.float32(3),
        [1.0, 2.0],
    ],
)
def test_arrays_in_any_memory_come_back(array, tmp_path):
    write_weights(tmp_path / "a", {"a": array})
    assert_same(read_weights(tmp_path / "a").arrays["a"], np.asarray(array))


def test_a_quantized_view_comes_back(tmp_path):
    whole = random_quantized(np.random.default_rng(0), (4, 6), Scheme(bits=4, axis=1))
    array = QuantizedArray(
        whole.values[:, ::-2], whole.scale[:3], whole.zero_point[3:], whole.scheme
    )
    write_weights(tmp_path / "a", {"a": array})
    assert_same(read_weights(tmp_path / "a").arrays["a"], array)


def test_the_order_of_contents_does_not_matter(tmp_path):
    arrays, metadata = model(MLP), {"b": {"y": 1, "x": 2}, "a": 3}
    write_weights(tmp_path / "a", arrays, metadata)
    write_weights(tmp_path / "b", dict(reversed(arrays.items())), {"a": 3, "b": {"x": 2, "y": 1}})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_writing_what_was_read_gives_the_same_bytes(tmp_path):
    write_weights(tmp_path / "a", model(CNN), {"a": [1.5, None]})
    found = read_weights(tmp_path / "a")
    write_weights(tmp_path / "b", found.arrays, found.metadata)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_was_read_is_frozen(tmp_path):
    write_weights(tmp_path / "a", {})
    found = read_weights(tmp_path / "a")
    assert (found.arrays, found.metadata, found.version) == ({}, {}, 1)
    with pytest.raises(FrozenInstanceError):
        found.version = 2


# ---------------------------------------------------------------- what it weighs, and who reads it


@pytest.mark.parametrize(("shapes", "bits"), [(MLP, 8), (CNN, 8), (MLP, 4)])
def test_small_models_weigh_hardly_more_than_their_numbers(shapes, bits, tmp_path):
    arrays = model(shapes, bits)
    size = write_weights(tmp_path / "a", arrays, {"mode": "weight_only", "bits": bits})
    assert ideal_bytes(arrays, bits) / size >= 0.98


def test_a_safetensors_reader_finds_all_arrays(tmp_path):
    numpy_format = require_part("safetensors.numpy")
    arrays = model(MLP)
    write_weights(tmp_path / "a", arrays, {"a": "é"})
    found = numpy_format.load_file(tmp_path / "a")
    scales = {f"__scale/{name}" for name in arrays if name.endswith("weight")}
    assert found.keys() == arrays.keys() | scales
    np.testing.assert_array_equal(found["layers.0.weight"], arrays["layers.0.weight"].values)
    np.testing.assert_array_equal(found["__scale/layers.0.weight"], arrays["layers.0.weight"].scale)
    np.testing.assert_array_equal(found["layers.0.bias"], arrays["layers.0.bias"])


def test_a_safetensors_reader_finds_the_large_arrays_of_small_files(tmp_path):
    numpy_format = require_part("safetensors.numpy")
    arrays = {"large": np.arange(5000, dtype=np.float32)}
    arrays |= {f"small{number}": np.ones(3, np.float16) for number in range(50)}
    write_weights(tmp_path / "a", arrays)
    found = numpy_format.load_file(tmp_path / "a")
    assert {name: array.nbytes for name, array in found.items()} == {
        "large": 20_000,
        "__gathered": 300,
    }
    np.testing.assert_array_equal(found["large"], arrays["large"])


def test_a_header_is_not_made_longer_by_gathering(tmp_path):
    numpy_format = require_part("safetensors.numpy")
    write_weights(tmp_path / "a", {"a": np.ones(2)})
    assert numpy_format.load_file(tmp_path / "a").keys() == {"a"}


def test_elements_are_aligned(tmp_path):
    arrays = {code: np.ones(3, dtype) for code, dtype in DTYPES.items()}
    arrays |= {f"long{code}": np.ones(30_000, dtype) for code, dtype in DTYPES.items()}
    write_weights(tmp_path / "a", arrays)
    header = 8 + int.from_bytes((tmp_path / "a").read_bytes()[:8], "little")
    text = (tmp_path / "a").read_bytes()[8:header]
    table = json.loads(text)
    del table["__metadata__"]
    assert len(table) == len(arrays)
    for row in table.values():
        assert (header + row["data_offsets"][0]) % DTYPES[row["dtype"]].itemsize == 0


def test_a_summary_says_what_is_in_the_file(tmp_path):
    quantized = quantize_array(np.ones((6, 4), np.float32), Scheme(4, False, 1, 3))
    size = write_weights(tmp_path / "a", {"b": quantized, "a": np.ones(5, np.float16)}, {"x": 1})
    summary = describe_weights(tmp_path / "a")
    assert summary.arrays == (
        StoredArray("a", "plain", "F16", (5,), "float16", 10),
        StoredArray("b", "int4", "axis=1 group=3 zero", (6, 4), "uint8", 12 + 8 * 4 + 8),
    )
    assert (summary.metadata, summary.version, summary.file_bytes) == ({"x": 1}, 1, size)


def test_a_new_encoding_needs_only_a_row(tmp_path, monkeypatch):
    class Zeros(tuple):
        """The shape of an array of nothing but zeros."""

    row = Encoding(
        accepts=lambda array: isinstance(array, Zeros),
        encode=lambda zeros: Encoded(tuple(zeros), "some words", {MAIN: np.empty(0, np.uint8)}),
        layout=lambda shape, settings: {MAIN: TensorSpec("U8", (0,))},
        decode=lambda encoded: Zeros(encoded.shape),
    )
    known = dict(ENCODINGS)
    monkeypatch.setattr(weights_file, "ENCODINGS", {"zeros": row, **known})
    write_weights(tmp_path / "a", {"z": Zeros((10**9, 10**8)), "a": np.ones(2)})
    found = read_weights(tmp_path / "a").arrays
    assert found["z"] == (10**9, 10**8)
    assert_same(found["a"], np.ones(2))
    monkeypatch.setattr(weights_file, "ENCODINGS", known)
    for read in (read_weights, describe_weights):
        with pytest.raises(
            CheckpointError, match=r"holds 'z' as 'zeros', an encoding .*int8, int4, .*update"
        ):
            read(tmp_path / "a")


# ---------------------------------------------------------------- what is wrong with a file


@pytest.mark.parametrize(("share", "compact"), [(0, False), (10**9, False), (0, True)])
def test_any_changed_byte_is_noticed(share, compact, tmp_path, monkeypatch):
    monkeypatch.setattr(weights_file, "LARGEST_HEADER_SHARE", share)
    rng = np.random.default_rng(1)
    arrays = {"b": np.ones(2, np.float16), "w": random_quantized(rng, (3, 3), Scheme(4, False, 1))}
    arrays |= {"z": np.zeros((9, 9)), "y": np.arange(200) % 3} if compact else {}
    write_weights(tmp_path / "a", arrays, {"k": "v"}, compact=compact)
    good = (tmp_path / "a").read_bytes()
    for place, byte in enumerate(good):
        for other in {byte ^ 1, byte ^ 255, int(rng.integers(256))} - {byte}:
            (tmp_path / "b").write_bytes(good[:place] + bytes([other]) + good[place + 1 :])
            with pytest.raises(CheckpointError, match="b "):
                read_weights(tmp_path / "b")


@pytest.mark.parametrize("compact", [False, True])
def test_a_file_cut_anywhere_is_noticed(compact, tmp_path):
    arrays = {"w": np.zeros(400), "b": np.ones(2, np.float16)}
    write_weights(tmp_path / "a", arrays, {"k": "v"}, compact=compact)
    good = (tmp_path / "a").read_bytes()
    for length in range(len(good)):
        (tmp_path / "b").write_bytes(good[:length])
        for read in (read_weights, describe_weights):
            with pytest.raises(CheckpointError, match=r"b is (not a weights file|damaged)"):
                read(tmp_path / "b")


def test_a_missing_file_and_one_of_another_tool_are_told_apart(tmp_path):
    write_arrays(tmp_path / "other", {"a": np.ones(3)})
    for read in (read_weights, describe_weights):
        with pytest.raises(CheckpointError, match="there is no weights file at"):
            read(tmp_path / "missing")
        with pytest.raises(CheckpointError, match="load_checkpoint"):
            read(tmp_path / "other")


HUGE = 2**58
LIES = {
    "more than was gathered": {"a": "plain 3"},
    "much more than was gathered": {"a": f"plain {HUGE}"},
    "less than was gathered": {"a": "plain 1"},
    "nothing": {},
    "huge and empty": {"a": f"plain 0x{HUGE}x{HUGE}", "b": "plain 2"},
    "more axes than arrays have": {"a": "plain " + "x".join(["1"] * 65)},
    "no shape": {"a": "plain"},
    "half a shape": {"a": "plain 2x"},
    "a shape in other digits": {"a": "plain ٢"},
    "a shape of many digits": {"a": "plain " + "9" * 5000},
    "an unknown dtype": {"a": "plain 2 F33"},
    "an axis that is not there": {"a": "int8 4 axis=1"},
    "a group that does not divide": {"a": "int8 4x1 axis=1 group=3"},
    "a group that divides nothing": {"a": f"int8 {HUGE}x0 axis=1 group=7"},
    "metadata that are a list": {"a": "plain 2", "__user": "[]"},
    "metadata that are no JSON": {"a": "plain 2", "__user": "{"},
    "metadata that are nested": {"a": "plain 2", "__user": "[" * 100_000},
    "one tensor, two names": {"a": "plain 2", "__/a": "plain 2"},
    "a reserved name": {"a": "plain 2", "__new": "text"},
    "an empty text": {"a": "plain 2", "b": ""},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("read", [read_weights, describe_weights])
def test_a_file_that_lies_about_its_arrays_is_an_error(lie, read, tmp_path):
    gathered = Tensor("__gathered", TensorSpec("U8", (8,)), [np.arange(8, dtype=np.uint8)])
    write_tensors(tmp_path / "a", [gathered], LIES[lie])
    with pytest.raises(CheckpointError, match=r"a (is damaged|holds)"):
        read(tmp_path / "a")


def test_a_file_that_tells_the_truth_is_read(tmp_path):
    """The lies above fail because of what they say, not of how they are written."""
    gathered = Tensor("__gathered", TensorSpec("U8", (8,)), [np.ones(2, np.float32)])
    write_tensors(tmp_path / "a", [gathered], {"a": "plain 2"})
    assert read_weights(tmp_path / "a").arrays["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": np.ones(4, np.int8), "__scale/a": np.ones((), np.float64)},
        {"a": np.ones(5, np.int8), "__scale/a": np.ones((), np.float32)},
        {"a": np.ones(4, np.uint8), "__scale/a": np.ones((), np.float32)},
        {"a": np.ones(4, np.int8)},
        {"a": np.ones(4, np.int8), "__scale/a": np.float32(1), "__scale/b": np.float32(1)},
        {"a": np.ones(4, np.int8), "__gathered": np.array(1, np.uint8)},
        {"a": np.ones(4, np.int8), "__gathered": np.ones(1, np.float32)},
        {"a": np.ones(4, np.int8), "__gathered": np.ones((2, 2), np.uint8)},
    ],
)
def test_tensors_that_do_not_fit_their_arrays_are_an_error(tensors, tmp_path):
    rows = [
        Tensor(name, TensorSpec(code_of(array.dtype), array.shape), [np.asarray(array)])
        for name, array in tensors.items()
    ]
    write_tensors(tmp_path / "a", rows, {"a": "int8 4"})
    with pytest.raises(CheckpointError, match="a is damaged: its header is wrong"):
        read_weights(tmp_path / "a")


# ---------------------------------------------------------------- what cannot be written


@pytest.mark.parametrize(
    ("arrays", "metadata", "error", "message"),
    [
        ({"a": np.array([1j])}, None, DTypeError, "array 'a': numbers of complex128 cannot be"),
        ({3: np.ones(1)}, None, SettingError, "3 cannot name an array"),
        ({"\ud800": np.ones(1)}, None, SettingError, "cannot name an array"),
        ({}, {"a": np.float32(1)}, SettingError, "metadata.*float32"),
        ({}, {"a": float("nan")}, SettingError, "finite numbers"),
        ({}, {"a": "\ud800"}, SettingError, "the metadata"),
        ({}, {1: 2, "a": 3}, SettingError, "the metadata"),
    ],
)
def test_what_cannot_be_written_leaves_the_old_file(arrays, metadata, error, message, tmp_path):
    write_weights(tmp_path / "a", {"old": np.ones(3)})
    with pytest.raises(error, match=message):
        write_weights(tmp_path / "a", arrays, metadata)
    assert list(read_weights(tmp_path / "a").arrays) == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_bad_quantized_array_is_named(tmp_path):
    array = QuantizedArray(np.ones(3, np.int8), np.ones(2), np.zeros(()), Scheme())
    with pytest.raises(
        SettingError, match=r"array 'layer.weight': values are int8, scales float64"
    ):
        write_weights(tmp_path / "a", {"layer.weight": array})
    assert list(tmp_path.iterdir()) == []


def test_folders_are_made_and_files_replaced(tmp_path):
    path = tmp_path / "new" / "folder" / "a"
    write_weights(str(path), {"a": np.ones(3)})
    write_weights(path, {"b": np.ones(3)})
    assert list(read_weights(str(path)).arrays) == ["b"]
    with pytest.raises(CheckpointError, match="new cannot be written"):
        write_weights(tmp_path / "new", {})
