"""The classic names of compression."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part
from small_models import workload

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.spatial import Conv2d
from tinytorch.errors import SettingError
from tinytorch.transforms.compression import (
    Compressor,
    MagnitudePruner,
    StructuredPruner,
    compress_model,
    magnitude_prune,
    measure_sparsity,
    structured_prune,
)
from tinytorch.transforms.prune import weights_of
from tinytorch.transforms.sparse_layers import SparseLinear

NAMES = ["mlp", "cnn", "gpt", "branches", "shared"]


def bits_of(model):
    return {name: array.copy() for name, array in model.state_dict().items()}


def check_same(model, expected):
    assert model.state_dict().keys() == expected.keys()
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, expected[name])


def test_one_is_in_percent_and_the_other_a_fraction():
    model = Sequential(Linear(4, 2, rng=0))
    model[0].weight.data[:3] = 0
    assert measure_sparsity(model) == 75
    assert Compressor.measure_sparsity(model) == 0.75


def test_a_model_of_sparse_layers_is_as_sparse_as_before():
    model = magnitude_prune(Sequential(Linear(40, 30, rng=0), ReLU(), Linear(30, 10, rng=1)), 0.9)
    for place in (0, 2):
        model.layers[place] = SparseLinear.of(model.layers[place])
    assert measure_sparsity(model) == 90
    _, stats = compress_model(model, {})
    assert stats["original_sparsity"] == stats["final_sparsity"] == 0.9
    assert stats["final_nonzero_weights"] == 150


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("name", NAMES)
def test_magnitude_pruning_is_in_place_and_exact(name):
    model = workload(name).model
    before = np.concatenate([each.data.ravel() for each in weights_of(model).values()])
    tensors = {name: id(each) for name, each in weights_of(model).items()}
    assert magnitude_prune(model, sparsity=0.8) is model
    assert {name: id(each) for name, each in weights_of(model).items()} == tensors
    after = np.concatenate([each.data.ravel() for each in weights_of(model).values()])
    assert np.count_nonzero(after == 0) == round(0.8 * before.size)
    largest_gone = np.abs(before[after == 0]).max()
    for weight in weights_of(model).values():
        kept = np.abs(weight.data[weight.data != 0])
        assert kept.size == 1 or kept.min() >= largest_gone  # each layer keeps one
    np.testing.assert_array_equal(after[after != 0], before[after != 0])


@given(st.floats(0, 0.999))
def test_any_share_is_met_to_a_weight(sparsity):
    model = Sequential(Linear(7, 5, rng=0), Linear(5, 3, rng=1))
    magnitude_prune(model, sparsity)
    zeros = sum(int((each.data == 0).sum()) for each in weights_of(model).values())
    assert zeros == min(round(sparsity * 50), 48)  # each layer keeps one


def test_biases_are_not_pruned():
    model = workload("mlp").model
    before = bits_of(model)
    magnitude_prune(model, 0.9)
    np.testing.assert_array_equal(model[0].bias.data, before["layers.0.bias"])


def test_a_model_that_is_pruned_already_stays():
    model = magnitude_prune(workload("mlp").model, 0.8)
    before = bits_of(model)
    check_same(magnitude_prune(model, 0.5), before)
    check_same(magnitude_prune(model, 0.8), before)


@pytest.mark.parametrize("sparsity", [-0.1, 1, 80, 100, 101, float("nan"), "0.5", True])
def test_a_sparsity_is_a_fraction(sparsity):
    model = workload("mlp").model
    before = bits_of(model)
    for prune in (magnitude_prune, lambda _, share: MagnitudePruner(share)):
        with pytest.raises(SettingError, match="sparsity"):
            prune(model, sparsity)
    check_same(model, before)


def test_a_percentage_is_told_what_fraction_it_is():
    with pytest.raises(SettingError, match=r"80% is 0\.8"):
        magnitude_prune(workload("mlp").model, 80)


def test_the_pruner_gives_a_copy_and_its_masks():
    model = workload("mlp").model
    before = bits_of(model)
    pruner = MagnitudePruner(sparsity=0.7)
    pruned = pruner.prune(model)
    check_same(model, before)
    assert measure_sparsity(pruned) == pytest.approx(70, abs=0.02)
    assert pruner.masks.sparsity == Compressor.measure_sparsity(pruned)
    expected = bits_of(pruned)
    for parameter in pruned.parameters():
        parameter.data = np.where(parameter.data == 0, 5, parameter.data)
    pruner.masks.apply(pruned)
    check_same(pruned, expected)


def test_models_of_pytorch_are_pruned_in_place():
    torch = require_part("torch")
    for dtype in (torch.float32, torch.bfloat16):
        model = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.Linear(10, 5)).to(dtype)
        weight = model[0].weight
        assert magnitude_prune(model, 0.6) is model
        assert model[0].weight is weight
        assert measure_sparsity(model) == pytest.approx(60)
    copied = MagnitudePruner(0.8).prune(model)
    assert measure_sparsity(copied) == pytest.approx(80)
    assert measure_sparsity(model) == pytest.approx(60)


# ---------------------------------------------------------------- whole outputs


def test_the_weakest_columns_become_zero_with_their_biases():
    layer = Linear(6, 10, rng=0)
    layer.weight.data *= np.arange(10, 0, -1, dtype=np.float32)
    layer.bias.data[:] = 1
    model = Sequential(layer, ReLU(), Linear(10, 4, rng=1))
    norms = np.linalg.norm(layer.weight.data, axis=0)
    assert structured_prune(model, prune_ratio=0.3) is model
    weakest = set(np.argsort(norms)[:3].tolist())
    zero = {column for column in range(10) if not layer.weight.data[:, column].any()}
    assert zero == weakest
    assert set(np.flatnonzero(layer.bias.data == 0).tolist()) == weakest
    assert np.count_nonzero(~model[2].weight.data.any(axis=0)) == 1


def test_kernels_are_the_outputs_of_a_convolution():
    conv = Conv2d(3, 8, 3, rng=0)
    structured_prune(conv, 0.5)
    assert np.count_nonzero(~conv.weight.data.reshape(8, -1).any(axis=1)) == 4
    assert conv.weight.shape == (8, 3, 3, 3)


def test_one_output_always_stays():
    model = structured_prune(Sequential(Linear(4, 3, rng=0)), 0.99)
    assert np.count_nonzero(model[0].weight.data.any(axis=0)) == 1


def test_tables_and_shared_weights_are_treated_once():
    gpt = workload("gpt").model
    tables = [name for name in gpt.state_dict() if "embedding" in name]
    before = bits_of(gpt)
    structured_prune(gpt, 0.5)
    assert tables
    for name in tables:
        np.testing.assert_array_equal(gpt.state_dict()[name], before[name])
    shared = structured_prune(workload("shared").model, 0.5)
    assert np.count_nonzero(~shared.first.weight.data.any(axis=0)) == 12


@pytest.mark.parametrize("ratio", [-0.1, 1, 30, "0.5", True, float("nan")])
def test_a_ratio_is_a_share(ratio):
    with pytest.raises(SettingError, match="prune_ratio is a share"):
        structured_prune(workload("mlp").model, ratio)
    with pytest.raises(SettingError, match="ratio is a share"):
        StructuredPruner(ratio)


def test_the_structured_pruner_really_removes_channels():
    work = workload("cnn")
    before = bits_of(work.model)
    pruner = StructuredPruner(ratio=0.5)
    smaller = pruner.prune(work.model, work.inputs[0])
    assert smaller.num_parameters() < 0.5 * work.model.num_parameters()
    assert smaller(*work.inputs).shape == work.model(*work.inputs).shape
    assert pruner.plan.steps
    check_same(work.model, before)


def test_pytorch_is_sent_to_the_transform_that_factors():
    torch = require_part("torch")
    with pytest.raises(SettingError, match="LowRank"):
        compress_model(torch.nn.Linear(4, 4), {"low_rank": 0.5})


def test_whole_outputs_of_pytorch_become_zero_as_well():
    torch = require_part("torch")
    core = Linear(6, 8, rng=0)
    other = torch.nn.Linear(6, 8)
    with torch.no_grad():
        other.weight.copy_(torch.tensor(core.weight.data.T))
        other.bias.copy_(torch.ones(8))
    core.bias.data[:] = 1
    structured_prune(core, 0.5)
    assert structured_prune(other, 0.5) is other
    np.testing.assert_array_equal(other.weight.detach().numpy().T, core.weight.data)
    np.testing.assert_array_equal(other.bias.detach().numpy(), core.bias.data)
    assert int((core.bias.data == 0).sum()) == 4


# ---------------------------------------------------------------- everything


def test_a_configuration_gives_a_copy_and_what_was_done():
    work = workload("mlp")
    before = bits_of(work.model)
    config = {"magnitude_prune": 0.8, "structured_prune": 0.3, "low_rank": 0.25}
    model, stats = Compressor.compress_model(work.model, config)
    check_same(work.model, before)
    assert stats["applied"] == ["low_rank", "structured_prune", "magnitude_prune"]
    assert stats["original_sparsity"] == 0
    assert stats["final_sparsity"] == Compressor.measure_sparsity(model)
    assert stats["final_sparsity"] == pytest.approx(0.8, abs=1e-3)  # as near as whole weights get
    assert stats["final_bytes"] == sum(array.nbytes for array in model.state_dict().values())
    assert stats["original_parameters"] == work.model.num_parameters()
    assert stats["final_parameters"] == model.num_parameters() < work.model.num_parameters()
    assert stats["compression_ratio"] == stats["original_bytes"] / stats["final_bytes"] > 1
    assert stats["final_nonzero_weights"] <= 0.2 * stats["original_nonzero_weights"]
    assert model(*work.inputs).shape == work.model(*work.inputs).shape


def test_full_rank_of_a_low_rank_weight_is_the_same_model():
    model = Sequential(Linear(20, 16, rng=0))
    left, right = np.random.default_rng(0).standard_normal((2, 20, 4)).astype(np.float32)
    model[0].weight.data = left @ right[:16].T
    thin, stats = compress_model(model, {"low_rank": 0.25})
    x = workload("shared").inputs[0][:, :20]
    np.testing.assert_allclose(thin(x).data, model(x).data, rtol=1e-4, atol=1e-4)
    assert stats["final_parameters"] == 20 * 4 + 4 * 16 + 16


def test_layers_that_share_a_weight_are_not_factored():
    model, stats = compress_model(workload("shared").model, {"low_rank": 0.25})
    assert model.twin.weight is model.first.weight
    assert stats["compression_ratio"] == 1


def test_the_other_names_of_a_configuration_mean_the_same():
    model = workload("mlp").model
    first, _ = compress_model(model, {"magnitude_prune": 0.5, "structured_prune": 0.25})
    second, _ = compress_model(model, {"magnitude_sparsity": 0.5, "structured_prune_ratio": 0.25})
    check_same(second, bits_of(first))


def test_unknown_keys_are_refused_with_the_known_ones():
    model = workload("mlp").model
    known = "there are low_rank, structured_prune, magnitude_prune"
    with pytest.raises(SettingError, match=f"unknown key 'quantize' .*{known}"):
        compress_model(model, {"quantize": 8})
    with pytest.raises(SettingError, match="one step has two names"):
        compress_model(model, {"magnitude_prune": 0.5, "magnitude_sparsity": 0.5})
    with pytest.raises(SettingError, match="a configuration is a dictionary"):
        compress_model(model, 0.5)


def test_an_empty_configuration_copies():
    model = workload("mlp").model
    copied, stats = compress_model(model, {})
    check_same(copied, bits_of(model))
    assert copied is not model
    assert stats["applied"] == []


def test_compressor_has_the_same_functions():
    u, s, v = Compressor.low_rank_approximate(np.eye(4), rank_ratio=0.5)
    assert (u.shape, s.shape, v.shape) == ((4, 2), (2,), (2, 4))
    assert Compressor.magnitude_prune is magnitude_prune
    assert Compressor.structured_prune is structured_prune


# ---------------------------------------------------------------- odd weights


@pytest.mark.parametrize("prune", [magnitude_prune, structured_prune])
def test_what_cannot_be_ranked_is_named_and_nothing_changes(prune):
    model = workload("mlp").model
    model.layers[2].weight.data[0, 0] = np.nan
    before = {name: array.copy() for name, array in model.state_dict().items()}
    with pytest.raises(SettingError, match=r"'layers\.2\.weight' holds NaN or infinity"):
        prune(model, 0.5)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("prune", [magnitude_prune, structured_prune])
def test_empty_weights_stay_empty(prune):
    model = Sequential(Linear(4, 4, rng=0), Linear(4, 4, rng=1))
    model.layers[1].weight.data = np.empty((0, 4), np.float32)
    prune(model, 0.5)
    assert (model.layers[0].weight.data == 0).sum() == 8
    assert model.layers[1].weight.shape == (0, 4)


def test_shares_may_be_numbers_of_numpy():
    model = Sequential(Linear(4, 4, rng=0))
    structured_prune(model, np.float32(0.5))
    assert (model.layers[0].weight.data == 0).sum() == 8
