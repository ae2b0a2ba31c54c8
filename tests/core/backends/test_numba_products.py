"""Compiled matrix products against float64 and against the obvious ones."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import laid_out
from parts import require_part

require_part("numba")

from tinytorch.core.kernels import REFERENCE
from tinytorch.core.kernels.numba import products as numba_products
from tinytorch.core.kernels.numba.products import DEPTH, KERNELS
from tinytorch.core.kernels.numba.simd import LANES, TILE_COLUMNS, TILE_ROWS, VECTORS
from tinytorch.core.kernels.reference import ACTIVATIONS

matmul, linear = KERNELS["matmul"], KERNELS["linear"]
EDGES = [vectors * LANES + more for vectors in range(2 * VECTORS + 1) for more in (0, 1, LANES - 1)]
SIZES = [1, 2, 3, TILE_ROWS, 17, TILE_COLUMNS - 1, TILE_COLUMNS, TILE_COLUMNS + 1, 3 * TILE_COLUMNS]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def assert_product(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Each element is a sum; its rounding is bounded by the sum of the absolute values."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    terms = a.shape[-1]
    assert result.dtype == np.float32
    assert result.shape == exact.shape
    assert (np.abs(result - exact) <= (terms + 2) * np.finfo(np.float32).eps * bound + 1e-30).all()


@pytest.fixture(autouse=True)
def _never_too_small(monkeypatch):
    """Send every size to the compiled kernels."""
    monkeypatch.setattr(numba_products, "SMALLEST_PRODUCT", 1)
    monkeypatch.setattr(numba_products, "NARROWEST_PRODUCT", 1)


@given(
    rows=st.sampled_from([*SIZES, 100]),
    depth=st.sampled_from([*SIZES, DEPTH - 1, DEPTH + 5, 2 * DEPTH]),
    columns=st.sampled_from(SIZES),
    layouts=st.tuples(*2 * [st.sampled_from(["contiguous", "transposed", "strided"])]),
)
def test_a_product_of_any_size_and_layout_is_right(rows, depth, columns, layouts):
    a, b = normal(rows, depth), normal(depth, columns, seed=1)
    assert_product(matmul(laid_out(a, layouts[0]), laid_out(b, layouts[1])), a, b)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("rows", [1, 2, TILE_ROWS + 5])
@pytest.mark.parametrize("columns", EDGES[1:])
def test_panels_of_any_number_of_vectors_give_the_product(columns, rows, layout):
    for depth in (1, 5, DEPTH + 1):
        a, b = normal(rows, depth), normal(depth, columns, seed=1)
        assert_product(matmul(a, laid_out(b, layout)), a, b)


@pytest.mark.parametrize("rows", [2, TILE_ROWS, 100])
@pytest.mark.parametrize("columns", EDGES[1:])
def test_a_column_does_not_depend_on_the_width_of_its_panel(columns, rows):
    a, b = normal(rows, 70), normal(70, 3 * TILE_COLUMNS, seed=1)
    whole = matmul(a, b)[:, :columns]
    np.testing.assert_array_equal(matmul(a, np.ascontiguousarray(b[:, :columns])), whole)


@pytest.mark.parametrize("columns", [3, LANES + 2, TILE_COLUMNS + 1, 2 * TILE_COLUMNS + 5])
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_what_vectors_read_of_the_next_row_does_not_count(rows, columns):
    x, weight = normal(rows, 40), normal(40, columns, seed=1)
    weight[:, 0] = np.nan
    result = linear(x, weight)
    assert np.isnan(result[:, 0]).all()
    assert_product(result[:, 1:], x, weight[:, 1:])


def test_rows_are_counted_as_long_as_their_vectors_lie_within_the_array():
    elements = np.zeros(30, np.float32)  # rows of 10
    count = numba_products.rows_within.py_func
    assert [count(elements, 0, 10, width, 3) for width in (10, 11, 16, 20, 21, 30, 31, 64)] == [
        3, 2, 2, 2, 1, 1, 0, 0,
    ]  # fmt: skip
    assert count(elements, 8, 10, 2, 3) == 3
    assert count(elements, 8, 10, 16, 3) == 1


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are guarded by mprotect")
def test_nothing_beyond_the_matrices_is_read():
    code = """
import ctypes, mmap
import numpy as np
from tinytorch.core.kernels.numba import products
from tinytorch.core.kernels.numba.simd import LANES, TILE_COLUMNS
products.SMALLEST_PRODUCT = products.NARROWEST_PRODUCT = 1
libc = ctypes.CDLL(None, use_errno=True)

