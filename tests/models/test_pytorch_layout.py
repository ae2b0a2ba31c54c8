import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.models.pytorch import TorchAdapter

ADAPTER = TorchAdapter()


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def test_every_tensor_is_in_the_layout_with_its_strides():
    found = ADAPTER.layout(model().to(memory_format=torch.channels_last))
    assert found["0.weight", "strides"] == (27, 1, 9, 3)
    assert found["1.running_mean", "dtype"] == torch.float32
    assert {name for name, _ in found} == set(model().state_dict())


@pytest.mark.parametrize("kind", ["plain", "channels last", "half", "shared", "compiled"])
def test_a_deep_copy_has_the_layout_of_its_model(kind):
    given = model()
    if kind == "channels last":
        given = given.to(memory_format=torch.channels_last)
    elif kind == "half":
        given = given.half()
    elif kind == "shared":
        given = nn.Sequential(given[0], nn.Sequential(given[0]))
    elif kind == "compiled":
        given = torch.compile(given, backend="eager")
    assert ADAPTER.copy_difference(given, ADAPTER.clone(given)) == ""


def test_copying_drops_what_was_compiled_in_place():
    given = model()
    given.compile(backend="eager")
    assert ADAPTER.copy_difference(given, ADAPTER.clone(given)) == "compiled code"


def test_a_weight_that_is_no_longer_shared_is_a_difference():
    layer = nn.Linear(2, 2)
    tied, loose = nn.Sequential(layer, layer), nn.Sequential(layer, nn.Linear(2, 2))
    assert "of '1." in ADAPTER.copy_difference(tied, loose)
