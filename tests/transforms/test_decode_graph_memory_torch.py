"""Memory that changes between products, and weights that a step computes or writes."""

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import require_part

torch = require_part("torch")
from drawn_graphs_torch import (
    ACTIVATIONS,
    Drawing,
    check_same,
    joint_of,
    normed,
    targets,
)

F = torch.nn.functional

from tinytorch.transforms.static_generation.decode_graph import GATED

# ---------------------------------------------------------------- what changes memory meanwhile


def writing(drawing, x, way):
    """Change a tensor in place, in one of many ways."""
    match way:
        case "method":
            drawing.method("add_", x, 1)
        case "operator":
            drawing.call(operator.imul, x, 2)
        case "function":
            drawing.call(torch.relu_, x)
        case "keyword":
            drawing.call(F.silu, x, inplace=True)
        case "position":
            drawing.call(F.relu, x, True)
        case "item":
            drawing.graph.call_function(operator.setitem, (x, 0, 3.0))
        case "view":
            drawing.method("mul_", drawing.method("view", x, -1), 3)
        case "out":
            drawing.call(torch.neg, x, out=x)
        case "schema":
            drawing.call(torch.ops.aten.add_.Tensor, x, x)


WAYS = ["method", "operator", "function", "keyword", "position", "item", "view", "out", "schema"]


@pytest.mark.parametrize("way", WAYS)
def test_layers_before_and_after_a_change_of_their_input_stay_apart(way):
    drawing = Drawing()
    drawing.linear(drawing.x, 0)
    writing(drawing, drawing.x, way)
    drawing.linear(drawing.x, 1)
    assert check_same(drawing) == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_gate_does_not_move_past_a_change_of_its_input(way):
    drawing = Drawing()
    act = drawing.call(F.silu, drawing.linear(drawing.x, 0))
    up = drawing.linear(drawing.x, 1)
    writing(drawing, drawing.x, way)
    product = drawing.call(operator.mul, act, up)
    drawing.graph.output((product,))
    module = drawing.finished()
    check_same(drawing, module)
    assert GATED not in targets(module)


def test_layers_do_not_move_past_a_change_of_a_matrix():
    drawing = Drawing()
    drawing.linear(drawing.x, 0)
    writing(drawing, drawing.weights[1], "method")
    drawing.linear(drawing.x, 1)
    assert check_same(drawing) == 1  # the other one stays as it is


def test_what_is_written_elsewhere_does_not_matter():
    drawing = Drawing()
    first = drawing.linear(drawing.x, 0)
    drawing.method("add_", first, 1)
    drawing.linear(drawing.x, 1)
    assert check_same(drawing) == 1


def test_a_matrix_that_is_made_later_is_waited_for():
    drawing = Drawing()
    drawing.linear(drawing.x, 0)
    scaled = drawing.call(operator.mul, drawing.weights[1], 2)
    drawing.call(F.linear, drawing.x, scaled)
    assert check_same(drawing) == 1  # the other one stays as it is


@settings(max_examples=60)
@given(
    rows=st.sampled_from([1, 2, 4, 5]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16]),
    chosen=st.data(),
)
def test_random_graphs_keep_their_results(rows, dtype, chosen):
    drawing = Drawing(rows, dtype)
    for _ in range(chosen.draw(st.integers(3, 10))):
        x = chosen.draw(st.sampled_from(drawing.pool[:2]))  # few inputs, so that many share one
        first, second = (chosen.draw(st.integers(0, 4)) for _ in range(2))
        bias = chosen.draw(st.sampled_from([None, *drawing.biases]))
        match chosen.draw(st.sampled_from(["linear", "linear", "gated", "write", "sum", "addmm"])):
            case "linear":
                drawing.linear(x, first, bias)
            case "gated":
                is_kept = chosen.draw(st.booleans())
                held = len(drawing.pool)
                name = chosen.draw(st.sampled_from(sorted(ACTIVATIONS)))
                product = drawing.gated(x, name, first, second)
                if not is_kept:
                    drawing.pool[held:] = [product]
            case "write":
                ways = [way for way in WAYS if way != "view"]  # which changes the shape
                writing(drawing, x, chosen.draw(st.sampled_from(ways)))
            case "sum":
                # Kept small: what is added up would outgrow every tolerance.
                both = drawing.call(operator.add, x, chosen.draw(st.sampled_from(drawing.pool)))
                drawing.call(torch.tanh, both)
            case "addmm":
                drawing.call(torch.addmm, drawing.biases[0], x, drawing.weights[first])
    assert check_same(drawing) >= 0


# ---------------------------------------------------------------- weights that a step computes

# Kernels read weights before the kernel before them has ended.


@pytest.mark.parametrize("is_bias", [False, True])
def test_weights_that_the_step_computes_are_left_alone(is_bias):
    drawing = Drawing()
    weight, bias = drawing.weights[0], drawing.biases[0]
    made = drawing.graph.call_function(torch.neg, (bias if is_bias else weight,))
    operands = (weight, made) if is_bias else (made, bias)
    drawing.call(F.linear, drawing.x, *operands)
    module = drawing.module()
    assert check_same(drawing, module) == 0


@pytest.mark.parametrize("is_bias", [False, True])
def test_weights_that_the_step_writes_are_left_alone(is_bias):
    drawing = Drawing()
    weight, bias = drawing.weights[0], drawing.biases[0]
    drawing.method("mul_", bias if is_bias else weight, 2.0)
    drawing.call(F.linear, drawing.x, weight, bias)
    drawing.call(torch.addmm, bias, drawing.x, weight)
    module = drawing.module()
    assert check_same(drawing, module) == 0


def test_a_norm_whose_weights_the_step_writes_stays():
    drawing = Drawing()
    drawing.method("mul_", drawing.biases[0], 2.0)
    drawing.linear(normed(drawing, drawing.biases[0]), 0)
    module = drawing.module()
    assert check_same(drawing, module) == 1
    assert joint_of(module).args[4] is None
