"""Products with sparse weights of the compiled backend: nothing is read for a zero, or computed.

With few rows each output is a sum over its nonzero weights. More rows are first transposed, so that
the same input of all rows is contiguous and each weight is multiplied with vectors of rows; a block
of them stays in the L2 cache for all weights. Results are transposed back while they are in cache.

The loops check nothing, so the indices of each output are validated before use; where they are
invalid the NumPy kernel runs instead and raises. That the indices of an output ascend is not
checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from tinytorch.core.kernels import numpy_spatial as plain
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba.compile import (
    FLOAT32,
    PARALLEL_WORK,
    THREADS,
    compiled,
    inlined,
    readable,
    rows_of,
)
from tinytorch.core.kernels.numba.products import ACTIVATION_CODES, finish_row
from tinytorch.core.kernels.numba.simd import (
    FLOAT,
    LANES,
    VECTOR,
    broadcast,
    element,
    load_vector,
    multiply_add,
    store_vector,
    transpose_block,
)

# ---------------------------------------------------------------- the inner loops of sparse
# products, as LLVM instructions
#
# The weights of a sparse matrix meet inputs that lie anywhere, which no vector instruction likes:
# one that gathers takes longer than reading the inputs one by one. So one row is a plain sum, but
# several at once (:func:`sparse_dot`). Many rows are no trouble: where the same input of all rows
# lies together, one weight meets a whole vector of them (:func:`sparse_tile`).
#
# Offsets count elements from the first element of an array. Nothing is checked.

CHAINS = 4
"""Sums that grow side by side, so that no addition has to wait for the one before it."""


class _SparseLoop:
    """A loop over the weights of one output, in LLVM's language."""

    def __init__(self, context: Any, builder: Any, arrays: dict[str, tuple[Any, Any]]) -> None:
        self.context, self.builder, self.arrays = context, builder, arrays

    def load(self, name: str, offset: Any) -> Any:
        """Read one element of an array."""
        kind, array = self.arrays[name]
        return self.builder.load(element(self.context, self.builder, kind, array, offset))

    def weight(self, k: Any) -> tuple[Any, Any]:
        """Return the input index of weight `k`, as wide as k, and the weight."""
        is_signed = self.arrays["indices"][0].dtype.signed
        widen = self.builder.sext if is_signed else self.builder.zext
        return widen(self.load("indices", k), k.type), self.load("values", k)

    def run(self, first: Any, last: Any, chains: int, add: Callable[[Any, int], None]) -> None:
        """Write add(k, chain) for all first <= k < last: in turns to each chain, the rest to 0."""
        builder = self.builder

        def constant(value: int) -> Any:
            return ir.Constant(first.type, value)

        turns = builder.sdiv(builder.sub(last, first), constant(chains))
        with cgutils.for_range(builder, turns) as loop:
            start = builder.add(first, builder.mul(loop.index, constant(chains)))
            for chain in range(chains):
                add(builder.add(start, constant(chain)), chain)
        done = builder.add(first, builder.mul(turns, constant(chains)))
        with cgutils.for_range(builder, builder.sub(last, done)) as loop:
            add(builder.add(done, loop.index), 0)

    def sums(self, count: int, kind: Any) -> list[Any]:
        """Return zeroed accumulators; LLVM keeps them in registers."""
        places = [cgutils.alloca_once(self.builder, kind) for _ in range(count)]
        for place in places:
            self.builder.store(ir.Constant(kind, None), place)
        return places

    def total(self, places: list[Any]) -> Any:
        """Add up sums, neighbours first."""
        left = [self.builder.load(place) for place in places]
        while len(left) > 1:
            pairs = zip(left[::2], left[1::2], strict=True)
            left = [self.builder.fadd(one, other) for one, other in pairs]
        return left[0]


