import numpy as np
import pytest

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import SettingError, ShapeError
from tinytorch.models.core import CoreAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.kv_cache import enable_kv_cache
from tinytorch.transforms.support.observing import (
    called_layers,
    check_no_cache,
    see_calibration,
)


@pytest.fixture
def net():
    return Sequential(Linear(4, 6, rng=0), ReLU(), Linear(6, 3, rng=1))


def work(net, *shapes):
    batches = tuple((Tensor(np.ones(shape, np.float32)),) for shape in shapes)
    return Workload("net", net, batches[0], calibration=batches)


def test_every_batch_is_seen_at_every_layer(net):
    seen = []
    layers = {"first": net.layers[0], "last": net.layers[2]}
    see_calibration(
        net, layers, work(net, (2, 4), (5, 4)), lambda path, x: seen.append((path, x.shape))
    )
    assert seen == [("first", (2, 4)), ("last", (2, 6)), ("first", (5, 4)), ("last", (5, 6))]
    assert not any(layer.is_watched for layer in layers.values())


def test_only_layers_that_ran_are_called(net):
    layers = {"first": net.layers[0], "other": Linear(2, 2)}
    assert called_layers(net, layers, work(net, (1, 4))) == {"first"}


def test_errors_name_the_batch_and_the_layer(net):
    def refuse(path, x):
        raise ShapeError("not this one")

    with pytest.raises(SettingError, match=r"batch 0, input of layer 'first': not this one"):
        see_calibration(net, {"first": net.layers[0]}, work(net, (2, 4)), refuse)
    with pytest.raises(SettingError, match=r"batch 1 does not fit the model: .*\(2, 7\)"):
        see_calibration(net, {}, work(net, (2, 4), (2, 7)), refuse)
    assert not net.layers[0].is_watched


def test_a_copy_is_switched_with_all_of_its_layers(net):
    CoreAdapter().switch_to_eval(net)
    assert not net.training
    assert not net.layers[0].training


def test_a_cache_that_is_attached_anywhere_is_found():
    gpt = GPT(20, 16, 1, 2, max_seq_len=12, rng=0)
    outer = Sequential(gpt)
    check_no_cache(dict(outer.named_modules()))
    enable_kv_cache(outer)
    with pytest.raises(SettingError, match=r"attached to layers.0.*disable_kv_cache"):
        check_no_cache(dict(outer.named_modules()))
    tokens = Tensor(np.arange(5)[None])
    with CoreAdapter().plain_calls(outer):
        first = outer(tokens).data
        assert np.array_equal(first, outer(tokens).data)  # nothing was remembered
