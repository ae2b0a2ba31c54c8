import math

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.fuse_attention.graph import GraphCode, trace_call
from tinytorch.transforms.fuse_attention.kernel import AnotherCall, NotFused, shape_of

X = torch.arange(12.0).view(3, 4)


class Flexible(nn.Module):
    """Takes its branches by sizes and by what it is given."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.ones(9, 9).tril())

    def forward(self, x, mask=None, *, factor=1.0):
        rows, columns = x.shape
        assert columns == 4
        if mask is not None:
            x = x * mask
        if rows > 5:
            return x
        first, *rest = x.chunk(2, dim=1)
        x = torch.cat([first, *rest], dim=1) + self.table[:rows, :columns]
        x = self.linear(x) * self.weight / math.sqrt(columns) + torch.ones(rows, 1)
        return x.masked_fill(x > 1e9, torch.finfo(x.dtype).min) * factor


def followed(module, *inputs, **keywords):
    with torch.no_grad():
        return trace_call(module, inputs, keywords)


def code_of(module, *inputs, **keywords):
    return GraphCode.of(followed(module, *inputs, **keywords)[1])


def test_a_graph_computes_what_the_call_did_for_other_sizes_too():
    module = Flexible()
    code = code_of(module, X, factor=2.0)
    for rows in (1, 3, 5):
        x = torch.randn(rows, 4)
        assert torch.equal(code(module, x), module(x, factor=2.0))


def test_branches_that_a_graph_does_not_hold_are_noticed():
    module = Flexible()
    code = code_of(module, X)
    with pytest.raises(AnotherCall):
        code(module, torch.ones(6, 4))


def test_each_kind_of_call_has_its_graph():
    module, mask = Flexible(), torch.full((3, 4), 0.5)
    assert followed(module, X)[0] != followed(module, X, mask)[0]
    assert torch.equal(code_of(module, X, mask)(module, X, mask), module(X, mask))


def test_nodes_know_the_shapes_that_were_seen():
    _, graph = followed(Flexible(), X)
    shapes = {node.name: shape_of(node) for node in graph.nodes}
    assert shapes["tensor_1"] == (3, 4)
    assert shapes["linear"] == (3, 4)
    assert shape_of(4) is None


def test_modules_stand_as_calls_unless_they_are_inlined():
    class Inner(nn.Module):
        def forward(self, x):
            return x + 1

    module = nn.Sequential(Inner())
    for inlined, expected in (((), "call_module"), (("0",), "call_function")):
        _, graph = trace_call(module, (X,), {}, inlined=inlined)
        assert expected in {node.op for node in graph.nodes}


def test_changes_in_place_are_followed():
    class InPlace(nn.Module):
        def forward(self, x):
            y = x + 1
            y.mul_(2)
            return y

    _, graph = trace_call(InPlace(), (X,), {})
    last = next(reversed(graph.nodes))
    assert last.args[0].target == "mul_"


class ByNumbers(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class ByMode(nn.Module):
    def forward(self, x):
        return x if torch.is_grad_enabled() else -x


class Constant(nn.Module):
    constant = torch.ones(4)

    def forward(self, x):
        return x + self.constant * 2


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (ByNumbers, "numbers in its inputs decide"),
        (ByMode, r"torch.is_grad_enabled\(\) decides"),
        (Constant, "makes tensors that do not depend on its inputs"),
    ],
)
def test_what_a_graph_cannot_hold_has_a_reason(module, reason):
    with pytest.raises(NotFused, match=reason):
        followed(module(), X)


def test_objects_and_replaced_forwards_have_no_graph():
    with pytest.raises(NotFused, match="called with an object"):
        followed(Flexible(), X, object())
    module = Flexible()
    module.forward = lambda x: x
    with pytest.raises(NotFused, match="forward was replaced"):
        followed(module, X)


def test_torch_is_as_before():
    names = ("ones", "finfo", "tensor", "arange")
    before = [getattr(torch, name) for name in names]
    followed(Flexible(), X)
    with pytest.raises(NotFused):
        followed(ByNumbers(), X)
    assert [getattr(torch, name) for name in names] == before
