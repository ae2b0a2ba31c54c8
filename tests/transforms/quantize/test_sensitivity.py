import math

import numpy as np
import pytest
from small_models import workload
from terminal import shown

from tinytorch.core.layers import Linear, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.errors import SettingError
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize
from tinytorch.transforms.quantize.sensitivity import (
    LayerSensitivity,
    Sensitivity,
    measure_sensitivity,
)


def test_each_layer_is_measured_alone_and_all_together():
    work = workload("mlp")
    told = []
    found = measure_sensitivity(
        work, Quantize("weight_only", bits=4), on_layer=lambda *where: told.append(where)
    )
    assert [each.layer for each in found.layers] == ["layers.0", "layers.2", "layers.4"]
    assert told == [(0, 3, "layers.0"), (1, 3, "layers.2"), (2, 3, "layers.4")]
    assert all(0 < each.error < 0.2 for each in found.layers)
    # errors add up like noise, so together they are about the root of the sum of squares
    expected = math.sqrt(sum(each.error**2 for each in found.layers))
    assert found.together.error == pytest.approx(expected, rel=0.5)
    assert found.together.bytes_saved == sum(each.bytes_saved for each in found.layers)
    assert found.batches == 3
    assert [each.error for each in found.worst_first] == sorted(
        (each.error for each in found.layers), reverse=True
    )


def test_an_outlier_makes_its_layer_the_worst():
    work = workload("mlp")
    work.model.layers[2].weight.data[0, :] = 50.0  # one input decides the step of all outputs
    found = measure_sensitivity(work, Quantize("weight_only"))
    assert found.worst_first[0].layer == "layers.2"


def test_errors_are_relative_to_the_outputs():
    layer = Linear(32, 8, bias=False, rng=0)
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    works = [Workload("layer", layer, (Tensor(scale * x),)) for scale in (1, 1000)]
    errors = [measure_sensitivity(work, Quantize()).together.error for work in works]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)


def test_without_calibration_data_the_inputs_are_used():
    work = Workload("layer", Linear(32, 8, rng=0), (Tensor(np.ones((1, 32), np.float32)),))
    found = measure_sensitivity(work, Quantize())
    assert found.batches == 1
    assert found.to_dict()["layers"][0]["layer"] == ""


def test_outputs_that_are_no_floats_say_so():
    class Classes(Module):
        def __init__(self):
            self.net = Sequential(Linear(8, 8, rng=0))

        def forward(self, x):
            return Tensor(self.net(x).data.argmax(axis=-1))

    work = Workload("classes", Classes(), (Tensor(np.ones((1, 8), np.float32)),))
    with pytest.raises(SettingError, match="no floating-point numbers"):
        measure_sensitivity(work, Quantize())


def of_errors(*errors):
    layers = [LayerSensitivity(f"layers.{n}", "x", each, None, 1) for n, each in enumerate(errors)]
    return Sensitivity(tuple(layers[:-1]), layers[-1], batches=1)


def test_errors_are_shares_of_the_largest_that_is_a_number():
    found = of_errors(0.1, 0.0, math.inf, 0.4)
    assert found.largest_error == 0.4
    assert [found.share(each) for each in found.layers] == [0.25, 0.0, 1.0]
    assert of_errors(0.0, 0.0).share(of_errors(0.0, 0.0).together) == 0


def test_a_sensitivity_shows_itself():
    found = of_errors(0.1, 0.2, 0.3)
    assert "the worst one alone, layers.1" in shown(found)
    assert "Sensitivity" in found._repr_html_()
