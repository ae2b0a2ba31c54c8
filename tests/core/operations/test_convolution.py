import math

import numpy as np
import pytest
from oracles import (
    BACKENDS,
    DTYPES,
    Case,
    assert_close,
    check_against_torch,
    check_central_differences,
    each,
    every_way,
    torch,
)

from tinytorch.core import operations as convolution
from tinytorch.core.dispatch import use_backend
from tinytorch.core.tensor import Tensor, apply

PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}

# name -> (shape of the images, shape of the weights, settings)
CONVOLUTIONS = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 3), {}),
    "stride": ((2, 2, 7, 6), (3, 2, 3, 3), {"stride": (2, 3)}),
    "stride that leaves a rest": ((1, 2, 8, 8), (3, 2, 3, 3), {"stride": (3, 3)}),
    "stride beyond the kernel": ((1, 2, 9, 9), (3, 2, 2, 2), {"stride": (4, 3)}),
    "padding": ((2, 2, 4, 5), (3, 2, 3, 3), {"padding": (1, 2)}),
    "padding beyond the kernel": ((1, 1, 2, 2), (1, 1, 2, 2), {"padding": (3, 3)}),
    "dilation": ((2, 2, 8, 7), (3, 2, 3, 3), {"dilation": (2, 3)}),
    "everything": (
        (2, 4, 9, 8),
        (6, 2, 3, 2),
        {"stride": (2, 1), "padding": (2, 1), "dilation": (2, 2), "groups": 2},
    ),
    "rectangular kernel": ((2, 2, 6, 7), (3, 2, 1, 4), {}),
    "tall kernel": ((2, 2, 6, 3), (3, 2, 5, 1), {"padding": (1, 0)}),
    "groups": ((2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((2, 3, 5, 4), (3, 1, 3, 3), {"groups": 3, "padding": (1, 1)}),
    "depthwise with two results": ((1, 3, 5, 4), (6, 1, 3, 3), {"groups": 3}),
    "one by one": ((2, 5, 4, 3), (2, 5, 1, 1), {}),
    "one by one with stride": ((2, 5, 4, 5), (2, 5, 1, 1), {"stride": (2, 2)}),
    "one by one with groups": ((2, 4, 3, 3), (4, 2, 1, 1), {"groups": 2}),
    "kernel of the image's size": ((3, 2, 4, 5), (3, 2, 4, 5), {}),
    "unit image": ((2, 3, 1, 1), (4, 3, 1, 1), {}),
    "unit image with padding": ((2, 3, 1, 1), (4, 3, 3, 3), {"padding": (1, 1)}),
    "one channel": ((1, 1, 5, 5), (1, 1, 2, 2), {}),
    "no examples": ((0, 3, 5, 5), (4, 3, 3, 3), {"padding": (1, 1)}),
    "no examples with groups": ((0, 4, 5, 5), (4, 2, 1, 1), {"groups": 2}),
}
# name -> (shape of the images, kernel, stride, padding)
POOLS = {
    "plain": ((2, 3, 4, 6), (2, 2), (2, 2), (0, 0)),
    "rest": ((2, 3, 5, 7), (2, 2), (2, 2), (0, 0)),
    "overlap": ((2, 2, 6, 5), (3, 3), (1, 1), (0, 0)),
    "overlap and padding": ((2, 2, 5, 5), (3, 3), (2, 2), (1, 1)),
    "rectangular": ((2, 2, 6, 7), (2, 3), (1, 2), (1, 0)),
    "gaps": ((1, 2, 7, 7), (2, 2), (3, 3), (0, 0)),
    "unit window": ((1, 2, 3, 3), (1, 1), (1, 1), (0, 0)),
    "unit window with stride": ((1, 2, 4, 5), (1, 1), (2, 2), (0, 0)),
    "whole image": ((3, 2, 3, 4), (3, 4), (3, 4), (0, 0)),
    "unit image": ((2, 3, 1, 1), (1, 1), (1, 1), (0, 0)),
    "unit image with padding": ((2, 3, 1, 1), (2, 2), (1, 1), (1, 1)),
    "no examples": ((0, 2, 4, 4), (2, 2), (2, 2), (1, 1)),
}


def convolve(settings):
    values = PLAIN | settings
    return lambda *inputs: apply(convolution.Conv2d(**values), *inputs)


def convolve_in_torch(settings):
    return lambda *inputs: torch.nn.functional.conv2d(*inputs, **settings)


def make_cases():
    for name, (images, weights, settings) in CONVOLUTIONS.items():
        for bias in ([(weights[0],)], []):
            yield Case(
                f"conv2d: {name}{'' if bias else ', no bias'}",
                convolve(settings),
                convolve_in_torch(settings),
                (images, weights, *bias),
                terms=math.prod(images) + math.prod(weights),
            )
    for name, (shape, *window) in POOLS.items():
        yield Case(
            f"max pool: {name}",
            lambda x, window=window: apply(convolution.MaxPool2d(*window), x),
            lambda x, window=window: torch.nn.functional.max_pool2d(x, *window),
            (shape,),
            terms=9,
        )
        yield Case(
            f"average pool: {name}",
            lambda x, window=window: apply(convolution.AvgPool2d(*window), x),
            lambda x, window=window: torch.nn.functional.avg_pool2d(x, *window),
            (shape,),
            terms=12,
        )


CASES = list(make_cases())


@every_way
@each(CASES)
def test_values_and_gradients_are_those_of_pytorch(case, dtype, backend, layout):
    check_against_torch(case, dtype=dtype, backend=backend, layout=layout)


@each(case for case in CASES if sum(map(math.prod, case.shapes)) < 250)
def test_gradients_are_central_differences(case):
    check_central_differences(case, backend="numpy")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_larger_than_any_cache_is_convolved_to_the_end(dtype, backend):
    # 16 x 9 x 20 x 20 taps are 230 kB an image in float32, 2.5 MB for the batch: whatever a
    # backend takes as a piece, there are several or a short last one.
    case = Case("big", convolve({}), convolve_in_torch({}), ((11, 16, 22, 22), (4, 16, 3, 3)), 5000)
    check_against_torch(case, dtype=dtype, backend=backend, layout="contiguous")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POOLS)
