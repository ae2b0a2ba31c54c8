import numpy as np
import pytest
from oracles import laid_out
from parts import require_part

require_part("numba")

from tinytorch.core.kernels.numba.compile import (
    empty_rows,
    flat,
    has_rows,
    readable,
    rows_of,
    shared_work,
)


def locked(array):
    array.flags.writeable = False
    return array


def misplaced(array):
    """Give an equal array whose elements do not lie at multiples of their size."""
    buffer = np.zeros(array.nbytes + 1, np.uint8)[1:]
    moved = buffer.view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
STRANGE = {
    "plain": X,
    "read-only": locked(X.copy()),
    "transposed": laid_out(X, "transposed"),
    "strided": laid_out(X, "strided"),
    "backwards": X[::-1, :, ::-1],
    "broadcast": np.broadcast_to(np.float32(3), (2, 3, 4)),
    "misplaced": misplaced(X),
}


@pytest.mark.parametrize("name", STRANGE)
def test_any_array_becomes_an_equal_one_of_the_type_that_kernels_are_compiled_for(name):
    array = STRANGE[name]
    for computed, shape in ((readable(array), (2, 3, 4)), (flat(array), (24,))):
        assert computed.flags.carray
        np.testing.assert_array_equal(computed, array.reshape(shape))
    assert rows_of(array).flags.carray
    np.testing.assert_array_equal(rows_of(array), array.reshape(6, 4))


@pytest.mark.parametrize("name", ["plain", "read-only"])
def test_memory_without_gaps_is_not_copied(name):
    for give in (readable, flat, rows_of):
        assert np.shares_memory(give(STRANGE[name]), STRANGE[name])


def test_the_memory_of_a_read_only_array_lives_as_long_as_it_is_looked_at():
    view = readable(locked(np.full(100_000, 7, np.float32)))
    others = [np.zeros(100_000, np.float32) for _ in range(10)]
    assert (view == 7).all()
    assert not any(other.any() for other in others)


def test_an_array_of_two_axes_is_its_rows_already():
    rows = np.ones((3, 5), np.float32)
    assert rows_of(rows) is rows


def test_rows_are_float32_along_the_last_axis():
    assert has_rows(X)
    assert has_rows(X, 2)
    assert not has_rows(X, 1)
    assert not has_rows(X.astype(np.float64))
    assert not has_rows(X[:0])
    assert not has_rows(np.float32(1))


def test_room_for_rows_is_seen_twice():
    result, rows = empty_rows(X)
    rows[...] = np.arange(24).reshape(6, 4)
    np.testing.assert_array_equal(result, X)
    assert result.base is None


def test_one_row_is_not_shared():
    assert shared_work(np.zeros((1, 100))) == 0
    assert shared_work(np.zeros((2, 100)), 4) == 800
