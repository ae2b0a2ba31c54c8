import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.activations import GELU
from tinytorch.core.autograd import check_gradients
from tinytorch.core.dispatch import recording
from tinytorch.errors import SettingError, ShapeError
from tinytorch.transforms.optimized_backend import (
    fused_gelu,
    tiled_matmul,
    unfused_gelu,
    vectorized_matmul,
)

SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 5)),
    ((2, 3), (3,)),
    ((7, 5), (5, 3)),
    ((4, 7, 5), (5, 3)),
    ((7, 5), (4, 5, 3)),
    ((4, 1, 2, 3), (6, 3, 5)),
    ((0, 3), (3, 5)),
    ((2, 0), (0, 5)),
]
# Sums of few products, in another order: a few roundings of the largest element.
CLOSE = {"rtol": 0, "atol": 2e-6}


def drawn(rng, shape, dtype=np.float64, requires_grad=True):
    return Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=requires_grad)


@pytest.mark.parametrize("tile_size", [1, 2, 3, 64])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_tiled_products_are_products(a, b, tile_size, rng):
    one, other = (drawn(rng, shape, np.float32) for shape in (a, b))
    result = tiled_matmul(one, other, tile_size=tile_size)
    expected = np.matmul(one.data, other.data)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(result.data, expected, **CLOSE)


@given(*[st.integers(1, 9)] * 3, st.integers(1, 12))
def test_any_sizes_and_tiles_fit(rows, inner, columns, tile_size):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    np.testing.assert_allclose(tiled_matmul(a, b, tile_size).data, a @ b, rtol=1e-12, atol=1e-12)


def test_it_is_really_tiled(rng):
    seen = []
    a, b = drawn(rng, (5, 7)), drawn(rng, (7, 3))
    with recording(lambda call: seen.append([spec.shape for spec in call.inputs])):
        tiled_matmul(a, b, tile_size=4)
    assert len(seen) == 2 * 1 * 2  # rows, columns, inner
    assert max(length for shapes in seen for shape in shapes for length in shape) == 4


@pytest.mark.parametrize(("a", "b"), SHAPES[:7])
def test_products_have_gradients(a, b, rng):
    one, other = drawn(rng, a), drawn(rng, b)
    for product in (vectorized_matmul, lambda a, b: tiled_matmul(a, b, tile_size=2)):
        check_gradients(lambda a, b, product=product: (product(a, b) ** 2).sum(), one, other)
    assert one.grad is not None


@pytest.mark.parametrize("function", [fused_gelu, unfused_gelu])
def test_gelu_has_gradients(function, rng):
    x = drawn(rng, (3, 4))
    check_gradients(lambda x: (function(x) ** 2).sum(), x)
    assert x.grad is not None


def test_all_agree_with_torch(rng):
    torch = require_part("torch")
    a, b = (drawn(rng, shape, np.float32) for shape in ((9, 70), (70, 5)))
    twins = [torch.tensor(t.data, requires_grad=True) for t in (a, b)]
    (twins[0] @ twins[1]).pow(2).sum().backward()
    for product in (vectorized_matmul, tiled_matmul):
        a.grad = b.grad = None
        (product(a, b) ** 2).sum().backward()
        for tensor, twin in zip((a, b), twins, strict=True):
            np.testing.assert_allclose(tensor.grad, twin.grad.numpy(), rtol=1e-4, atol=1e-3)
    x = torch.tensor(a.data, requires_grad=True)
    torch.nn.functional.gelu(x, approximate="tanh").sum().backward()
    for function in (fused_gelu, unfused_gelu):
        a.grad = None
        function(a).sum().backward()
        np.testing.assert_allclose(a.grad, x.grad.numpy(), rtol=1e-4, atol=2e-6)


def test_both_forms_of_gelu_are_the_layer_within_rounding(rng):
    x = drawn(rng, (50, 40), np.float32, requires_grad=False)
    for function in (fused_gelu, unfused_gelu):
        np.testing.assert_allclose(function(x).data, GELU()(x).data, **CLOSE)


def test_fusing_saves_operations(rng):
    kinds = {fused_gelu: [], unfused_gelu: []}
    x = drawn(rng, (3, 4), np.float32)
    for function, seen in kinds.items():
        with recording(lambda call, seen=seen: seen.append(call.kind)):
            function(x)
    assert kinds[fused_gelu] == ["gelu"]
    assert len(kinds[unfused_gelu]) == 8


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (((2, 3), (4, 5)), "the last axis of the first must be as long"),
        (((2, 2, 3), (4, 3, 5)), "the axes before the last two must broadcast"),
        (((), (3,)), "numbers have no matrix product"),
        (((2, 3), ()), "numbers have no matrix product"),
    ],
)
def test_shapes_that_do_not_fit_are_explained(shapes, reason):
    with pytest.raises(ShapeError, match=reason):
        tiled_matmul(*(Tensor(np.ones(shape)) for shape in shapes))


@pytest.mark.parametrize("tile_size", [0, -1, 2.5, "8", None, True])
def test_tile_sizes_that_cannot_be_are_explained(tile_size):
    with pytest.raises(SettingError, match="tile_size must be a whole number of at least 1"):
        tiled_matmul(Tensor([[1.0]]), Tensor([[1.0]]), tile_size=tile_size)


def test_arrays_are_taken_for_tensors():
    assert isinstance(vectorized_matmul(np.eye(2), np.eye(2)), Tensor)
    assert isinstance(fused_gelu(np.ones(2)), Tensor)