def test_ties_of_max_pooling_go_where_pytorch_sends_them(name, dtype, backend):
    shape, *window = POOLS[name]
    # Two values only, so that most windows have ties; and windows that are all alike.
    values = np.random.default_rng(5).integers(0, 2, shape).astype(dtype)
    for images in (values, np.zeros_like(values), -values):
        x, twin = Tensor(images, requires_grad=True), torch.tensor(images, requires_grad=True)
        expected = torch.nn.functional.max_pool2d(twin, *window)
        upstream = np.random.default_rng(7).uniform(1, 2, tuple(expected.shape)).astype(dtype)
        expected.backward(torch.tensor(upstream))
        with use_backend(backend):
            apply(convolution.MaxPool2d(*window), x).backward(upstream)
        assert_close(x.grad, twin.grad, terms=9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_of_equals_gets_the_gradient(backend):
    x = Tensor(np.zeros((1, 1, 2, 2)), requires_grad=True)
    with use_backend(backend):
        apply(convolution.MaxPool2d((2, 2), (2, 2), (0, 0)), x).sum().backward()
    assert x.grad.tolist() == [[[[1, 0], [0, 0]]]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_never_wins_a_maximum(backend):
    x = Tensor(np.full((1, 1, 2, 2), -5.0), requires_grad=True)
    with use_backend(backend):
        output = apply(convolution.MaxPool2d((2, 2), (1, 1), (1, 1)), x)
        output.sum().backward()
    assert (output.data == -5).all()
    assert x.grad.sum() == output.size


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_need_no_gradient_get_none(backend):
    x, weight = Tensor(np.ones((1, 1, 3, 3))), Tensor(np.ones((1, 1, 2, 2)), requires_grad=True)
    with use_backend(backend):
        convolve({})(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad.tolist() == [[[[4, 4], [4, 4]]]]
