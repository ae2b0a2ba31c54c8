"""How many weights are zero."""

import numpy as np
import pytest
from parts import require_part
from small_models import workload

from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.transforms.prune import count_weights, sparsity_of, weights_of
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.sparse_layers import SparseLinear


def counted_slowly(model):
    """Look at every number of every weight, one by one."""
    zeros = size = 0
    seen = set()
    for parameter in model.parameters():
        if parameter.data.ndim < 2 or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        for number in parameter.data.flat:
            size += 1
            zeros += number == 0
    return zeros / size


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "branches", "shared"])
def test_the_share_of_zeros_is_that_of_a_slow_loop(name, rng):
    model = workload(name).model
    for parameter in model.parameters():
        parameter.data[rng.random(parameter.shape) < 0.3] = 0
    assert sparsity_of(model) == counted_slowly(model) > 0.2


def test_biases_and_norms_do_not_count():
    model = workload("branches").model
    for parameter in model.parameters():
        if parameter.data.ndim < 2:
            parameter.data[...] = 0
    assert sparsity_of(model) == 0


def test_a_weight_that_is_shared_counts_once():
    assert list(weights_of(workload("shared").model)) == ["first.weight"]


def test_a_model_without_weights_has_no_zeros():
    assert sparsity_of(object()) == 0


def test_a_plain_object_is_known_by_its_parameters():
    class Plain:
        def __init__(self):
            self.tables = {"a": Tensor(np.array([[0.0, 1.0], [0.0, 0.0]]))}

        def forward(self, x):
            return x

        def parameters(self):
            return list(self.tables.values())

    class Holder(Plain):
        def __init__(self):
            self.layer = Linear(2, 2, rng=0)

    assert sparsity_of(Plain()) == 0.75
    assert list(weights_of(Holder())) == ["layer.weight"]


def pruned_pair(sparsity):
    rng = np.random.default_rng(0)
    layers = [Linear(40, 30, rng=0), Linear(30, 20, rng=1)]
    for layer in layers:
        layer.weight.data[rng.random(layer.weight.shape) < sparsity] = 0
    return Sequential(*layers).eval()


@pytest.mark.parametrize("count", [1, 2])
def test_sparse_layers_count_with_the_zeros_that_they_leave_out(count):
    model = pruned_pair(0.9)
    expected = counted_slowly(model)
    for place in range(count):
        model.layers[place] = SparseLinear.of(model.layers[place])
    assert sparsity_of(model) == expected > 0.85
    assert count_weights(model) == (1800, round(1800 * expected))


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_quantized_layers_count_with_what_they_round_to(name):
    work = workload(name)
    for parameter in work.model.parameters():
        parameter.data[np.random.default_rng(0).random(parameter.shape) < 0.5] = 0
    transform = Quantize()
    plan = transform.plan(work)
    assert plan.steps
    model = transform.apply(work, plan)
    size, zeros = count_weights(model)
    before, zeros_before = count_weights(work.model)
    assert size == before
    assert zeros_before <= zeros < size  # small weights round to zero


def test_models_of_pytorch_are_counted_alike():
    torch = require_part("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[:] = 0
    assert sparsity_of(model) == 1 / 3
    assert sparsity_of(model.to(torch.bfloat16)) == 1 / 3
