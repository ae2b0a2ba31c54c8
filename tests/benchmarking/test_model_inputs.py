import numpy as np
import pytest
from parts import require_part

from tinytorch import Tensor
from tinytorch.benchmarking.examples import fitted_inputs, own_example
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.spatial import Conv2d
from tinytorch.core.transformers import GPT
from tinytorch.errors import SettingError
from tinytorch.profiling.flops import checked_shapes, inputs_of_shapes


def test_one_shape_or_several():
    assert checked_shapes([1, 28, 28]) == ((1, 28, 28),)
    assert checked_shapes(((1, 2), [3, 4])) == ((1, 2), (3, 4))
    with pytest.raises(SettingError, match="input_shape"):
        checked_shapes(((1, 2), 3))


def test_inputs_have_the_shape_and_kind_that_the_model_takes():
    assert inputs_of_shapes(Linear(4, 2), ((3, 4), (5,)))[1].shape == (5,)
    (ids,) = inputs_of_shapes(GPT(7, 8, 1, 2, max_seq_len=5), ((2, 5),))
    assert ids.data.dtype.kind == "i"
    assert ids.data.max() < 7


def test_a_first_layer_tells_what_a_model_takes():
    assert own_example(Sequential(ReLU(), Linear(6, 2)))[0].shape == (1, 6)
    assert own_example(GPT(7, 8, 1, 2, max_seq_len=5))[0].shape == (1, 5)
    torch = require_part("torch")
    twin = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(6, 2))
    assert isinstance(own_example(twin)[0], torch.Tensor)
    assert own_example(twin)[0].shape == (1, 6)


def test_a_model_may_tell_its_inputs_itself():
    model = ReLU()
    model.example_inputs = Tensor([1.0])
    assert own_example(model) == (model.example_inputs,)
    model.example_inputs = lambda: (1, 2)
    assert own_example(model) == (1, 2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ReLU(), "no layer has a size"),
        (lambda x: x, "no layer has a size"),
        (Sequential(Conv2d(3, 8, 3), Linear(8, 2)), "a convolution of 3 channels"),
    ],
)
def test_who_does_not_tell_is_asked_for_inputs(model, message):
    with pytest.raises(SettingError, match=message) as caught:
        own_example(model)
    assert "give it inputs" in str(caught.value)


def test_tokens_without_a_context_are_asked_for():
    torch = require_part("torch")
    with pytest.raises(SettingError, match="max_seq_len"):
        own_example(torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 2)))


def test_a_model_of_ours_gets_tensors_of_ours_in_its_dtype():
    torch = require_part("torch")
    for given in (np.ones((1, 4)), torch.ones(1, 4, dtype=torch.float64)):
        (fitted,) = fitted_inputs(Linear(4, 2), (given,))
        assert isinstance(fitted, Tensor)
        assert fitted.dtype == np.float32
    kept = Tensor(np.ones((1, 4)))
    assert fitted_inputs(Linear(4, 2), (kept,)) == (kept,)
    assert fitted_inputs(Linear(4, 2), (np.array([1, 2]),))[0].dtype == np.int64


def test_a_model_of_pytorch_gets_tensors_of_pytorch():
    torch = require_part("torch")
    (fitted,) = fitted_inputs(torch.nn.Linear(4, 2), (Tensor(np.ones((1, 4))),))
    assert isinstance(fitted, torch.Tensor)
    assert fitted.dtype == torch.float32


def test_a_plain_function_gets_what_was_given():
    array = np.ones(3)
    assert fitted_inputs(lambda x: x, (array, "a"))[0] is array
