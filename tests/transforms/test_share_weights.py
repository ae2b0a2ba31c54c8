import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from parts import require_part
from small_models import workload

from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import use_backend
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.optimizers import Adam
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.plan import Transform
from tinytorch.transforms.share_weights import SharedWeightLayer, SharedWeightLinear, ShareWeights


def held(model):
    return sum(each.nbytes for each in adapter_for(model).parameters(model))


def outputs(model, work):
    with no_grad():
        return model(*work.inputs).data


def shared(work, transform):
    return transform.apply(work, transform.plan(work))


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


def test_it_is_a_transform():
    assert isinstance(ShareWeights(), Transform)


@pytest.mark.parametrize(("clusters", "error"), [(16, 0.3), (64, 0.06)])
@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches", "shared"])
def test_models_of_any_structure_become_smaller_as_predicted_and_stay_close(name, clusters, error):
    work = workload(name)
    before = {key: array.tobytes() for key, array in work.model.state_dict().items()}
    transform = ShareWeights(clusters)
    plan = transform.plan(work)
    model = transform.apply(work, plan)
    assert plan.shrinkage.value == held(work.model) / held(model) > 1
    expected = outputs(work.model, work)
    change = np.linalg.norm(outputs(model, work) - expected) / np.linalg.norm(expected)
    assert 0 < change < error
    assert {key: array.tobytes() for key, array in work.model.state_dict().items()} == before


def test_a_layer_has_the_values_and_the_error_that_the_plan_says():
    work = workload("mlp")
    plan = ShareWeights(16).plan(work)
    model = ShareWeights(16).apply(work, plan)
    for step in plan.steps:
        place = int(step.layer.rpartition(".")[2])
        exact, layer = work.model.layers[place].weight.data, model.layers[place]
        assert tuple(layer.codebook.data.tolist()) == step.settings["codebook"]
        assert len(np.unique(layer.weight.data)) == step.settings["clusters"] == 16
        error = np.linalg.norm(layer.weight.data - exact) / np.linalg.norm(exact)
        assert error == pytest.approx(step.settings["relative_error"], rel=1e-5)


