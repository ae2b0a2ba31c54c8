"""Linear, dropout and containers."""

import copy

import numpy as np
import pytest
from parts import require_part
from torch_twins import check_twins

from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, SettingError, ShapeError

torch = require_part("torch")


def transposed_weight(arrays):
    return {n: a.T if n.endswith("weight") else a for n, a in arrays.items()}


# ---------------------------------------------------------------- linear


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (1, 5), (2, 3, 5), (2, 1, 3, 5)])
def test_linear_is_that_of_pytorch(shape, bias, dtype, rng):
    ours, theirs = Linear(5, 4, bias=bias, rng=rng), torch.nn.Linear(5, 4, bias=bias)
    x = rng.standard_normal(shape).astype(dtype)
    check_twins(ours, theirs, x, rng, translate=transposed_weight)


def test_the_weight_is_in_by_out_and_drawn_between_the_bounds_of_pytorch():
    layer = Linear(400, 300, rng=0)
    assert layer.weight.shape == (400, 300)
    assert layer.bias.shape == (300,)
    assert layer.weight.dtype == np.float32
    bound = 1 / np.sqrt(400)
    assert np.abs(layer.weight.data).max() <= bound
    # A uniform draw has deviation bound / sqrt(3); that of 120,000 draws is good to 1%.
    assert layer.weight.data.std() == pytest.approx(bound / np.sqrt(3), rel=0.01)


def test_one_seed_gives_one_layer_and_forward_is_the_call(rng):
    x = Tensor(rng.standard_normal((2, 5)).astype(np.float32))
    first, second = Linear(5, 4, rng=7), Linear(5, 4, rng=7)
    np.testing.assert_array_equal(first(x).data, second.forward(x).data)
    assert not np.array_equal(first.weight.data, Linear(5, 4, rng=8).weight.data)


def test_parameters_is_a_list_of_weight_and_bias():
    layer = Linear(2, 3)
    assert layer.parameters() == [layer.weight, layer.bias]
    assert Linear(2, 3, bias=False).bias is None


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 6), (4,), ()])
def test_linear_names_itself_and_the_shape_that_does_not_fit(shape):
    with pytest.raises(ShapeError) as caught:
        Linear(5, 2)(Tensor(np.zeros(shape, np.float32)))
    assert str(caught.value) == f"Linear(5, 2, bias=True) needs input (..., 5), got {shape}"


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.int8])
def test_linear_needs_floating_point_numbers(dtype):
    with pytest.raises(DTypeError, match=f"needs floating-point input, got {np.dtype(dtype)}"):
        Linear(5, 2)(Tensor(np.zeros((1, 5), dtype)))


@pytest.mark.parametrize("x", [np.zeros((1, 5), np.float32), [[1.0] * 5]])
def test_linear_of_something_that_is_no_tensor_says_to_wrap_it(x):
    with pytest.raises(DTypeError, match=rf"got {type(x).__name__}; wrap it in Tensor"):
        Linear(5, 2)(x)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-2, 3)])
def test_linear_needs_sizes_of_at_least_one(sizes):
    with pytest.raises(SettingError, match=rf"sizes of at least 1, got \({sizes[0]}, {sizes[1]}\)"):
        Linear(*sizes)


# ---------------------------------------------------------------- dropout


def test_dropout_does_nothing_in_evaluation(rng):
    x = Tensor(rng.standard_normal((4, 5)).astype(np.float32))
    assert Dropout(0.9).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_zeroes_a_share_and_keeps_the_expectation(p):
    count = 200_000
    y = Dropout(p, rng=0)(Tensor(np.ones(count, np.float32))).data
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(1 - p)}
    # Five standard deviations of a binomial share, and of the mean of such draws.
    deviation = np.sqrt(p * (1 - p) / count)
    assert abs((y == 0).mean() - p) < 5 * deviation
    assert abs(y.mean(dtype=np.float64) - 1) < 5 * deviation / (1 - p)


def test_dropout_passes_the_gradient_of_what_it_kept():
    x = Tensor(np.ones((8, 8), np.float32), requires_grad=True)
    y = Dropout(0.5, rng=1)(x)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, y.data)


def test_dropout_of_everything_gives_zeros_and_no_gradient():
    x = Tensor(np.ones(5, np.float32), requires_grad=True)
    y = Dropout(1.0)(x)
    y.sum().backward()
    assert not y.data.any()
    assert not x.grad.any()


def test_one_seed_drops_the_same_elements_in_turn():
    x = Tensor(np.ones(100, np.float32))
    first, second = Dropout(0.5, rng=3), Dropout(0.5, rng=3)
    draws = [first(x).data for _ in range(2)]
    np.testing.assert_array_equal(draws, [second(x).data for _ in range(2)])
    assert not np.array_equal(*draws)


def test_a_copy_drops_what_the_original_would_have_dropped():
    x, layer = Tensor(np.ones(100, np.float32)), Dropout(0.5, rng=3)
    layer(x)
    np.testing.assert_array_equal(copy.deepcopy(layer)(x).data, layer(x).data)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dropout_keeps_the_dtype(dtype):
    assert Dropout(0.3)(Tensor(np.ones(5, dtype))).dtype == dtype


def test_dropout_needs_floating_point_numbers():
    with pytest.raises(DTypeError, match=r"Dropout.* needs floating-point input, got int64"):
        Dropout(0.5)(Tensor(np.arange(5)))


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_a_probability_outside_of_zero_to_one_is_an_error(p):
    with pytest.raises(SettingError, match=rf"dropout probability must be in \[0, 1\], got {p}"):
        Dropout(p)


# ---------------------------------------------------------------- sequential


def test_sequential_is_that_of_pytorch(rng):
    ours = Sequential(Linear(5, 7, rng=rng), ReLU(), Linear(7, 3, rng=rng))
    theirs = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))

    def translate(arrays):
        return {n.removeprefix("layers."): a for n, a in transposed_weight(arrays).items()}

    check_twins(ours, theirs, rng.standard_normal((4, 5)), rng, translate=translate)


def test_sequential_takes_layers_or_one_list_of_them():
    layers = [Linear(2, 3), ReLU()]
    for model in (Sequential(*layers), Sequential(layers), Sequential(tuple(layers))):
        assert model.layers == layers
        assert len(model) == 2
        assert model[1] is layers[1]
        assert list(model) == layers


def test_an_empty_sequential_gives_its_input_back():
    x = Tensor([1.0])
    assert Sequential()(x) is x


def test_sequential_takes_plain_functions():
    doubled = Sequential(lambda x: x * 2, ReLU())(Tensor([-1.0, 1.0]))
    assert doubled.data.tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("layer", "message"),
    [(ReLU, "write the brackets"), (3, "is 3, which is")],
)
def test_something_that_is_no_layer_is_an_error_with_its_position(layer, message):
    with pytest.raises(SettingError, match=f"layer 1 of Sequential .*{message}"):
        Sequential(Linear(2, 2), layer)
