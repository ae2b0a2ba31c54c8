import numpy as np
import pytest

from tinytorch.core.embeddings import Embedding
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT, TiedHead
from tinytorch.errors import SettingError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload
from tinytorch.transforms.kv_cache import enable_kv_cache
from tinytorch.transforms.quantize import observe_inputs
from tinytorch.transforms.support.observing import called_layers


def model():
    return Sequential(Linear(4, 6, rng=0), ReLU(), Linear(6, 3, rng=1))


def work(net, data):
    return Workload("net", net, data[0], calibration=data)


def observe_layers(net, data):
    """Give the statistics of every layer that multiplies."""
    twin = adapter_for(net).clone(net)
    layers = {
        path: layer
        for path, layer in adapter_for(twin).modules(twin).items()
        if isinstance(layer, Linear | TiedHead)
    }
    return observe_inputs(twin, layers, Workload("net", twin, (), calibration=data))


def batches(rng, count=3):
    return tuple((Tensor(rng.standard_normal((5, 4)).astype(np.float32)),) for _ in range(count))


def test_statistics_are_those_of_what_a_layer_gets(rng):
    net, data = model(), batches(rng)
    seen = observe_layers(net, data)
    inputs = np.concatenate([x.data for (x,) in data])
    hidden = np.maximum(net.layers[0](Tensor(inputs)).data, 0)
    assert set(seen) == {"layers.0", "layers.2"}
    assert (seen["layers.0"].low, seen["layers.0"].high) == (inputs.min(), inputs.max())
    assert seen["layers.2"].low == 0
    assert seen["layers.2"].high == pytest.approx(hidden.max(), rel=1e-6)
    assert seen["layers.2"].count == hidden.size
    assert seen["layers.2"].batches == 3


def test_watching_leaves_nothing_behind(rng):
    net = model()
    observe_inputs(net, {"layers.0": net.layers[0]}, work(net, batches(rng)))
    assert not net.layers[0].is_watched
    with pytest.raises(SettingError):
        observe_inputs(net, {"layers.0": net.layers[0]}, work(net, ((Tensor([[np.nan] * 4]),),)))
    assert not net.layers[0].is_watched


def test_layers_that_are_not_called_are_not_seen(rng):
    net = model()
    layers = {"first": net.layers[0], "other": Linear(2, 2)}
    assert called_layers(net, layers, work(net, batches(rng))) == {"first"}


def test_no_calibration_data_says_what_to_do():
    with pytest.raises(SettingError, match=r"needs calibration data.*mode='dynamic' needs none"):
        observe_layers(model(), ())


def test_nan_names_the_batch_and_the_layer(rng):
    data = (*batches(rng, 1), (Tensor(np.array([[0, np.nan, 1, 2]], np.float32)),))
    with pytest.raises(SettingError, match=r"batch 1, input of layer 'layers.0': 1 of 4 elements"):
        observe_layers(model(), data)


def test_a_wrong_shape_names_the_batch_and_the_layer(rng):
    data = (*batches(rng, 2), (Tensor(np.zeros((5, 7), np.float32)),))
    with pytest.raises(SettingError, match=r"batch 2 does not fit the model: layers.0: .*\(5, 7\)"):
        observe_layers(model(), data)


def test_data_without_rows_is_empty(rng):
    empty = (Tensor(np.zeros((0, 4), np.float32)),)
    with pytest.raises(SettingError, match="the calibration data is empty"):
        observe_layers(model(), (empty, empty))
    assert observe_layers(model(), (empty, *batches(rng, 1)))["layers.0"].count == 20


class Called(Module):
    """Layers that are called in every way that Python has."""

    def __init__(self):
        self.table = Embedding(9, 4, rng=0)
        self.by_name, self.by_forward = Linear(4, 4, rng=0), Linear(4, 4, rng=1)

    def forward(self, tokens):
        return self.by_forward.forward(self.by_name(x=self.table(tokens.data.tolist())))


def test_layers_are_seen_however_they_are_called():
    net = Called()
    tokens = (Tensor(np.arange(9)),)
    modules = {name: each for name, each in net.named_modules() if name}
    seen = observe_inputs(net, modules, work(net, (tokens,)))
    assert {name: each.count for name, each in seen.items()} == {
        "table": 0,  # it looks up, so that its inputs have no range
        "by_name": 36,
        "by_forward": 36,
    }
    assert called_layers(net, modules, work(net, (tokens,))) == set(modules)


def test_a_cache_that_is_attached_does_not_remember_the_calibration():
    net = GPT(20, 16, 1, 2, max_seq_len=12, rng=0).eval()
    enable_kv_cache(net)
    data = tuple((Tensor(np.arange(8)[None]),) for _ in range(3))
    assert observe_layers(net, data)["head"].count == 3 * 8 * 16


def test_models_are_observed_as_they_will_be_used():
    class Plain:
        def __init__(self):
            self.dropout, self.layer = Dropout(0.5, rng=0), Linear(4, 4, rng=0)

        def forward(self, x):
            return self.layer(self.dropout(x))

    net = Plain()
    seen = observe_layers(net, ((Tensor(np.ones((5, 4), np.float32)),),))
    assert (seen["layer"].low, seen["layer"].high) == (1, 1)
    assert net.dropout.training
