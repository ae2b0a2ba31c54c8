"""Layers for images against PyTorch."""

import numpy as np
import pytest
from parts import require_part
from torch_twins import assert_same, check_twins, randomise

from tinytorch.core.dispatch import use_backend
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.spatial import AvgPool2d, BatchNorm2d, Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.errors import DTypeError, SettingError, ShapeError

torch = require_part("torch")

DTYPES = [np.float32, np.float64]
BACKENDS = ["numpy", "reference"]

CONVOLUTIONS = {
    "plain": (2, 4, 3, {}),
    "one by one": (2, 4, 1, {}),
    "stride": (2, 4, 3, {"stride": 2}),
    "padding": (2, 4, 3, {"padding": 1}),
    "stride that leaves a rest": (2, 3, 2, {"stride": 3, "padding": 1}),
    "dilation": (2, 4, 3, {"dilation": 2, "padding": 1}),
    "groups": (4, 6, 3, {"groups": 2, "padding": 1}),
    "depthwise": (3, 3, 3, {"groups": 3}),
    "rectangles": (2, 4, (3, 2), {"stride": (1, 2), "padding": (2, 0), "dilation": (2, 1)}),
    "no bias": (2, 4, 3, {"bias": False}),
    "everything": (4, 6, (2, 3), {"stride": (2, 1), "padding": (1, 2), "dilation": 2, "groups": 2}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_is_that_of_pytorch(name, dtype, backend, rng):
    channels, filters, kernel, settings = CONVOLUTIONS[name]
    ours = Conv2d(channels, filters, kernel, **settings, rng=rng)
    theirs = torch.nn.Conv2d(channels, filters, kernel, **settings)
    with use_backend(backend):
        check_twins(ours, theirs, rng.standard_normal((3, channels, 7, 6)).astype(dtype), rng)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_takes_one_image(name, rng):
    channels, filters, kernel, settings = CONVOLUTIONS[name]
    ours = Conv2d(channels, filters, kernel, **settings, rng=rng)
    theirs = torch.nn.Conv2d(channels, filters, kernel, **settings)
    check_twins(ours, theirs, rng.standard_normal((channels, 7, 6)), rng)


POOLS = {
    "plain": (2, {}),
    "overlapping": (3, {"stride": 1}),
    "gaps": (2, {"stride": 3}),
    "padding": (3, {"stride": 2, "padding": 1}),
    "rectangles": ((2, 3), {"stride": (1, 2), "padding": (1, 0)}),
}
KINDS = {"max": (MaxPool2d, torch.nn.MaxPool2d), "avg": (AvgPool2d, torch.nn.AvgPool2d)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (3, 7, 6)])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_pooling_is_that_of_pytorch(kind, name, shape, dtype, backend, rng):
    kernel, settings = POOLS[name]
    ours, theirs = (pool(kernel, **settings) for pool in KINDS[kind])
    with use_backend(backend):
        check_twins(ours, theirs, rng.standard_normal(shape).astype(dtype), rng)


def test_of_equal_largest_elements_one_gets_the_gradient(rng):
    # All elements are equal: PyTorch gives the gradient to the first, and so do we.
    check_twins(MaxPool2d(2), torch.nn.MaxPool2d(2), np.zeros((1, 1, 4, 4)), rng)


def test_max_pooling_of_negative_images_does_not_see_the_padding(rng):
    x = -1 - rng.uniform(size=(1, 1, 4, 4))
    check_twins(MaxPool2d(3, 1, 1), torch.nn.MaxPool2d(3, 1, 1), x, rng)


# ---------------------------------------------------------------- batch norm


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm_is_that_of_pytorch_in_training_and_evaluation(dtype, backend, rng):
    ours, theirs = BatchNorm2d(3).astype(dtype), torch.nn.BatchNorm2d(3)
    randomise(ours, rng)
    with use_backend(backend):
        for _ in range(4):  # the running statistics go along
            x = (2 * rng.standard_normal((4, 3, 5, 2)) + 1).astype(dtype)
            check_twins(ours, theirs, x, rng)
            assert_same(ours.running_mean, theirs.running_mean)
            assert_same(ours.running_var, theirs.running_var)  # unbiased, as in PyTorch
            ours.zero_grad()
            theirs.zero_grad()
        check_twins(ours.eval(), theirs.eval(), x, rng)
        assert_same(ours.running_var, theirs.running_var)


def test_batch_norm_takes_its_settings_and_one_image(rng):
    ours, theirs = BatchNorm2d(2, eps=0.1, momentum=0.5), torch.nn.BatchNorm2d(2, 0.1, 0.5)
    x = rng.standard_normal((2, 4, 3))
    their_call = lambda image: theirs(image[None])[0]  # noqa: E731
    check_twins(ours, theirs, x, rng, their_call=their_call)
    assert_same(ours.running_mean, theirs.running_mean)


def test_running_statistics_are_state_but_not_learned():
    layer = BatchNorm2d(3)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert [name for name, _ in layer.named_buffers()] == ["running_mean", "running_var"]
    layer.eval()(Tensor(np.ones((2, 3, 2, 2), np.float32)))
    assert not layer.running_mean.data.any()


def test_one_value_per_channel_has_no_variance_to_train_on():
    layer, x = BatchNorm2d(3), Tensor(np.ones((1, 3, 1, 1), np.float32))
    with pytest.raises(ShapeError, match=r"more than one value per channel to train, got \(1, 3"):
        layer(x)
    assert layer.eval()(x).shape == (1, 3, 1, 1)


# ---------------------------------------------------------------- together


def test_a_small_network_is_that_of_pytorch(rng):
    sizes = [(2, 4, 3), 2, (4 * 3 * 3, 5)]
    ours = Sequential(
        Conv2d(*sizes[0], padding=1),
        BatchNorm2d(4),
        ReLU(),
        MaxPool2d(sizes[1]),
        Flatten(),
        Linear(*sizes[2]),
    )
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(*sizes[0], padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(sizes[1]),
        torch.nn.Flatten(),
        torch.nn.Linear(*sizes[2]),
    )
    randomise(ours, rng)

    def translate(arrays):
        return {
            name.removeprefix("layers."): array.T if name == "layers.5.weight" else array
            for name, array in arrays.items()
        }

    x = rng.standard_normal((4, 2, 6, 6))
    # Three layers in a row: three times the error of one.
    check_twins(ours, theirs, x, rng, translate=translate, factor=3)


@pytest.mark.parametrize(
    ("start", "shape", "wanted"),
    [(1, (2, 3, 4, 5), (2, 60)), (0, (2, 3), (6,)), (2, (2, 3, 4, 5), (2, 3, 20))],
)
def test_flatten_joins_the_axes_from_start_on(start, shape, wanted):
    assert Flatten(start)(Tensor(np.zeros(shape, np.float32))).shape == wanted


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("layer", [Conv2d(3, 4, 3), BatchNorm2d(3)])
@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (4, 8, 8), (8, 8), (1, 1, 3, 8, 8)])
def test_another_number_of_channels_or_axes_is_an_error_that_shows_the_shape(layer, shape):
    with pytest.raises(ShapeError) as caught:
        layer(Tensor(np.zeros(shape, np.float32)))
    needed = "(batch, 3, height, width) or (3, height, width)"
    assert str(caught.value) == f"{layer!r} needs {needed}, got {shape}"


