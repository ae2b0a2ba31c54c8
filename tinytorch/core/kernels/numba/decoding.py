"""One token through a whole language model in one compiled step, with one parallel region.

A model is described by tables of whole numbers: for each product its kind, its size and where its
arrays lie in memory. Threads take the tasks of a phase (a part of a product, a head of attention)
from a counter on a *board*; who ends the last one finishes the phase, and the others wait for that.
No phase needs a certain thread, so one that is not scheduled delays nobody but for the task that it
holds. What is added up in which order does not depend on who does it: results are the same bits.

The products are those of `products`, `int8` and `int4`, for one row.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from tinytorch.core.kernels.backend import Array
from tinytorch.core.kernels.numba.attention import mix_one, score_one
from tinytorch.core.kernels.numba.attention_blocks import exponentiate, factor_of
from tinytorch.core.kernels.numba.compile import LOOPS, THREADS, compiled, inlined
from tinytorch.core.kernels.numba.int4 import multiply_task
from tinytorch.core.kernels.numba.int8 import (
    TILE_ROWS,
    TILE_SIZE,
    multiply_share,
    quantize_row,
)
from tinytorch.core.kernels.numba.norms import inverse_rms, mean_and_inverse
from tinytorch.core.kernels.numba.products import (
    ACTIVATION_CODES,
    add_rows,
    merge_sums,
    multiply_columns,
)
from tinytorch.core.kernels.numba.simd import element, sigmoid, target_features
from tinytorch.core.kernels.packing import PANEL_COLUMNS, STEP, STEP_INT4
from tinytorch.core.kernels.step_tables import (
    ATTENDED,
    BIAS,
    BLOCK_NORMS,
    COLUMNS,
    DOWN,
    EXCESS,
    GATE,
    GROUP,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INPUTS,
    INT4,
    INT8_DYNAMIC,
    INT8_WEIGHT_ONLY,
    KEY,
    KIND,
    KV_HEADS,
    LAYERS,
    MIXED,
    NORMALISED,
    OUTPUT,
    OUTPUTS,
    PARTIAL,
    PHASES,
    QUERY,
    ROWS,
    SCALES,
    SCORES,
    SLOTS,
    STEP_OF_BYTES,
    STREAM,
    TASKS,
    UP,
    VALUE,
    VALUES,
    WIDTH,
)

CLAIMED, DONE, READY = 0, 8, 16
"""Places of a phase on the board, a cache line apart."""
PLACES = 24

SPINS = 2000
"""How often a thread looks whether a phase is ready before it lets others have its core."""

# ---------------------------------------------------------------- threads that wait for each other


@intrinsic
def add_to(typing, board, place):
    """Add one to a number on the board, at once for all threads; return what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element(context, builder, signature.args[0], *arguments)
        return builder.atomic_rmw("add", pointer, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(board, types.int64), generate


@intrinsic
def read(typing, board, place):
    """Read a number that another thread writes; what was written before it is seen, too."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(board, types.int64), generate


@intrinsic
def publish(typing, board, place):
    """Write 1 such that who reads it also sees what was written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element(context, builder, signature.args[0], *arguments)
        builder.store_atomic(ir.Constant(ir.IntType(64), 1), pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(board, types.int64), generate


def _declared(builder: Any, name: str, kind: Any) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(kind, []), name)


@intrinsic
def pause(typing):
    """Tell the processor that this is a loop that waits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if "sse2" in target_features():
            builder.call(_declared(builder, "llvm.x86.sse2.pause", ir.VoidType()), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def let_others(typing):
    """Let another thread have the core, if one wants it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if os.name == "posix":
            builder.call(_declared(builder, "sched_yield", ir.IntType(32)), [])
        return context.get_dummy_value()

    return types.void(), generate


@inlined
def claim(board, phase):
    """Return the next task of a phase, perhaps beyond the last one."""
    return add_to(board, phase * PLACES + CLAIMED)


@inlined
def complete(board, phase, tasks):
    """Note that a task is done; return whether it was the last one."""
    return add_to(board, phase * PLACES + DONE) == tasks - 1


@inlined
def release(board, phase):
    publish(board, phase * PLACES + READY)


@inlined
def wait(board, phase):
    """Wait until a phase is finished, without keeping a core from others for long."""
    spins = 0
    while read(board, phase * PLACES + READY) == 0:
        spins += 1
        if spins > SPINS:
            let_others()
        else:
            pause()


# ---------------------------------------------------------------- arrays by their address


@intrinsic
def array_at(typing, like, address, count):
    """Return the `count` elements at an address as an array with the dtype of another one."""
    row = types.Array(like.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_data_type(row.dtype)
        view = context.make_array(row)(context, builder)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(kind))
        populate_array(
            view,
            data=builder.inttoptr(arguments[1], kind.as_pointer()),
            shape=[arguments[2]],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return impl_ret_borrowed(context, builder, row, view._getvalue())

    return row(like, types.int64, types.int64), generate


@inlined
def bias_of(product, room):
    return array_at(room, product[BIAS], product[OUTPUTS] if product[BIAS] != 0 else 0)


@inlined
def output_of(product, room):
    return room[product[OUTPUT] : product[OUTPUT] + product[OUTPUTS]]


@inlined
def partial_of(product, room):
    """Return memory for the sums of each task, (tasks, whole vectors)."""
    pitch = (product[OUTPUTS] + 15) // 16 * 16
    at = product[PARTIAL]
    return room[at : at + product[TASKS] * pitch].reshape(product[TASKS], pitch)


# ---------------------------------------------------------------- products


@njit(**LOOPS)  # not inlined: every phase with products calls it
def multiply_part(product, task, x, octets, activation, room, bytes_like, words_like, has_int4):
    """Do one of the tasks of a product of x with a matrix."""
    kind, inputs, outputs, tasks = product[KIND], product[INPUTS], product[OUTPUTS], product[TASKS]
    if kind == ROWS:
        matrix = array_at(room, product[VALUES], inputs * outputs)
        share = (inputs + tasks - 1) // tasks
        first = min(task * share, inputs)
        sums = partial_of(product, room)[task]
        add_rows(x, matrix, inputs, outputs, first, min(first + share, inputs), sums)
    elif kind == COLUMNS:
        columns = array_at(room, product[VALUES], inputs * outputs).reshape(outputs, inputs)
        share = (outputs + tasks - 1) // tasks
        first, last = task * share, min(task * share + share, outputs)
        bias, out = bias_of(product, room), output_of(product, room)
        multiply_columns(x, columns, first, last, bias, activation, out)
    # Where an argument is None, numba leaves out what that makes unreachable.
    elif bytes_like is not None:
        bias, out = bias_of(product, room), output_of(product, room).reshape(1, outputs)
        if kind == INT8_WEIGHT_ONLY:
            lines = (inputs + STEP - 1) // STEP
            values = array_at(bytes_like, product[VALUES], lines * STEP * outputs)
            scales = array_at(room, product[SCALES], outputs)
            rows = x[: lines * STEP].reshape(1, lines * STEP)
            multiply_share(
                task, tasks, rows, values, None, scales, None, bias, activation, out,
                np.empty(TILE_SIZE, np.float32), TILE_ROWS, None,
            )  # fmt: skip
        elif kind == INT8_DYNAMIC:
            lines = (inputs + STEP - 1) // STEP
            values = array_at(bytes_like, product[VALUES], lines * STEP * outputs)
            scales = array_at(room, product[SCALES], outputs)
            excess = array_at(words_like, product[EXCESS], outputs)
            steps = room[STEP_OF_BYTES : STEP_OF_BYTES + 1]
            rows = octets[: lines * STEP].reshape(1, lines * STEP)
            multiply_share(
                task, tasks, rows, values, steps, scales, excess, bias, activation, out,
                np.empty(TILE_SIZE, np.int32), TILE_ROWS, None,
            )  # fmt: skip
        elif has_int4 is not None:
            lines, groups = (inputs + STEP_INT4 - 1) // STEP_INT4, inputs // product[GROUP]
            values = array_at(bytes_like, product[VALUES], lines * STEP * outputs)
            scales = array_at(room, product[SCALES], groups * outputs).reshape(groups, outputs)
            rows = x[: lines * STEP_INT4].reshape(1, lines * STEP_INT4)
            panels = (outputs + PANEL_COLUMNS - 1) // PANEL_COLUMNS
            share = (panels + tasks - 1) // tasks
            tile = np.empty(TILE_SIZE, np.float32)
            for panel in range(task * share, min(task * share + share, panels)):
                multiply_task(
                    panel, rows, lines, product[GROUP] // STEP_INT4, values, scales, bias,
                    activation, out, TILE_ROWS, tile,
                )  # fmt: skip


@njit(**LOOPS)
def multiply(board, phase, products, x, octets, activation, room, bytes_like, words_like, has_int4):
    """Take part in some products with x; return whether this thread has ended the last task."""
    tasks = 0
    for number in range(len(products)):
        tasks += products[number, TASKS]
    is_last = False
    task = claim(board, phase)
    while task < tasks:
        number, part = 0, task
        while part >= products[number, TASKS]:
            part -= products[number, TASKS]
            number += 1
        multiply_part(
            products[number], part, x, octets, activation, room, bytes_like, words_like, has_int4
        )
        is_last = complete(board, phase, tasks)
        task = claim(board, phase)
    if is_last:
        for number in range(len(products)):
            if products[number, KIND] == ROWS and products[number, TASKS] > 0:
                product = products[number]
                bias, out = bias_of(product, room), output_of(product, room)
                merge_sums(partial_of(product, room), bias, activation, out)
    return is_last


# ---------------------------------------------------------------- what stands between products


@njit(**LOOPS)
def normalise(norm, eps, x, out):
    """Normalise x by a layer norm, or where there is no bias by its root mean square."""
    weight = array_at(x, norm[0], x.size)
    if norm[1] == 0:
        inverse = inverse_rms(x, eps)
        for j in range(x.size):
            out[j] = x[j] * inverse * weight[j]
        return
    bias = array_at(x, norm[1], x.size)
    mean, inverse = mean_and_inverse(x.reshape(1, x.size), 0, eps)
    for j in range(x.size):
        out[j] = (x[j] - mean) * inverse * weight[j] + bias[j]


@njit(**LOOPS)
def quantize_for(products, x, octets, room, bytes_like):
    """Turn x into bytes if one of the products that come takes these."""
    if bytes_like is not None:
        is_wanted = False
        for number in range(len(products)):
            is_wanted |= products[number, KIND] == INT8_DYNAMIC
        if is_wanted:
            row = octets[: x.size]
            room[STEP_OF_BYTES] = quantize_row(x, row, True, np.float32(1), np.int64(0))


@njit(**LOOPS)
def keep_heads(products, norms, epsilons, sizes, keys, values, at, cosines, sines, room):
    """Rotate and scale the queries of the new token; put its keys and values into the cache.

    `at` is where its key of the first head belongs, `sizes[SLOTS]` positions from the next head's.
    """
    depth, step = sizes[HEAD_DIM], sizes[SLOTS] * sizes[HEAD_DIM]
    query, key = output_of(products[QUERY], room), output_of(products[KEY], room)
    value = output_of(products[VALUE], room)
    scale = np.float32(1 / np.sqrt(np.float64(depth)))
    for head in range(sizes[HEADS]):
        turn(query[head * depth : (head + 1) * depth], norms[2], epsilons[2], cosines, sines)
    for j in range(query.size):
        query[j] *= scale
    for head in range(sizes[KV_HEADS]):
        row = key[head * depth : (head + 1) * depth]
        turn(row, norms[3], epsilons[3], cosines, sines)
        for j in range(depth):
            keys[at + head * step + j] = row[j]
            values[at + head * step + j] = value[head * depth + j]


@inlined
def turn(row, norm, eps, cosines, sines):
    """Normalise a head, if there is a norm for it, and rotate it, if there are angles."""
    if norm[0] != 0:
        normalise(norm, eps, row, row)
    half = cosines.size
    for j in range(half):
        first, second = row[j], row[half + j]
        row[j] = first * cosines[j] - second * sines[j]
        row[half + j] = second * cosines[j] + first * sines[j]


@njit(**LOOPS)
def attend(board, phase, query, sizes, keys, values, start, count, room):
    """Take part in attention, a head at a time; return whether this thread has ended the last."""
    heads, depth, slots = sizes[HEADS], sizes[HEAD_DIM], sizes[SLOTS]
    group = heads // sizes[KV_HEADS]
    is_last = False
    head = claim(board, phase)
    while head < heads:
        first = start + head // group * slots * depth
        row = query[head * depth : (head + 1) * depth]
        scores = room[sizes[SCORES] + head * slots : sizes[SCORES] + (head + 1) * slots]
        score_one(row, keys, first, depth, count, depth, scores)
        _, total = exponentiate(scores, count)
        at, factor = sizes[MIXED] + head * depth, factor_of(total)
        mix_one(scores, values, first, depth, count, depth, room, at)
        for j in range(at, at + depth):
            room[j] *= factor
        is_last = complete(board, phase, heads)
        head = claim(board, phase)
    return is_last


@njit(**LOOPS)
def add_and_normalise(product, norm, eps, sizes, room):
    """Add a product to the stream, and normalise that."""
    width = sizes[WIDTH]
    stream, added = room[sizes[STREAM] :][:width], output_of(product, room)
    for j in range(width):
        stream[j] += added[j]
    normalise(norm, eps, stream, room[sizes[NORMALISED] :][:width])


@njit(**LOOPS)
def activate(products, room):
    """Multiply what goes up by silu(gate), if there is a gate."""
    if products[GATE, TASKS] > 0:
        up, gate = output_of(products[UP], room), output_of(products[GATE], room)
        for j in range(up.size):
            up[j] *= gate[j] * sigmoid(gate[j])


# ---------------------------------------------------------------- the step


@njit(**LOOPS)
def pass_through_blocks(
    board, products, norms, epsilons, sizes, activation, keys, values, position,
    cosines, sines, room, octets, bytes_like, words_like, has_int4,
):  # fmt: skip
    """Do the part of one thread: it reads like the blocks of a GPT."""
    width, slots, depth = sizes[WIDTH], sizes[SLOTS], sizes[HEAD_DIM]
    attended, inner = sizes[HEADS] * depth, products[0, DOWN, INPUTS]
    # with the zeros behind them, up to which packed weights are multiplied
    normalised = room[sizes[NORMALISED] :][: width + 16]
    mixed = room[sizes[MIXED] :][: attended + 16]
    hidden = room[sizes[HIDDEN] :][: inner + 16]
    for layer in range(sizes[LAYERS]):
        phase, block = layer * PHASES, products[layer]
        start = layer * sizes[KV_HEADS] * slots * depth
        place, norm = start + position * depth, layer * BLOCK_NORMS

        if multiply(
            board, phase, block[:ATTENDED], normalised, octets, 0, room,
            bytes_like, words_like, has_int4,
        ):  # fmt: skip
            keep_heads(
                block, norms[norm : norm + 4], epsilons[norm : norm + 4], sizes,
                keys, values, place, cosines, sines, room,
            )  # fmt: skip
            release(board, phase)
        wait(board, phase)

        query = output_of(block[QUERY], room)
        if attend(board, phase + 1, query, sizes, keys, values, start, position + 1, room):
            quantize_for(block[ATTENDED:UP], mixed[:attended], octets, room, bytes_like)
            release(board, phase + 1)
        wait(board, phase + 1)

        if multiply(
            board, phase + 2, block[ATTENDED:UP], mixed, octets, 0, room,
            bytes_like, words_like, has_int4,
        ):  # fmt: skip
            add_and_normalise(block[ATTENDED], norms[norm + 1], epsilons[norm + 1], sizes, room)
            quantize_for(block[UP:DOWN], normalised[:width], octets, room, bytes_like)
            release(board, phase + 2)
        wait(board, phase + 2)

        if multiply(
            board, phase + 3, block[UP:DOWN], normalised, octets, activation, room,
            bytes_like, words_like, has_int4,
        ):  # fmt: skip
            activate(block, room)
            quantize_for(block[DOWN:], hidden[:inner], octets, room, bytes_like)
            release(board, phase + 3)
        wait(board, phase + 3)

        if multiply(
            board, phase + 4, block[DOWN:], hidden, octets, 0, room,
            bytes_like, words_like, has_int4,
        ):  # fmt: skip
            add_and_normalise(
                block[DOWN], norms[norm + BLOCK_NORMS], epsilons[norm + BLOCK_NORMS], sizes, room
            )
            quantize_for(products[layer + 1, :1], normalised[:width], octets, room, bytes_like)
            release(board, phase + 4)
        wait(board, phase + 4)

    phase = sizes[LAYERS] * PHASES
    if multiply(
        board, phase, products[sizes[LAYERS], :1], normalised, octets, 0, room,
        bytes_like, words_like, has_int4,
    ):  # fmt: skip
        release(board, phase)
    wait(board, phase)


@njit(**LOOPS)
def begin(products, norms, epsilons, sizes, room, octets, bytes_like):
    """Normalise the embedded token for the first block."""
    stream = room[sizes[STREAM] :][: sizes[WIDTH]]
    normalised = room[sizes[NORMALISED] :][: sizes[WIDTH]]
    normalise(norms[0], epsilons[0], stream, normalised)
    quantize_for(products[0, :ATTENDED], normalised, octets, room, bytes_like)


@compiled
def step(
    board, products, norms, epsilons, sizes, activation, keys, values, position,
    cosines, sines, room, octets, bytes_like, words_like, has_int4, workers,
):  # fmt: skip
    """Compute the logits of one token, which are in `room` then."""
    begin(products, norms, epsilons, sizes, room, octets, bytes_like)
    for _ in prange(workers):
        pass_through_blocks(
            board, products, norms, epsilons, sizes, activation, keys, values, position,
            cosines, sines, room, octets, bytes_like, words_like, has_int4,
        )  # fmt: skip


BYTES, WORDS = np.empty(0, np.int8), np.empty(0, np.int32)


def decode(
    board: Array, products: Array, norms: Array, epsilons: Array, sizes: Array,
    activation: str | None, keys: Array, values: Array, position: int, cosines: Array,
    sines: Array, room: Array, octets: Array, kinds: set[int], *, work: int,
) -> bool:  # fmt: skip
    """Run the step on one thread, or if there is enough work on several; return that it ran.

    Each of three versions is compiled when it is first needed: for floats, INT8 and INT4.
    """
    has_integers = bool(kinds - {ROWS, COLUMNS})
    step(
        board, products, norms, epsilons, sizes, ACTIVATION_CODES[activation], keys, values,
        position, cosines, sines, room, octets, BYTES if has_integers else None,
        WORDS if has_integers else None, BYTES if INT4 in kinds else None, THREADS, work=work,
    )  # fmt: skip
    return True
