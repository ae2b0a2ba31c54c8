"""Coded arrays: bit for bit as they were, small, and nothing in a file can do harm."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from tinytorch.errors import SettingError
from tinytorch.formats import entropy as bit_coding
from tinytorch.formats.affine import QuantizedArray, Scheme, quantize_array
from tinytorch.formats.encodings import MAIN, Encoded
from tinytorch.formats.entropy import CODED, MOST_ELEMENTS_PER_BYTE, entropy_bytes
from tinytorch.formats.tensor_file import DTYPES, TensorSpec

FLOATS = ["F64", "F32", "F16"]


def round_trip(name, array):
    encoding = CODED[name]
    assert encoding.accepts(array)
    encoded = encoding.encode(array)
    layout = encoding.layout(encoded.shape, encoded.settings)
    assert layout == {MAIN: TensorSpec("U8", encoded.parts[MAIN].shape)}
    return encoding.decode(encoded)


def assert_same(found, array):
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.owndata
    assert found.flags.writeable
    assert found.flags.c_contiguous


def sparse(rng, shape, code, density):
    """Give an array of random bits (NaN, infinity, subnormal, ...) with zeros of both signs."""
    spec = TensorSpec(code, shape)
    array = spec.empty()
    array.reshape(-1).view(np.uint8)[:] = np.frombuffer(rng.bytes(spec.nbytes), np.uint8)
    if code == "BOOL":
        array = np.asarray(array.view(np.uint8) % 2 == 1)
    array[rng.random(shape) >= density] = 0
    if code in FLOATS:
        array[rng.random(shape) < 0.1] = -0.0
    return array


@settings(max_examples=200)
@given(
    shape=array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
    code=st.sampled_from(sorted(DTYPES)),
    density=st.sampled_from([0, 0.1, 0.5, 1]),
    seed=st.integers(0, 2**32),
)
def test_numbers_of_any_kind_come_back(shape, code, density, seed):
    array = sparse(np.random.default_rng(seed), shape, code, density)
    assert_same(round_trip("coded", array), array)
    if CODED["codebook"].accepts(array):
        assert_same(round_trip("codebook", array), array)


@settings(max_examples=100)
@given(
    shape=array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=9),
    scheme=st.builds(
        Scheme, st.sampled_from([8, 4]), st.booleans(), st.sampled_from([None, 0, 1, -1])
    ),
    seed=st.integers(0, 2**32),
)
def test_quantized_arrays_come_back(shape, scheme, seed):
    rng = np.random.default_rng(seed)
    array = quantize_array(rng.normal(size=shape) * (rng.random(shape) < 0.3), scheme)
    found = round_trip(f"coded{scheme.bits}", array)
    assert found.scheme == array.scheme
    for field in ("values", "scale", "zero_point"):
        assert_same(getattr(found, field), getattr(array, field))


def test_groups_and_views_come_back(rng):
    array = quantize_array(rng.normal(size=(8, 6)), Scheme(4, False, 1, 4))
    view = QuantizedArray(
        array.values[:, ::-2], array.scale[:, :3], array.zero_point[:, 3:], array.scheme
    )
    found = round_trip("coded4", view)
    np.testing.assert_array_equal(found.values, view.values)
    np.testing.assert_array_equal(found.zero_point, view.zero_point)
    np.testing.assert_array_equal(round_trip("coded", array.scale.T), array.scale.T)


def test_weights_that_were_multiplied_with_a_mask_stay_small(rng):
    dense = rng.normal(size=(200, 100)).astype(np.float32)
    mask = rng.random(dense.shape) < 0.1
    array = dense * mask
    assert np.signbit(array[array == 0]).any()
    encoded = CODED["coded"].encode(array)
    assert encoded.settings.startswith("minus ")
    assert_same(CODED["coded"].decode(encoded), array)
    signs = array.size / 8  # One bit for each zero, at most.
    assert encoded.parts[MAIN].nbytes < 4 * mask.sum() + entropy_bytes(mask) + signs


def test_minus_zeros_among_subnormals_come_back():
    array = np.array([0, -0.0, 1e-45, -1e-45, 1, np.nan], np.float32)
    assert not CODED["coded"].encode(array).settings.startswith("minus")
    assert_same(round_trip("coded", array), array)


def test_trained_floats_lose_their_regular_exponents(rng):
    array = rng.normal(size=(300, 300)).astype(np.float32)
    assert CODED["coded"].encode(array).parts[MAIN].nbytes < 0.87 * array.nbytes


def test_truths_take_what_their_mask_takes(rng):
    array = rng.random((500, 100)) < 0.1
    length = CODED["coded"].encode(array).parts[MAIN].nbytes
    assert length < 1.01 * entropy_bytes(array) + 30


@pytest.mark.parametrize("count", [1, 2, 16, 256])
def test_few_values_take_a_number_each(count, rng):
    book = rng.normal(size=count).astype(np.float32)
    array = book[rng.integers(0, count, (200, 300))]
    encoded = CODED["codebook"].encode(array)
    length = encoded.parts[MAIN].nbytes
    assert encoded.settings == f"{count} {length}"
    assert length < 1.02 * entropy_bytes(array) + 6 * count + 100
    assert_same(CODED["codebook"].decode(encoded), array)


def test_a_codebook_is_for_few_different_values():
    accepts = CODED["codebook"].accepts
    assert accepts(np.arange(256.0))
    assert not accepts(np.arange(257.0))
    assert not accepts(np.append(np.zeros(10_000), np.arange(257.0)))
    assert not accepts(np.empty(0))
    assert not accepts(np.array([1j]))
    assert not accepts(np.array([True]))


def test_what_would_not_come_back_is_refused():
    array = QuantizedArray(np.array([9], np.int8), np.ones(()), np.zeros(()), Scheme(bits=4))
    with pytest.raises(SettingError, match="scales float64"):
        CODED["coded4"].encode(array)


def test_nothing_is_more_than_so_many_times_shorter():
    array = np.zeros((1000, 1000), np.float32)
    encoded = CODED["coded"].encode(array)
    assert encoded.parts[MAIN].nbytes == -(-array.size // MOST_ELEMENTS_PER_BYTE)
    assert_same(CODED["coded"].decode(encoded), array)


def rounds(monkeypatch, array, encoding="coded"):
    """Count the steps of the coder on the way out and back, and check that nothing changed."""
    counts = {"push": 0, "pop": 0}
    push, pop = bit_coding._push, bit_coding.BitDecoder._pop

    def counted_push(*arguments):
        counts["push"] += 1
        return push(*arguments)

    def counted_pop(*arguments):
        counts["pop"] += 1
        return pop(*arguments)

    monkeypatch.setattr(bit_coding, "_push", counted_push)
    monkeypatch.setattr(bit_coding.BitDecoder, "_pop", counted_pop)
    found = CODED[encoding].decode(CODED[encoding].encode(array))
    assert found.tobytes() == array.tobytes()
    assert counts["push"] == counts["pop"]
    return counts["pop"]


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(400_000, np.float32),
        np.ones(400_000, np.float32),
        np.arange(400_000),
        np.tri(600, dtype=np.float32),
        np.tri(600, dtype=np.bool_),
    ],
    ids=["zeros", "ones", "arange", "causal", "truths"],
)
def test_arrays_that_compress_well_are_coded_in_few_rounds(array, monkeypatch):
    # A round for each 8192th of the bits, of which there are 9 at most, and one for each piece.
    assert rounds(monkeypatch, array) <= 8192 + 2000


# ---------------------------------------------------------------- what is wrong in a file


@pytest.mark.parametrize(
    ("encoding", "shape", "settings", "message"),
    [
        ("coded", (2,), "", "does not end with the number of coded bytes"),
        ("coded", (2,), "F16", "does not end with the number"),
        ("coded", (2,), "F16 -3", "does not end with the number"),
        ("coded", (2,), "F33 9", "'F33' is no dtype"),
        ("coded", (2,), "I8 minus 9", "'I8 minus' is no dtype"),
        ("coded", (2,), "F16 F16 9", "is no dtype"),
        ("coded", (2**40,), "F16 1000", "1000 coded bytes hold no array of shape"),
        ("coded", (1,), "0", "0 coded bytes hold no array"),
        ("coded8", (2,), "axis=x 9", "not settings"),
        ("coded8", (2,), "axis=1 9", "axis=1 of an array"),
        ("coded4", (4, 4), "axis=1 group=3 9", "groups of 3 do not divide"),
        ("coded4", (10**18, 0), "axis=1 group=7 9", "groups of 7 do not divide"),
        ("codebook", (2,), "9", "'' is no size of a codebook"),
        ("codebook", (2,), "0 9", "'0' is no size"),
        ("codebook", (2,), "257 9", "'257' is no size"),
        ("codebook", (2,), "F33 2 9", "'F33' is no dtype"),
        ("codebook", (2,), "BOOL 2 9", "'BOOL' is no dtype"),
    ],
)
def test_settings_that_mean_nothing_are_refused(encoding, shape, settings, message):
    with pytest.raises(ValueError, match=message):
        CODED[encoding].layout(shape, settings)


ARRAYS = {
    "coded": sparse(np.random.default_rng(0), (7, 9), "F32", 0.4),
    "codebook": np.arange(60.0).reshape(6, 10) % 5,
    "coded8": quantize_array(np.arange(60.0).reshape(6, 10), Scheme(axis=1)),
    "coded4": quantize_array(np.arange(60.0).reshape(6, 10), Scheme(4, False, 1, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CODED)
@settings(max_examples=100)
@given(choices=st.data())
def test_damaged_bytes_decode_to_the_same_shape_or_are_refused(name, choices):
    good = CODED[name].encode(ARRAYS[name])
    content = bytearray(good.parts[MAIN].tobytes())
    for _ in range(choices.draw(st.integers(1, 3))):
        content[choices.draw(st.integers(0, len(content) - 1))] = choices.draw(st.integers(0, 255))
    part = np.frombuffer(bytes(content), np.uint8)
    try:
        found = CODED[name].decode(Encoded(good.shape, good.settings, {MAIN: part}))
    except ValueError:
        return
    assert getattr(found, "values", found).shape == good.shape


@pytest.mark.parametrize("name", CODED)
def test_more_or_fewer_carried_bytes_are_refused(name):
    good = CODED[name].encode(ARRAYS[name])
    for part in (good.parts[MAIN][:-1], np.append(good.parts[MAIN], np.uint8(1))):
        with pytest.raises(ValueError, match="bytes"):
            CODED[name].decode(Encoded(good.shape, good.settings, {MAIN: part}))


def test_scales_that_are_not_there_take_no_memory():
    """An array without elements may announce scales without end."""
    part = np.frombuffer(bytes([0, 0, 0, 1, 0]), np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="bytes are carried"):
            CODED["coded8"].decode(Encoded((2**40, 0), "axis=0 5", {MAIN: part}))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_number_beyond_the_codebook_is_refused():
    array = np.arange(4, dtype=np.float32)
    good = CODED["codebook"].encode(array)
    book = good.parts[MAIN].copy()
    with pytest.raises(ValueError, match="number 3 of a codebook of 3"):
        CODED["codebook"].decode(Encoded((4,), f"3 {book.size}", {MAIN: _shorter(book)}))


def _shorter(content):
    """Take the last four carried bytes away."""
    assert content[-4:].view("<f4") == 3
    return content[:-4]
