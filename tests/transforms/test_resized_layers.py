"""Loading the weights of a smaller model into the layers of the original one."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import workload

from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.transformers import LayerNorm
from tinytorch.errors import CheckpointError
from tinytorch.formats.weights_file import write_weights
from tinytorch.transforms.compressed_file import load_compressed, save_compressed
from tinytorch.transforms.remove_channels import RemoveChannels
from tinytorch.transforms.support.trimming import let_layers_know
from tinytorch.transforms.support.weights import why_not_resized


def smaller(work):
    transform = RemoveChannels(ratio=0.5)
    return transform.apply(work, transform.plan(work))


@pytest.mark.parametrize(("name", "bits"), [("mlp", None), ("cnn", None), ("cnn", 8), ("gpt", 8)])
def test_a_model_without_some_channels_loads_into_the_original(tmp_path, name, bits):
    work = workload(name)
    model = smaller(work)
    save_compressed(tmp_path / "model", model, bits=bits)
    with pytest.raises(CheckpointError, match="resize=True makes layers as small"):
        load_compressed(tmp_path / "model", work.model)
    loaded, _ = load_compressed(tmp_path / "model", work.model, resize=True)
    assert repr(loaded) == repr(model)
    assert loaded.num_parameters() < work.model.num_parameters()
    again, _ = load_compressed(tmp_path / "model", model)
    with no_grad():
        expected = again(*work.inputs).data
        np.testing.assert_array_equal(loaded(*work.inputs).data, expected)
    assert replace(work, model=loaded).run().shape == work.run().shape


def test_a_fitting_file_needs_no_resizing(tmp_path):
    save_compressed(tmp_path / "model", workload("mlp").model)
    loaded, _ = load_compressed(tmp_path / "model", workload("mlp").model, resize=True)
    assert repr(loaded) == repr(workload("mlp").model)


def test_layers_do_not_grow(tmp_path):
    save_compressed(tmp_path / "model", Sequential(Linear(4, 8)))
    with pytest.raises(CheckpointError, match="larger than"):
        load_compressed(tmp_path / "model", Sequential(Linear(4, 6)), resize=True)


def test_layers_that_do_not_know_their_size_from_weights_are_not_resized(tmp_path):
    save_compressed(tmp_path / "model", Sequential(LayerNorm(4)))
    with pytest.raises(CheckpointError, match="a LayerNorm cannot be resized"):
        load_compressed(tmp_path / "model", Sequential(LayerNorm(6)), resize=True)


def test_a_layer_must_fit_within_itself(tmp_path):
    arrays = {"layers.0.weight": np.ones((4, 3), np.float32)}
    write_weights(tmp_path / "model", arrays | {"layers.0.bias": np.ones(5, np.float32)})
    with pytest.raises(CheckpointError, match="has 3 outputs, but its other numbers do not"):
        load_compressed(tmp_path / "model", Sequential(Linear(4, 6)), resize=True)


def test_heads_stay_whole():
    model = workload("gpt").model
    name = next(name for name in model.state_dict() if name.endswith("q_proj.weight"))
    assert "whole heads" in why_not_resized(
        model,
        {
            name: np.ones((32, 20), np.float32),
            name.replace("weight", "bias"): np.ones(20, np.float32),
        },
    )


def test_layers_learn_their_sizes():
    model = Sequential(Linear(4, 6), Linear(6, 2))
    model[0].weight.data = np.ones((4, 3), np.float32)
    let_layers_know(model)
    assert (model[0].in_features, model[0].out_features) == (4, 3)
