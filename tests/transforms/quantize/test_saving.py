from dataclasses import replace

import numpy as np
import pytest
from small_models import workload

from tinytorch.core.autograd import no_grad
from tinytorch.core.checkpoints import load_checkpoint, save_checkpoint
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.formats.weights_file import read_weights, write_weights
from tinytorch.transforms.fuse_layers import FuseLayers
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.classic import quantize_model
from tinytorch.transforms.quantize.saving import load_quantized, save_quantized

TRANSFORMS = [
    Quantize("weight_only"),
    Quantize("weight_only", bits=4),
    Quantize("dynamic"),
    Quantize("static"),
]
IDS = ["weight_only_8", "weight_only_4", "dynamic", "static"]


def quantized(name, transform):
    work = workload(name)
    return work, transform.apply(work, transform.plan(work))


def fresh(name):
    """A model of the same structure with other weights."""
    model = workload(name).model
    for parameter in model.parameters():
        parameter.data = parameter.data + 1
    return model


@pytest.mark.parametrize("transform", TRANSFORMS, ids=IDS)
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches", "shared"])
def test_a_loaded_model_computes_bit_for_bit_the_same(tmp_path, name, transform):
    work, model = quantized(name, transform)
    size = save_quantized(tmp_path / "model", model, {"made": "here"})
    assert size == (tmp_path / "model").stat().st_size
    like = fresh(name)
    before = {key: array.copy() for key, array in like.state_dict().items()}
    loaded, metadata = load_quantized(tmp_path / "model", like)
    assert metadata == {"made": "here"}
    with no_grad():
        np.testing.assert_array_equal(loaded(*work.inputs).data, model(*work.inputs).data)
    assert repr(loaded) == repr(model)
    for key, array in loaded.state_dict().items():
        np.testing.assert_array_equal(array, model.state_dict()[key])
    assert all(np.array_equal(array, before[key]) for key, array in like.state_dict().items())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_a_file_has_the_names_and_shapes_of_the_float_model(tmp_path):
    work, model = quantized("gpt", Quantize("static"))
    save_quantized(tmp_path / "model", model)
    arrays = dict(read_weights(tmp_path / "model").arrays)
    arrays.pop("/steps")
    shapes = {name: getattr(array, "values", array).shape for name, array in arrays.items()}
    assert shapes == {name: array.shape for name, array in work.model.state_dict().items()}


def test_what_can_be_made_again_is_not_written(tmp_path):
    _, model = quantized("mlp", Quantize("dynamic"))
    sizes = [(64, 48), (48, 32), (32, 10)]
    ideal = sum(inputs * outputs + 8 * outputs for inputs, outputs in sizes)  # scales and biases
    assert ideal < save_quantized(tmp_path / "model", model) < ideal + 450  # names and settings


def test_weights_that_layers_share_are_written_once(tmp_path):
    _, model = quantized("shared", Quantize("dynamic"))
    save_quantized(tmp_path / "model", model)
    loaded, _ = load_quantized(tmp_path / "model", fresh("shared"))
    assert loaded.first is loaded.again
    assert loaded.twin.values is loaded.first.values
    assert "twin.weight" not in read_weights(tmp_path / "model").arrays


def test_fused_layers_are_not_written(tmp_path):
    work, model = quantized("mlp", Quantize("static"))
    fused_work = replace(work, model=model)
    fused = FuseLayers().apply(fused_work, FuseLayers().plan(fused_work))
    with pytest.raises(SettingError, match="save the model before its layers are fused"):
        save_quantized(tmp_path / "model", fused)
    assert not (tmp_path / "model").exists()


def test_a_float_model_is_not_written():
    with pytest.raises(SettingError, match=r"has no quantized layer; save_checkpoint\(\)"):
        save_quantized("never", Sequential(Linear(2, 2)))


