"""Activation layers against PyTorch, and at the ends of the number line."""

import numpy as np
import pytest
from parts import require_part
from torch_twins import check_twins

from tinytorch.core import activations, layers
from tinytorch.core.activations import GELU, LogSoftmax, ReLU, Sigmoid, Softmax, Tanh
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, SettingError

torch = require_part("torch")

# Our layer -> the twin.
TWINS = {
    "relu": (ReLU(), torch.nn.ReLU()),
    "sigmoid": (Sigmoid(), torch.nn.Sigmoid()),
    "tanh": (Tanh(), torch.nn.Tanh()),
    "gelu tanh": (GELU(), torch.nn.GELU(approximate="tanh")),
    "gelu exact": (GELU("none"), torch.nn.GELU()),
    "softmax": (Softmax(), torch.nn.Softmax(dim=-1)),
    "softmax of the first axis": (Softmax(dim=0), torch.nn.Softmax(dim=0)),
    "log softmax": (LogSoftmax(), torch.nn.LogSoftmax(dim=-1)),
    "log softmax of the middle": (LogSoftmax(dim=1), torch.nn.LogSoftmax(dim=1)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TWINS)
def test_values_and_gradients_are_those_of_pytorch(name, dtype, rng):
    ours, theirs = TWINS[name]
    check_twins(ours, theirs, (3 * rng.standard_normal((4, 5, 6))).astype(dtype), rng)


@pytest.mark.parametrize("name", TWINS)
def test_inputs_of_ten_thousand_give_what_pytorch_gives(name):
    ours, theirs = TWINS[name]
    x = np.array([[[-1e4, 1e4, 0.0], [1e4, 1e4, -1e4]]], np.float32)
    wanted = theirs(torch.tensor(x)).numpy()
    assert np.isfinite(wanted).all()
    # Everything saturates: the results are multiples of the inputs, 0, 1, 1/2 or 1/3.
    np.testing.assert_allclose(ours(Tensor(x)).data, wanted, rtol=1e-6)


def test_an_axis_in_the_call_wins_over_the_one_of_the_layer(rng):
    x = Tensor(rng.standard_normal((3, 4)))
    np.testing.assert_array_equal(Softmax(dim=0)(x, dim=1).data, Softmax(dim=1)(x).data)


def test_layers_hands_out_the_same_classes():
    for name in ("GELU", "LogSoftmax", "ReLU", "Sigmoid", "Softmax", "Tanh"):
        assert getattr(layers, name) is getattr(activations, name)


def test_an_unknown_form_of_gelu_is_an_error_that_names_the_known_ones():
    with pytest.raises(SettingError, match="approximate must be 'tanh' or 'none', got 'erf'"):
        GELU("erf")


@pytest.mark.parametrize("layer", [ReLU(), GELU(), Softmax()])
def test_an_array_is_an_error_that_says_to_wrap_it(layer):
    with pytest.raises(DTypeError, match=r"works on tensors, got ndarray; wrap it in Tensor"):
        layer(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (ReLU(), "ReLU()"),
        (GELU("none"), "GELU(approximate='none')"),
        (Softmax(dim=1), "Softmax(dim=1)"),
    ],
)
def test_the_settings_are_shown(layer, shown):
    assert repr(layer) == shown


@pytest.mark.parametrize("layer", [ReLU(), Sigmoid(), Tanh(), GELU(), Softmax(), LogSoftmax()])
def test_integers_are_an_error_that_names_the_layer(layer):
    with pytest.raises(DTypeError, match=f"{type(layer).__name__}.* needs floating-point input"):
        layer(Tensor(np.array([100, -100], np.int8)))
