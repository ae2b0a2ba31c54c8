"""A forward pass under `no_grad` holds little memory: no graph, few activations at a time."""

import gc
import tracemalloc

import numpy as np
import pytest

from tinytorch.core.autograd import no_grad
from tinytorch.core.dispatch import recording
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.operations import Operation
from tinytorch.core.spatial import Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT


def mlp():
    layers = Linear(784, 256), ReLU(), Linear(256, 128), ReLU(), Linear(128, 10)
    return Sequential(*layers), (32, 784)


def cnn():
    first = Conv2d(3, 16, 3, padding=1), ReLU(), MaxPool2d(2)
    second = Conv2d(16, 32, 3, padding=1), ReLU(), MaxPool2d(2)
    return Sequential(*first, *second, Flatten(), Linear(2048, 10)), (8, 3, 32, 32)


def gpt():
    return GPT(1024, 256, 4, 4, max_seq_len=128), None


def long_gpt():
    """With 2,048 tokens the scores of all pairs would be the largest array by far."""
    return GPT(64, 32, 2, 4, max_seq_len=2048), None


def make(build):
    model, shape = build()
    if shape is None:
        return model.eval(), Tensor(np.zeros((1, model.max_seq_len), int))
    return model.eval(), Tensor(np.zeros(shape, np.float32))


def largest_activation(model, x):
    calls = []
    with no_grad(), recording(calls.append):
        model(x)
    return max(call.outputs[0].nbytes for call in calls if not call.outputs[0].is_view)


def count_operations():
    gc.collect()
    return sum(issubclass(type(found), Operation) for found in gc.get_objects())


@pytest.mark.parametrize("build", [mlp, cnn, gpt])
def test_the_peak_is_at_most_four_times_the_largest_activation(build):
    model, x = make(build)
    largest = largest_activation(model, x)
    with no_grad():
        tracemalloc.start()
        try:
            model(x)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak <= 4 * largest


def test_attention_over_a_long_text_never_holds_the_scores_of_all_pairs():
    model, x = make(long_gpt)
    all_pairs = 4 * 2048 * 2048 * 4  # heads, queries, keys, bytes
    largest_activation(model, x)  # the first pass also makes what is kept, such as the causal mask
    with no_grad():
        tracemalloc.start()
        try:
            model(x)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < all_pairs / 2


@pytest.mark.parametrize("build", [mlp, cnn, gpt])
def test_no_operation_survives(build):
    model, x = make(build)
    before = count_operations()
    with no_grad():
        output = model(x)
    assert output.creator is None
    assert count_operations() == before
