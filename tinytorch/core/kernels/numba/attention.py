"""Attention, compiled: blocks of queries against panels of keys.

The scores of all queries and keys, time x time numbers, are not held at once, unless weights are
kept for a gradient: a block of queries sees its scores, turns them into weights and mixes the
values while everything is in a near cache. Keys that a causal mask hides from a whole tile are not
computed."""

from __future__ import annotations

import numpy as np
from numba import prange, types

from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba.attention_blocks import (
    HEADS,
    LOWEST,
    ONE,
    ZERO,
    add_bias,
    compiled_for,
    copy_rows,
    exponentiate,
    factor_of,
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
    share_of,
    six_rows,
    steps_of,
    visible_keys,
    with_contiguous_rows,
    with_leading_axes,
)
from tinytorch.core.kernels.numba.compile import PARALLEL_WORK, THREADS, inlined
from tinytorch.core.kernels.numba.simd import TILE_COLUMNS, TILE_ROWS, exp, larger, tile_product
from tinytorch.core.kernels.numpy import NUMPY

# ---------------------------------------------------------------- the gradients of attention,
# compiled: the products of a head, a block of queries at a time
#
# With weights P and their slopes dP = grad value^T, the scores have the slopes dS = P (dP - sum(P
# dP)). Then query gets dS key, key gets dS^T query, value gets P^T grad. A block of queries has its
# part in each of these while its rows of P and dS are in a near cache; dS is never held as a whole.

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
    """Return the gradients of query, key and value, laid out so that merging heads is a view."""
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
    """Return whether the last two axes of all arrays belong together."""
    if len(weights) < 2:
        return False
    (queries, keys), depth, width = weights, key[-1], value[-1]
    return (
        query == (queries, depth)
        and key == (keys, depth)
        and value == (keys, width)
        and grad == (queries, width)
    )


BACKWARD_KERNELS: dict[str, Kernel] = {"attention_backward": attention_backward}


# ---------------------------------------------------------------- attention, compiled: blocks of
# queries against panels of keys

FORWARD_BLOCK_ROWS = 4 * TILE_ROWS
"""Queries that share each panel of keys and values while it is in the first-level cache."""

FEW_QUERIES = 4
"""Largest number of queries for which packing the keys costs more than it saves."""

FEW_REUSE = 4
"""How many numbers are read and multiplied in the time of one that is read, changed and written."""

LONG_PART = 512
"""Keys that are worth a thread of their own when there are fewer heads than threads."""

FLOAT = np.dtype(np.float32)
NO_BIAS = np.zeros((1, 1, 1, 1), np.float32)

one_row = tile_product(1)

# ---------------------------------------------------------------- many queries


@compiled_for(
    HEADS, HEADS, HEADS, HEADS, types.boolean, types.float64, types.boolean,
    HEADS, HEADS, types.boolean, types.int64, types.int64,
)  # fmt: skip
def _attend(query, key, value, bias, has_bias, scale, causal, mix, weights, keeps, spans, workers):
    """Fill `mix` (batch, heads, queries, e), and `weights` if they are kept.

    The queries of each head are cut into `spans`, which are tasks for the workers.
    """
    for worker in prange(workers):
        _attend_worker(
            query, key, value, bias, has_bias, np.float32(scale), causal,
            mix, weights, keeps, spans, np.int64(worker), workers,
        )  # fmt: skip


