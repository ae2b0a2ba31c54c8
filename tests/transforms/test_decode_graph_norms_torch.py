"""Norms before products and sums after them are computed in the same launch."""

import operator

import pytest
from parts import require_part

torch = require_part("torch")
from drawn_graphs_torch import (
    Drawing,
    check_same,
    joint_of,
    normed,
    targets,
)

F = torch.nn.functional

from tinytorch.transforms.static_generation.decode_graph import GATED

# ---------------------------------------------------------------- norms before, sums after


def test_a_norm_before_products_is_computed_in_them():
    drawing = Drawing()
    rows = normed(drawing, drawing.biases[0])
    products = [drawing.linear(rows, 0), drawing.linear(rows, 1)]
    drawing.pool = [*products, drawing.gated(rows, "silu", 2, 3)]
    module = drawing.module()
    assert check_same(drawing, module) == 2
    assert joint_of(module).args[4:6] == (drawing.biases[0], 1e-5)
    gated = next(node for node in module.graph.nodes if node.target is GATED)
    assert gated.args[4:] == (drawing.biases[0], 1e-5)


def test_a_norm_that_others_read_as_well_stays():
    drawing = Drawing()
    rows = normed(drawing, drawing.biases[0])
    drawing.linear(rows, 0)
    drawing.call(torch.neg, rows)
    module = drawing.module()
    assert check_same(drawing, module) == 1
    assert joint_of(module).args[4] is None


def test_a_norm_of_rows_that_change_before_the_product_stays():
    drawing = Drawing()
    rows = normed(drawing, drawing.biases[0])
    drawing.method("add_", drawing.x, 1.0)
    drawing.linear(rows, 0)
    module = drawing.module()
    assert check_same(drawing, module) == 1
    assert joint_of(module).args[4] is None


def test_a_norm_of_which_all_rows_are_taken_is_computed_in_the_product():
    """As decoders do it before their last layer, where only some scores may be wanted."""
    drawing = Drawing()
    rows = normed(drawing, drawing.biases[0])
    taken = drawing.graph.call_function(operator.getitem, (rows, (slice(0, None, None), ...)))
    drawing.linear(taken, 0)
    module = drawing.module()
    assert check_same(drawing, module) == 1
    assert joint_of(module).args[4:6] == (drawing.biases[0], 1e-5)


@pytest.mark.parametrize("part", [slice(1, None), slice(None, -1), slice(None, None, 2), 0])
def test_a_norm_of_which_some_rows_are_taken_stays(part):
    drawing = Drawing(rows=3)
    rows = normed(drawing, drawing.biases[0])
    drawing.linear(drawing.graph.call_function(operator.getitem, (rows, part)), 0)
    module = drawing.module()
    assert check_same(drawing, module) == 1
    assert joint_of(module).args[4] is None


@pytest.mark.parametrize("swapped", [False, True])
def test_a_sum_after_a_single_product_is_computed_in_it(swapped):
    drawing = Drawing()
    product = drawing.graph.call_function(F.linear, (drawing.x, drawing.weights[0]))
    pair = (product, drawing.x)
    drawing.call(operator.add, *(reversed(pair) if swapped else pair))
    module = drawing.module()
    assert check_same(drawing, module) == 1
    assert joint_of(module).args[6] is drawing.x
    assert operator.add not in targets(module)


def test_a_sum_of_other_shapes_or_with_a_number_stays():
    drawing = Drawing()
    for added in (drawing.biases[0], 1.0):
        product = drawing.graph.call_function(F.linear, (drawing.x, drawing.weights[0]))
        drawing.call(operator.add, product, added)
    module = drawing.module()
    check_same(drawing, module)
    assert joint_of(module).args[6] is None
    assert targets(module).count(operator.add) == 2
