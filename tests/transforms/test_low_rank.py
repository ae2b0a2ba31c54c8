from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part
from small_models import workload

from tinytorch.core.autograd import no_grad
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError, ShapeError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.low_rank import LowRank, low_rank_approximate, rank_for_energy
from tinytorch.transforms.plan import Transform


def held(model):
    return sum(each.nbytes for each in adapter_for(model).parameters(model))


def outputs(model, work):
    with no_grad():
        return model(*work.inputs).data


def factored(work, transform):
    return transform.apply(work, transform.plan(work))


def reasons(plan):
    return {each.layer: each.reason for each in plan.skipped}


def thin(inputs, outputs, rank, seed=0):
    """A weight that has only this rank."""
    rng = np.random.default_rng(seed)
    product = rng.normal(size=(inputs, rank)) @ rng.normal(size=(rank, outputs))
    return (product / np.sqrt(inputs * rank)).astype(np.float32)


# ---------------------------------------------------------------- of a matrix


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.01, 1), st.integers(0, 5))
def test_the_error_is_the_tail_of_the_singular_values(rows, columns, ratio, seed):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    U, S, V = low_rank_approximate(matrix, ratio)
    rank = max(1, round(ratio * min(rows, columns)))
    assert (U.shape, S.shape, V.shape) == ((rows, rank), (rank,), (rank, columns))
    tail = np.linalg.svd(matrix, compute_uv=False)[rank:]
    error = np.linalg.norm(matrix - U @ np.diag(S) @ V)
    # sums of at most 144 products of numbers around 1
    np.testing.assert_allclose(error, np.linalg.norm(tail), rtol=0, atol=1e-12)
    np.testing.assert_allclose(U.T @ U, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(V @ V.T, np.eye(rank), atol=1e-12)


@pytest.mark.parametrize("shape", [(60, 200), (200, 60), (90, 90)])
@pytest.mark.parametrize("fall", [0.0, 0.1, 0.5])
def test_the_error_is_that_of_a_full_decomposition_to_float32_rounding(shape, fall, rng):
    # singular values that fall slowly, quickly, and down to where their squares are only rounding
    small = min(shape)
    left, right = (np.linalg.qr(rng.normal(size=(side, small)))[0] for side in shape)
    matrix = left * np.exp(-fall * np.arange(small)) @ right.T
    for rank in (1, 5, small // 3, small // 2, small):
        U, S, V = low_rank_approximate(matrix, rank / small)
        full = np.linalg.svd(matrix, full_matrices=False)
        best = np.linalg.norm(matrix - full[0][:, :rank] * full[1][:rank] @ full[2][:rank])
        error = np.linalg.norm(matrix - U * S @ V)
        assert error <= best + np.finfo(np.float32).eps * np.linalg.norm(matrix) / 100
        np.testing.assert_allclose(S, full[1][:rank], rtol=1e-6, atol=1e-9)  # the first is 1
        np.testing.assert_allclose(U.T @ U, np.eye(rank), atol=1e-12)


def test_no_full_decomposition_is_computed_where_a_small_part_is_wanted(monkeypatch, rng):
    shapes, svd = [], np.linalg.svd

    def counting(matrix, **settings):
        shapes.append(matrix.shape)
        return svd(matrix, **settings)

    monkeypatch.setattr(np.linalg, "svd", counting)
    model = Sequential(Linear(64, 48, rng=0))
    model.layers[0].weight.data = thin(64, 48, 5)
    work = Workload("thin", model.eval(), (Tensor(np.ones((2, 64), np.float32)),))
    plan = LowRank(0.9999).plan(work)
    assert shapes == []
    LowRank(0.9999).apply(work, plan)
    assert shapes == [(5, 48)]


def test_no_other_matrix_of_the_rank_is_nearer(rng):
    matrix = rng.normal(size=(9, 7))
    U, S, V = low_rank_approximate(matrix, 3 / 7)
    best = np.linalg.norm(matrix - U @ np.diag(S) @ V)
    for _ in range(50):
        basis = np.linalg.qr(rng.normal(size=(9, 3)))[0]
        assert best <= np.linalg.norm(matrix - basis @ basis.T @ matrix)


def test_tensors_arrays_and_pytorch_give_the_same_arrays(rng):
    torch = require_part("torch")
    matrix = rng.normal(size=(6, 4)).astype(np.float32)
    expected = low_rank_approximate(matrix)
    for given_matrix in (Tensor(matrix), matrix.tolist(), torch.tensor(matrix, requires_grad=True)):
        for ours, theirs in zip(low_rank_approximate(given_matrix), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert {each.dtype for each in expected} == {np.dtype(np.float32)}
    assert low_rank_approximate(np.arange(6).reshape(2, 3))[0].dtype == np.float32


def test_what_is_no_matrix_of_numbers_is_an_error():
    with pytest.raises(ShapeError, match=r"got the shape \(2, 3, 1, 1\); reshape the kernels"):
        low_rank_approximate(np.zeros((2, 3, 1, 1)))
    with pytest.raises(SettingError, match="finite numbers"):
        low_rank_approximate(np.array([[1.0, np.nan]]))
    for ratio in (0, 1.5, -1, float("nan"), True):
        with pytest.raises(SettingError, match="rank_ratio is a share"):
            low_rank_approximate(np.eye(2), ratio)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.floats(0.01, 1))
def test_the_rank_is_the_least_that_holds_the_energy(values, energy):
    ordered = np.sort(values)[::-1]
    total = np.sum(ordered**2)
    rank = rank_for_energy(ordered, energy)
    if total == 0:
        assert rank == 0
        return
    slack = 1e-9 * total
    assert np.sum(ordered[:rank] ** 2) >= energy * total - slack
    assert rank == 1 or np.sum(ordered[: rank - 1] ** 2) < energy * total + slack


# ---------------------------------------------------------------- of a model


def test_it_is_a_transform():
    assert isinstance(LowRank(), Transform)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches", "shared"])
def test_models_of_any_structure_become_smaller_as_predicted_and_stay_as_they_were(name):
    work = workload(name)
    before = {key: array.tobytes() for key, array in work.model.state_dict().items()}
    transform = LowRank(0.5)
    plan = transform.plan(work)
    model = transform.apply(work, plan)
    assert plan.shrinkage.value == held(work.model) / held(model) > 1
    assert outputs(model, work).shape == outputs(work.model, work).shape
    assert {key: array.tobytes() for key, array in work.model.state_dict().items()} == before


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_of_small_rank_computes_the_same_with_fewer_weights(bias):
    model = Sequential(Linear(40, 30, bias=bias, rng=0))
    model.layers[0].weight.data = thin(40, 30, 3)
    work = Workload("thin", model.eval(), (Tensor(np.ones((2, 40), np.float32)),))
    plan = LowRank(1.0).plan(work)
    (step,) = plan.steps
    assert (step.what, step.settings["rank"], step.settings["full_rank"]) == ("rank 3 of 30", 3, 30)
    assert step.settings["relative_error"] < 1e-5
    new = LowRank(1.0).apply(work, plan)
    first, second = new.layers[0].layers
    assert [type(each) for each in (first, second)] == [Linear, Linear]
    assert (first.weight.shape, second.weight.shape) == ((40, 3), (3, 30))
    assert first.bias is None
    assert (second.bias is not None) is bias
    np.testing.assert_allclose(outputs(new, work), outputs(model, work), atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"stride": 2, "padding": 1}, {"padding": (1, 0), "dilation": (2, 1), "bias": False}],
)
def test_a_convolution_of_small_rank_computes_the_same_as_two(settings):
    conv = Conv2d(6, 20, (3, 2), **settings, rng=0)
    conv.weight.data = thin(6 * 6, 20, 4).T.reshape(20, 6, 3, 2).copy()
    images = np.random.default_rng(1).normal(size=(2, 6, 9, 8)).astype(np.float32)
    work = Workload("conv", Sequential(conv).eval(), (Tensor(images),))
    new = factored(work, LowRank(1.0))
    first, second = new.layers[0].layers
    assert (first.weight.shape, second.weight.shape) == ((4, 6, 3, 2), (20, 4, 1, 1))
    np.testing.assert_allclose(outputs(new, work), outputs(work.model, work), atol=1e-5)


