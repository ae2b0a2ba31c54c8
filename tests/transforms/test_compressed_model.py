"""Models as compressed files."""

import numpy as np
import pytest
from small_models import workload

from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import save_checkpoint
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Parameter
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.formats.affine import QuantizedArray
from tinytorch.formats.weights_file import read_weights, write_weights
from tinytorch.transforms.compressed_file import (
    compressed_state,
    load_compressed,
    save_compressed,
    with_state,
)
from tinytorch.transforms.compression import magnitude_prune

NAMES = ["mlp", "cnn", "gpt", "branches", "shared"]


def bits_of(model):
    return {name: array.copy() for name, array in model.state_dict().items()}


def check_same_bits(model, expected):
    found = model.state_dict()
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(
            found[name].view(np.uint8), np.ascontiguousarray(array).view(np.uint8)
        )


def fresh(name):
    """A model of the same structure with other weights."""
    model = workload(name).model
    for parameter in model.parameters():
        parameter.data = parameter.data + 1
    return model


@pytest.mark.slow
@pytest.mark.parametrize("sparsity", [0, 0.9])
@pytest.mark.parametrize("name", NAMES)
def test_floats_come_back_bit_for_bit(tmp_path, name, sparsity):
    work = workload(name)
    model = magnitude_prune(work.model, sparsity)
    before = bits_of(model)
    size = save_compressed(tmp_path / "model", model, metadata={"made": "here"})
    assert size == (tmp_path / "model").stat().st_size
    check_same_bits(model, before)
    like = fresh(name)
    untouched = bits_of(like)
    loaded, metadata = load_compressed(tmp_path / "model", like)
    assert metadata == {"made": "here"}
    check_same_bits(loaded, before)
    check_same_bits(like, untouched)
    with no_grad():
        np.testing.assert_array_equal(loaded(*work.inputs).data, model(*work.inputs).data)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_is_what_was_written(tmp_path, name, bits):
    model = workload(name).model
    before = bits_of(model)
    held = with_state(model, compressed_state(model, bits=bits))
    save_compressed(tmp_path / "model", model, bits=bits)
    loaded, metadata = load_compressed(tmp_path / "model", fresh(name))
    assert metadata == {}
    check_same_bits(loaded, bits_of(held))
    check_same_bits(model, before)
    for name, each in read_weights(tmp_path / "model").arrays.items():
        is_whole = isinstance(each, QuantizedArray)
        assert is_whole is (before[name].ndim >= 2)
        wanted = each.dequantize() if is_whole else before[name]
        np.testing.assert_array_equal(loaded.state_dict()[name], wanted)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_off_by_half_a_step_where_nothing_is_clipped(bits):
    state = compressed_state(workload("mlp").model, bits=bits)
    for name, array in workload("mlp").model.state_dict().items():
        if isinstance(state[name], QuantizedArray):
            error = np.abs(state[name].dequantize() - array)
            inside = np.abs(state[name].values) < 2 ** (bits - 1) - 1
            assert error[inside].max() <= 0.5001 * state[name].scale


def test_sharing_survives(tmp_path):
    save_compressed(tmp_path / "model", workload("shared").model, bits=8)
    loaded, _ = load_compressed(tmp_path / "model", fresh("shared"))
    assert loaded.first is loaded.again
    assert loaded.twin.weight is loaded.first.weight


def test_fewer_bits_and_more_zeros_make_smaller_files(tmp_path):
    model = workload("mlp").model
    sizes = [save_compressed(tmp_path / "model", model, bits=bits) for bits in (None, 8, 4)]
    magnitude_prune(model, 0.9)
    sizes += [save_compressed(tmp_path / "model", model, bits=bits) for bits in (None, 8, 4)]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[5]
    assert sizes[0] > 5 * sizes[3]
    assert sizes[3] > sizes[4] > sizes[5]


def test_kept_layers_stay_in_floats(tmp_path):
    model = workload("mlp").model
    save_compressed(tmp_path / "model", model, bits=4, keep=("layers.0",))
    loaded, _ = load_compressed(tmp_path / "model", fresh("mlp"))
    np.testing.assert_array_equal(loaded[0].weight.data, model[0].weight.data)
    assert len(np.unique(loaded[2].weight.data)) <= 15


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_dtypes_come_back(tmp_path, dtype):
    model = workload("mlp").model.astype(dtype)
    for bits in (None, 8):
        held = with_state(model, compressed_state(model, bits=bits))
        save_compressed(tmp_path / "model", model, bits=bits)
        loaded, _ = load_compressed(tmp_path / "model", workload("mlp").model.astype(dtype))
        check_same_bits(loaded, bits_of(held))
        assert {array.dtype for array in loaded.state_dict().values()} == {np.dtype(dtype)}


def test_every_changed_byte_is_noticed(tmp_path, rng):
    path = tmp_path / "model"
    save_compressed(path, Sequential(Linear(6, 4, rng=0)), bits=4, metadata={"made": "here"})
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= int(rng.integers(1, 256))
        path.write_bytes(bad)
        with pytest.raises(CheckpointError):
            load_compressed(path, Sequential(Linear(6, 4)))
    path.write_bytes(good)
    assert load_compressed(path, Sequential(Linear(6, 4)))[1] == {"made": "here"}


def test_a_truncated_or_longer_file_is_noticed(tmp_path):
    path = tmp_path / "model"
    save_compressed(path, Sequential(Linear(6, 4, rng=0)), bits=8)
    good = path.read_bytes()
    for bad in (*(good[:length] for length in range(0, len(good), 7)), good + b"x"):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError):
            load_compressed(path, Sequential(Linear(6, 4)))


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(CheckpointError, match="there is no weights file"):
        load_compressed(tmp_path / "nothing", workload("mlp").model)


