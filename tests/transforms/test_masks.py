import numpy as np
import pytest
from small_models import workload

from tinytorch.core.checkpoints import save_checkpoint
from tinytorch.core.layers import Linear
from tinytorch.errors import CheckpointError, SettingError
from tinytorch.models.core import CoreAdapter
from tinytorch.transforms.prune import Masks, Prune, set_zero


def pruned(name, sparsity=0.6, **settings):
    case = workload(name)
    transform = Prune(sparsity, **settings)
    return transform.apply(case, transform.plan(case))


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches", "shared"])
def test_masks_are_the_zeros_of_linear_layers_and_convolutions(name):
    model = pruned(name)
    masks = Masks.of(model)
    assert masks.sparsity == pytest.approx(0.6, abs=0.5 / masks.size)
    state = model.state_dict()
    for key, kept in masks.kept.items():
        np.testing.assert_array_equal(kept, state[key] != 0)
    assert not any("norm" in key or "bias" in key or "embedding" in key for key in masks.kept)


def test_a_shared_weight_has_one_mask():
    assert list(Masks.of(workload("shared").model).kept) == ["first.weight"]


def test_applying_masks_zeroes_in_place_and_nothing_else():
    masks = Masks.of(pruned("cnn"))
    model = workload("cnn").model
    arrays = model.state_dict()
    before = {name: array.copy() for name, array in arrays.items()}
    masks.apply(model)
    for name, array in model.state_dict().items():
        assert array is arrays[name]
        kept = masks.kept.get(name, np.True_)
        np.testing.assert_array_equal(array, np.where(kept, before[name], 0))


def test_names_choose_other_parameters():
    model = pruned("gpt", prune_embeddings=True)
    name = "token_embedding.weight"
    assert name not in Masks.of(model).kept
    masks = Masks.of(model, [name])
    assert list(masks.kept) == [name]
    assert 0 < masks.sparsity < 1


def test_masks_of_another_model_change_nothing():
    masks = Masks.of(pruned("mlp"))
    other = workload("cnn").model
    before = {name: array.copy() for name, array in other.state_dict().items()}
    with pytest.raises(SettingError, match=r"has no parameter 'layers\.2\.weight'"):
        masks.apply(other)
    layer = Linear(4, 3, rng=0)
    with pytest.raises(SettingError, match=r"shape \(3, 4\), the parameter has \(4, 3\)"):
        Masks({"weight": np.zeros((3, 4), bool)}).apply(layer)
    assert np.count_nonzero(layer.weight.data) == 12
    for name, array in other.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_masks_are_bools():
    with pytest.raises(SettingError, match="must be an array of bool, got float64"):
        Masks({"weight": np.ones(3)})


def test_no_weights_are_not_sparse():
    assert Masks({}).sparsity == 0


def test_files_give_masks_back(tmp_path):
    masks = Masks.of(pruned("branches"))
    masks.save(tmp_path / "masks.safetensors")
    again = Masks.load(tmp_path / "masks.safetensors")
    assert again.kept.keys() == masks.kept.keys()
    assert all((again.kept[name] == kept).all() for name, kept in masks.kept.items())
    save_checkpoint(tmp_path / "model.safetensors", Linear(2, 2))
    with pytest.raises(CheckpointError, match="holds no masks"):
        Masks.load(tmp_path / "model.safetensors")


def test_an_array_that_cannot_be_written_is_replaced():
    layer = Linear(3, 2, rng=0)
    frozen = layer.weight.data
    frozen.flags.writeable = False
    set_zero(CoreAdapter(), layer.weight, np.ones((3, 2), bool))
    assert not layer.weight.data.any()
    assert frozen.all()


def test_numbers_that_are_not_finite_have_a_mask():
    model = Linear(3, 2, rng=0)
    model.weight.data[0] = [np.nan, 0]
    assert Masks.of(model).kept["weight"][0].tolist() == [True, False]
