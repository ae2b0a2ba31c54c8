import math

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.errors import SettingError
from tinytorch.models.inputs import ModelCall
from tinytorch.transforms.quantize.torch_layers import (
    Seen,
    observe_layers,
    require_calls,
    run_calls,
)


def observed(model, *batches, measured=("0",)):
    layers = {path: module for path, module in model.named_modules() if path}
    calls = [ModelCall((batch,)) for batch in batches]
    return observe_layers(model, layers, calls, measured=measured)


def test_layers_are_seen_with_what_comes_in_and_goes_out():
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU())
    model[0].weight.data[:] = 2.0
    found = observed(model, torch.tensor([[1.0, 3.0]]), torch.tensor([[-4.0, 0.0]]))
    seen = found["0"]
    assert (seen.inputs.statistics.low, seen.inputs.statistics.high) == (-4.0, 3.0)
    assert (seen.outputs.statistics.low, seen.outputs.statistics.high) == (-8.0, 8.0)
    assert seen.inputs.statistics.batches == 2
    assert found["1"].inputs.statistics.count == 0  # called, but nobody asked for its ranges


def test_a_layer_that_is_not_called_is_absent():
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    model.unused = nn.Linear(2, 2)
    model.forward = lambda x: model[0](x)
    assert set(observed(model, torch.ones(1, 2))) == {"0"}


def test_layers_behind_a_fast_path_are_not_taken_for_called():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    found = observed(layer, torch.ones(1, 3, 8), measured=())
    assert "linear1" not in found


def test_settings_have_ranges_and_what_was_seen():
    seen = Seen()
    seen.inputs.update(torch.tensor([-1.0, 3.0]).numpy())
    seen.outputs.update(torch.tensor([0.0, 5.0]).numpy())
    seen.axes.update((3, 2))
    found = seen.settings("minmax", symmetric=False)
    assert found["input_range"] == (-1.0, 3.0)
    assert found["output_range"] == (0.0, 5.0)
    assert found["input_axes"] == (2, 3)
    assert (found["seen"]["values"], found["seen"]["high"]) == (2, 3.0)
    assert max(map(abs, seen.settings("minmax", symmetric=True)["input_range"])) == 3.0


def test_no_calibration_is_explained():
    with pytest.raises(SettingError, match=r"needs calibration data.*mode='dynamic'"):
        require_calls(())
    assert require_calls([ModelCall((1,))]) == [ModelCall((1,))]


def test_numbers_that_are_none_name_batch_and_layer():
    model = nn.Sequential(nn.Linear(2, 2))
    bad = torch.tensor([[math.nan, 1.0]])
    with pytest.raises(SettingError, match=r"batch 1 of 2: layer '0': .*(NaN|nan)"):
        observed(model, torch.ones(1, 2), bad)


def test_inputs_of_a_wrong_shape_name_the_batch():
    with pytest.raises(SettingError, match=r"batch 0 of 1 does not fit the model: RuntimeError"):
        run_calls(nn.Linear(2, 2), [ModelCall((torch.ones(1, 3),))])


def test_running_leaves_inputs_buffers_and_randomness_alone():
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x.mul_(torch.rand(1))

    model, x, state = Careless(), torch.ones(2), torch.get_rng_state()
    run_calls(model, [ModelCall((x,))])
    assert (model.count.item(), x.tolist()) == (0, [1, 1])
    assert torch.equal(torch.get_rng_state(), state)
