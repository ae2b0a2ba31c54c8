"""What becomes of the products of a traced step, and of what the compiler traces."""

import operator
import warnings

import pytest
from parts import require_part

torch = require_part("torch")
from drawn_graphs_torch import (
    ACTIVATIONS,
    WIDTH,
    Drawing,
    check_same,
    names_in_place,
    targets,
)

F = torch.nn.functional

from tinytorch.transforms.static_generation import decode_graph as decode_graph_torch
from tinytorch.transforms.static_generation.decode_graph import (
    GATED,
    JOINT,
    MOST_ROWS,
    decode_backend,
    rewrite_products,
)

# ---------------------------------------------------------------- what becomes of products


def test_layers_of_one_input_are_one_launch():
    drawing = Drawing()
    for place in range(3):
        drawing.linear(drawing.x, place)
    module = drawing.module()
    assert check_same(drawing, module) == 1
    assert targets(module).count(JOINT) == 1


def test_more_than_three_are_more_launches():
    drawing = Drawing()
    for place in range(4):
        drawing.linear(drawing.x, place)
    assert check_same(drawing) == 2


def test_layers_with_and_without_a_bias_are_apart():
    drawing = Drawing()
    drawing.linear(drawing.x, 0, drawing.biases[0])
    drawing.linear(drawing.x, 1)
    drawing.linear(drawing.x, 2, drawing.biases[1])
    assert check_same(drawing) == 2


def test_a_bias_by_name_is_taken():
    drawing = Drawing()
    drawing.call(F.linear, drawing.x, drawing.weights[0], bias=drawing.biases[0])
    drawing.linear(drawing.x, 1, drawing.biases[1])
    assert check_same(drawing) == 1


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gate_is_one_launch(name, swapped):
    drawing = Drawing()
    product = drawing.gated(drawing.x, name, 0, 1, swapped=swapped)
    drawing.graph.output((product,))
    module = drawing.finished()
    assert check_same(drawing, module) == 1
    is_known = name != "sigmoid"
    assert (GATED in targets(module)) is is_known
    assert (JOINT in targets(module)) is not is_known


def test_a_gate_that_is_used_twice_stays():
    drawing = Drawing()
    drawing.gated(drawing.x, "silu", 0, 1)  # all of the pool is given back
    module = drawing.module()
    check_same(drawing, module)
    assert GATED not in targets(module)


def test_a_product_into_something_given_stays():
    drawing = Drawing()
    kept = drawing.call(torch.empty_like, drawing.x)
    gate = drawing.call(F.silu, drawing.linear(drawing.x, 0))
    product = drawing.call(torch.mul, gate, drawing.linear(drawing.x, 1), out=kept)
    drawing.graph.output((kept, product))
    module = drawing.finished()
    check_same(drawing, module)
    assert GATED not in targets(module)


def test_a_sum_with_a_product_is_a_launch():
    drawing = Drawing(rows=2)
    drawing.call(torch.addmm, drawing.biases[0], drawing.x, drawing.weights[0])
    assert check_same(drawing) == 1


@pytest.mark.parametrize(
    ("rows", "dtype", "launches"),
    [
        (1, torch.float32, 1),
        (MOST_ROWS, torch.float32, 1),
        (MOST_ROWS + 1, torch.float32, 0),
        (1, torch.bfloat16, 1),
        (1, torch.float16, 1),
        (1, torch.float64, 0),
    ],
)
def test_few_rows_of_known_dtypes_are_rewritten(rows, dtype, launches):
    drawing = Drawing(rows, dtype, outputs=5)
    drawing.linear(drawing.x, 0)
    drawing.linear(drawing.x, 1)
    assert check_same(drawing) == launches


def test_a_matrix_that_does_not_lie_in_rows_stays():
    drawing = Drawing(outputs=5)
    drawing.linear(drawing.x, 4)
    assert check_same(drawing) == 0


def test_parts_of_several_rows_can_be_viewed_in_any_way():
    drawing = Drawing(rows=3)
    for place in range(2):
        drawing.method("view", drawing.linear(drawing.x, place), -1)
    assert check_same(drawing) == 1


def test_a_bias_that_is_spread_stays():
    drawing = Drawing()
    one = drawing.call(operator.getitem, drawing.biases[0], slice(0, 1))
    drawing.linear(drawing.x, 0, one)
    assert check_same(drawing) == 0


def test_under_autocast_nothing_is_rewritten():
    drawing = Drawing()
    drawing.linear(drawing.x, 0)
    drawing.graph.output((drawing.pool[-1],))
    with torch.autocast("cpu", torch.bfloat16):
        module = drawing.finished()
        assert check_same(drawing, module) == 0


# ---------------------------------------------------------------- what the compiler traces


def test_a_traced_model_keeps_its_results_and_what_it_writes():
    kept = torch.zeros(4, WIDTH)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]
    found = []

    def step(x):
        q, k, v = (layer(x) for layer in layers[:3])
        kept.index_copy_(0, torch.tensor([1]), k)
        return q + v * kept.sum() + layers[3](F.silu(layers[0](q)) * layers[1](q))

    def backend(graph_module, inputs):
        before = names_in_place(graph_module)
        found.append(rewrite_products(graph_module))
        assert names_in_place(graph_module) == before == ["index_copy_"]
        return graph_module.forward

    x = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = step(x)
        kept.zero_()
        torch.testing.assert_close(torch.compile(step, backend=backend)(x), expected)
    assert found == [3]  # three layers of x; the gate; the last one
    assert kept.any()


@pytest.mark.slow
def test_on_a_processor_it_is_plain_inductor(monkeypatch):
    monkeypatch.setattr(
        decode_graph_torch, "rewrite_products", lambda module: pytest.fail("rewritten")
    )
    layer = torch.nn.Linear(WIDTH, WIDTH)
    x = torch.ones(1, WIDTH)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch imports what it has deprecated
        compiled = torch.compile(layer, backend=decode_backend("cpu"), dynamic=False)
        torch.testing.assert_close(compiled(x), layer(x))
