import numpy as np
import pytest
from small_models import workload

from tinytorch.core.autograd import is_grad_enabled, no_grad
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import ModelError
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Workload
from tinytorch.transforms.kv_cache import enable_kv_cache
from tinytorch.transforms.support.channels import trace_channels


def places_of(graph):
    return [
        {f"{place.tensor}:{place.axis}" for place in family.places} for family in graph.families
    ]


def reasons_of(graph):
    return {f"{place.tensor}:{place.axis}": why for place, why in graph.fixed.items()}


def test_the_channels_of_a_layer_end_in_the_next_one():
    graph = trace_channels(workload("mlp"))
    assert places_of(graph) == [
        {"layers.0.weight:1", "layers.0.bias:0", "layers.2.weight:0"},
        {"layers.2.weight:1", "layers.2.bias:0", "layers.4.weight:0"},
    ]
    assert [len(family.units) for family in graph.families] == [48, 32]
    assert graph.families[0].consumers == {("layers.2.weight", 0)}


def test_inputs_and_outputs_of_the_model_stay():
    reasons = reasons_of(trace_channels(workload("mlp")))
    assert reasons["layers.0.weight:0"] == "its inputs are those of the model"
    assert reasons["layers.4.weight:1"] == "they are the outputs of the model"


def test_a_flattened_channel_feeds_all_of_its_pixels():
    graph = trace_channels(workload("cnn"))
    last = graph.families[-1].units[2]
    assert last["layers.3.weight", 0] == (2,)
    assert last["layers.7.weight", 0] == tuple(range(18, 27))


class Residual(Module):
    """A residual sum over a batch norm and a convolution of one filter per channel."""

    def __init__(self):
        self.stem, self.norm = Conv2d(3, 8, 3, padding=1, rng=0), BatchNorm2d(8)
        self.depthwise = Conv2d(8, 8, 3, padding=1, groups=8, rng=1)
        self.point, self.head = Conv2d(8, 8, 1, bias=False, rng=2), Conv2d(8, 2, 1, rng=3)

    def forward(self, x):
        x = self.norm(self.stem(x))
        return self.head(x + self.point(self.depthwise(x)))


def test_residual_sums_norms_and_filters_of_one_channel_go_together():
    image = (Tensor(np.random.default_rng(0).standard_normal((1, 3, 5, 5)).astype(np.float32)),)
    (places,) = places_of(trace_channels(Workload("residual", Residual(), image)))
    assert places == {
        "stem.weight:0", "stem.bias:0", "norm.weight:0", "norm.bias:0", "norm.running_mean:0",
        "norm.running_var:0", "depthwise.weight:0", "depthwise.bias:0", "point.weight:1",
        "point.weight:0", "head.weight:1",
    }  # fmt: skip


def test_heads_and_neurons_of_a_transformer_are_found_and_its_stream_stays():
    graph = trace_channels(workload("gpt"))
    assert [len(family.units) for family in graph.families] == [4, 128, 4, 128]
    reasons = reasons_of(graph)
    assert reasons["token_embedding.weight:0"] == "its rows are looked up by number"
    assert reasons["token_embedding.weight:1"] == "a LayerNorm is computed over all of them"


def test_equal_groups_of_a_convolution_stay():
    graph = trace_channels(workload("branches"))
    assert not graph.families
    assert reasons_of(graph)["stem.weight:0"] == "a convolution in 4 groups needs equal groups"


def test_a_layer_that_is_used_twice_has_one_width():
    assert not trace_channels(workload("shared")).families  # which is that of the inputs


def test_tracing_leaves_nothing_behind(rng):
    net = GPT(20, 16, 1, 2, max_seq_len=12, rng=0)
    enable_kv_cache(net)
    work = Workload("gpt", net, (Tensor(np.arange(8)[None]),))
    before = {name: tensor.data.copy() for name, tensor in named_tensors(net).items()}
    with no_grad():
        families = trace_channels(work).families
        assert not is_grad_enabled()
    assert len(families) == 2
    assert net.training
    after = named_tensors(net)
    assert all(np.array_equal(before[name], after[name].data) for name in before)


class Idle(Module):
    def __init__(self):
        self.used, self.unused = Linear(4, 3), Linear(4, 7)

    def forward(self, x):
        return self.used(x)


def test_weights_that_take_no_part_are_not_called():
    graph = trace_channels(Workload("idle", Idle(), (Tensor(np.ones((1, 4), np.float32)),)))
    assert graph.called == {"used.weight", "used.bias"}


def test_a_model_without_a_computed_output_is_an_error():
    class Constant(Module):
        def forward(self, x):
            return {"answer": 42}

    with pytest.raises(ModelError, match=r"output of nothing \(dict\) holds no tensor"):
        trace_channels(Workload("nothing", Constant(), (Tensor([1.0]),)))
