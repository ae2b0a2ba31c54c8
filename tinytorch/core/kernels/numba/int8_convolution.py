"""Compiled INT8 convolution: images are quantized once, then multiplied in registers of positions.

Images are laid out so that what each input of a patch sees is a run of bytes. A few registers of
neighbouring positions at a time are gathered from these runs, in lines of four inputs, stay in the
L1 cache, and are multiplied with the weights of all output channels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from tinytorch.core.kernels import numpy_quantized as plain
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba import simd as fast
from tinytorch.core.kernels.numba.compile import (
    FLOAT32,
    THREADS,
    compiled,
    inlined,
    readable,
    rows_of,
)
from tinytorch.core.kernels.numba.convolution import conv2d
from tinytorch.core.kernels.numba.int8 import INT8, NAN, largest_of, row_scale
from tinytorch.core.kernels.numba.int8 import INT32 as NUMBA_INT8_INT32
from tinytorch.core.kernels.numba.int8_simd import (
    BYTES,
    HAS_VNNI,
    INTEGERS,
    add_byte_products,
    unpack_floats,
)
from tinytorch.core.kernels.numba.simd import (
    INT32,
    LANES,
    VECTOR,
    VECTORS,
    broadcast,
    element,
    load_vector,
    store_vector,
)
from tinytorch.core.kernels.packing import PANEL_COLUMNS, STEP, packed_length
from tinytorch.core.kernels.reference_quantized import OFFSET, Window
from tinytorch.core.kernels.reference_spatial import Pair, output_size

# ---------------------------------------------------------------- the inner loops of INT8
# convolution: vector registers hold neighbouring output positions
#
# What LANES output positions see of four inputs of their patches (channels, or places of the
# kernel) is one register: four bytes for each position. It meets the same four inputs of an output
# channel's weight, which lie side by side (`packing`) and go to all lanes; one
# instruction multiplies and adds up the four pairs of each lane. So results lie in registers as
# they lie in an image.

# Sums of 8 x 3 registers leave 8 of 32 for their factors, those of 4 x 3 leave 4 of 16.
TILE_HEIGHTS = (8, 4, 1) if VECTORS == 4 else (4, 1)
"""Output channels that a tile may have."""

TILE_WIDTHS = (3, 1)
"""Registers of output positions that a tile may have."""

LINE_BYTES = LANES * STEP
"""The bytes of one register, and how many of them `copy_bytes` may write too much."""

COUNT = types.int64
INT64 = ir.IntType(64)
BYTE = ir.IntType(8)


def _constant(number: int) -> Any:
    return ir.Constant(INT64, number)


def _lanes(numbers: Iterable[int]) -> Any:
    """Return the lanes that a shuffle picks; those of its second vector are counted on."""
    chosen = list(numbers)
    return ir.Constant(ir.VectorType(INT32, len(chosen)), chosen)


# ---------------------------------------------------------------- bytes become lines


@intrinsic
def gather_lines(typing, images, start, tap_at, lines, out, at, step):
    """Put together what LANES neighbouring positions see, four inputs of a patch at a time.

    out[at + line * step + lane * 4 + i] = images[start + tap_at[line * 4 + i] + lane]
    """
    signature = types.void(images, COUNT, tap_at, COUNT, out, COUNT, COUNT)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        images, start, tap_at, lines, out, at, step = arguments
        seen = element(context, builder, signature.args[0], images, start)
        table = element(context, builder, signature.args[2], tap_at, _constant(0))
        target = element(context, builder, signature.args[4], out, at)
        with cgutils.for_range(builder, lines) as loop:
            first = builder.gep(table, [builder.mul(loop.index, _constant(STEP))])
            taps = [builder.load(builder.gep(first, [_constant(i)])) for i in range(STEP)]
            four = [
                load_vector(builder, builder.gep(seen, [tap]), ir.VectorType(BYTE, LANES))
                for tap in taps
            ]
            place = builder.gep(target, [builder.mul(loop.index, step)])
            store_vector(builder, _interleaved(builder, four), place)
        return context.get_dummy_value()

    return signature, generate


def _interleaved(builder: Any, four: list[Any]) -> Any:
    """Return the four bytes of the first lane, then those of the second, and so on."""
    pairs = [
        builder.shuffle_vector(*four[i : i + 2], _lanes(range(2 * LANES)))
        for i in range(0, STEP, 2)
    ]
    order = (i * LANES + lane for lane in range(LANES) for i in range(STEP))
    return builder.shuffle_vector(*pairs, _lanes(order))


@intrinsic
def copy_bytes(typing, source, source_at, step, target, target_at, count):
    """Copy every `step`-th byte: target[target_at + k] = source[source_at + k * step].

    Steps of 1 and 2 are copied in whole registers: up to LINE_BYTES - 1 bytes more are written, and
    step times as many are read.
    """
    signature = types.void(source, COUNT, COUNT, target, COUNT, COUNT)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_at, step, target, target_at, count = arguments
        read = element(context, builder, signature.args[0], source, source_at)
        write = element(context, builder, signature.args[3], target, target_at)
        rounded = builder.add(count, _constant(LINE_BYTES - 1))
        registers = builder.sdiv(rounded, _constant(LINE_BYTES))
        for width in (1, 2):
            is_step = builder.icmp_signed("==", step, _constant(width))
            with builder.if_then(is_step), cgutils.for_range(builder, registers) as loop:
                place = builder.mul(loop.index, _constant(LINE_BYTES))
                start = builder.gep(read, [builder.mul(place, _constant(width))])
                found = [
                    load_vector(builder, builder.gep(start, [_constant(i * LINE_BYTES)]), BYTES)
                    for i in range(width)
                ]
                picked = _lanes(range(0, width * LINE_BYTES, width))
                value = builder.shuffle_vector(found[0], found[-1], picked)
                store_vector(builder, value, builder.gep(write, [place]))
        is_far = builder.icmp_signed(">", step, _constant(2))
        with builder.if_then(is_far), cgutils.for_range(builder, count) as loop:
            value = builder.load(builder.gep(read, [builder.mul(loop.index, step)]))
            builder.store(value, builder.gep(write, [loop.index]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def fill_bytes(typing, target, at, count, value):
    """Write the same byte `count` times."""
    signature = types.void(target, COUNT, COUNT, types.uint8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, at, count, value = arguments
        place = element(context, builder, signature.args[0], target, at)
        cgutils.memset(builder, place, count, value)
        return context.get_dummy_value()

    return signature, generate


# ---------------------------------------------------------------- lines times weights


@intrinsic
def patch_tile(
    typing, height, width, seen, seen_at, values, value_at, value_step, lines, sums, scales, bias,
    output, offset, step, out, out_at, out_row, position, last, way,
):  # fmt: skip
    """Compute `height` output channels of `width` registers of neighbouring positions.

    out[out_at + i * out_row + p + lane] = total * (step * scales[c]) + bias[c]

    where c = output + i, p = min(position + v * LANES, last) for register v < width, and the total
    is that of all products of the bytes in `seen` (lines x width registers) and the weight,
    less offset * sums[c]. `value_at` is where the channel's weight begins and `value_step` leads to
    its next line. One loop is written for each of TILE_HEIGHTS and TILE_WIDTHS. `way` is as in
    `int8_simd`.
    """
    signature = types.void(
        COUNT, COUNT, seen, COUNT, values, COUNT, COUNT, COUNT, sums, scales, bias, COUNT,
        types.int32, types.float32, out, COUNT, COUNT, COUNT, COUNT, way,
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        dot = _dot_in_one if HAS_VNNI and isinstance(way, types.NoneType) else _dot_in_steps
        tile = _Tile(context, builder, signature, arguments, dot)
        for outputs, vectors in product(TILE_HEIGHTS, TILE_WIDTHS):
            is_high = builder.icmp_signed("==", arguments[0], _constant(outputs))
            is_wide = builder.icmp_signed("==", arguments[1], _constant(vectors))
            with builder.if_then(builder.and_(is_high, is_wide)):
                tile.write(outputs, vectors)
        return context.get_dummy_value()

    return signature, generate


class _Tile:
    """Writes the loop of :func:`patch_tile` for one size of the tile."""

    def __init__(
        self, context: Any, builder: Any, signature: Any, arguments: Any, dot: Any
    ) -> None:
        self.builder = builder
        self.dot = dot

        def pointer(number: int, offset: Any) -> Any:
            return element(context, builder, signature.args[number], arguments[number], offset)

        self.seen = pointer(2, arguments[3])
        self.weight = pointer(4, arguments[5])
        self.value_step, self.lines = arguments[6:8]
        self.sums, self.scales, self.bias = (pointer(each, arguments[11]) for each in (8, 9, 10))
        self.offset, self.step = arguments[12:14]
        self.out = pointer(14, arguments[15])
        self.out_row, self.position, self.last = arguments[16:19]

    def write(self, outputs: int, vectors: int) -> None:
        builder = self.builder
        tile = [(output, vector) for output in range(outputs) for vector in range(vectors)]
        totals = {spot: cgutils.alloca_once(builder, INTEGERS) for spot in tile}
        for spot in tile:
            builder.store(ir.Constant(INTEGERS, [0] * LANES), totals[spot])
        with cgutils.for_range(builder, self.lines) as loop:
            seen_at = builder.mul(loop.index, _constant(vectors * LINE_BYTES))
            seen = builder.gep(self.seen, [seen_at])
            bytes_seen = [
                load_vector(builder, builder.gep(seen, [_constant(v * LINE_BYTES)]), INTEGERS)
                for v in range(vectors)
            ]
            line = builder.gep(self.weight, [builder.mul(loop.index, self.value_step)])
            for output in range(outputs):
                place = builder.gep(line, [_constant(output * STEP)])
                four = builder.load(builder.bitcast(place, INT32.as_pointer()))
                four.align = 1
                for vector in range(vectors):
                    total = builder.load(totals[output, vector])
                    total = self.dot(builder, total, bytes_seen[vector], four)
                    builder.store(total, totals[output, vector])
        for output in range(outputs):
            self._finish(output, [builder.load(totals[output, v]) for v in range(vectors)])

    def _finish(self, output: int, totals: list[Any]) -> None:
        """Turn the sums of a channel into results and write them."""
        builder = self.builder
        column_sum, scale, bias = (
            builder.load(builder.gep(start, [_constant(output)]))
            for start in (self.sums, self.scales, self.bias)
        )
        excess = broadcast(builder, builder.mul(self.offset, column_sum), INTEGERS)
        factor = broadcast(builder, builder.fmul(self.step, scale))
        addend = broadcast(builder, bias)
        row = builder.gep(self.out, [builder.mul(self.out_row, _constant(output))])
        for vector, total in enumerate(totals):
            exact = builder.sitofp(builder.sub(total, excess), VECTOR)
            result = builder.fadd(builder.fmul(exact, factor), addend)
            place = builder.add(self.position, _constant(vector * LANES))
            place = builder.select(builder.icmp_signed("<", place, self.last), place, self.last)
            store_vector(builder, result, builder.gep(row, [place]))


def _dot_in_one(builder: Any, total: Any, seen: Any, four: Any) -> Any:
    return add_byte_products(builder, total, seen, broadcast(builder, four, INTEGERS))


def _dot_in_steps(builder: Any, total: Any, seen: Any, four: Any) -> Any:
    """Do what :func:`_dot_in_one` does, byte by byte."""
    for which in range(STEP):
        shift = ir.Constant(INTEGERS, [8 * which] * LANES)
        byte = builder.and_(builder.lshr(seen, shift), ir.Constant(INTEGERS, [255] * LANES))
        weight = builder.ashr(
            builder.shl(four, ir.Constant(INT32, 24 - 8 * which)), ir.Constant(INT32, 24)
        )
        product = builder.mul(broadcast(builder, weight, INTEGERS), byte)
        total = builder.add(total, product)
    return total


# ---------------------------------------------------------------- images for INT8 convolution:
# quantized once, and laid out so that a tile reads runs of bytes
#
# What one input of a patch (a channel, and a place of the kernel) sees of an image is one run of
# bytes, position by position, without gaps at the ends of rows. For that each plane is written once
# for each column of the kernel, shifted; strides and borders are dealt with there. Rows of the
# kernel need no copies: they are further on in the same bytes.

KEPT_PLANS = 64


class Plan(NamedTuple):
    """How the bytes of a plane lie in memory: (kernel columns, phases, rows, columns) and a spare.

    The phases are the rows that are one vertical stride apart; `columns` those of the output.
    `tap_at` tells where each input of a patch, filled up to whole lines, sees the first position.
    `weight_bytes` is the length of the packed weight.
    """

    tap_at: Array
    output: Pair
    rows: int
    plane_bytes: int
    is_plain: bool
    weight_bytes: int


@lru_cache(KEPT_PLANS)
def make_plan(image: tuple[int, ...], outputs: int, window: Window) -> Plan | None:
    """Plan the layout of images (channels, height, width); None where there is nothing to do."""
    kernel, stride, padding, dilation, groups = window
    if min(outputs, groups, *image, *kernel, *stride, *dilation) < 1 or min(padding) < 0:
        return None
    output = output_size(image[1:], kernel, stride, padding, dilation)
    if image[0] % groups or outputs % groups or min(output) < 1:
        return None
    rows = -(-(image[1] + 2 * padding[0]) // stride[0])
    run = rows * output[1]  # bytes of a phase
    plane_bytes = kernel[1] * stride[0] * run + LINE_BYTES
    down = np.arange(kernel[0]) * dilation[0]
    across = np.arange(kernel[1]) * (stride[0] * run)
    place = (down % stride[0] * run + down // stride[0] * output[1])[:, None] + across
    taps = (np.arange(image[0] // groups)[:, None, None] * plane_bytes + place).reshape(-1)
    return Plan(
        # the filling meets zeros of the weight, so that it may see anything
        tap_at=np.pad(taps, (0, -len(taps) % STEP), "edge").astype(np.int64),
        output=output,
        rows=rows,
        plane_bytes=plane_bytes,
        is_plain=kernel[1] == 1 and stride == (1, 1) and padding == (0, 0),
        weight_bytes=packed_length(len(taps), outputs),
    )


# ---------------------------------------------------------------- images become bytes


@inlined
def quantize_plane(plane, inverse, zero_point, out, at):
    """Quantize floats to bytes with an offset of 128; return whether none is NaN."""
    lowest = np.float32(-OFFSET - zero_point)
    highest = np.float32(OFFSET - 1 - zero_point)
    shift = np.int32(OFFSET + zero_point)
    target = out[at : at + plane.size]
    is_number = True
    for k in range(plane.size):
        value = np.rint(plane[k] * inverse)
        is_number &= value == value
        value = lowest if value < lowest else value
        value = highest if value > highest else value
        value = value if value == value else fast.ZERO
        target[k] = np.uint8(np.int32(value) + shift)
    return is_number


@inlined
def surround(raw, height, width, border_rows, border_columns, zero, out):
    """Copy an image of bytes into one with a border."""
    pitch = width + 2 * border_columns
    at = border_rows * pitch + border_columns
    fill_bytes(out, 0, at, zero)
    for row in range(height):
        copy_bytes(raw, row * width, 1, out, at, width)
        fill_bytes(out, at + width, pitch - width, zero)  # the border between two rows
        at += pitch
    fill_bytes(out, at, out.size - at, zero)


@inlined
def spread_plane(padded, pitch, kernel_columns, dilation, steps_down, steps_right, rows, columns,
                 out, at):  # fmt: skip
    """Write the rows that each column of the kernel sees, phase by phase.

    What is copied too much is overwritten by the next row, or in the spare behind the plane.
    """
    for shift in range(kernel_columns):
        for phase in range(steps_down):
            for row in range(rows):
                start = (row * steps_down + phase) * pitch + shift * dilation
                copy_bytes(padded, start, steps_right, out, at, columns)
                at += columns


@compiled
def lay_out(x, images, height, width, is_dynamic, step, inverse, zero_point, border_rows,
            border_columns, kernel_columns, dilation, steps_down, steps_right, rows, columns,
            is_plain, plane_bytes, workers, steps, facts, out):  # fmt: skip
    """Quantize planes, lay them out as a Plan describes, and return the step of each image.

    `facts` holds a number for each plane: the largest, or whether it has NaN.
    """
    count = len(x)
    channels = count // images
    inverses = np.empty(images, np.float32)
    if is_dynamic:
        for plane in prange(count):
            facts[plane] = largest_of(x[plane])
        for image in range(images):
            largest = fast.ZERO
            for plane in range(image * channels, (image + 1) * channels):
                largest = fast.larger(largest, facts[plane])
            steps[image], inverses[image] = row_scale(largest)
    pitch = width + 2 * border_columns
    zero = np.uint8(OFFSET + zero_point)
    for worker in prange(workers):
        worker = np.int64(worker)  # without a sign numba would mix it with others as floats
        raw = np.empty(height * width + LINE_BYTES, np.uint8)
        padded = np.empty(rows * steps_down * pitch + border_columns + 2 * LINE_BYTES, np.uint8)
        for plane in range(count * worker // workers, count * (worker + 1) // workers):
            at = plane * plane_bytes
            scale = inverses[plane // channels] if is_dynamic else inverse
            target, start = (out, at) if is_plain else (raw, 0)
            is_number = quantize_plane(x[plane], scale, zero_point, target, start)
            if not is_plain:
                surround(raw, height, width, border_rows, border_columns, zero, padded)
                spread_plane(
                    padded, pitch, kernel_columns, dilation, steps_down, steps_right, rows,
                    columns, out, at,
                )  # fmt: skip
            facts[plane] = fast.ZERO if is_number else NAN
    if not is_dynamic:
        for image in range(images):
            steps[image] = step
            for plane in range(image * channels, (image + 1) * channels):
                steps[image] += facts[plane]


# ---------------------------------------------------------------- compiled INT8 convolution:
# images become bytes once, and registers of positions meet weights

IMAGE_BYTES = 1 << 22
"""Bytes of images that are laid out before they are convolved: a share of the last cache.

