import gc
import tracemalloc
import weakref
from collections import Counter
from types import MappingProxyType

import numpy as np
import pytest
from core_steps import ADAPTER, forward, record, training

from tinytorch.core import dispatch
from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.checkpoints import load_checkpoint, read_arrays
from tinytorch.core.dispatch import state, use_backend
from tinytorch.core.kernels import BACKENDS, NUMPY, Backend
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.optimizers import SGD, Adam
from tinytorch.core.spatial import BatchNorm2d, Conv2d
from tinytorch.core.tensor import Parameter, Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import GraphError, ModelError, SettingError
from tinytorch.measure.timing import WALL
from tinytorch.profiling.flops import record_call
from tinytorch.transforms.quantize.layers import QuantizedLinear


def normal(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


# ---------------------------------------------------------------- paths


def places(recording, phase="forward"):
    return [(each.kind, each.path) for each in recording.operations if each.phase == phase]


class Tied(Module):
    """A layer in two places, a list of layers, and functional code around them."""

    def __init__(self):
        self.one = Linear(4, 4, rng=0)
        self.two = self.one
        self.blocks = [Linear(4, 4, rng=0), Sequential(ReLU())]

    def forward(self, x):
        x = self.two(self.one(x)).exp()
        for block in self.blocks:
            x = block(x) + 1
        return x


def test_every_kernel_belongs_to_its_layer_and_the_loss_to_none():
    model, x = Tied(), normal(2, 4)
    optimizer = SGD(model.parameters())
    recording = record(model, training(model, optimizer, x), x, optimizer=optimizer)
    assert places(recording) == [
        ("linear", "one"),
        ("linear", "one"),
        ("exp", ""),
        ("linear", "blocks.0"),
        ("add", ""),
        ("relu", "blocks.1.layers.0"),
        ("add", ""),
        ("multiply", None),
        ("mean", None),
    ]
    assert {path for _, path in places(recording, "update")} == {None}
    products = [path for kind, path in places(recording, "backward") if kind == "matmul"]
    assert Counter(products) == {"blocks.0": 2, "one": 3}  # the input needs no gradient
    assert ("relu_backward", "blocks.1.layers.0") in places(recording, "backward")


class Plain:
    def __init__(self):
        self.layers = [Linear(4, 4, rng=0)]
        self.bias = Tensor(np.zeros(4, np.float32), requires_grad=True)

    def forward(self, x):
        return self.layers[0](x) + self.bias


class Slotted:
    __slots__ = ("net",)

    def __init__(self):
        self.net = Linear(4, 4, rng=0)

    def forward(self, x):
        return self.net(x) + 1


def test_a_plain_object_is_a_model():
    model, x = Plain(), normal(2, 4)
    recording = record(model, lambda: model.forward(x).sum(), x)
    assert places(recording) == [("linear", "layers.0"), ("add", ""), ("sum", None)]
    assert [spec.name for spec in ADAPTER.parameters(model)] == [
        "bias",
        "layers.0.weight",
        "layers.0.bias",
    ]


def test_what_cannot_be_watched_itself_owns_all_that_no_layer_runs():
    slotted, net, x = Slotted(), Tied(), normal(2, 4)

    def function(x):
        return net.one(x) + 1

    assert places(record(slotted, lambda: slotted.forward(x), x)) == [
        ("linear", "net"),
        ("add", ""),
    ]
    assert places(record(function, lambda: function(x), x)) == [("linear", "net.one"), ("add", "")]
    method = net.one.forward
    assert places(record(method, lambda: method(x) + 1, x)) == [("linear", ""), ("add", "")]
    assert ADAPTER.parameters(method) == ADAPTER.parameters(net.one)


def test_times_count_from_the_beginning_of_the_step():
    model, x = Tied(), normal(2, 4)
    recording = record(model, training(model, None, x), x)
    times = [each.start for each in recording.operations]
    assert times == sorted(times)
    ends = [each.start + each.duration for each in recording.operations]
    births = [each.born for each in recording.allocations if each.phase != "resident"]
    assert 0 < min(times) < min(births)
    assert max(ends) <= recording.duration


def test_an_unknown_kernel_has_no_cost_and_its_place(monkeypatch):
    kernels = {**NUMPY.kernels, "frobnicate": lambda x: x + 1}
    odd = Backend("odd", MappingProxyType(kernels))
    monkeypatch.setattr(dispatch, "BACKENDS", MappingProxyType({**BACKENDS, "odd": odd}))

    class Odd(Module):
        def forward(self, x):
            return Tensor(dispatch.run("frobnicate", x.data))

    model, x = Sequential(Odd()), normal(2, 4)
    with use_backend("odd"):
        (found,) = record(model, lambda: model(x), x).operations
    assert (found.kind, found.path, found.cost) == ("frobnicate", "layers.0", None)
    assert found.duration >= 0


# ---------------------------------------------------------------- nothing is disturbed


def facts(model):
    """Give all that watching must not change."""
    return {
        "dicts": [sorted(vars(module)) for module in model.modules()],
        "training": [module.training for module in model.modules()],
        "arrays": [id(t.data) for _, t in model._named_tensors()],
        "values": [t.data.copy() for _, t in model._named_tensors()],
        "gradients": [id(p.grad) for p in model.parameters()],
        "generators": [
            str(m.rng.bit_generator.state) for m in model.modules() if hasattr(m, "rng")
        ],
        "state": (state.recorders, state.array_watchers, state.path, state.phase),
        "names": state.module_names,
        "process": (gc.isenabled(), tracemalloc.is_tracing()),
    }


def assert_same(before, after):
    np.testing.assert_equal(after.pop("values"), before.pop("values"))
    assert after == before


def trained_once():
    model = Sequential(Conv2d(2, 4, 3, rng=0), BatchNorm2d(4), Dropout(0.5, rng=3), ReLU())
    model[2].training = False
    x = normal(2, 2, 8, 8)
    training(model, None, x)()
    model[2].training = True
    return model, x


def test_a_preserved_training_step_leaves_the_model_as_it_was():
    model, x = trained_once()
    optimizer = Adam(model.parameters())
    before = facts(model)
    with ADAPTER.preserving(model, parameters=True):
        assert all(parameter.grad is None for parameter in model.parameters())
        record(model, training(model, optimizer, x), x, optimizer=optimizer)
        assert not np.array_equal(model[1].running_mean.data, before["values"][4])
    assert_same(before, facts(model))


def test_a_model_that_raises_is_left_as_it_was():
    model, x = trained_once()
    before = facts(model)

    def step():
        model(x)
        raise KeyError("on purpose")

    with pytest.raises(KeyError), ADAPTER.preserving(model, parameters=True):
        record(model, step, x)
    assert_same(before, facts(model))


def test_without_preserving_only_the_step_itself_changes_something():
    model = Sequential(Linear(4, 4, rng=0), ReLU())
    before = facts(model)
    record(model, forward(model, normal(2, 4)))
    assert_same(before, facts(model))


def test_a_plain_model_that_raises_is_left_as_it_was():
    model = Plain()
    with pytest.raises(ValueError, match=r"needs input"):
        record(model, lambda: model.forward(normal(2, 5)))
    assert "forward" not in vars(model)
    assert (state.path, state.module_names, state.recorders) == (None, None, ())


def test_a_buffer_that_cannot_be_written_is_no_problem():
    model = Sequential()
    model.table = Tensor(np.broadcast_to(np.float32(1), (3, 4)))
    with ADAPTER.preserving(model):
        pass
    assert model.table.data.shape == (3, 4)
    (spec,) = ADAPTER.parameters(model)
    assert (spec.size, spec.nbytes, spec.is_buffer) == (12, 4, True)


def test_a_recording_keeps_nothing_alive():
    model, x = Linear(4, 4, rng=0), normal(2, 4)
    alive = []

    def step():
        output = model(x)
        alive.append(weakref.ref(output.data))
        return output

    record(model, step, x)
    assert alive[0]() is None


# ---------------------------------------------------------------- the rest of an adapter


def gpt():
    return GPT(65, 16, 1, 2, max_seq_len=8, rng=0)


class Nested(Module):
    def __init__(self):
        self.deep = {"a": [Parameter(np.ones(3)), (Linear(2, 2, rng=0),)], "b": Tensor([1.0])}
        self.frozen = Parameter(np.ones(2), requires_grad=False)


@pytest.mark.parametrize("build", [Tied, Nested, lambda: trained_once()[0], gpt])
def test_parameters_are_those_of_the_model_each_once(build):
    model = build()
    specs = ADAPTER.parameters(model)
    named = dict(model.named_parameters())
    assert {spec.name for spec in specs if not spec.is_buffer} == named.keys()
    assert {s.name for s in specs if s.is_buffer} == {name for name, _ in model.named_buffers()}
    assert sum(spec.size for spec in specs if not spec.is_buffer) == model.num_parameters()
    layers = ADAPTER.modules(model)
    assert all(spec.path in layers and spec.name.startswith(spec.path) for spec in specs)
    assert {s.name: s.nbytes for s in specs if not s.is_buffer} == {
        name: parameter.data.nbytes for name, parameter in named.items()
    }


def test_a_clone_shares_nothing_and_keeps_its_sharing():
    model = Tied()
    twin = ADAPTER.clone(model)
    assert twin.one is twin.two
    assert not np.shares_memory(twin.one.weight.data, model.one.weight.data)


def test_the_loss_is_the_models_own_or_the_sum_of_its_outputs():
    x = Tensor(np.ones(3, np.float32), requires_grad=True)
    loss = (x * 2).sum()
    assert ADAPTER.scalar_loss({"loss": loss, "logits": x}) is loss
    assert ADAPTER.scalar_loss([x, {"more": x * 2}, "text", Tensor([5.0])]).item() == 3 + 6


@pytest.mark.parametrize("output", ["text", None, [], Tensor([1.0]), Tensor(np.array([1]))])
def test_an_output_without_a_graph_has_no_loss(output):
    with pytest.raises(GraphError, match=rf"output \({type(output).__name__}\) holds no tensor"):
        ADAPTER.scalar_loss(output)


def test_optimizers_have_names():
    model = Linear(2, 2, rng=0)
    assert len(ADAPTER.make_optimizer(model, "adamw").params) == 2
    with pytest.raises(SettingError, match=r"'lion'; there are sgd, adam, adamw"):
        ADAPTER.make_optimizer(model, "lion")
    with pytest.raises(SettingError, match=r"at least one parameter"):
        ADAPTER.make_optimizer(ReLU(), "sgd")


def test_examples_are_tokens_where_the_model_looks_them_up():
    model = gpt()
    ids = ADAPTER.example((2, 7), model)
    assert ids.dtype.kind == "i"
    assert model(ids).shape[:2] == (2, 7)
    assert ADAPTER.example((2, 7), Linear(7, 1, rng=0)).dtype == np.float32


def test_a_digest_tells_outputs_apart_and_survives_missing_numbers():
    x = normal(3, 4)
    assert ADAPTER.digest((x, {"y": x})) == ADAPTER.digest([x, x]) != ADAPTER.digest([x, x + 1])
    assert ADAPTER.digest(Tensor([float("nan"), 1.0])) == (1.0,)
    assert ADAPTER.digest("text") == ()


def test_a_causal_mask_hides_as_much_of_each_backward_product():
    attention = MultiHeadAttention(8, 2, causal=True, rng=0)
    x = Tensor(np.ones((1, 5, 8), np.float32))
    records = record_call(attention, x, backward=True).operations
    forward, backward = (
        next(each.cost for each in records if each.kind == kind)
        for kind in ("attention", "attention_backward")
    )
    assert forward.causal_macs * 25 == forward.macs * 15  # of 5 x 5 pairs, 15 are visible
    assert backward.causal_macs == 2 * forward.causal_macs


# ---------------------------------------------------------------- files and clocks


def test_a_saved_module_can_be_loaded_again(tmp_path):
    model, twin = (Sequential(Linear(3, 4, rng=seed), BatchNorm2d(4)) for seed in (0, 1))
    ADAPTER.save(model, tmp_path / "file")
    load_checkpoint(tmp_path / "file", twin)
    assert twin.layers[0].weight.data.tolist() == model.layers[0].weight.data.tolist()


def test_a_plain_object_is_saved_with_the_layers_that_it_holds(tmp_path):
    class Holder:
        def __init__(self):
            self.net = Linear(3, 4, rng=0)
            self.again = self.net

        def forward(self, x):
            return self.net(x)

    ADAPTER.save(Holder(), tmp_path / "file")
    arrays, _ = read_arrays(tmp_path / "file")
    assert set(arrays) == {"net.weight", "net.bias"}


def test_a_model_without_parameters_has_no_file(tmp_path):
    for model in (ReLU(), lambda x: x):
        with pytest.raises(ModelError, match="nothing to write"):
            ADAPTER.save(model, tmp_path / "file")


def test_calls_are_timed_by_the_wall():
    assert ADAPTER.run_clock("cpu") is WALL


@pytest.mark.parametrize(("mode", "dtype"), [("weight_only", "float32"), ("dynamic", "int8")])
def test_products_of_whole_numbers_are_judged_as_such(mode, dtype):
    model = QuantizedLinear(Linear(8, 4, rng=0), mode)
    x = Tensor(np.ones((2, 8), np.float32))
    recorded = ADAPTER.record(model, lambda: model(x), device="cpu", inputs=(x,))
    assert [(each.macs, each.dtype) for each in recorded.operations] == [(64, dtype)]


SHARED = Linear(3, 3, rng=0)


def uses_a_global(x):
    return SHARED(x)


def test_the_clone_of_a_function_has_layers_of_its_own():
    layer, layers = Linear(3, 3, rng=1), {"a": [Linear(3, 3, rng=2)]}

    def nested(x):
        return layer(layers["a"][0](layer(x)))

    x = Tensor(np.ones((1, 3), np.float32))
    for function, owned in ((nested, [layer, layers["a"][0]]), (uses_a_global, [SHARED])):
        twin = ADAPTER.clone(function)
        assert np.array_equal(twin(x).data, function(x).data)
        copies = [each for path, each in ADAPTER.modules(twin).items() if path]
        assert len(copies) == len(owned)
        assert not {id(each) for each in copies} & {id(each) for each in owned}
        copies[0].weight.data = np.zeros((3, 3), np.float32)
        assert not np.array_equal(twin(x).data, function(x).data)


def test_a_copy_has_the_layout_of_its_model_until_it_is_changed():
    model = Linear(3, 2)
    twin = ADAPTER.clone(model)
    assert ADAPTER.copy_difference(model, twin) == ""
    twin.weight.data = np.asfortranarray(twin.weight.data)
    assert ADAPTER.copy_difference(model, twin) == "strides of 'weight'"
