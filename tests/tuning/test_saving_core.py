from dataclasses import replace

import numpy as np
import pytest
from optimized_stacks import recommending

from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.spatial import BatchNorm2d
from tinytorch.errors import CheckpointError
from tinytorch.formats.weights_file import write_weights
from tinytorch.models.zoo import build_mlp, load_zoo
from tinytorch.tuning.loading import CoreStorage, recipe_in
from tinytorch.tuning.recipe import Recipe


def quantized_recipe(workload, optimization, *, count=1):
    return Recipe(
        name="mlp",
        framework="core",
        device="cpu",
        model="Sequential",
        stack=optimization.recommended.stack,
        plans=optimization.recommended.plans,
        weights_after=count,
        weights_sha256="",
        tensors=CoreStorage().shapes(workload.model),
        versions={},
    )


def test_digests_tell_numbers_dtypes_and_shapes_apart():
    layer = Linear(2, 3, rng=0)
    storage = CoreStorage()
    before = storage.digests(layer)
    layer.weight.data = layer.weight.data.astype(np.float64)
    wide = storage.digests(layer)
    layer.weight.data = layer.weight.data.reshape(3, 2)
    assert len({each["weight"] for each in (before, wide, storage.digests(layer))}) == 3
    assert before["bias"] == wide["bias"]
    assert storage.shapes(layer) == {"weight": (3, 2), "bias": (3,)}


def test_other_weights_leave_buffers_and_the_original_alone():
    model = Sequential(Linear(4, 4, rng=0), BatchNorm2d(4))
    storage = CoreStorage()
    before = storage.digests(model)
    after = storage.digests(storage.with_other_weights(model))
    changed = {name for name in before if before[name] != after[name]}
    assert storage.digests(model) == before
    assert "layers.0.weight" in changed
    assert not any("running" in name for name in changed)


@pytest.mark.parametrize("is_coded", [False, True])
@pytest.mark.parametrize("count", [0, 1])
def test_weights_and_recipe_come_back(tmp_path, is_coded, count):
    workload = load_zoo("mlp")
    optimization = recommending(workload, "int8-weights")
    storage = CoreStorage(is_coded=is_coded)
    recipe = quantized_recipe(workload, optimization, count=count)
    model = optimization.model if count else workload.model
    path = tmp_path / "model.safetensors"
    storage.write(path, model, recipe)
    assert Recipe.from_dict(recipe_in(path)).to_dict() == recipe.to_dict()
    made = storage.rebuild(path, replace(workload, model=build_mlp(rng=1)), recipe)
    assert storage.digests(made) == storage.digests(model)


def test_a_weights_file_without_a_recipe_has_none(tmp_path):
    write_weights(tmp_path / "a", {"x": np.ones(3)})
    write_weights(tmp_path / "b", {"x": np.ones(3)}, {"own": 3})
    assert recipe_in(tmp_path / "a") is None
    assert recipe_in(tmp_path / "b") is None
    with pytest.raises(CheckpointError):
        recipe_in(tmp_path / "c")
