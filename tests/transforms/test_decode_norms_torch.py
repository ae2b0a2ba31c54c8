import operator

import pytest
from parts import require_part

torch = require_part("torch")
from torch import fx

from tinytorch.transforms.static_generation.decode_graph import find_norm, value_of

WIDTH, EPS = 8, 1e-5


class Writing:
    """A graph of a norm, written operation by operation; `last` is what would be multiplied."""

    def __init__(self, dtype=torch.bfloat16):
        self.graph = fx.Graph()
        self.dtype = dtype
        self.x = self.given("x", torch.randn(1, 1, WIDTH, dtype=dtype))
        self.weight = self.given("weight", torch.randn(WIDTH, dtype=dtype))

    def given(self, name, value):
        node = self.graph.placeholder(name)
        node.meta["example_value"] = value
        return node

    def call(self, target, *args, **kwargs):
        make = self.graph.call_method if isinstance(target, str) else self.graph.call_function
        node = make(target, args, kwargs)
        known = [each.meta["example_value"] if isinstance(each, fx.Node) else each for each in args]
        function = getattr(known[0], target) if isinstance(target, str) else target
        rest = known[1:] if isinstance(target, str) else known
        node.meta["example_value"] = function(*rest, **kwargs)
        return node

    def norm(
        self, *, square=("pow", 2), axis=-1, keepdim=True, eps=EPS, weight=None, swapped=False
    ):
        wide = self.call("to", self.x, torch.float32)
        squares = self.call(square[0], wide, *square[1:])
        mean = self.call("mean", squares, axis, keepdim=keepdim)
        inverse = self.call(torch.rsqrt, self.call(operator.add, mean, eps))
        scaled = self.call(operator.mul, *((inverse, wide) if swapped else (wide, inverse)))
        cast = self.call("to", scaled, self.dtype)
        pair = (self.weight if weight is None else weight, cast)
        return self.call(operator.mul, *(reversed(pair) if swapped else pair))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("square", [("pow", 2), ("square",)], ids=["pow", "square"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_norm_is_recognised_by_what_it_computes(dtype, square, swapped):
    writing = Writing(dtype)
    found = find_norm(writing.norm(square=square, swapped=swapped))
    assert (found.x, found.weight, found.eps) == (writing.x, writing.weight, EPS)
    assert found.begin.args[0] is writing.x


@pytest.mark.parametrize(
    "changes",
    [{"square": ("pow", 3)}, {"axis": 1}, {"keepdim": False}, {"eps": 1}],
    ids=["cubes", "another axis", "an axis less", "a whole number"],
)
def test_what_computes_something_else_is_no_norm(changes):
    assert find_norm(Writing().norm(**changes)) is None


def test_a_weight_that_is_computed_or_has_other_axes_makes_no_norm():
    writing = Writing()
    shifted = writing.call(operator.add, writing.weight, 1.0)
    assert find_norm(writing.norm(weight=shifted)) is None
    matrix = writing.given("matrix", torch.randn(WIDTH, WIDTH, dtype=writing.dtype))
    assert find_norm(writing.norm(weight=matrix)) is None


def test_the_squares_must_be_those_of_what_is_scaled():
    writing = Writing()
    other = writing.given("other", torch.randn(1, 1, WIDTH, dtype=writing.dtype))
    wide = writing.call("to", writing.x, torch.float32)
    foreign = writing.call("to", other, torch.float32)
    mean = writing.call("mean", writing.call("pow", foreign, 2), -1, keepdim=True)
    inverse = writing.call(torch.rsqrt, writing.call(operator.add, mean, EPS))
    cast = writing.call("to", writing.call(operator.mul, wide, inverse), writing.dtype)
    assert find_norm(writing.call(operator.mul, writing.weight, cast)) is None


def test_inputs_and_numbers_are_no_norms():
    writing = Writing()
    assert find_norm(writing.x) is None
    assert find_norm(3.0) is None
    assert value_of(3.0) is None