def test_the_error_of_a_weight_is_the_one_in_the_plan():
    work = workload("mlp")
    plan = LowRank(0.6).plan(work)
    model = LowRank(0.6).apply(work, plan)
    for step in plan.steps:
        place = int(step.layer.rpartition(".")[2])
        exact = work.model.layers[place].weight.data
        first, second = model.layers[place].layers
        error = np.linalg.norm(first.weight.data @ second.weight.data - exact)
        relative = error / np.linalg.norm(exact)
        assert relative == pytest.approx(step.settings["relative_error"], abs=1e-6)  # float32
        assert step.settings["energy"] == pytest.approx(1 - relative**2, abs=1e-6)
        assert step.settings["energy"] >= 0.6


def test_a_model_that_reads_the_weights_of_its_layers_computes_on():
    class Normed(Module):
        def __init__(self):
            self.conv = Conv2d(4, 24, 3, rng=0)
            self.linear = Linear(24, 40, rng=1)

        def forward(self, x):
            size = (self.conv.weight**2).sum() + (self.linear.weight**2).sum()
            x = self.conv(x).mean(axis=(2, 3)).reshape(-1, self.linear.in_features)
            return self.linear(x) / size

    model = Normed()
    model.conv.weight.data = thin(36, 24, 3).T.reshape(24, 4, 3, 3).copy()
    model.linear.weight.data = thin(24, 40, 3)
    images = np.random.default_rng(1).normal(size=(2, 4, 5, 5)).astype(np.float32)
    work = Workload("normed", model.eval(), (Tensor(images),))
    plan = LowRank(1.0).plan(work)
    assert plan.layers == ("conv", "linear")
    new = LowRank(1.0).apply(work, plan)
    np.testing.assert_allclose(outputs(new, work), outputs(model, work), rtol=1e-4, atol=1e-6)
    new(Tensor(images)).sum().backward()
    assert new.conv.layers[0].weight.grad is not None


