from functools import partial

import numpy as np
import pytest
from classic_models import KINDS, PARAMETERS, make_model
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.tensor import Parameter
from tinytorch.errors import ModelError, SettingError
from tinytorch.profiling.profiler import (
    analyze_weight_distribution,
    count_parameters,
    parameter_bytes,
    parameter_tensors,
)

CONTRACT = {
    "total_weights",
    "mean",
    "std",
    "min",
    "max",
    "below_threshold_0001",
    "below_threshold_001",
    "below_threshold_01",
}


def holding(values):
    layer = Linear(1, 1, bias=False)
    layer.weight.data = np.array([values], np.float32)
    return layer


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted_with_their_bytes(kind):
    model = make_model(kind)
    assert (count_parameters(model), parameter_bytes(model)) == (PARAMETERS, 4 * PARAMETERS)


def test_a_twelve_layer_stack_has_the_golden_numbers():
    sizes = ((768, 3072), (3072, 768))
    stack = Sequential([Linear(*size) for _ in range(12) for size in sizes])
    assert count_parameters(stack) == 56_669_184
    assert parameter_bytes(stack) == 226_676_736


def test_a_layer_that_is_used_twice_counts_once():
    layer = Linear(3, 3)
    assert count_parameters(Sequential(layer, layer)) == 12


def test_an_object_that_lists_nothing_is_looked_into():
    class Bare:
        def __init__(self):
            self.weight = Parameter(np.ones((3, 2), np.float32))
            self.running = Tensor(np.ones(7))
            self.blocks = [Linear(2, 2), {"last": Linear(2, 1)}]

        def forward(self, x):
            return x

    assert count_parameters(Bare()) == 6 + 6 + 3
    assert len(parameter_tensors(Bare())) == 5


class Holder:
    """An object that lists nothing and holds its layers deep inside."""

    def __init__(self, layer):
        self.layers = [{"first": layer}]

    def forward(self, x):
        return self.layers[0]["first"](x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "view",
    [
        lambda model: model.forward,
        lambda model: partial(model.forward),
        lambda model: Holder(model).forward,
        lambda model: lambda x: model(x),
    ],
)
def test_methods_and_functions_have_the_parameters_of_the_models_behind(kind, view):
    model = make_model(kind)
    known = {id(tensor) for tensor in parameter_tensors(model)}
    assert {id(tensor) for tensor in parameter_tensors(view(model))} == known
    assert count_parameters(view(model)) == PARAMETERS


def test_arrays_are_parameters_where_an_object_says_so():
    class Arrays:
        def forward(self, x):
            return x

        def parameters(self):
            return [np.ones((2, 3)), np.ones(4)]

    assert (count_parameters(Arrays()), parameter_bytes(Arrays())) == (10, 80)
    assert analyze_weight_distribution(Arrays())["mean"] == 1.0


def test_a_model_without_parameters_has_none():
    assert (count_parameters(object()), parameter_bytes(object())) == (0, 0)


# ---------------------------------------------------------------- the distribution


@pytest.mark.parametrize("kind", KINDS)
def test_the_distribution_has_the_keys_of_the_contract(kind):
    stats = analyze_weight_distribution(make_model(kind), percentiles=[5, 99])
    assert stats.keys() >= CONTRACT | {"percentile_5", "percentile_99"}
    assert stats["total_weights"] == PARAMETERS


@given(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=50))
def test_everything_is_about_magnitudes(values):
    stats = analyze_weight_distribution(holding(values), percentiles=[10, 50])
    sizes = np.abs(np.array(values, np.float32).astype(np.float64))
    wanted = {
        "mean": sizes.mean(),
        "std": sizes.std(),
        "min": sizes.min(),
        "max": sizes.max(),
        "percentile_10": np.percentile(sizes, 10),
        "percentile_50": np.percentile(sizes, 50),
    }
    assert {key: stats[key] for key in wanted} == pytest.approx(wanted, abs=1e-12)


def test_thresholds_are_percentages():
    stats = analyze_weight_distribution(holding([0.0, -0.0005, 0.005, -0.05, 0.5]))
    below = [stats[f"below_threshold_{key}"] for key in ("0001", "001", "01")]
    assert below == pytest.approx([40, 60, 80])
    assert (stats["zeros"], stats["signed_max"]) == (1, 0.5)
    assert stats["signed_min"] == pytest.approx(-0.05)


def test_weights_of_half_precision_are_read():
    torch = require_part("torch")
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    assert analyze_weight_distribution(model)["total_weights"] == 8


def test_a_model_without_weights_is_an_error():
    with pytest.raises(ModelError, match="Sequential has no weights"):
        analyze_weight_distribution(Sequential())


@pytest.mark.parametrize("percentile", [-1, 101, float("nan")])
def test_an_impossible_percentile_is_refused(percentile):
    with pytest.raises(SettingError, match="percentile="):
        analyze_weight_distribution(holding([1.0]), percentiles=[percentile])