@intrinsic
def sparse_dot(typing, x, x_offset, values, indices, first, last):
    """Return the sum over first <= k < last of values[k] * x[x_offset + indices[k]]."""
    count = types.int64
    signature = types.float32(x, count, values, indices, count, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_offset, values, indices, first, last = arguments
        kinds = signature.args
        loop = _SparseLoop(
            context,
            builder,
            {"x": (kinds[0], x), "values": (kinds[2], values), "indices": (kinds[3], indices)},
        )
        sums = loop.sums(CHAINS, FLOAT)

        def add(k: Any, chain: int) -> None:
            index, weight = loop.weight(k)
            number = loop.load("x", builder.add(x_offset, index))
            product = builder.fmul(number, weight, flags=("contract",))
            total = builder.fadd(product, builder.load(sums[chain]), flags=("contract",))
            builder.store(total, sums[chain])

        loop.run(first, last, CHAINS, add)
        return loop.total(sums)

    return signature, generate


def sparse_tile(vectors: int) -> Callable[..., None]:
    """Make the function that computes one output for `vectors` vectors of rows.

    out[i] = sum over first <= k < last of values[k] * x[indices[k] * x_line + i], for
    i < vectors * LANES, where x and out are counted from their offsets
    """
    chains = max(1, CHAINS // vectors)

    @intrinsic
    def multiply(typing, x, x_offset, x_line, values, indices, first, last, out, out_offset):
        count = types.int64
        signature = types.void(x, count, count, values, indices, count, count, out, count)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, x_offset, x_line, values, indices, first, last, out, out_offset = arguments
            kinds = signature.args
            loop = _SparseLoop(
                context, builder, {"values": (kinds[3], values), "indices": (kinds[4], indices)}
            )
            x_start = element(context, builder, kinds[0], x, x_offset)
            out_start = element(context, builder, kinds[7], out, out_offset)
            sums = [loop.sums(chains, VECTOR) for _ in range(vectors)]

            def part(start: Any, vector: int) -> Any:
                return builder.gep(start, [ir.Constant(first.type, vector * LANES)])

            def add(k: Any, chain: int) -> None:
                index, weight = loop.weight(k)
                line = builder.gep(x_start, [builder.mul(index, x_line)])
                factor = broadcast(builder, weight)
                for vector in range(vectors):
                    place = sums[vector][chain]
                    rows = load_vector(builder, part(line, vector))
                    total = multiply_add(builder, factor, rows, builder.load(place))
                    builder.store(total, place)

            loop.run(first, last, chains, add)
            for vector in range(vectors):
                store_vector(builder, loop.total(sums[vector]), part(out_start, vector))
            return context.get_dummy_value()

        return signature, generate

    return multiply


# ---------------------------------------------------------------- products with sparse weights of
# the compiled backend: nothing is read for a zero, or computed

FEW_ROWS = 3
"""As long as there are no more rows, turning them does not pay."""

BLOCK_BYTES = 1 << 19
"""Memory of a block of transposed rows: half of an L2 cache."""

WORK_PER_WEIGHT = 4
"""Contiguous elements that can be read in the time that one sparse weight takes."""

NO_BIAS = np.empty(0, np.float32)
INDEX_TYPES = (np.dtype(np.uint16), np.dtype(np.int32))
POINTER_TYPES = (np.dtype(np.int32), np.dtype(np.int64))

tile_of_8, tile_of_4, tile_of_2, tile_of_1 = (sparse_tile(vectors) for vectors in (8, 4, 2, 1))


@inlined
def find_weights(pointers, indices, output, inputs):
    """Return where the weights of an output begin and end, and whether they can be used."""
    first, last = np.int64(pointers[output]), np.int64(pointers[output + 1])
    if first == last:
        return first, last, True
    if first < 0 or last < first or last > indices.size:
        return first, last, False
    return first, last, indices[first] >= 0 and indices[last - 1] < inputs


@compiled
def multiply_few(x, rows, inputs, values, indices, pointers, out, outputs, bias, activation, parts):
    """Compute rows of x times the weight, one sum per result; return the number of bad outputs."""
    share = (outputs + parts - 1) // parts
    wrong = 0
    for part in prange(parts):
        # numbers of parts have no sign, and together with signed ones become floats
        start = np.int64(part) * share
        stop = min(outputs, start + share)
        for output in range(start, stop):
            first, last, is_right = find_weights(pointers, indices, output, inputs)
            if is_right:
                for row in range(rows):
                    total = sparse_dot(x, row * inputs, values, indices, first, last)
                    out[row * outputs + output] = total
            else:
                wrong += 1
        if start < stop:
            for row in range(rows):
                done = out[row * outputs + start : row * outputs + stop]
                finish_row(done, bias[start:stop], activation)
    return wrong


@inlined
def turn(source, at, source_row, rows, columns, target, to, target_row):
    """Copy rows of `source` into columns of `target`."""
    whole_rows, whole_columns = rows // LANES * LANES, columns // LANES * LANES
    for row in range(0, whole_rows, LANES):
        for column in range(0, whole_columns, LANES):
            transpose_block(
                source, at + row * source_row + column, source_row,
                target, to + column * target_row + row, target_row,
            )  # fmt: skip
    for column in range(columns):
        for row in range(0 if column >= whole_columns else whole_rows, rows):
            target[to + column * target_row + row] = source[at + row * source_row + column]


@inlined
def multiply_output(turned, at, block, vectors, values, indices, first, last, sums, to):
    """Compute one output for up to a block of rows."""
    vector = 0
    while vector + 8 <= vectors:
        start = vector * LANES
        tile_of_8(turned, at + start, block, values, indices, first, last, sums, to + start)
        vector += 8
    if vector + 4 <= vectors:
        start = vector * LANES
        tile_of_4(turned, at + start, block, values, indices, first, last, sums, to + start)
        vector += 4
    if vector + 2 <= vectors:
        start = vector * LANES
        tile_of_2(turned, at + start, block, values, indices, first, last, sums, to + start)
        vector += 2
    if vector < vectors:
        start = vector * LANES
        tile_of_1(turned, at + start, block, values, indices, first, last, sums, to + start)


@inlined
def multiply_group(
    turned, inputs, block, height, values, indices, pointers, start, width, sums, out, at, outputs
):
    """Compute up to LANES outputs for a block of rows; return the number of bad ones."""
    vectors, wrong = (height + LANES - 1) // LANES, 0
    for output in range(width):
        first, last, is_right = find_weights(pointers, indices, start + output, inputs)
        if not is_right:
            wrong += 1
            last = first
        to = output * block
        multiply_output(turned, 0, block, vectors, values, indices, first, last, sums, to)
    turn(sums, 0, block, width, height, out, at + start, outputs)
    return wrong


@compiled
def multiply_many(
    x, rows, inputs, values, indices, pointers, out, outputs, bias, activation, block, shares,
    scratch,
):  # fmt: skip
    """Like :func:`multiply_few`, on transposed blocks of rows: a task is a block and some outputs.

    There is one worker per row of `scratch`. Each does neighbouring tasks, and transposes blocks
    for itself: waiting for another worker would take longer.
    """
    workers, blocks = len(scratch), (rows + block - 1) // block
    groups = (outputs + LANES - 1) // LANES
    per_share, per_worker = -(-groups // shares), -(-blocks * shares // workers)
    wrong = 0
    for worker in prange(workers):
        turned, sums = scratch[worker, : inputs * block], scratch[worker, inputs * block :]
        # numbers of workers have no sign, and together with signed ones become floats
        task = np.int64(worker) * per_worker
        last_task, is_turned = min(task + per_worker, blocks * shares), -1
        while task < last_task:
            row, share = task // shares * block, task % shares
            height = min(block, rows - row)
            if is_turned != row:
                turn(x, row * inputs, inputs, height, inputs, turned, 0, block)
                for line in range(0, inputs * block, block):  # where there are no rows
                    turned[line + height : line + block] = np.float32(0)
                is_turned = row
            first, last = share * per_share, min((share + 1) * per_share, groups)
            for start in range(first * LANES, last * LANES, LANES):
                wrong += multiply_group(
                    turned, inputs, block, height, values, indices, pointers,
                    start, min(LANES, outputs - start), sums, out, row * outputs, outputs,
                )  # fmt: skip
            start, stop = first * LANES, min(last * LANES, outputs)
            if start < stop:
                for line in range(row, row + height):
                    done = out[line * outputs + start : line * outputs + stop]
                    finish_row(done, bias[start:stop], activation)
            task += 1
    return wrong


def choose_block(rows: int, inputs: int) -> int:
    """Choose how many rows are transposed together: whole vectors, evenly spread over blocks."""
    vectors = -(-rows // LANES)
    most = max(1, BLOCK_BYTES // (4 * LANES * inputs))
    return -(-vectors // -(-vectors // most)) * LANES


def _is_usable(
    x: Array, values: Array, indices: Array, pointers: Array, bias: Array | None
) -> bool:
    """Return whether there is work, and of the types and shapes that the loops support."""
    return (
        x.size > 0
        and pointers.size > 1
        and x.dtype == values.dtype == FLOAT32
        and indices.dtype in INDEX_TYPES
        and pointers.dtype in POINTER_TYPES
        and values.ndim == indices.ndim == pointers.ndim == 1
        and values.size == indices.size == pointers[-1]
        and pointers[0] == 0
        and (bias is None or (bias.dtype == FLOAT32 and bias.shape == (pointers.size - 1,)))
    )


def sparse_linear(
    x: Array,
    values: Array,
    indices: Array,
    pointers: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
) -> Array:
    if not _is_usable(x, values, indices, pointers, bias):
        return plain.sparse_linear(x, values, indices, pointers, bias, activation=activation)
    lines = rows_of(x)
    (rows, inputs), outputs = lines.shape, pointers.size - 1
    out = np.empty((rows, outputs), np.float32)
    arguments = (
        lines.reshape(-1), rows, inputs, readable(values), readable(indices), readable(pointers),
        out.reshape(-1), outputs, NO_BIAS if bias is None else readable(bias),
        ACTIVATION_CODES[activation],
    )  # fmt: skip
    if rows <= FEW_ROWS:
        work = WORK_PER_WEIGHT * values.size * rows
        parts = 1 if work < PARALLEL_WORK else 4 * THREADS
        wrong = multiply_few(*arguments, parts, work=work)
    else:
        work = x.size + WORK_PER_WEIGHT * values.size * (-(-rows // LANES))
        workers = 1 if work < PARALLEL_WORK else THREADS
        block = choose_block(rows, inputs)
        shares = 1 if -(-rows // block) % workers == 0 else workers
        scratch = np.empty((workers, (inputs + LANES) * block), np.float32)
        wrong = multiply_many(*arguments, block, shares, scratch, work=work)
    if wrong:
        return plain.sparse_linear(x, values, indices, pointers, bias, activation=activation)
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], outputs)


KERNELS: dict[str, Kernel] = {"sparse_linear": sparse_linear}
