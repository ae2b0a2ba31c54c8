"""The gradients of attention, compiled: the products of a head, a block of queries at a time.

With weights P and their slopes dP = grad value^T, the scores have the slopes
dS = P (dP - sum(P dP)). Then query gets dS key, key gets dS^T query, value gets P^T grad. A block
of queries has its part in each of these while its rows of P and dS are in a near cache; dS is never
held as a whole.
"""

from __future__ import annotations

import numpy as np
from numba import prange, types

from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.numba_attention_blocks import (
    HEADS,
    ONE,
    ZERO,
    compiled_for,
    copy_rows,
    four_axes,
    head_at,
    merged_layout,
    mix_rows,
    pack_rows,
    pack_transposed,
    padded,
    reach_of,
    row_at,
    score_rows,
    six_rows,
    visible_keys,
    with_contiguous_rows,
    with_leading_axes,
)
from tinytorch.core.backends.numba_compile import PARALLEL_WORK, THREADS, inlined
from tinytorch.core.backends.numba_simd import TILE_COLUMNS, TILE_ROWS
from tinytorch.core.backends.numpy import NUMPY

__all__ = ["KERNELS"]

Shape = tuple[int, ...]

BLOCK_ROWS = 8 * TILE_ROWS
"""Queries in a block: more of them mean fewer turns over the gradients of keys and values."""


@compiled_for(
    HEADS, HEADS, HEADS, HEADS, HEADS, types.float64, types.boolean,
    HEADS, HEADS, HEADS, types.int64,
)  # fmt: skip
def _backward(
    grad, query, key, value, weights, scale, causal, grad_query, grad_key, grad_value, workers
):
    """Fill the three gradients (batch, heads, time, d)."""
    for worker in prange(workers):
        _backward_worker(
            grad, query, key, value, weights, np.float32(scale), causal,
            grad_query, grad_key, grad_value, np.int64(worker), workers,
        )  # fmt: skip


