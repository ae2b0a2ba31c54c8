"""TinyTorch models as ONNX: ONNX Runtime computes what every layer and operation does here."""

import numpy as np
import pytest
from parts import hide_package, require_part

onnx = require_part("onnx")
onnxruntime = require_part("onnxruntime")

from tinytorch.core import operations
from tinytorch.core.activations import GELU, LogSoftmax, ReLU, Sigmoid, Softmax, Tanh
from tinytorch.core.attention import MultiHeadAttention
from tinytorch.core.embeddings import Embedding, PositionalEmbedding, SinusoidalEncoding
from tinytorch.core.layers import Dropout, Linear, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import AvgPool2d, BatchNorm2d, Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Parameter, Tensor, concatenate, stack, where
from tinytorch.core.transformers import GPT, LayerNorm, TransformerBlock
from tinytorch.errors import MissingPartError, ModelError
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import ZOO, load_zoo
from tinytorch.transforms.engines.core import RULES, CannotExportError, export_core

ROUNDING = 1e-5
"""Relative to the largest output: other kernels sum in another order."""


class Calls(Module):
    """A model whose forward pass is a function."""

    def __init__(self, function):
        self.weight = Parameter(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
        self.function = function

    def forward(self, *inputs, **keywords):
        return self.function(self, *inputs, **keywords)


def session(workload):
    found, held, names, why_fixed = export_core(workload)
    return onnxruntime.InferenceSession(found.SerializeToString()), held, names, why_fixed


def assert_same(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert np.abs(found - expected).max() <= ROUNDING * max(1e-6, np.abs(expected).max())


def check(model, x, *others):
    """Compare on the example, and on the same model's call of other sizes."""
    run, held, _, why_fixed = session(Workload("it", model.eval(), (x,)))
    for each in (x, *others):
        array = each.data if isinstance(each, Tensor) else each
        assert_same(run.run(None, {held[0].name: array})[0], model(each).data)
    return held[0], why_fixed


def random(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def trained_norm():
    norm = BatchNorm2d(3)
    norm(random(4, 3, 5, 5, seed=2) * 3 + 1)
    return norm


LAYERS = {
    "Linear": (lambda: Linear(6, 4), (6,)),
    "Linear without bias": (lambda: Linear(6, 4, bias=False), (5, 6)),
    "ReLU": (ReLU, (6,)),
    "Sigmoid": (Sigmoid, (6,)),
    "Tanh": (Tanh, (6,)),
    "GELU": (GELU, (6,)),
    "exact GELU": (lambda: GELU("none"), (6,)),
    "Softmax": (Softmax, (3, 6)),
    "Softmax of axis 1": (lambda: Softmax(1), (3, 6)),
    "LogSoftmax": (LogSoftmax, (6,)),
    "Dropout": (lambda: Dropout(0.3), (6,)),
    "Conv2d": (lambda: Conv2d(3, 6, 3, stride=2, padding=1), (3, 9, 8)),
    "grouped Conv2d": (lambda: Conv2d(4, 6, 3, groups=2, dilation=2, bias=False), (4, 9, 8)),
    "MaxPool2d": (lambda: MaxPool2d(3, stride=2, padding=1), (3, 9, 8)),
    "AvgPool2d": (lambda: AvgPool2d(3, stride=2, padding=1), (3, 9, 8)),
    "BatchNorm2d": (trained_norm, (3, 5, 5)),
    "Flatten": (Flatten, (3, 5, 5)),
    "LayerNorm": (lambda: LayerNorm(6), (5, 6)),
    "MultiHeadAttention": (lambda: MultiHeadAttention(8, 2), (5, 8)),
    "causal attention": (lambda: MultiHeadAttention(8, 2, causal=True), (5, 8)),
    "attention in a window": (lambda: MultiHeadAttention(8, 2, causal=True, window=2), (5, 8)),
    "PositionalEmbedding": (lambda: PositionalEmbedding(9, 8), (5, 8)),
    "SinusoidalEncoding": (lambda: SinusoidalEncoding(9, 8), (5, 8)),
    "TransformerBlock": (lambda: TransformerBlock(8, 2, causal=True), (5, 8)),
    "Sequential": (lambda: Sequential(Linear(6, 4), GELU(), Linear(4, 2)), (6,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_the_same_for_any_batch(name):
    make, shape = LAYERS[name]
    argument, why_fixed = check(make(), random(2, *shape), random(1, *shape), random(7, *shape))
    assert argument.shape == (None, *shape), why_fixed


OPERATIONS = {
    "arithmetic": lambda m, x: (x + m.weight) * 2.0 - x / (m.weight + 3.0) + 1.0 / (x + 9.0),
    "powers": lambda m, x: (x**2) + (abs(x) + 1.0) ** m.weight,
    "signs": lambda m, x: -abs(x),
    "exponentials": lambda m, x: (x.exp() + 1.0).log().sqrt(),
    "a constant condition": lambda m, x: where(m.weight > 0, x, x * 0.1),
    "products": lambda m, x: x @ m.weight.T,
    "a sum of all": lambda m, x: x.sum(),
    "a mean of rows": lambda m, x: x.mean(axis=(0, -1), keepdims=True),
    "a maximum": lambda m, x: x.max(axis=-1),
    "axes": lambda m, x: x.permute(2, 0, 1).transpose(),
    "joined": lambda m, x: concatenate([x, x * 2.0], axis=-1),
    "stacked": lambda m, x: stack([x, x * 2.0], axis=1),
    "broadcast": lambda m, x: m.weight.broadcast_to(x.shape[0], 3, 4) + x,
    "cut": lambda m, x: x[:, 1:, ::2],
    "backwards": lambda m, x: x[:, ::-1],
    "picked": lambda m, x: x[:, -1, None],
    "gathered": lambda m, x: x[..., np.array([0, 2, 2])],
    "flat": lambda m, x: x.reshape(x.shape[0] * 3, 4),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_computes_the_same_for_any_batch(name):
    argument, why_fixed = check(
        Calls(OPERATIONS[name]), random(2, 3, 4), random(1, 3, 4), random(5, 3, 4)
    )
    assert argument.shape == (None, 3, 4), why_fixed


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_computes_the_same(name):
    workload = load_zoo(name)
    run, held, _, _ = session(workload)
    (x,) = workload.inputs
    array = x.data if isinstance(x, Tensor) else np.asarray(x)
    many = np.concatenate([array] * 3)
    given = many if name == "gpt" else Tensor(many)
    assert_same(run.run(None, {held[0].name: many})[0], workload.model(given).data)


def test_both_axes_of_tokens_are_open():
    model = GPT(20, 8, 2, 2, max_seq_len=12)
    tokens = np.random.default_rng(0).integers(0, 20, (2, 8))
    argument, why_fixed = check(model, tokens, tokens[:1, :3], np.tile(tokens, (3, 1))[:, :1])
    assert (argument.shape, why_fixed) == ((None, None), "")
    longest = np.zeros((1, 12), np.int64)
    check(model, tokens, longest)


def test_a_window_fixes_the_sequence_and_says_why():
    model = GPT(20, 8, 1, 2, max_seq_len=12, window=3)
    argument, why_fixed = check(model, np.zeros((2, 8), np.int64), np.ones((5, 8), np.int64))
    assert argument.shape == (None, 8)
    assert "Attention" in why_fixed


def test_a_query_that_sees_nothing_gets_zeros():
    mask = np.array([[True, False], [False, False]])
    model = Calls(lambda m, x: m.layer(x, mask))
    model.layer = MultiHeadAttention(4, 1)
    argument, _ = check(model, random(3, 2, 4))
    assert argument.shape == (None, 2, 4)


def test_inputs_by_name_and_several_outputs_keep_their_order():
    model = Calls(lambda m, x, other: {"sum": x + other, "both": (x, x * other)})
    given = {"x": random(2, 3), "other": random(2, 3, seed=1)}
    run, held, names, _ = session(Workload("it", model.eval(), (), keywords=given))
    assert [each.name for each in held] == ["x", "other"]
    assert names == ("output_0", "output_1", "output_2")
    found = run.run(None, {name: tensor.data for name, tensor in given.items()})
    x, other = (each.data for each in given.values())
    for ours, theirs in zip(found, (x + other, x, x * other), strict=True):
        assert_same(ours, theirs)


def test_a_condition_on_values_is_refused():
    model = Calls(lambda m, x: where(x > 0, x, x * 0.1))
    with pytest.raises(CannotExportError, match="Where"):
        session(Workload("it", model.eval(), (random(2, 3),)))


def test_numbers_from_outside_of_operations_are_refused():
    model = Calls(lambda m, x: x + Tensor(x.data * 2))
    with pytest.raises(CannotExportError):
        session(Workload("it", model.eval(), (random(2, 3),)))


def test_an_operation_without_a_rule_is_named_with_its_layer():
    class Unknown(operations.ReLU):
        pass

    class Layer(Module):
        def forward(self, x):
            from tinytorch.core.tensor import apply

            return apply(Unknown(), x)

    assert Unknown not in RULES
    with pytest.raises(CannotExportError, match=r"layers\.1: Unknown"):
        session(Workload("it", Sequential(Linear(3, 3), Layer()).eval(), (random(2, 3),)))


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ModelError, match=r"eval\(\)"):
        session(Workload("it", Linear(3, 3).train(), (random(2, 3),)))


def test_the_model_stays_as_it_was():
    workload = load_zoo("mlp")
    before = [each.requires_grad for each in workload.model.parameters()]
    export_core(workload)
    assert [each.requires_grad for each in workload.model.parameters()] == before


def test_a_missing_package_names_the_extra(monkeypatch):
    hide_package(monkeypatch, "onnx")
    with pytest.raises(MissingPartError, match="engines"):
        export_core(load_zoo("mlp"))


def test_embeddings_take_ids_that_are_constant():
    model = Calls(lambda m, x: x + m.table(np.array([[0, 1]])))
    model.table = Embedding(3, 4)
    argument, _ = check(model, random(2, 2, 4), random(3, 2, 4))
    assert argument.shape == (None, 2, 4)
