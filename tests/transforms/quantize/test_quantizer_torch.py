from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.quantize.torch_layers import Quantizer, shape_of, weight_of


def test_a_quantizer_takes_every_layer_unless_it_says_why_not():
    quantizer = Quantizer("torch.x", "dynamic", lambda layer, _: layer, lambda layer, _: 0)
    assert quantizer.why_not(nn.Linear(2, 2), {}) == ""
    assert (quantizer.bits, quantizer.needs_ranges) == (8, False)


def test_the_weight_of_a_layer_is_found():
    layer = nn.Linear(3, 2)
    assert weight_of(layer) is layer.weight
    assert shape_of(layer) == (2, 3)
    assert shape_of(nn.GRU(3, 2)) == (6, 3)