@inlined
def _backward_worker(
    grad, query, key, value, weights, scale, causal,
    grad_query, grad_key, grad_value, worker, workers,
):  # fmt: skip
    batch, heads, queries, depth = grad_query.shape
    keys, width = value.shape[2], value.shape[3]
    pitch = padded(keys, TILE_COLUMNS) + 16  # rows do not fall onto the same lines of a cache
    key_columns, value_columns = padded(depth, TILE_COLUMNS), padded(width, TILE_COLUMNS)
    key_rows = np.empty(keys * key_columns, np.float32)
    value_panels = np.empty(pitch * width, np.float32)
    block = np.empty(BLOCK_ROWS * width, np.float32)
    query_rows = np.empty(BLOCK_ROWS * key_columns, np.float32)
    grad_rows = np.empty(BLOCK_ROWS * value_columns, np.float32)
    kept = np.empty(BLOCK_ROWS * pitch, np.float32)
    slopes = np.empty(BLOCK_ROWS * pitch, np.float32)
    mixed = np.empty(BLOCK_ROWS * key_columns, np.float32)
    key_sums = np.empty(padded(keys, TILE_ROWS) * key_columns, np.float32)
    value_sums = np.empty(padded(keys, TILE_ROWS) * value_columns, np.float32)
    for head in range(worker, batch * heads, workers):
        place = (head // heads, head % heads)
        at, step = head_at(key, place)
        pack_rows(key, at, step, keys, depth, key_rows)
        at, step = head_at(value, place)
        pack_transposed(value, at, step, keys, width, value_panels)
        key_sums[:] = ZERO
        value_sums[:] = ZERO
        for start in range(0, queries, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, queries - start)
            reach = reach_of(start, rows, queries, keys, causal)
            at, step = head_at(grad, place)
            at += start * step
            copy_rows(grad, at, step, rows, width, ONE, block, width, len(reach) * TILE_ROWS)
            pack_rows(grad, at, step, rows, width, grad_rows)
            at, step = head_at(query, place)
            pack_rows(query, at + start * step, step, rows, depth, query_rows)
            # slopes of the weights (rows, keys), then of the scores
            score_rows(block, width, value_panels, reach, slopes, pitch)
            at, step = head_at(weights, place)
            for row in range(rows):
                seen = visible_keys(start + row, queries, keys, causal)
                _slope_scores(
                    row_at(weights, at + (start + row) * step), seen, padded(reach[-1], TILE_ROWS),
                    row_at(kept, row * pitch), row_at(slopes, row * pitch),
                )  # fmt: skip
            mix_rows(slopes, pitch, key_rows, keys, key_columns, reach, mixed)
            at, step = head_at(grad_query, place)
            copy_rows(
                mixed, 0, key_columns, rows, depth, scale,
                row_at(grad_query, at + start * step), step, rows,
            )  # fmt: skip
            _add_transposed(slopes, pitch, reach[-1], query_rows, rows, key_columns, key_sums)
            _add_transposed(kept, pitch, reach[-1], grad_rows, rows, value_columns, value_sums)
        at, step = head_at(grad_key, place)
        copy_rows(key_sums, 0, key_columns, keys, depth, scale, row_at(grad_key, at), step, keys)
        at, step = head_at(grad_value, place)
        target = row_at(grad_value, at)
        copy_rows(value_sums, 0, value_columns, keys, width, ONE, target, step, keys)


@inlined
def _slope_scores(weights, seen, end, kept, slopes):
    """Turn a row of slopes of the weights into slopes of the scores, and copy the weights.

    Both become 0 from the keys that the query sees to `end`, where tiles of keys stop.
    """
    total = ZERO
    for index in range(seen):
        kept[index] = weights[index]
        total += weights[index] * slopes[index]
    for index in range(seen):
        slopes[index] = weights[index] * (slopes[index] - total)
    for hidden in range(seen, end):
        kept[hidden] = ZERO
        slopes[hidden] = ZERO


@inlined
def _add_transposed(a, pitch, reach, panels, rows, columns, sums):
    """Add a^T (reach, rows) times the rows in `panels` (rows, columns) to sums (reach, columns)."""
    for panel in range(0, columns, TILE_COLUMNS):
        for index in range(0, reach, TILE_ROWS):
            six_rows(
                a, index, 1, pitch, panels, panel * rows, TILE_COLUMNS, rows,
                sums, index * columns + panel, columns, True,
            )  # fmt: skip


# ---------------------------------------------------------------- calls


def attention_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    weights: Array,
    *,
    scale: float,
    causal: bool = False,
) -> tuple[Array, Array, Array]:
    """Give the gradients of query, key and value, which can be merged over heads without a copy."""
    arrays = (grad, query, key, value, weights)
    lead = weights.shape[:-2]
    if not (
        all(array.dtype == np.float32 and array.size for array in arrays)
        and all(array.shape[:-2] == lead for array in arrays)
        and _fit(*(array.shape[-2:] for array in arrays))
    ):
        return NUMPY.kernels["attention_backward"](*arrays, scale=scale, causal=causal)
    inputs = [with_contiguous_rows(four_axes(array)) for array in arrays]
    _, query4, key4, value4, weights4 = inputs
    gradients = [merged_layout(array.shape) for array in (query4, key4, value4)]
    work = weights4.size * (query4.shape[3] + value4.shape[3]) // TILE_ROWS
    workers = THREADS if work >= PARALLEL_WORK else 1
    _backward(*inputs, scale, causal, *gradients, workers, work=work)
    grad_query, grad_key, grad_value = (with_leading_axes(array, lead) for array in gradients)
    return grad_query, grad_key, grad_value


def _fit(grad: Shape, query: Shape, key: Shape, value: Shape, weights: Shape) -> bool:
    """Tell whether the last two axes of all arrays belong together."""
    if len(weights) < 2:
        return False
    (queries, keys), depth, width = weights, key[-1], value[-1]
    return (
        query == (queries, depth)
        and key == (keys, depth)
        and value == (keys, width)
        and grad == (queries, width)
    )


KERNELS: dict[str, Kernel] = {"attention_backward": attention_backward}
