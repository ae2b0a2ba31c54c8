import copy

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.comparison.resources import measure_resources
from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.pytorch_tensors import (
    is_held_twice,
    packed_objects,
    packed_weights,
    packing_of,
    unpacked_bytes,
)
from tinytorch.models.workload import Workload

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:.*deprecated:UserWarning",
    "ignore:.*quantized tensor creation:UserWarning",
)
ADAPTER = TorchAdapter()
STEP = 8  # bytes of a scale and a zero point


def dynamic(layer):
    """Let torch pack a layer, with a scale for each output."""
    import torch.ao.nn.quantized.dynamic as packed
    from torch.ao.quantization import per_channel_dynamic_qconfig

    layer.qconfig = per_channel_dynamic_qconfig
    return getattr(packed, type(layer).__name__).from_float(layer)


def test_a_linear_layer_holds_values_steps_and_bias():
    ((name, size, nbytes),) = packed_weights(dynamic(nn.Linear(48, 16))._packed_params)
    assert (name, size) == ("_packed_params", 48 * 16 + 16)
    assert nbytes == 48 * 16 + 16 * STEP + 16 * 4


def test_a_layer_without_bias_holds_none():
    ((_, size, nbytes),) = packed_weights(dynamic(nn.Linear(48, 16, bias=False))._packed_params)
    assert (size, nbytes) == (48 * 16, 48 * 16 + 16 * STEP)


def test_a_convolution_is_counted_without_the_numbers_that_say_how():
    layer = torch.ao.nn.quantized.Conv2d(3, 8, 3)
    ((_, size, nbytes),) = packed_weights(layer)
    assert size == 8 * 3 * 9 + 8  # and not its stride and padding
    twice = 8 * 3 * 9 if is_held_twice(layer._packed_params) else 0
    assert nbytes == 8 * 3 * 9 + twice + STEP + 8 * 4  # one step for the whole weight


def conv_under(engine):
    engines = torch.backends.quantized
    if engine not in engines.supported_engines:
        pytest.skip(f"this PyTorch has no engine {engine}")
    before = engines.engine
    try:
        engines.engine = engine
        return torch.ao.nn.quantized.Conv2d(3, 8, 3)
    finally:
        engines.engine = before


def test_onednn_holds_the_values_twice():
    sizes = {each: packed_weights(conv_under(each))[0][2] for each in ("fbgemm", "onednn")}
    assert sizes["onednn"] == sizes["fbgemm"] + 8 * 3 * 9


def test_the_packing_tells_engines_apart_and_not_weights():
    one, same, other = (conv_under(each)._packed_params for each in ("fbgemm", "fbgemm", "onednn"))
    assert packing_of(one) == packing_of(same) != packing_of(other)


def test_the_packing_of_a_recurrent_layer_is_that_of_its_parts():
    (cell,) = [each for m in dynamic(nn.LSTM(16, 8)).modules() for _, each in packed_objects(m)]
    (linear,) = [each for m in dynamic(nn.Linear(4, 4)).modules() for _, each in packed_objects(m)]
    assert packing_of(linear) in packing_of(cell)


def test_a_recurrent_layer_holds_its_biases_once():
    found = [packed_weights(module) for module in dynamic(nn.LSTM(16, 8)).modules()]
    ((_, _, nbytes),) = [each for one in found for each in one]
    rows = 4 * 8
    assert nbytes == rows * (16 + 8) + 2 * rows * STEP + 2 * rows * 4


@pytest.mark.parametrize(
    ("qconfig", "nbytes"),
    [
        ("float_qparams_weight_only_qconfig", 10 * 8),
        ("float_qparams_weight_only_qconfig_4bit", 10 * 8 // 2),
    ],
)
def test_a_table_of_rows_has_a_step_for_each(qconfig, nbytes):
    table = nn.Embedding(10, 8)
    table.qconfig = getattr(torch.ao.quantization, qconfig)
    layer = torch.ao.nn.quantized.Embedding.from_float(table)
    ((_, size, held),) = packed_weights(layer._packed_params)
    assert (size, held) == (80, nbytes + 10 * STEP)


def test_a_plain_tensor_has_no_steps():
    assert unpacked_bytes(torch.zeros(3, 2)) == 24


def test_code_that_was_traced_is_no_packed_weight():
    traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    assert list(packed_objects(traced)) == []
    assert packed_weights(object()) == []


def test_what_cannot_be_unpacked_is_named_and_not_counted():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[1].opaque = torch.classes.profiling._ScriptProfile()
    assert ADAPTER.packed_layers(model) == ("1",)
    assert [each.path for each in ADAPTER.parameters(model)] == ["0", "0"]


def test_the_parameters_of_a_model_include_what_is_packed():
    model = nn.Sequential(nn.Linear(32, 64), dynamic(nn.Linear(64, 4)))
    found = {each.name: each for each in ADAPTER.parameters(model)}
    packed = found["1._packed_params._packed_params"]
    assert (packed.path, packed.is_trainable) == ("1._packed_params", False)
    assert packed.nbytes == 64 * 4 + 4 * STEP + 4 * 4
    assert ADAPTER.packed_layers(model) == ()


def test_copies_compute_and_hold_the_same():
    model = nn.Sequential(dynamic(nn.Linear(32, 8)))
    twin, x = copy.deepcopy(model), torch.ones(2, 32)
    assert torch.equal(twin(x), model(x))
    assert ADAPTER.parameters(twin) == ADAPTER.parameters(model)


def test_what_is_packed_counts_for_the_peak_of_a_call():
    model = nn.Sequential(dynamic(nn.Linear(512, 512)))
    found = measure_resources(Workload("packed", model, (torch.zeros(1, 512),)))
    assert found.parameter_bytes == 512 * 512 + 512 * STEP + 512 * 4
    # The input and the output beside it.
    assert found.peak_bytes == found.parameter_bytes + 2 * 512 * 4
    assert found.file_bytes > 512 * 512