def test_four_bits_for_sixteen_clusters_and_eight_for_more():
    work = workload("mlp")
    bits = {clusters: shared(work, ShareWeights(clusters)) for clusters in (2, 16, 17, 256)}
    sizes = {clusters: model.layers[0].values.data.nbytes for clusters, model in bits.items()}
    weights = 64 * 48
    assert sizes == {2: weights // 2, 16: weights // 2, 17: weights, 256: weights}


def test_what_was_pruned_stays_pruned():
    work = workload("mlp")
    weight = work.model.layers[0].weight
    weight.data[np.abs(weight.data) < np.quantile(np.abs(weight.data), 0.8)] = 0
    model = shared(work, ShareWeights(8))
    np.testing.assert_array_equal(model.layers[0].weight.data == 0, weight.data == 0)
    assert model.layers[0].keeps_zero


def test_the_full_weights_are_gone_from_memory():
    work = workload("gpt")
    model = shared(work, ShareWeights())
    source = weakref.ref(work.model)
    del work
    gc.collect()
    assert source() is None
    layers = [each for each in model.modules() if isinstance(each, SharedWeightLayer)]
    largest = max(array.nbytes for each in layers for array in each.state_dict().values())
    assert len(layers) == 12
    assert largest == 32 * 128 // 2


def test_the_parameters_still_count_as_weights():
    work = workload("mlp")
    model = shared(work, ShareWeights())
    found = {each.name: each for each in adapter_for(model).parameters(model)}
    values = found["layers.0.values"]
    assert (values.size, values.nbytes, values.is_buffer) == (64 * 48, 64 * 48 // 2, False)


def test_layers_that_share_a_weight_share_its_codes():
    model = shared(workload("shared"), ShareWeights())
    assert model.first is model.again
    assert model.twin.values is model.first.values
    assert model.twin.codebook is model.first.codebook
    assert model.twin.bias is not model.first.bias


@pytest.mark.parametrize("backend", ["numpy", pytest.param("numba", marks=pytest.mark.slow)])
def test_generating_with_a_cache_gives_what_the_plain_forward_pass_gives(backend):
    require_part(backend)
    model = shared(workload("gpt"), ShareWeights())
    with use_backend(backend):
        tokens = [1, 2, 3]
        for _ in range(8):
            with no_grad():
                logits = model(Tensor(np.array([tokens]))).data
            tokens.append(int(logits[0, -1].argmax()))
        np.testing.assert_array_equal(model.generate([1, 2, 3], 8).data, tokens)


def test_training_the_values_makes_good_what_sharing_lost(rng):
    teacher = Sequential(Linear(12, 12, rng=0))
    x = rng.normal(size=(200, 12)).astype(np.float32)
    work = Workload("own", teacher.eval(), (Tensor(x),))
    model = shared(work, ShareWeights(4))
    wanted = outputs(teacher, work)
    before = np.mean((outputs(model, work) - wanted) ** 2)
    optimizer = Adam(model.parameters(), lr=0.003)
    for _ in range(60):
        optimizer.zero_grad()
        ((model(Tensor(x)) - Tensor(wanted)) ** 2).mean().backward()
        optimizer.step()
    assert np.mean((outputs(model, work) - wanted) ** 2) < before
    assert len(np.unique(model.layers[0].weight.data)) <= 4


def test_every_layer_that_is_left_alone_has_a_reason():
    class Special(Linear):
        pass

    bad = Linear(40, 30, rng=0)
    bad.weight.data[0, 0] = np.nan
    model = Sequential(bad, Special(30, 30), Linear(30, 2, rng=0), Linear(2, 2, rng=0))
    work = Workload("odd", model.eval(), (Tensor(np.ones((2, 40), np.float32)),))
    plan = ShareWeights(keep=("layers.2",)).plan(work)
    assert reasons(plan) == {
        "layers.0": "its weight holds NaN or infinity",
        "layers.1": "a Special is a Linear that may compute something else",
        "layers.2": "kept by keep='layers.2'",
        "layers.3": "it would take 18 bytes in the place of 16",
    }
    assert plan.is_empty
    assert plan.not_predicted == {"speedup": "nothing changes", "shrinkage": "nothing changes"}
    gpt = reasons(ShareWeights().plan(workload("gpt")))
    assert "Embedding is not a layer that can be clustered" in gpt["token_embedding"]


def test_a_model_that_holds_codes_already_is_left_alone():
    work = workload("mlp")
    again = replace(work, model=shared(work, ShareWeights()))
    plan = ShareWeights().plan(again)
    assert plan.is_empty
    assert "SharedWeightLinear is not a layer" in reasons(plan)["layers.0"]


def test_a_plan_is_carried_out_exactly():
    work = workload("mlp")
    plan = ShareWeights().plan(work)
    part = replace(plan, steps=plan.steps[1:2])
    model = ShareWeights().apply(work, part)
    kinds = [type(each) for each in model.layers[::2]]
    assert kinds == [Linear, SharedWeightLinear, Linear]
    with pytest.raises(SettingError, match="this plan was made by ShareWeights"):
        ShareWeights(8).apply(work, plan)


def test_models_of_pytorch_are_left_alone_with_the_reason():
    torch = require_part("torch")
    model = torch.nn.Linear(4, 4)
    work = Workload("torch", model, (torch.ones(1, 4),))
    plan = ShareWeights().plan(work)
    assert "which has no layer that holds codes" in plan.skipped[0].reason
    twin = ShareWeights().apply(work, plan)
    assert twin is not model
    assert torch.equal(twin.weight, model.weight)


@pytest.mark.parametrize("clusters", [1, 0, -3, 257, 2.5, True])
def test_a_number_of_clusters_that_codes_do_not_have_is_an_error(clusters):
    with pytest.raises(SettingError, match="from 2 to 256"):
        ShareWeights(clusters)
