"""The parts of the compiled kernels of attention."""

import numpy as np
import pytest
from parts import require_part

numba = require_part("numba")

from tinytorch.core.kernels.numba import attention_blocks as blocks
from tinytorch.core.kernels.numba.simd import LANES, TILE_COLUMNS

F = np.float32


@pytest.mark.parametrize("causal", [False, True])
def test_the_last_query_sees_every_key(causal):
    for queries, keys in [(1, 1), (1, 7), (5, 5), (3, 8), (8, 3)]:
        visible = np.tri(queries, keys, keys - queries) if causal else np.ones((queries, keys))
        counts = [blocks.visible_keys.py_func(row, queries, keys, causal) for row in range(queries)]
        assert counts == visible.sum(1).tolist()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_shares_of_all_workers_are_all_tasks(workers):
    turns = 4
    tasks = [
        blocks.share_of.py_func(worker, workers, turn)
        for worker in range(workers)
        for turn in range(turns)
    ]
    assert sorted(tasks) == list(range(workers * turns))
    # tasks that grow by a fixed amount make even shares
    shares = np.reshape(tasks, (workers, turns)).sum(1)
    assert len(set(shares.tolist())) == 1


@pytest.mark.parametrize("count", [1, LANES, LANES + 3, TILE_COLUMNS, 2 * TILE_COLUMNS + LANES])
@pytest.mark.parametrize("width", [1, LANES, 2 * LANES + 5])
def test_packed_columns_are_the_rows_padded_by_zeros(rng, count, width):
    source = rng.normal(size=(count, width + 2)).astype(F)
    room = -(-count // TILE_COLUMNS) * TILE_COLUMNS
    panels = np.full(room * width, np.nan, F)
    blocks.pack_transposed(source.reshape(-1), 0, width + 2, count, width, panels)
    padded = np.zeros((room, width), F)
    padded[:count] = source[:, :width]
    wanted = padded.reshape(-1, TILE_COLUMNS, width).swapaxes(1, 2)
    np.testing.assert_array_equal(panels, wanted.reshape(-1))


@pytest.mark.parametrize("width", [1, TILE_COLUMNS, TILE_COLUMNS + 3])
def test_packed_rows_are_padded_by_zeros(rng, width):
    source = rng.normal(size=(5, width)).astype(F)
    room = -(-width // TILE_COLUMNS) * TILE_COLUMNS
    panels = np.full(5 * room, np.nan, F)
    blocks.pack_rows(source.reshape(-1), 0, width, 5, width, panels)
    padded = np.zeros((5, room), F)
    padded[:, :width] = source
    wanted = padded.reshape(5, -1, TILE_COLUMNS).swapaxes(0, 1)
    np.testing.assert_array_equal(panels, wanted.reshape(-1))


def test_one_compilation_serves_every_layout(rng):
    @blocks.compiled_for(blocks.HEADS, blocks.HEADS)
    def first_elements(array, found):
        for index in numba.prange(array.shape[2]):
            at, step = blocks.head_at(array, (0, 1))
            blocks.row_at(found, 0)[index] = blocks.row_at(array, at + index * step)[0]

    dense = rng.normal(size=(2, 3, 4, 5)).astype(F)
    locked = dense.copy()
    locked.flags.writeable = False
    for array in (dense, locked, np.asfortranarray(dense), dense[:, :, ::-1], dense[:1]):
        found = np.zeros((1, 1, 1, 4), F)
        first_elements(array, found, work=0)
        np.testing.assert_array_equal(found[0, 0, 0], array[0, 1, :, 0])
    assert len(first_elements.serial.dispatcher.signatures) == 1


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 4, 3)])
def test_leading_axes_are_restored(rng, lead):
    array = rng.normal(size=(*lead, 5, 7)).astype(F)
    four = blocks.four_axes(array)
    assert four.ndim == 4
    np.testing.assert_array_equal(blocks.with_leading_axes(four, lead), array)