def test_files_of_others_are_refused(tmp_path):
    save_checkpoint(tmp_path / "plain", workload("mlp").model)
    with pytest.raises(CheckpointError, match="load_checkpoint"):
        load_compressed(tmp_path / "plain", workload("mlp").model)
    arrays = workload("mlp").model.state_dict()
    write_weights(tmp_path / "quantized", arrays, {"mode": "dynamic"})
    with pytest.raises(CheckpointError, match=r"no file of save_compressed.*load_quantized"):
        load_compressed(tmp_path / "quantized", workload("mlp").model)
    write_weights(tmp_path / "odd", arrays, {"own": 5})
    with pytest.raises(CheckpointError, match="no file of save_compressed"):
        load_compressed(tmp_path / "odd", workload("mlp").model)


def test_another_structure_says_where_it_differs(tmp_path):
    path = tmp_path / "model"
    save_compressed(path, workload("mlp").model, bits=8)
    layers = workload("mlp").model.layers
    wide = Sequential(Linear(64, 50), *layers[1:])
    with pytest.raises(CheckpointError, match=r"'layers.0.weight' has shape \(64, 48\).*resize"):
        load_compressed(path, wide)
    with pytest.raises(CheckpointError, match=r"the file has 'layers.4..*', the model does not"):
        load_compressed(path, Sequential(*layers[:3]))
    with pytest.raises(CheckpointError, match=r"the model has 'layers.5.weight', the file does"):
        load_compressed(path, Sequential(*layers, Linear(10, 10)))
    with pytest.raises(CheckpointError, match=r"and \d+ more"):
        load_compressed(path, workload("gpt").model)


def test_whole_numbers_are_no_floats(tmp_path):
    arrays = workload("mlp").model.state_dict()
    arrays["layers.0.bias"] = np.zeros(48, np.int32)
    write_weights(tmp_path / "model", arrays)
    with pytest.raises(CheckpointError, match="holds int32, the model needs float32"):
        load_compressed(tmp_path / "model", workload("mlp").model)


def test_bad_settings_say_what_is_possible(tmp_path):
    with pytest.raises(SettingError, match="8 or 4 bits"):
        save_compressed(tmp_path / "model", workload("mlp").model, bits=3)
    with pytest.raises(SettingError, match="holds no numbers"):
        save_compressed(tmp_path / "model", Sequential())
    model = workload("mlp").model
    model[2].weight.data[0, 0] = np.nan
    with pytest.raises(SettingError, match=r"layers\.2"):
        save_compressed(tmp_path / "model", model, bits=8)
    assert not (tmp_path / "model").exists()
    save_compressed(tmp_path / "model", model)
    assert np.isnan(load_compressed(tmp_path / "model", model)[0][2].weight.data[0, 0])


def test_patterns_are_checked(tmp_path):
    model = workload("mlp").model
    for bits in (None, 8):
        with pytest.raises(SettingError, match=r"keep is a tuple of patterns: keep=\('layers\.0',"):
            save_compressed(tmp_path / "model", model, bits=bits, keep="layers.0")
    with pytest.raises(SettingError, match=r"keep='layer\.0' matches no layer that can be rounded"):
        save_compressed(tmp_path / "model", model, bits=8, keep=("layers.0", "layer.0"))
    assert not (tmp_path / "model").exists()


def test_two_tensors_on_one_array_are_rounded_alike(tmp_path):
    def build():
        model = Sequential(Linear(6, 6, rng=0), Linear(6, 6, rng=1))
        model.layers[1].weight = Parameter(model.layers[0].weight.data)
        assert model.layers[1].weight.data is model.layers[0].weight.data
        return model

    state = compressed_state(build(), bits=8)
    for number in range(2):
        assert isinstance(state[f"layers.{number}.weight"], QuantizedArray)
    save_compressed(tmp_path / "model", build(), bits=8)
    for like in (build(), Sequential(Linear(6, 6, rng=2), Linear(6, 6, rng=3))):
        loaded, _ = load_compressed(tmp_path / "model", like)
        first, second = (layer.weight.data for layer in loaded.layers)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, state["layers.0.weight"].dequantize())
    keeping = compressed_state(build(), bits=8, keep=("layers.1",))
    assert not any(isinstance(each, QuantizedArray) for each in keeping.values())


def test_floats_round_to_narrower_ones_unless_they_are_beyond(tmp_path):
    model = Sequential(Linear(4, 4, rng=0))
    save_compressed(tmp_path / "model", model)
    like = Sequential(Linear(4, 4, rng=1)).astype(np.float16)
    loaded, _ = load_compressed(tmp_path / "model", like)
    wanted = model.layers[0].weight.data.astype(np.float16)
    np.testing.assert_array_equal(loaded.layers[0].weight.data, wanted)
    model.layers[0].weight.data[1, 2] = 1e6
    for bits in (None, 8):
        save_compressed(tmp_path / "model", model, bits=bits)
        with pytest.raises(CheckpointError, match=r"'layers\.0\.weight' holds 1e\+06, beyond flo"):
            load_compressed(tmp_path / "model", like)
    model.layers[0].weight.data[1, 2] = np.inf
    save_compressed(tmp_path / "model", model)
    assert np.isposinf(load_compressed(tmp_path / "model", like)[0].layers[0].weight.data[1, 2])


def test_models_that_are_zero_throughout_are_written(tmp_path):
    model = Sequential(Linear(40, 40, rng=0))
    model.layers[0].weight.data[:] = 0
    for bits in (None, 8, 4):
        assert save_compressed(tmp_path / "model", model, bits=bits) < 400
        loaded, _ = load_compressed(tmp_path / "model", Sequential(Linear(40, 40, rng=1)))
        assert not loaded.layers[0].weight.data.any()
