"""Memory of a recorded step, against tracemalloc and against what can be worked out by hand."""

import tracemalloc
from collections import Counter
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest
from core_steps import ADAPTER, forward, record, training

from tinytorch.core import dispatch
from tinytorch.core.dispatch import use_backend
from tinytorch.core.embeddings import Embedding
from tinytorch.core.kernels import BACKENDS, NUMPY
from tinytorch.core.kv_cache import KVCache
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.optimizers import SGD, Adam
from tinytorch.core.spatial import BatchNorm2d, Conv2d, MaxPool2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.core.transformers import GPT
from tinytorch.profiling.profile import MemoryTimeline


def normal(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


class Scaled(Module):
    """Parameters whose gradients are views of something else, and must be copied."""

    def __init__(self, rows, width):
        self.scale = Parameter(np.ones(width, np.float32))
        self.shift = {"deep": [Parameter(np.ones((rows, width), np.float32))]}

    def forward(self, x):
        return x * self.scale + self.shift["deep"][0]


def bytes_by_category(recording):
    totals = Counter()
    for each in recording.allocations:
        totals[each.category] += each.nbytes
    return totals


def live_bytes(step, monkeypatch):
    """Give the most bytes alive whenever a kernel is done, its own scratch memory being freed."""
    levels = []

    def watched(kernel):
        def run(*arguments, **settings):
            result = kernel(*arguments, **settings)
            levels.append(tracemalloc.get_traced_memory()[0])
            return result

        return run

    traced = NUMPY.extended("traced", {k: watched(f) for k, f in NUMPY.kernels.items()})
    monkeypatch.setattr(dispatch, "BACKENDS", MappingProxyType({**BACKENDS, "traced": traced}))
    with use_backend("traced"):
        step()  # what is made once and stays is no activation
        tracemalloc.start()
        try:
            kept = step()
        finally:
            tracemalloc.stop()
    del kept
    return max(levels)


def mlp():
    layers = Linear(64, 512, rng=0), ReLU(), Dropout(0.5, rng=0), Linear(512, 256, rng=0)
    return Sequential(*layers, ReLU(), Linear(256, 10, rng=0)), normal(512, 64)


def cnn():
    layers = (
        Conv2d(3, 16, 3, rng=0),
        BatchNorm2d(16),
        ReLU(),
        MaxPool2d(2),
        Conv2d(16, 32, 3, rng=0),
    )
    return Sequential(*layers), normal(16, 3, 32, 32)


def gpt():
    ids = np.random.default_rng(0).integers(0, 65, (8, 32))
    return GPT(65, 128, 2, 4, max_seq_len=32, rng=0), Tensor(ids)


def scaled():
    return Scaled(512, 512), normal(512, 512)


MODELS = [mlp, cnn, gpt, scaled]
OPTIMIZERS = {"none": None, "momentum": lambda p: SGD(p, momentum=0.9), "adam": Adam}
# What tracemalloc sees beside the arrays: tensors, operations and frames, a few kilobytes.
SMALL_OBJECTS = 40_000


@pytest.mark.parametrize("build", MODELS)
def test_the_peak_of_a_forward_pass_is_what_is_alive(build, monkeypatch):
    model, x = build()
    step = forward(model.eval(), x)
    truth = live_bytes(step, monkeypatch)
    found = MemoryTimeline(record(model, step, x).allocations).peak_activation_bytes
    assert abs(found - truth) <= 0.02 * truth + SMALL_OBJECTS
    assert truth > 10 * SMALL_OBJECTS


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("build", MODELS)
def test_the_peak_of_a_training_step_is_what_is_alive(build, name, monkeypatch):
    model, x = build()
    make = OPTIMIZERS[name]
    optimizer = make(model.parameters()) if make else None
    step = training(model, optimizer, x)
    truth = live_bytes(step, monkeypatch)
    ADAPTER.drop_gradients(model)
    recording = record(model, step, x, optimizer=optimizer)
    found = MemoryTimeline(recording.allocations).peak_activation_bytes
    assert abs(found - truth) <= 0.02 * truth + SMALL_OBJECTS


def test_the_peak_of_layers_in_a_row_is_the_largest_pair_of_neighbours():
    widths = [64, 200, 30, 400, 10]
    model = Sequential(*[Linear(a, b, rng=0) for a, b in pairwise(widths)])
    x = normal(100, 64)
    made = [100 * width * 4 for width in widths[1:]]
    timeline = MemoryTimeline(record(model, forward(model, x), x).allocations)
    assert timeline.peak_activation_bytes == max(a + b for a, b in pairwise(made))
    assert timeline.allocated_bytes == sum(made)
    assert [each.path for each in timeline.allocations if each.category == "activations"] == [
        f"layers.{index}" for index in range(4)
    ]


def test_every_byte_has_its_category():
    model = Sequential(Conv2d(3, 8, 3, rng=0), BatchNorm2d(8))
    x = normal(4, 3, 10, 10)
    optimizer = Adam(model.parameters())
    step = training(model, optimizer, x)
    for is_first in (True, False):
        ADAPTER.drop_gradients(model)
        found = bytes_by_category(record(model, step, x, optimizer=optimizer))
        weights = sum(p.data.nbytes for p in model.parameters())
        assert found["parameters"] == found["gradients"] == weights
        assert found["inputs"] == x.data.nbytes
        assert found["buffers"] == 2 * 8 * 4
        counters = 0 if is_first else 8 * len(model.parameters())  # their first step is no kernel
        assert found["optimizer state"] == 2 * weights + counters
        assert found["temporaries"] > 0


def test_gradients_that_are_copied_count_from_the_backward_pass_on():
    model, x = scaled()
    step = training(model, None, x)
    recording = record(model, step, x)
    found = [each for each in recording.allocations if each.category == "gradients"]
    assert sorted(each.nbytes for each in found) == [512 * 4, 512 * 512 * 4]
    # that of the shift is there while that of the scale is computed
    last = recording.operations[-1]
    assert min(each.born for each in found) < last.start + last.duration
    assert {each.phase for each in found} == {"backward"}
    assert all(each.died is None for each in found)


def test_gradients_from_before_are_gradients():
    model, x = Linear(8, 8, rng=0), normal(1, 8)
    model(x).sum().backward()
    found = bytes_by_category(record(model, forward(model, x), x))
    assert found["gradients"] == found["parameters"] == (64 + 8) * 4


def test_the_mask_of_a_dropout_is_an_activation():
    model, x = Sequential(Dropout(0.5, rng=0)), normal(100, 100)
    found = bytes_by_category(record(model, forward(model, x), x))
    assert found["activations"] == 2 * x.data.nbytes
    found = bytes_by_category(record(model.eval(), forward(model, x), x))
    assert found["activations"] == 0


def test_a_view_holds_nothing_and_shared_memory_counts_once():
    class Views(Module):
        def __init__(self):
            self.weight = Parameter(np.ones((10, 10), np.float32))
            self.tied = self.weight
            self.table = np.ones((5, 10), np.float32)  # a constant that is no tensor

        def forward(self, x):
            return x.T[::2].broadcast_to(3, 5, 20)

    model, x = Views(), normal(20, 10)
    found = bytes_by_category(record(model, forward(model, x), x, x))
    assert found == {"parameters": 400, "buffers": 200, "inputs": 800}


def test_a_slice_of_a_data_set_is_an_input_of_its_own_size():
    everything = np.ones((1000, 8), np.float32)
    model, x = Linear(8, 2, rng=0), Tensor(everything[:10])
    found = bytes_by_category(record(model, forward(model, x), x))
    assert found["inputs"] == 10 * 8 * 4
    assert found["activations"] == 10 * 2 * 4


def test_arrays_and_caches_that_are_handed_in_are_inputs():
    cache = KVCache(1, 16, 2, 2, 4)
    ids = np.zeros((1, 4), np.int64)
    model = Embedding(10, 8, rng=0)
    found = bytes_by_category(record(model, lambda: model(Tensor(ids)), ids, {"cache": [cache]}))
    assert found["inputs"] == ids.nbytes + cache._keys.nbytes + cache._values.nbytes


def test_a_window_of_numpy_holds_the_memory_of_its_array():
    x = np.ones(1000, np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, 100)
    model = ReLU()
    recording = record(model, lambda: model(Tensor(windows)), Tensor(windows))
    assert bytes_by_category(recording)["inputs"] == x.nbytes
    (relu,) = recording.operations
    assert relu.cost.bytes_read == x.nbytes