def at_the_end(*shape):
    size = 4 * int(np.prod(shape))
    inside = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, inside + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(start + inside), mmap.PAGESIZE, 0) == 0
    array = np.frombuffer(memory, np.float32, size // 4, inside - size).reshape(shape)
    array[:] = 1
    return array

for columns in (1, 3, LANES, LANES + 1, TILE_COLUMNS - 1, TILE_COLUMNS + 1, 5 * TILE_COLUMNS + 2):
    for depth in (1, 2, 40, products.DEPTH + 1):
        b, turned = at_the_end(depth, columns), at_the_end(columns, depth).T
        for rows in (1, 2, 13):
            a = at_the_end(rows, depth)
            assert (products.matmul(a, b) == depth).all()
            assert (products.matmul(a, turned) == depth).all()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


@pytest.mark.parametrize("columns", [3, LANES + 2, TILE_COLUMNS + 1, 2 * TILE_COLUMNS])
@pytest.mark.parametrize("rows", [2, TILE_ROWS + 3])
def test_nothing_beside_the_result_is_written(rows, columns):
    a, b = normal(rows, 20), normal(20, columns, seed=1)
    around, size = np.full(rows * columns + 200, 7, np.float32), rows * columns
    scratch = np.empty((1, numba_products.PANEL_SCRATCH), np.float32)
    numba_products.multiply(
        a.reshape(-1), 0, 20, 1, b.reshape(-1), 0, columns, 1, around[100 : 100 + size],
        1, rows, 20, columns, np.empty(0, np.float32), 0, TILE_ROWS, False, scratch, work=0,
    )  # fmt: skip
    assert_product(around[100 : 100 + size].reshape(rows, columns), a, b)
    assert (np.delete(around, slice(100, 100 + size)) == 7).all()


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("stack", [(3,), (2, 5)])
def test_stacks_of_matrices_are_multiplied_one_by_one(stack, turned):
    a, b = normal(*stack, 13, 70), normal(*stack, 70, 90, seed=1)
    odd_a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) if turned[0] else a
    odd_b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2) if turned[1] else b
    assert_product(matmul(odd_a, odd_b), a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [((4, 3), (2, 3, 5)), ((3,), (3, 5)), ((2, 1, 4, 3), (1, 6, 3, 5)), ((0, 3), (3, 5))],
)
def test_what_broadcasts_or_is_empty_follows_numpy(a, b):
    left, right = normal(*a), normal(*b)
    np.testing.assert_array_equal(matmul(left, right), np.matmul(left, right))


def test_other_dtypes_follow_numpy():
    whole = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(matmul(whole, whole.T), whole @ whole.T)
    wide = normal(40, 50).astype(np.float64)
    assert matmul(wide, wide.T).dtype == np.float64
    assert linear(wide, wide.T).dtype == np.float64


def test_shapes_that_do_not_fit_are_refused_as_by_numpy():
    with pytest.raises(ValueError, match="mismatch"):
        matmul(normal(40, 50), normal(51, 60))
    with pytest.raises(ValueError, match="mismatch"):
        linear(normal(40, 50), normal(51, 60))


@pytest.mark.parametrize("rows", [1, 2, 30])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_bias_and_activation_follow_the_product(activation, rows, layout):
    x, weight, bias = normal(2, rows, 33), normal(33, 130, seed=1), normal(130, seed=2)
    expected = REFERENCE.kernels["linear"](
        *(array.astype(np.float64) for array in (x, weight, bias)), activation=activation
    )
    result = linear(x, laid_out(weight, layout), bias, activation=activation)
    # 34 roundings of sums of about 6, and activations that are good to 2e-7 of at most 6 / 2
    np.testing.assert_allclose(result, expected, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_nan_and_infinity_are_not_hidden(rows):
    x, weight = np.abs(normal(rows, 64)), np.abs(normal(64, 128, seed=1))
    weight[3, 5], weight[4, 70] = np.nan, np.inf
    for activation in (None, "relu", "gelu_tanh", "gelu"):
        result = linear(x, weight, activation=activation)
        assert np.isnan(result[:, 5]).all()
        assert np.isposinf(result[:, 70]).all()
        assert np.isfinite(np.delete(result, [5, 70], axis=1)).all()


def test_arrays_that_cannot_be_written_are_read():
    a, b = normal(30, 40), normal(40, 50)
    expected = matmul(a, b)
    a.flags.writeable = b.flags.writeable = False
    np.testing.assert_array_equal(matmul(a, b), expected)
    np.testing.assert_array_equal(linear(a[:1], b), matmul(a[:1], b))


def test_the_same_product_is_the_same_bit_for_bit():
    a, b = normal(130, 700), normal(700, 200)
    first = matmul(a, b)
    assert all((matmul(a, b) == first).all() for _ in range(5))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [("4", "2"), ("2", "1"), ("4", "3")])
def test_fewer_threads_than_cores_stay_within_their_memory(threads, tmp_path):
    code = """
import numpy as np
from tinytorch.core.kernels.numba import products
a = np.ones((400, 64), np.float32)
b = np.ones((64, 2100), np.float32)
size = products.THREADS * products.PANEL_SCRATCH
guarded = np.full(2 * size, 7, np.float32)
products._scratch._array = guarded[:size]
assert (products.matmul(a, b) == 64).all()
assert (guarded[size:] == 7).all()
print(products.THREADS)
"""
    cores, wanted = threads
    variables = {"NUMBA_NUM_THREADS": cores, "OMP_NUM_THREADS": wanted}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, wanted), done.stderr


def test_a_depth_of_0_gives_the_bias():
    x, weight, bias = np.ones((4, 0), np.float32), np.ones((0, 3), np.float32), normal(3)
    np.testing.assert_array_equal(linear(x, weight, bias), np.broadcast_to(bias, (4, 3)))
    assert not matmul(x, weight).any()


def test_little_work_is_left_to_blas(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(numba_products, "_product", None)  # would raise when called
    a, b = normal(3, 4), normal(4, 5)
    np.testing.assert_array_equal(matmul(a, b), a @ b)
    np.testing.assert_array_equal(linear(a, b), a @ b)