@pytest.mark.parametrize("layer", [Conv2d(1, 1, 5), MaxPool2d(5), AvgPool2d(5)])
def test_a_window_larger_than_the_image_is_an_error_that_shows_both(layer):
    with pytest.raises(ShapeError, match=r"kernel_size=\(5, 5\).* not fit into images of 4x9"):
        layer(Tensor(np.zeros((1, 1, 4, 9), np.float32)))


@pytest.mark.parametrize("layer", [Conv2d(1, 1, 3), MaxPool2d(2), AvgPool2d(2), BatchNorm2d(1)])
def test_images_must_be_tensors_of_floating_point_numbers(layer):
    with pytest.raises(DTypeError, match="needs floating-point input, got uint8"):
        layer(Tensor(np.zeros((1, 1, 8, 8), np.uint8)))
    with pytest.raises(DTypeError, match=r"got ndarray; wrap it in Tensor"):
        layer(np.zeros((1, 1, 8, 8), np.float32))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel_size": 0}, "kernel_size must be one or two integers of at least 1, got 0"),
        ({"kernel_size": 2.5}, "kernel_size must be one or two integers of at least 1, got 2.5"),
        ({"kernel_size": (1, 2, 3)}, "kernel_size must be one or two integers"),
        ({"stride": 0}, "stride must be one or two integers of at least 1, got 0"),
        ({"stride": "2"}, "stride must be one or two integers of at least 1, got 2"),
        ({"padding": -1}, "padding must be one or two integers of at least 0, got -1"),
        ({"dilation": (1, 0)}, r"dilation must be one or two .* at least 1, got \(1, 0\)"),
        ({"groups": 3}, "groups=3 must divide in_channels=4 and out_channels=6"),
        ({"groups": 0}, "groups=0 must divide"),
    ],
)
def test_a_bad_setting_of_a_convolution_is_an_error_that_shows_it(settings, message):
    with pytest.raises(SettingError, match=message):
        Conv2d(4, 6, **{"kernel_size": 3, **settings})


def test_sizes_may_be_numpy_integers():
    layer = Conv2d(1, 1, np.int64(3), stride=(np.int32(2), 1))
    assert (layer.kernel_size, layer.stride) == ((3, 3), (2, 1))


@pytest.mark.parametrize("kind", [MaxPool2d, AvgPool2d])
def test_padding_beyond_half_of_the_window_is_an_error(kind):
    with pytest.raises(SettingError, match=r"padding \(2, 2\) must be at most half of the kernel"):
        kind(3, padding=2)


@pytest.mark.parametrize("features", [0, -1])
def test_batch_norm_needs_a_channel(features):
    with pytest.raises(SettingError, match=f"num_features of at least 1, got {features}"):
        BatchNorm2d(features)


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (Conv2d(1, 2, 3), "Conv2d(1, 2, kernel_size=(3, 3))"),
        (Conv2d(2, 2, 3, 2, groups=2, bias=False),
         "Conv2d(2, 2, kernel_size=(3, 3), stride=(2, 2), groups=2, bias=False)"),
        (MaxPool2d(2), "MaxPool2d(kernel_size=(2, 2), stride=(2, 2))"),
        (AvgPool2d(3, 1, 1), "AvgPool2d(kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))"),
        (BatchNorm2d(4), "BatchNorm2d(4, eps=1e-05, momentum=0.1)"),
    ],
)  # fmt: skip
def test_the_settings_are_shown(layer, shown):
    assert repr(layer) == shown
