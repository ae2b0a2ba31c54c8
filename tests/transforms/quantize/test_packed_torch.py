import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import held, seeded

from tinytorch.models.pytorch_tensors import packed_objects, packing_of
from tinytorch.transforms.quantize.quantizers import (
    DYNAMIC_LINEAR,
    DYNAMIC_RECURRENT,
    STATIC_CONVOLUTION,
    STATIC_LINEAR,
    input_bits,
    packing,
    step_between,
)

SETTINGS = {"input_range": (-3.0, 4.0), "output_range": (-3.0, 3.0)}
NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(NUMBERS, NUMBERS)
def test_a_step_covers_the_range_and_has_an_exact_zero(one, other):
    step = step_between(min(one, other), max(one, other))
    levels = 2 ** input_bits() - 1
    assert 0 <= step.zero_point <= levels
    assert step.scale > 0
    # Half a step is lost to rounding the zero point.
    low, high = -step.zero_point * step.scale, (levels - step.zero_point) * step.scale
    slack = 0.51 * step.scale
    assert low - slack <= min(one, other, 0)
    assert max(one, other, 0) <= high + slack


def test_processors_without_the_instruction_get_a_bit_less(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert step_between(0.0, 127.0).scale == 1.0
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    assert step_between(0.0, 255.0).scale == 1.0


@pytest.mark.parametrize(
    ("quantizer", "make", "shape", "error"),
    [
        (DYNAMIC_LINEAR, lambda: nn.Linear(64, 32), (5, 64), 0.04),
        (DYNAMIC_LINEAR, lambda: nn.Linear(64, 32, bias=False), (2, 5, 64), 0.04),
        (DYNAMIC_RECURRENT, lambda: nn.LSTM(32, 16, 2, bidirectional=True), (3, 2, 32), 0.06),
        (DYNAMIC_RECURRENT, lambda: nn.GRU(32, 16), (3, 2, 32), 0.06),
        (STATIC_LINEAR, lambda: nn.Linear(64, 32), (5, 64), 0.06),
        (STATIC_CONVOLUTION, lambda: nn.Conv2d(8, 16, 3, padding=1), (2, 8, 6, 6), 0.06),
        (STATIC_CONVOLUTION, lambda: nn.Conv2d(8, 8, 3, groups=4, stride=2), (2, 8, 6, 6), 0.06),
    ],
)
def test_bytes_follow_from_the_shapes_and_outputs_stay_close(quantizer, make, shape, error):
    layer = seeded(make)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).clamp(-3, 4)
    with torch.no_grad():
        expected, before = _first(layer(x)), held(layer)
        predicted = quantizer.weight_bytes(layer, SETTINGS)
        weights = sum(
            each.numel() * 4 for name, each in layer.named_parameters() if "weight" in name
        )
        changed = quantizer.carry_out(layer, SETTINGS)
        # Seven or eight bits of the input and of the output, seen by the spread of the values.
        assert (_first(changed(x)) - expected).norm() / expected.norm() < error
    assert held(changed) == before - weights + predicted


def _first(output):
    return output[0] if isinstance(output, tuple) else output


def test_all_bits_of_the_inputs_are_used_where_sums_cannot_overflow(monkeypatch):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    off = {}
    for has_vnni in (False, True):
        layer = seeded(nn.Linear, 256, 64)
        expected = layer(x)
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda has_vnni=has_vnni: has_vnni)
        off[has_vnni] = (DYNAMIC_LINEAR.carry_out(layer, {})(x) - expected).norm().item()
    # The rounding of the inputs halves; that of the weights stays and is a quarter of it.
    assert 0.4 < off[True] / off[False] < 0.65


@pytest.mark.parametrize(
    ("quantizer", "layer", "reason"),
    [
        (STATIC_CONVOLUTION, nn.Conv2d(1, 1, 3, padding="same"), "padding='same'"),
        (STATIC_CONVOLUTION, nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), "circular"),
        (DYNAMIC_RECURRENT, nn.LSTM(4, 4, proj_size=2), "projected states"),
    ],
)
def test_what_cannot_be_has_a_reason(quantizer, layer, reason):
    assert reason in quantizer.why_not(layer, {})


def test_weights_are_packed_under_the_engine_of_the_process():
    layer = seeded(nn.Conv2d, 8, 8, 3)
    made = STATIC_CONVOLUTION.carry_out(copy.deepcopy(layer), SETTINGS)
    engines = torch.backends.quantized
    before = engines.engine
    found = {}
    for engine in ("x86", "fbgemm"):
        if engine not in engines.supported_engines:
            pytest.skip(f"this PyTorch has no engine {engine}")
        try:
            engines.engine = engine
            with packing():
                assert engines.engine == engine
            one = STATIC_CONVOLUTION.carry_out(copy.deepcopy(layer), SETTINGS)
            found[engine] = packings(one)
            assert packings(copy.deepcopy(one)) == found[engine]
        finally:
            engines.engine = before
    assert packings(made) == packings(copy.deepcopy(made))
    if before in found:
        assert packings(made) == found[before]


def packings(model):
    return [packing_of(each) for part in model.modules() for _, each in packed_objects(part)]


@pytest.mark.parametrize("channels", [32, 128])
def test_sums_of_depthwise_convolutions_do_not_overflow(channels):
    layer = seeded(nn.Conv2d, channels, channels, 3, padding=1, groups=channels)
    x = torch.rand(1, channels, 8, 8, generator=torch.Generator().manual_seed(0)) * 4
    with torch.no_grad():
        # As large as they get: neighbours of 255 and weights of 127 do not fit into 16 bits.
        layer.weight.fill_(0.5)
        expected = layer(x)
        settings = {"input_range": (0.0, 4.0), "output_range": (0.0, float(expected.max()))}
        found = STATIC_CONVOLUTION.carry_out(layer, settings)(x)
    # Half a step of the outputs, and half a step of each of nine inputs.
    bits = 2**7 - 1
    limit = float(expected.max()) / bits / 2 + 9 * 0.5 * 4 / bits / 2
    assert (found - expected).abs().max() <= limit
