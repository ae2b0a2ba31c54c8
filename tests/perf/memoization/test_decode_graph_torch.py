import operator
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import require_part

torch = require_part("torch")
from torch import fx

F = torch.nn.functional

from tinytorch.perf.memoization import decode_graph_torch
from tinytorch.perf.memoization.decode_graph_torch import (
    GATED,
    JOINT,
    MOST_ROWS,
    decode_backend,
    rewrite_products,
)

WIDTH = 8
ACTIVATIONS = {
    "silu": (F.silu, {}),
    "relu": (F.relu, {}),
    "relu in place": (F.relu, {"inplace": True}),
    "gelu": (F.gelu, {}),
    "gelu_tanh": (F.gelu, {"approximate": "tanh"}),
    "sigmoid": (torch.sigmoid, {}),  # which we have no kernel for
}


class Noting(fx.Interpreter):
    """Runs a graph and writes at each node what it gave, as tracing does."""

    def run_node(self, node):
        node.meta["example_value"] = result = super().run_node(node)
        return result


class Drawing:
    """A graph that is written operation by operation, of an input, matrices and biases."""

    def __init__(self, rows=1, dtype=torch.float32, outputs=WIDTH):
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape):
            return torch.randn(shape, generator=generator).to(dtype) / 3

        self.graph = fx.Graph()
        matrices = [drawn(outputs, WIDTH) for _ in range(4)]
        matrices.append(drawn(WIDTH, outputs).t())  # the last one does not lie as it should
        self.inputs = [drawn(rows, WIDTH), *matrices, *(drawn(outputs) for _ in range(3))]
        nodes = [self.graph.placeholder(f"given{place}") for place in range(len(self.inputs))]
        self.x, self.weights, self.biases = nodes[0], nodes[1:6], nodes[6:]
        self.pool = [self.x]

    def call(self, function, *args, **kwargs):
        node = self.graph.call_function(function, args, kwargs)
        self.pool.append(node)
        return node

    def method(self, name, *args):
        node = self.graph.call_method(name, args)
        self.pool.append(node)
        return node

    def linear(self, x, weight, bias=None):
        return self.call(F.linear, x, self.weights[weight], *([] if bias is None else [bias]))

    def gated(self, x, name, first, second, *, swapped=False):
        act, kwargs = ACTIVATIONS[name]
        gate = self.linear(x, first)
        pair = self.call(act, gate, **kwargs), self.linear(x, second)
        return self.call(operator.mul, *(reversed(pair) if swapped else pair))

    def module(self):
        self.graph.output((*self.pool, *self.weights[:2]))
        return self.finished()

    def finished(self):
        self.graph.lint()
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        Noting(module).run(*self.copies())
        return module

    def copies(self):
        return [torch.empty_like(each).copy_(each) for each in self.inputs]


def results(module, drawing):
    """Give outputs, and inputs as they are afterwards."""
    given = drawing.copies()
    return [*module(*given), *given]


def check_same(drawing, module=None):
    """Rewrite a graph; its results must stay. Gives how many launches there are."""
    module = module or drawing.module()
    expected = results(module, drawing)
    written = names_in_place(module)
    launches = rewrite_products(module)
    found = results(module, drawing)
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        # Sums of eight products in another order, and what follows from them.
        exact = 1e-5 if one.dtype != torch.bfloat16 else 5e-2
        torch.testing.assert_close(other, one, rtol=exact, atol=exact)
    assert names_in_place(module) == written
    return launches


def names_in_place(module):
    named = [str(node.target) for node in module.graph.nodes if node.op == "call_method"]
    return [name for name in named if name.endswith("_")]


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


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


# ---------------------------------------------------------------- norms before, sums after


def normed(drawing, weight, *, eps=1e-5):
    """Write a norm of the rows, as models do."""
    wide = drawing.method("to", drawing.x, torch.float32)
    mean = drawing.graph.call_method(
        "mean", (drawing.method("pow", wide, 2), -1), {"keepdim": True}
    )
    inverse = drawing.call(torch.rsqrt, drawing.call(operator.add, mean, eps))
    scaled = drawing.method("to", drawing.call(operator.mul, wide, inverse), torch.float32)
    return drawing.graph.call_function(operator.mul, (weight, scaled))


def joint_of(module):
    return next(node for node in module.graph.nodes if node.target is JOINT)


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
