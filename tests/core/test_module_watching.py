"""Watching the tree of layers: hooks, the paths of errors, names for recorders."""

from itertools import permutations

import numpy as np
import pytest

from tinytorch.core.dispatch import recording, state
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module, naming
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import ShapeError


@pytest.fixture
def x(rng):
    return Tensor(rng.standard_normal((3, 2)).astype(np.float32))


# ---------------------------------------------------------------- hooks


def test_hooks_run_around_forward_in_the_order_of_registration(x):
    layer, seen = Linear(2, 2), []
    for name in "ab":
        layer.register_forward_pre_hook(lambda *_, name=name: seen.append(f"before {name}"))
        layer.register_forward_hook(lambda *_, name=name: seen.append(f"after {name}"))
    layer(x)
    assert seen == ["before a", "before b", "after a", "after b"]


def test_hooks_see_the_module_its_inputs_and_its_output(x):
    layer, seen = Linear(2, 2), []
    layer.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs)))
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    output = layer(x)
    assert seen == [(layer, (x,)), output]


def test_what_a_hook_returns_replaces_the_output(x):
    layer = ReLU()
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    layer.register_forward_hook(lambda module, inputs, output: None)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    np.testing.assert_array_equal(layer(x).data, (np.maximum(x.data, 0) + 1) * 2)


def test_hooks_run_inside_a_model_and_while_recording(x):
    model, seen = Sequential(Linear(2, 2), ReLU()), []
    model[1].register_forward_hook(lambda *_: seen.append("hook"))
    with recording(lambda call: seen.append(call.path)):
        model(x)
    assert seen == ["layers.0", "layers.1", "hook"]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_removing_a_hook_removes_that_one(order, x):
    layer, seen = ReLU(), []
    handles = [
        layer.register_forward_hook(lambda *_, number=number: seen.append(number))
        for number in range(3)
    ]
    left = [0, 1, 2]
    for number in order:
        handles[number].remove()
        handles[number].remove()  # a second time does nothing
        left.remove(number)
        seen.clear()
        layer(x)
        assert seen == left


def test_removing_twice_does_not_take_the_hook_of_somebody_else(x):
    layer, seen = ReLU(), []
    handle = layer.register_forward_hook(lambda *_: seen.append("first"))
    handle.remove()
    layer.register_forward_hook(lambda *_: seen.append("second"))
    handle.remove()
    layer(x)
    assert seen == ["second"]


def test_a_hook_may_remove_itself_while_it_runs(x):
    layer, seen = ReLU(), []

    def once(*_):
        seen.append("once")
        handle.remove()

    handle = layer.register_forward_hook(once)
    layer.register_forward_hook(lambda *_: seen.append("always"))
    layer(x)
    layer(x)
    assert seen == ["once", "always", "always"]


def test_hooks_belong_to_one_module():
    layer = ReLU()
    layer.register_forward_hook(lambda *_: None)
    assert not ReLU()._hooks
    assert not Module._hooks


# ---------------------------------------------------------------- errors


def test_an_error_in_a_nested_model_names_the_path_of_the_layer(x):
    model = Sequential(Linear(2, 3), ReLU(), Linear(4, 1))
    with pytest.raises(ShapeError) as caught:
        model(x)
    assert str(caught.value) == "layers.2: Linear(4, 1, bias=True) needs input (..., 4), got (3, 3)"
    with pytest.raises(ShapeError, match=r"^layers\.0\.layers\.2: Linear\(4, 1, bias=True\) needs"):
        Sequential(model)(x)


def test_an_error_in_a_layer_that_is_reached_past_its_owner_has_its_whole_path(x):
    class Shortcut(Module):
        def __init__(self):
            self.body = Sequential(ReLU(), Linear(4, 1))

        def forward(self, x):
            return self.body[1](x)

    with pytest.raises(ShapeError, match=r"^layers\.0\.body\.layers\.1: Linear"):
        Sequential(Shortcut())(x)


def test_an_error_in_a_layer_alone_has_no_path(x):
    with pytest.raises(ShapeError, match=r"^Linear\(4, 1, bias=True\) needs"):
        Linear(4, 1)(x)


def test_an_error_has_its_path_under_hooks_and_recorders(x):
    model = Sequential(Sequential(Linear(4, 1)))
    model.register_forward_hook(lambda *_: None)
    with (
        pytest.raises(ShapeError, match=r"^layers\.0\.layers\.0: Linear"),
        recording(lambda _: None),
    ):
        model(x)


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match=r"Module does not define forward\(\)"):
        Module()(1)


def test_other_errors_pass_unchanged():
    def fail(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Sequential(fail)(1)


def test_the_result_of_a_hook_before_the_call_replaces_the_inputs():
    layer = Linear(2, 2, rng=0)
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0,))
    np.testing.assert_array_equal(layer(Tensor([[1.0, 2.0]])).data[0], layer.bias.data)


def test_hooks_also_see_calls_of_other_entry_points():
    model = GPT(7, 4, 1, 1, max_seq_len=4, rng=0)
    seen = []
    model.blocks[0].attention.register_forward_hook(lambda *_: seen.append(1))
    model.generate([1], 2)
    assert len(seen) == 2


# ---------------------------------------------------------------- names from outside


def paths_under(names, function):
    calls = []
    with recording(calls.append), naming(names):
        function()
    return [(call.kind, call.path) for call in calls]


def test_modules_can_be_named_from_outside(x):
    first, second = Linear(2, 2, rng=0), Sequential(ReLU())
    names = {id(first): "first", id(second): "second", id(second[0]): "second.relu"}

    def run():
        second(first(x)).sum()

    assert paths_under(names, run) == [
        ("linear", "first"),
        ("relu", "second.relu"),
        ("sum", ""),
    ]


def test_a_module_without_a_name_belongs_to_the_one_around_it(x):
    outer = Sequential(Linear(2, 2, rng=0))
    assert paths_under({id(outer): "outer"}, lambda: outer(x)) == [("linear", "outer")]
    assert paths_under({}, lambda: outer(x)) == [("linear", "")]


def test_backward_kernels_carry_the_names_from_outside(x):
    layer = Linear(2, 2, rng=0)
    found = paths_under({id(layer): "layer"}, lambda: layer(x).sum().backward())
    assert ("matmul", "layer") in found


def test_names_end_with_their_block_also_when_it_raises(x):
    layer = Linear(2, 2, rng=0)
    with naming({id(layer): "outer"}):
        with pytest.raises(KeyError), naming({id(layer): "inner"}):
            raise KeyError("on purpose")
        calls = []
        with recording(calls.append):
            layer(x)
    assert [call.path for call in calls] == ["outer"]
    assert (state.path, state.module_names) == (None, None)
    with recording(calls.append):
        layer(x)
    assert calls[-1].path == ""  # the outermost module names itself again
