import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from torch_workloads import ADAPTER, Branching, Residual, relative_error, seeded, workload

from tinytorch.errors import SettingError
from tinytorch.transforms.quantize.quantizers import folded_layers, quantize_graph

ALL = ("stem", "conv", "head")


@pytest.fixture(scope="module")
def case():
    return workload(seeded(Residual), 4, 3, 12, 12)


def quantized(case, layers, ranges="minmax"):
    return quantize_graph(ADAPTER.clone(case.model), layers, case, ranges=ranges)


@pytest.mark.parametrize("ranges", ["minmax", "mse", "percentile"])
def test_numbers_stay_integers_between_layers(case, ranges):
    model = quantized(case, ALL, ranges)
    assert model.code.count("quantize_per_tensor(") == 1  # of the inputs
    assert model.code.count(".dequantize()") == 1  # of the outputs
    assert "quantized.add_relu" in model.code
    # Eight bits on each of five edges.
    assert relative_error(case, model) < 0.03


def test_only_the_layers_that_are_asked_for_become_integers(case):
    modules = dict(quantized(case, ["stem"]).named_modules())
    assert "quantized" in type(modules["stem"]).__module__
    assert type(modules["head"]) is nn.Linear
    assert type(modules["conv"]) is nn.Conv2d


def test_batch_norms_disappear_into_convolutions(case):
    model = quantized(case, ALL)
    assert folded_layers(case.model, model) == ["norm"]
    assert folded_layers(case.model, case.model) == []


def test_a_copy_of_it_computes_the_same(case):
    model = quantized(case, ALL)
    x = case.inputs[0]
    assert torch.equal(ADAPTER.clone(model)(x), model(x))


def test_what_cannot_be_traced_raises():
    with pytest.raises(torch.fx.proxy.TraceError, match="control flow"):
        quantized(workload(Branching(), 2, 3, 6, 6), ["conv"])


def test_a_layer_with_several_inputs_is_not_quantized_by_one_range():
    layer = nn.Conv2d(4, 4, 1)
    with pytest.raises(SettingError, match="'0' is called several times"):
        quantized(workload(nn.Sequential(layer, nn.Tanh(), layer), 1, 4, 3, 3), ["0"])


def test_numbers_that_are_none_are_an_error(case):
    bad = (torch.full((4, 3, 12, 12), torch.nan),)
    broken = workload(case.model, 4, 3, 12, 12)
    object.__setattr__(broken, "calibration", (bad,))
    with pytest.raises(SettingError, match=r"batch 0 of 1: between two layers: .*(NaN|nan)"):
        quantized(broken, ALL)


def test_sums_of_depthwise_convolutions_do_not_overflow():
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 128, 1), nn.Conv2d(128, 128, 3, padding=1, groups=128))
    )
    case = workload(model, 4, 3, 12, 12)
    with torch.no_grad():
        model[1].weight.fill_(0.5)
    # Seven bits on each of three edges; an overflow is off by half of the largest sum.
    assert relative_error(case, quantized(case, ["0", "1"])) < 0.06