@inlined
def _attend_worker(
    query, key, value, bias, has_bias, scale, causal, mix, weights, keeps, spans, worker, workers
):
    batch, heads, queries, width = mix.shape
    keys, depth = key.shape[2], key.shape[3]
    span = padded((queries + spans - 1) // spans, TILE_ROWS)
    pitch = padded(keys, TILE_COLUMNS) + 16  # rows do not fall onto the same lines of a cache
    columns = padded(width, TILE_COLUMNS)
    block = np.empty(FORWARD_BLOCK_ROWS * depth, np.float32)
    scores = np.empty(FORWARD_BLOCK_ROWS * pitch, np.float32)
    mixed = np.empty(FORWARD_BLOCK_ROWS * columns, np.float32)
    key_panels = np.empty(pitch * depth, np.float32)
    value_panels = np.empty(keys * columns, np.float32)
    factors = np.empty(FORWARD_BLOCK_ROWS, np.float32)
    for turn in range((batch * heads * spans + workers - 1) // workers):
        task = share_of(worker, workers, turn)
        if task >= batch * heads * spans:
            continue
        head, part = task // spans, task % spans
        first, last = part * span, min((part + 1) * span, queries)
        place = (head // heads, head % heads)
        seen = visible_keys(last - 1, queries, keys, causal)
        at, step = head_at(key, place)
        pack_transposed(key, at, step, seen, depth, key_panels)
        at, step = head_at(value, place)
        pack_rows(value, at, step, seen, width, value_panels)
        for start in range(first, last, FORWARD_BLOCK_ROWS):
            rows = min(FORWARD_BLOCK_ROWS, last - start)
            reach = reach_of(start, rows, queries, keys, causal)
            at, step = head_at(query, place)
            copy_rows(
                query, at + start * step, step, rows, depth, scale,
                block, depth, len(reach) * TILE_ROWS,
            )  # fmt: skip
            score_rows(block, depth, key_panels, reach, scores, pitch)
            _weigh(
                scores, pitch, factors, rows, start, queries, keys, causal, reach,
                bias, has_bias, place, weights, keeps,
            )  # fmt: skip
            mix_rows(scores, pitch, value_panels, seen, columns, reach, mixed)
            at, step = head_at(mix, place)
            for row in range(rows):
                source, target = (
                    row_at(mixed, row * columns),
                    row_at(mix, at + (start + row) * step),
                )
                for column in range(width):
                    target[column] = source[column] * factors[row]


@inlined
def _weigh(
    scores, pitch, factors, rows, start, queries, keys, causal, reach,
    bias, has_bias, place, weights, keeps,
):  # fmt: skip
    """Turn the scores of a block into exponentials, and find the factors that make them weights."""
    steps = steps_of(bias)
    for row in range(rows):
        line = row_at(scores, row * pitch)
        count = visible_keys(start + row, queries, keys, causal)
        if has_bias:
            offset = place[0] * steps[0] + place[1] * steps[1] + (start + row) * steps[2]
            add_bias(line, count, bias, offset, steps[3])
        _, total = exponentiate(line, count)
        factors[row] = factor_of(total)
        for hidden in range(count, reach[row // TILE_ROWS]):
            line[hidden] = ZERO
        if keeps:
            at, step = head_at(weights, place)
            kept = row_at(weights, at + (start + row) * step)
            for index in range(count):
                kept[index] = line[index] * factors[row]
            for hidden in range(count, keys):
                kept[hidden] = ZERO


# ---------------------------------------------------------------- few queries


@compiled_for(
    HEADS, HEADS, HEADS, HEADS, types.boolean, types.float64, types.boolean,
    HEADS, types.int64, types.int64,
)  # fmt: skip
def _attend_few(query, key, value, bias, has_bias, scale, causal, mix, parts, workers):
    """Fill `mix` (batch, heads, queries, e) for so few queries that packing would not pay.

    The keys of each head are cut into `parts`, each with its own highest score, sum of exponentials
    and sum of values; put on a common scale, they add up.
    """
    batch, heads, queries, width = mix.shape
    tasks = batch * heads * parts
    highest = np.empty(tasks * queries, np.float32)
    totals = np.empty(tasks * queries, np.float32)
    sums = np.empty(tasks * queries * width, np.float32)
    for worker in prange(workers):
        _attend_few_worker(
            query, key, value, bias, has_bias, np.float32(scale), causal,
            highest, totals, sums, heads, parts, np.int64(worker), workers, tasks,
        )  # fmt: skip
    for head in range(batch * heads):
        at, step = head_at(mix, (head // heads, head % heads))
        for row in range(queries):
            first = head * parts * queries + row
            _merge(
                highest, totals, sums, first, parts, queries, width, row_at(mix, at + row * step)
            )


@inlined
def _attend_few_worker(
    query, key, value, bias, has_bias, scale, causal,
    highest, totals, sums, heads, parts, worker, workers, tasks,
):  # fmt: skip
    queries, keys, depth, width = query.shape[2], key.shape[2], key.shape[3], value.shape[3]
    part = (keys + parts - 1) // parts
    scores = np.empty(part, np.float32)
    scaled = np.empty(depth, np.float32)
    bias_steps = steps_of(bias)
    for task in range(worker, tasks, workers):
        head, start = task // parts, task % parts * part
        place = (head // heads, head % heads)
        key_at, key_step = head_at(key, place)
        value_at, value_step = head_at(value, place)
        query_at, query_step = head_at(query, place)
        for row in range(queries):
            count = min(part, visible_keys(row, queries, keys, causal) - start)
            copy_rows(query, query_at + row * query_step, 0, 1, depth, scale, scaled, 0, 1)
            score_one(scaled, key, key_at + start * key_step, key_step, count, depth, scores)
            if has_bias:
                offset = place[0] * bias_steps[0] + place[1] * bias_steps[1] + row * bias_steps[2]
                add_bias(scores, count, bias, offset + start * bias_steps[3], bias_steps[3])
            spot = task * queries + row
            highest[spot], totals[spot] = exponentiate(scores, count)
            mix_one(
                scores, value, value_at + start * value_step, value_step, max(count, 0), width,
                sums, spot * width,
            )  # fmt: skip


@inlined
def score_one(query, key, offset, step, count, depth, scores):
    """Multiply one query by each key."""
    for index in range(count):
        row = row_at(key, offset + index * step)
        score = ZERO
        for column in range(depth):
            score += query[column] * row[column]
        scores[index] = score


@inlined
def mix_one(weights, value, offset, step, count, width, mix, mix_offset):
    """Add up the values (count, width) with their weights."""
    whole = width // TILE_COLUMNS * TILE_COLUMNS
    for column in range(0, whole, TILE_COLUMNS):
        one_row(
            weights, 0, 0, 1, value, offset + column, step, count,
            mix, mix_offset + column, 0, False,
        )  # fmt: skip
    rest = row_at(mix, mix_offset + whole)
    for column in range(width - whole):
        rest[column] = ZERO
    for index in range(count):
        row = row_at(value, offset + index * step + whole)
        for column in range(width - whole):
            rest[column] += weights[index] * row[column]


@inlined
def _merge(highest, totals, sums, first, parts, queries, width, mix):
    """Put the parts of one query together."""
    top = LOWEST
    for part in range(parts):
        top = larger(top, highest[first + part * queries])
    total = ZERO
    for column in range(width):
        mix[column] = ZERO
    for part in range(parts):
        spot = first + part * queries
        factor = exp(highest[spot] - top)
        total += factor * totals[spot]
        row = row_at(sums, spot * width)
        for column in range(width):
            mix[column] += factor * row[column]
    share = factor_of(total)
    for column in range(width):
        mix[column] *= share


# ---------------------------------------------------------------- calls


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    *,
    scale: float,
    causal: bool,
    keep_weights: bool,
) -> tuple[Array, Array | None]:
    """Weigh the values; the mix lies in memory so that merging its heads copies nothing."""
    inputs = _as_four_axes(query, key, value, bias)
    if inputs is None:
        return NUMPY.kernels["attention"](
            query, key, value, bias, scale=scale, causal=causal, keep_weights=keep_weights
        )
    query4, key4, value4, bias4, lead, (batch, heads) = inputs
    queries, keys, width = query4.shape[2], key4.shape[2], value4.shape[3]
    mix = merged_layout((batch, heads, queries, width))
    touched = batch * heads * keys * (query4.shape[3] + width)
    has_bias = bias is not None
    weights = None
    if queries <= FEW_QUERIES and not keep_weights:
        work = touched * queries // FEW_REUSE
        workers = THREADS if work >= PARALLEL_WORK else 1
        parts = _parts(batch * heads, keys, workers)
        _attend_few(
            query4, key4, value4, bias4, has_bias, scale, causal, mix, parts, workers, work=work
        )
    else:
        work = touched * queries // TILE_ROWS  # a tile of queries reads them together
        workers = THREADS if work >= PARALLEL_WORK else 1
        spans = _spans(batch * heads, queries, workers)
        if keep_weights:
            weights = np.empty((batch, heads, queries, keys), np.float32)
        _attend(
            query4, key4, value4, bias4, has_bias, scale, causal,
            mix, mix if weights is None else weights, keep_weights, spans, workers, work=work,
        )  # fmt: skip
    if len(lead) == 2:
        return mix, weights
    kept = None if weights is None else weights.reshape(*lead, queries, keys)
    return with_leading_axes(mix, lead), kept


def _parts(heads: int, keys: int, workers: int) -> int:
    """Return the number of parts that the keys of each head are cut into."""
    if heads >= workers:
        return 1
    return max(1, min(-(-workers // heads), keys // LONG_PART))


def _spans(heads: int, queries: int, workers: int) -> int:
    """Return how many spans the queries of each head are cut into; each packs the keys again."""
    if heads % workers == 0 or heads >= 4 * workers:
        return 1
    return max(1, min(-(-4 * workers // heads), queries // (2 * FORWARD_BLOCK_ROWS)))


Prepared = tuple[Array, Array, Array, Array, tuple[int, ...], tuple[int, int]]


def _as_four_axes(query: Array, key: Array, value: Array, bias: Array | None) -> Prepared | None:
    """Return the arrays as (batch, heads, time, d), the leading axes and (batch, heads).

    None means that this is not a case for compiled code. Nothing is copied unless rows are not
    contiguous or there are more than two leading axes.
    """
    if not (query.dtype == key.dtype == value.dtype == FLOAT):
        return None
    if not (query.size and key.size and value.size) or not _fit_forward(query, key, value):
        return None
    lead = query.shape[:-2]
    if not (lead == key.shape[:-2] == value.shape[:-2]):
        lead = np.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2])
        query, key, value = (
            np.broadcast_to(array, (*lead, *array.shape[-2:])) for array in (query, key, value)
        )
    if bias is None:
        bias = NO_BIAS
    else:
        bias = _fitting_bias(bias, (*lead, query.shape[-2], key.shape[-2]))
        if bias is None:
            return None
    if len(lead) != 2:
        query, key, value = four_axes(query), four_axes(key), four_axes(value)
    return (
        with_contiguous_rows(query),
        with_contiguous_rows(key),
        with_contiguous_rows(value),
        bias,
        lead,
        query.shape[:2],
    )


def _fit_forward(query: Array, key: Array, value: Array) -> bool:
    """Return whether queries can be multiplied with the keys, and the keys have a value each."""
    return (
        min(query.ndim, key.ndim, value.ndim) >= 2
        and query.shape[-1] == key.shape[-1]
        and key.shape[-2] == value.shape[-2]
    )


def _fitting_bias(bias: Array, scores: tuple[int, ...]) -> Array | None:
    """Return the bias with four axes, some of them 1, or None if it makes the scores larger."""
    if bias.ndim > len(scores):
        return None
    shape = (1,) * (max(4, len(scores)) - bias.ndim) + bias.shape
    if any(
        size not in (1, wanted) for size, wanted in zip(shape[::-1], scores[::-1], strict=False)
    ):
        return None
    if len(scores) > 4:
        bias = np.broadcast_to(bias, (*scores[:-2], *shape[-2:]))
        shape = (-1, *bias.shape[-3:])
    bias = bias.astype(np.float32, copy=False).reshape(shape)
    return with_contiguous_rows(bias) if shape[-1] > 1 else bias


KERNELS: dict[str, Kernel] = {"attention": attention, **BACKWARD_KERNELS}
