import weakref

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.support.torch import SameWeights


def model():
    layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU())
    layers[0].scale = torch.ones(2)
    layers[0].tables, layers[0].masks = [torch.ones(2)], {"short": torch.ones(2)}
    return layers


def write(layers):
    with torch.no_grad():
        layers[0].weight.mul_(2)


def put_another_tensor(layers):
    layers[0].weight.data = torch.zeros(2, 2)


def put_another_parameter(layers):
    layers[0].weight = nn.Parameter(torch.zeros(2, 2))


def remove(layers):
    layers[0].register_parameter("bias", None)


def put_another_layer(layers):
    layers[0] = nn.Linear(2, 2)


def put_another_layer_without_weights(layers):
    layers[2] = nn.Sigmoid()


def add_a_layer(layers):
    layers.append(nn.ReLU())


def put_another_attribute(layers):
    layers[0].scale = torch.ones(2)


def put_another_into_a_list(layers):
    layers[0].tables[0] = torch.ones(2)


def empty_a_dictionary(layers):
    layers[0].masks.clear()


CHANGES = [
    put_another_tensor,
    put_another_parameter,
    remove,
    put_another_layer,
    put_another_layer_without_weights,
    add_a_layer,
    put_another_attribute,
    put_another_into_a_list,
    empty_a_dictionary,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("also_numbers", [False, True])
def test_other_tensors_are_noticed(change, also_numbers):
    layers = model()
    weights = SameWeights(layers, also_numbers=also_numbers)
    assert weights.still_hold()
    change(layers)
    assert not weights.still_hold()


@pytest.mark.parametrize("also_numbers", [False, True])
def test_other_numbers_are_noticed_on_request(also_numbers):
    layers = model()
    weights = SameWeights(layers, also_numbers=also_numbers)
    write(layers)
    assert weights.still_hold() is not also_numbers


def test_numbers_in_attributes_are_noticed_on_request():
    layers = model()
    weights = SameWeights(layers, also_numbers=True)
    layers[0].tables[0].add_(1)
    assert not weights.still_hold()


def test_attributes_keep_their_memory_as_long_as_it_may_be_read():
    layers = model()
    alive = weakref.ref(layers[0].scale)
    weights = SameWeights(layers, also_numbers=False)
    layers[0].scale = None
    assert alive() is not None
    weights.ignore_what_changed()
    assert alive() is None


def test_layers_that_a_call_adds_can_be_ignored():
    layers = model()
    weights = SameWeights(layers, also_numbers=False)
    add_a_layer(layers)
    weights.ignore_what_changed()
    assert weights.still_hold()


def test_numbers_that_calls_write_can_be_ignored():
    layers = model()
    weights = SameWeights(layers, also_numbers=True)
    layers(torch.ones(3, 2))  # moves the averages of the norm
    assert not weights.still_hold()
    weights.ignore_what_changed()
    layers(torch.ones(3, 2))
    assert weights.still_hold()
    write(layers)
    assert not weights.still_hold()


def test_inference_tensors_have_no_count_of_writes():
    with torch.inference_mode():
        layers = nn.Linear(2, 2)
    assert SameWeights(layers, also_numbers=True).still_hold()