def test_layers_that_would_not_shrink_stay_with_the_reason():
    work = workload("mlp")
    plan = LowRank(1.0).plan(work)
    assert plan.is_empty
    assert plan.shrinkage is None
    assert reasons(plan)["layers.0"] == ("rank 48 of 48 would need 5,376 weights instead of 3,072")
    model = LowRank(1.0).apply(work, plan)
    assert [type(each) for each in model.layers] == [type(each) for each in work.model.layers]


def test_generating_with_a_cache_gives_what_the_plain_forward_pass_gives():
    work = workload("gpt")
    transform = LowRank(0.7)
    plan = transform.plan(work)
    assert {"blocks.0.attention.q_proj", "blocks.1.mlp.layers.2"} <= set(plan.layers)
    model = transform.apply(work, plan)
    tokens = [1, 2, 3]
    for _ in range(8):
        with no_grad():
            logits = model(Tensor(np.array([tokens]))).data
        tokens.append(int(logits[0, -1].argmax()))
    np.testing.assert_array_equal(model.generate([1, 2, 3], 8).data, tokens)
    np.testing.assert_array_equal(model.generate([1, 2, 3], 8, use_cache=False).data, tokens)


def test_layers_that_share_a_weight_share_its_factors():
    work = workload("shared")
    model = factored(work, LowRank(0.5))
    assert model.first is model.again
    for one, other in zip(model.first.layers, model.twin.layers, strict=True):
        assert one.weight is other.weight
    assert model.first.layers[1].bias is not model.twin.layers[1].bias


def test_a_weight_that_somebody_else_needs_as_it_is_stays():
    work = workload("shared")
    plan = LowRank(0.5, keep=("twin",)).plan(work)
    assert reasons(plan) == {
        "first": "it shares its weight with 'twin', which is not changed",
        "twin": "kept by keep='twin'",
    }


def test_every_layer_that_is_left_alone_has_a_reason():
    class Special(Linear):
        pass

    bad = Linear(40, 30, rng=0)
    bad.weight.data[0, 0] = np.nan
    empty = Linear(30, 30, rng=0)
    empty.weight.data[:] = 0
    watched = Linear(30, 30, rng=0)
    watched.forward = lambda x: x
    model = Sequential(bad, empty, Special(30, 30), watched, Linear(30, 30, rng=0))
    model.unused = Linear(30, 30, rng=0)
    work = Workload("odd", model.eval(), (Tensor(np.ones((2, 40), np.float32)),))
    plan = LowRank(0.3, keep=("layers.4", "nobody")).plan(work)
    assert plan.is_empty
    assert reasons(plan) == {
        "layers.0": "its weight holds NaN or infinity",
        "layers.1": "its weight is zero everywhere",
        "layers.2": "a Special is a Linear that may compute something else",
        "layers.3": "its forward was replaced on this object by another function",
        "layers.4": "kept by keep='layers.4'",
        "unused": "it was not called: its weight may be used in another way",
    }
    assert plan.notes == ("keep='nobody' matches no layer that can be factored",)
    grouped = reasons(LowRank(0.3).plan(workload("branches")))["paths.wide.0"]
    assert grouped == "its weight is in 4 groups, which are small already"


def test_modes_dtypes_and_what_is_frozen_stay():
    model = Sequential(Linear(40, 30, rng=0), ReLU()).astype(np.float64)
    model.layers[0].weight.data = thin(40, 30, 2).astype(np.float64)
    model.layers[0].weight.requires_grad = False
    work = Workload("own", model, (Tensor(np.ones((2, 40))),))
    new = factored(work, LowRank(0.99))
    first, second = new.layers[0].layers
    assert first.weight.dtype == second.weight.dtype == np.float64
    assert not first.weight.requires_grad
    assert second.bias.requires_grad
    assert first.training
    assert model.training


def test_a_factored_model_can_be_trained():
    work = workload("mlp")
    model = factored(work, LowRank(0.5))
    model(*work.inputs).sum().backward()
    assert all(each.grad is not None for each in model.parameters())


def test_a_plan_is_carried_out_exactly_and_only_for_its_model():
    work = workload("mlp")
    plan = LowRank(0.5).plan(work)
    part = replace(plan, steps=plan.steps[1:2])
    model = LowRank(0.5).apply(work, part)
    assert [type(each).__name__ for each in model.layers[::2]] == [
        "Linear",
        "FactoredLinear",
        "Linear",
    ]
    with pytest.raises(SettingError, match="this plan was made by LowRank"):
        LowRank(0.6).apply(work, plan)
    with pytest.raises(SettingError, match=r"no layer 'layers.2' as the plan of LowRank knows it"):
        LowRank(0.5).apply(workload("cnn"), part)


@pytest.mark.parametrize("energy", [0, -0.1, 1.1, float("nan"), True])
def test_an_energy_that_is_no_share_is_an_error(energy):
    with pytest.raises(SettingError, match="energy is a share"):
        LowRank(energy)


def test_a_plan_needs_a_workload():
    with pytest.raises(SettingError, match="made for a Workload, got Sequential"):
        LowRank().plan(workload("mlp").model)
