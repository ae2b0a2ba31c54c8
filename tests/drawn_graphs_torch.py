"""Graphs of a decoding step, drawn by operations, and a check that rewriting keeps them."""

import operator

from parts import require_part

torch = require_part("torch")
from torch import fx

F = torch.nn.functional

from tinytorch.transforms.static_generation.decode_graph import JOINT, rewrite_products

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
