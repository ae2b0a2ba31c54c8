from small_models import workload

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.models.core import named_tensors, own_tensors


def test_a_layer_holds_its_own_and_not_those_in_it():
    net = Sequential(Linear(2, 3))
    assert list(own_tensors(net)) == []
    assert [name for name, _ in own_tensors(net.layers[0])] == ["weight", "bias"]


def test_what_was_computed_and_kept_is_no_tensor_of_the_model():
    layer = Linear(2, 3)
    layer.kept = layer(Tensor([[1.0, 2.0]]))
    assert [name for name, _ in own_tensors(layer)] == ["weight", "bias"]


def test_a_tensor_with_two_names_has_the_first():
    layer = Linear(2, 2)
    assert list(named_tensors(Sequential(layer, ReLU(), layer))) == [
        "layers.0.weight",
        "layers.0.bias",
    ]


def test_the_names_are_those_of_the_state():
    model = workload("gpt").model
    assert named_tensors(model).keys() == model.state_dict().keys()