Less would stay nearer, but threads would wait for each other more often.
"""

PRODUCTS_PER_ELEMENT = 32
"""Products of bytes that take about as long as touching one element."""

BYTES_PER_ELEMENT = 8
"""Elements that are quantized, or bytes that are copied, while one element is touched."""

TILE_OUTPUTS, TILE_VECTORS = TILE_HEIGHTS[0], TILE_WIDTHS[0]

WAY = None
"""How integers are multiplied: None is the fastest way, see numba_int8_simd; tests take others."""

# ---------------------------------------------------------------- bytes meet weights


@inlined
def next_size(left, sizes):
    """Choose how many of the rows or registers that are left the next tile takes."""
    for size in sizes:
        if left >= size:
            return size
    return 1


@compiled
def slide(images, image_step, group_step, tap_at, values, sums, offset, scales, steps, bias, out,
          pixels, batch, groups, parts, chunks, scratch, way):  # fmt: skip
    """Convolve: parts of the positions and chunks of the output channels are jobs."""
    outputs, lines = len(scales), len(tap_at) // STEP
    per_group = outputs // groups
    vectors = (pixels + LANES - 1) // LANES
    last_position = max(pixels - LANES, 0)  # the last register ends with the image
    tiles = (per_group + TILE_OUTPUTS - 1) // TILE_OUTPUTS
    total = batch * groups * vectors
    for job in prange(parts * chunks):
        job = np.int64(job)
        part, chunk = job // chunks, job % chunks
        first_row = tiles * chunk // chunks * TILE_OUTPUTS
        last_row = min(tiles * (chunk + 1) // chunks * TILE_OUTPUTS, per_group)
        seen = scratch[job]
        seen_at = np.int64(-seen.ctypes.data % LINE_BYTES)
        edge = np.empty(TILE_OUTPUTS * LANES, np.float32)  # for images of few pixels
        vector, last = total * part // parts, total * (part + 1) // parts
        while vector < last:
            place, which = vector % vectors, vector // vectors
            group, image = which % groups, which // groups
            width = next_size(min(last - vector, vectors - place), TILE_WIDTHS)
            start = image * image_step + group * group_step
            for v in range(width):
                position = min((place + v) * LANES, last_position)
                gather_lines(
                    images, start + position, tap_at, lines, seen, seen_at + v * LINE_BYTES,
                    width * LINE_BYTES,
                )  # fmt: skip
            row = first_row
            while row < last_row:
                output = group * per_group + row
                column = output % PANEL_COLUMNS
                panel = output - column
                panel_width = min(PANEL_COLUMNS, outputs - panel)
                height = next_size(min(last_row - row, PANEL_COLUMNS - column), TILE_HEIGHTS)
                out_at = (image * outputs + output) * pixels
                is_direct = pixels >= LANES
                patch_tile(
                    height, width, seen, seen_at, values, (panel * lines + column) * STEP,
                    panel_width * STEP, lines, sums, scales, bias, output, offset, steps[image],
                    out if is_direct else edge, out_at if is_direct else 0,
                    pixels if is_direct else LANES, place * LANES, last_position, way,
                )  # fmt: skip
                if not is_direct:
                    for i in range(height):
                        for pixel in range(pixels):
                            out[out_at + i * pixels + pixel] = edge[i * LANES + pixel]
                row += height
            vector += width


# ---------------------------------------------------------------- the kernels, on any arrays


def _plan_for(
    x: Array, values: Array, scales: Array, sums: Array | None, bias: Array | None, window: Window
) -> Plan | None:
    """Return a plan where there is work and the arrays are as the unchecked kernels need them."""
    if x.dtype != FLOAT32 or x.ndim != 4 or x.size == 0:
        return None
    plan = make_plan(x.shape[1:], scales.size, window)
    if plan is None or values.dtype != INT8 or values.shape != (plan.weight_bytes,):
        return None
    each = (scales.size,)
    is_safe = (
        (scales.dtype == FLOAT32 and scales.shape == each)
        and (sums is None or (sums.dtype == NUMBA_INT8_INT32 and sums.shape == each))
        and (bias is None or (bias.dtype == FLOAT32 and bias.shape == each))
    )
    return plan if is_safe else None


def _convolve(
    x: Array, values: Array, scales: Array, sums: Array, offset: int, bias: Array | None,
    plan: Plan, window: Window, scale: float | None = None, zero_point: int = 0,
) -> Array:  # fmt: skip
    """Convolve with a given scale, or with each image's own, a few images at a time."""
    batch, channels, height, width = x.shape
    outputs, groups = scales.size, window.groups
    image_bytes, pixels = channels * plan.plane_bytes, plan.output[0] * plan.output[1]
    part = min(batch, max(1, IMAGE_BYTES // image_bytes))
    images = np.empty(part * image_bytes, np.uint8)
    steps, facts = np.empty(part, np.float32), np.empty(part * channels, np.float32)
    step = np.float32(1 if scale is None else scale)
    planes = rows_of(x.reshape(batch * channels, height * width))
    values, scales, sums = readable(values), readable(scales), readable(sums)
    bias = np.zeros(outputs, np.float32) if bias is None else readable(bias)
    out = np.empty((batch, outputs, *plan.output), np.float32)
    for first in range(0, batch, part):
        count = min(part, batch - first)
        here = planes[first * channels : (first + count) * channels]
        lay_out(
            here, count, height, width, scale is None, step, 1 / step, zero_point,
            *window.padding, window.kernel_size[1], window.dilation[1], *window.stride, plan.rows,
            plan.output[1], plan.is_plain, plan.plane_bytes, min(THREADS, len(here)), steps,
            facts, images, work=here.size * (1 + window.kernel_size[1]) // BYTES_PER_ELEMENT,
        )  # fmt: skip
        parts, chunks = choose_jobs(count * groups * -(-pixels // LANES), outputs // groups)
        room = len(plan.tap_at) // STEP * TILE_VECTORS * LINE_BYTES + LINE_BYTES
        slide(
            images, image_bytes, image_bytes // groups, plan.tap_at, values, sums, offset, scales,
            steps, bias, out[first : first + count].reshape(-1), pixels, count, groups, parts,
            chunks, np.empty((parts * chunks, room), np.uint8), WAY,
            work=count * pixels * values.size // PRODUCTS_PER_ELEMENT,
        )  # fmt: skip
    return out


def choose_jobs(vectors: int, outputs: int) -> Pair:
    """Choose how many parts of the positions and chunks of the outputs the threads share."""
    parts = min(THREADS, max(1, vectors // TILE_VECTORS))
    return parts, min(max(1, THREADS // parts), -(-outputs // TILE_OUTPUTS))


def int8_conv2d_weight_only(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    **geometry: Any,
) -> Array:
    window = Window(**geometry)
    if _plan_for(x, values, scales, None, bias, window) is None:
        return plain.CONVOLUTION_KERNELS["int8_conv2d_weight_only"](
            x, values, scales, sums, bias, **geometry
        )
    weight = np.empty((scales.size, x.shape[1] // window.groups, *window.kernel_size), np.float32)
    unpack_floats(
        readable(values), readable(scales), math.prod(weight.shape[1:]), weight.reshape(-1),
        work=weight.size,
    )  # fmt: skip
    return window.convolve(conv2d, x, weight, bias)


def int8_conv2d_dynamic(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    **geometry: Any,
) -> Array:
    window = Window(**geometry)
    plan = _plan_for(x, values, scales, sums, bias, window)
    if plan is None:
        return plain.CONVOLUTION_KERNELS["int8_conv2d_dynamic"](
            x, values, scales, sums, bias, **geometry
        )
    return _convolve(x, values, scales, sums, OFFSET, bias, plan, window)


def int8_conv2d_static(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    scale: float,
    zero_point: int = 0,
    **geometry: Any,
) -> Array:
    scale, zero_point = float(scale), int(zero_point)  # NumPy's may be too narrow to add to
    window = Window(**geometry)
    whole = bias if bias is not None and bias.dtype == NUMBA_INT8_INT32 else None
    plan = _plan_for(x, values, scales, sums, bias if whole is None else None, window)
    is_safe = -OFFSET <= zero_point < OFFSET and (whole is None or whole.shape == scales.shape)
    if plan is None or not is_safe:
        return plain.CONVOLUTION_KERNELS["int8_conv2d_static"](
            x, values, scales, sums, bias, scale=scale, zero_point=zero_point, **geometry
        )
    offset = OFFSET + zero_point
    if whole is not None:  # it is put in where the offset is taken out
        sums, offset, bias = np.int32(offset) * sums - whole, 1, None
    return _convolve(x, values, scales, sums, offset, bias, plan, window, scale, zero_point)


KERNELS: dict[str, Kernel] = {
    "int8_conv2d_weight_only": int8_conv2d_weight_only,
    "int8_conv2d_dynamic": int8_conv2d_dynamic,
    "int8_conv2d_static": int8_conv2d_static,
}