def test_another_structure_says_where_it_differs(tmp_path):
    _, model = quantized("mlp", Quantize("dynamic"))
    path = tmp_path / "model"
    save_quantized(path, model)
    narrow = Sequential(Linear(64, 40), *workload("mlp").model.layers[1:])
    with pytest.raises(CheckpointError, match=r"layer 'layers.0': its weight has shape \(64, 48\)"):
        load_quantized(path, narrow)
    with pytest.raises(CheckpointError, match=r"a quantized layer 'layers.4', the model nothing"):
        load_quantized(path, Sequential(*workload("mlp").model.layers[:3]))
    unbiased = workload("mlp").model
    unbiased.layers[0].bias = None
    with pytest.raises(CheckpointError, match=r"'layers.0': its bias is not the one"):
        load_quantized(path, unbiased)
    longer = Sequential(*workload("mlp").model.layers, Linear(10, 10))
    with pytest.raises(CheckpointError, match=r"the model has 'layers.5.weight'"):
        load_quantized(path, longer)


def test_a_quantized_model_is_no_template(tmp_path):
    _, model = quantized("mlp", Quantize("dynamic"))
    save_quantized(tmp_path / "model", model)
    with pytest.raises(CheckpointError, match="quantized already"):
        load_quantized(tmp_path / "model", model)


def test_a_plain_checkpoint_is_not_taken_for_a_quantized_model(tmp_path):
    save_checkpoint(tmp_path / "model", workload("mlp").model)
    with pytest.raises(CheckpointError, match="load_checkpoint"):
        load_quantized(tmp_path / "model", workload("mlp").model)


def foreign(tmp_path, change, mode="static"):
    """Write a file whose checksum is right, but not what it holds."""
    _, model = quantized("mlp", Quantize("static"))
    save_quantized(tmp_path / "model", model)
    arrays = dict(read_weights(tmp_path / "model").arrays)
    metadata = {"mode": mode}
    change(arrays, metadata)
    write_weights(tmp_path / "foreign", arrays, metadata)
    return tmp_path / "foreign"


@pytest.mark.parametrize("step", [(0, 0), (-1, 0), (np.nan, 0), (np.inf, 0), (1, 1000), (1, 0.5)])
def test_steps_that_make_no_sense_are_refused(tmp_path, step):
    path = foreign(
        tmp_path, lambda arrays, _: arrays.update({"/steps": broken_steps(arrays, step)})
    )
    with pytest.raises(CheckpointError, match="no inputs have steps of"):
        load_quantized(path, workload("mlp").model)


def broken_steps(arrays, step):
    steps = arrays["/steps"].copy()
    steps[1] = step
    return steps


@pytest.mark.parametrize("entry", [5, "x", None, [1], True])
def test_metadata_that_is_something_else_is_refused(tmp_path, entry):
    for layers in ({"layers.0": entry}, entry):
        path = foreign(tmp_path, lambda _, metadata, layers=layers: metadata.update(layers=layers))
        with pytest.raises(CheckpointError, match=r"its metadata is not the one|does not fit"):
            load_quantized(path, workload("mlp").model)


def test_whole_numbers_are_no_bias_of_a_layer_with_floats(tmp_path):
    path = foreign(tmp_path, lambda arrays, _: arrays.pop("/steps"), mode="dynamic")
    with pytest.raises(CheckpointError, match="its bias holds int32, not float32"):
        load_quantized(path, workload("mlp").model)


def test_a_quantized_array_is_no_bias(tmp_path):
    path = foreign(
        tmp_path, lambda arrays, _: arrays.update({"layers.0.bias": arrays["layers.0.weight"]})
    )
    with pytest.raises(CheckpointError, match=r"layers\.0"):
        load_quantized(path, workload("mlp").model)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_models_of_other_dtypes_come_back(tmp_path, dtype):
    model = workload("mlp").model.astype(dtype)
    x = Tensor(np.ones((2, 64), dtype))
    small = quantize_model(model)
    save_quantized(tmp_path / "model", small)
    loaded, _ = load_quantized(tmp_path / "model", model)
    np.testing.assert_array_equal(loaded(x).data, small(x).data)


def test_load_checkpoint_says_what_the_file_is(tmp_path):
    _, model = quantized("mlp", Quantize("static"))
    save_quantized(tmp_path / "model", model)
    with pytest.raises(CheckpointError, match=r"it is a file of write_weights\(\) or save_quant"):
        load_checkpoint(tmp_path / "model", workload("mlp").model)
