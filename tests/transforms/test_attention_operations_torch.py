import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
F = nn.functional

from tinytorch.transforms.fuse_attention.kernel import number_of, operand, operation


class Layers(nn.Module):
    class OwnSoftmax(nn.Softmax):
        pass

    def __init__(self):
        super().__init__()
        self.softmax, self.own = nn.Softmax(-1), Layers.OwnSoftmax(-1)


GRAPH = torch.fx.Graph()
X = GRAPH.placeholder("x")


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (GRAPH.call_function(torch.bmm, (X, X)), "matmul"),
        (GRAPH.call_method("matmul", (X, X)), "matmul"),
        (GRAPH.call_function(F.softmax, (X,), {"dim": -1}), "softmax"),
        (GRAPH.call_method("softmax", (X, -1)), "softmax"),
        (GRAPH.call_module("softmax", (X,)), "softmax"),
        (GRAPH.call_module("own", (X,)), ""),
        (GRAPH.call_method("masked_fill_", (X, X, 0.0)), "masked_fill"),
        (GRAPH.call_function(torch.tanh, (X,)), ""),
        (X, ""),
        (3, ""),
    ],
)
def test_spellings_of_an_operation_have_one_word(node, word):
    assert operation(node, Layers()) == word


def test_operands_are_found_by_place_or_name():
    node = GRAPH.call_function(torch.add, (X,), {"other": 2})
    assert operand(node, 0) is X
    assert operand(node, 1, "other") == 2
    assert operand(node, 2, "alpha", default=1) == 1
    assert operand(GRAPH.call_function(torch.neg, (), {"input": X}), 0) is X


def test_numbers_are_those_that_hold_in_every_call():
    module = Layers()
    full = GRAPH.call_function(torch.full, ((), -5.0))
    limit = GRAPH.call_function(getattr, (GRAPH.call_function(torch.finfo, (X,)), "min"))
    assert number_of(3, module) == 3.0
    assert number_of(full, module) == -5.0
    assert number_of(GRAPH.call_function(torch.tensor, (-2.0,)), module) == -2.0
    assert number_of(limit, module) == torch.finfo(torch.float16).min
    assert number_of(X, module) is None
    assert number_of(True, module) is None
