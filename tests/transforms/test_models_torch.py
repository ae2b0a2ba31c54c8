import math

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import Tied, held, mlp, seeded, workload

from tinytorch.errors import SettingError
from tinytorch.models.inputs import ModelCall
from tinytorch.models.pytorch import without_fast_paths
from tinytorch.transforms.support.observing import (
    calls_of,
    outputs_of,
    relative_change,
    watching,
)
from tinytorch.transforms.support.weights import counted_shrinkage
from tinytorch.transforms.support.weights_torch import is_transposed_linear, owners_of_tensors


def test_calls_are_the_inputs_and_the_calibration_data():
    case = workload(mlp(8), 2, 8)
    calls = calls_of(case)
    batches = [f"calibration batch {number}" for number in range(3)]
    assert [each.name for each in calls] == ["the inputs", *batches]
    assert calls[0].arguments is case.inputs


def test_outputs_are_those_of_evaluation_without_a_graph():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
    x = torch.randn(3, 4)
    (found,) = outputs_of(model, ModelCall((x,), {}, "the inputs"))
    assert not model.training
    np.testing.assert_array_equal(found, model[0](x).detach().numpy())


def test_inputs_that_do_not_fit_are_named():
    with pytest.raises(SettingError, match="calibration batch 3 does not fit the model"):
        outputs_of(mlp(8), ModelCall((torch.zeros(2, 5),), {}, "calibration batch 3"))


def test_the_change_is_relative_to_the_outputs():
    one = [np.array([3.0, 4.0])]
    assert relative_change(one, [np.array([3.0, 4.0])]) == (0.0, "")
    assert relative_change(one, [np.array([0.0, 0.0])]) == (1.0, "")
    change, reason = relative_change(one, [np.array([3.0])])
    assert math.isinf(change)
    assert "another shape" in reason
    assert relative_change(one, [np.array([math.nan, 0.0])])[1] == "the outputs are not finite"


def test_watched_layers_are_as_before_afterwards():
    model, seen = mlp(8), []
    with watching({"0": model[0]}, lambda path, inputs, output: seen.append((path, output.shape))):
        model(torch.zeros(2, 8))
    assert seen == [("0", (2, 8))]
    assert "forward" not in vars(model[0])


def test_encoder_layers_call_their_parts_without_fast_paths():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    called = []
    x = torch.zeros(1, 3, 8)
    for fast in (True, False):
        with watching({"linear1": model.linear1}, lambda path, *_: called.append(path)):
            outputs_of(model, ModelCall((x,), {}, "x"), fast_paths=fast)
    assert called == ["linear1"]
    enabled = torch.backends.mha.get_fastpath_enabled()
    with without_fast_paths():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled() is enabled


def test_shared_tensors_have_all_their_names():
    model = Tied()
    names = owners_of_tensors(model)
    assert names[id(model.table.weight)] == ["table.weight", "heads.0.weight"]
    assert names[id(model.body.bias)] == ["body.bias"]


def test_the_linear_layers_of_transformers_are_known():
    conv1d = require_part("transformers.pytorch_utils").Conv1D(3, 2)
    assert is_transposed_linear(conv1d)
    assert not is_transposed_linear(nn.Linear(2, 3))


def test_shrinkage_is_counted():
    large, small = seeded(mlp, 64), seeded(mlp, 32)
    gain = counted_shrinkage(large, small)
    assert gain.value == gain.low == gain.high == held(large) / held(small)
