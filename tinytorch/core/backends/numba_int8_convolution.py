"""Compiled INT8 convolution: images become bytes once, and registers of positions meet weights.

Images are laid out so that what each input of a patch sees is a run of bytes
(:mod:`numba_int8_convolution_layout`). A few registers of neighbouring positions at a time are put
together from these runs, in lines of four inputs, stay in the nearest cache, and meet the weights
of all output channels.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from tinytorch.core.backends import numpy_int8_convolution as plain
from tinytorch.core.backends.backend import Array, Kernel
from tinytorch.core.backends.int8_packing import PANEL_COLUMNS, STEP
from tinytorch.core.backends.numba_arrays import FLOAT32, readable, rows_of
from tinytorch.core.backends.numba_compile import THREADS, compiled, inlined
from tinytorch.core.backends.numba_convolution import conv2d
from tinytorch.core.backends.numba_int8 import INT8, INT32
from tinytorch.core.backends.numba_int8_convolution_layout import Plan, lay_out, make_plan
from tinytorch.core.backends.numba_int8_convolution_tiles import (
    LINE_BYTES,
    TILE_HEIGHTS,
    TILE_WIDTHS,
    gather_lines,
    patch_tile,
)
from tinytorch.core.backends.numba_int8_unpacking import unpack_floats
from tinytorch.core.backends.numba_simd import LANES
from tinytorch.core.backends.reference_int8 import OFFSET
from tinytorch.core.backends.reference_int8_convolution import Window
from tinytorch.core.backends.reference_spatial import Pair

__all__ = ["KERNELS"]

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
    """Give a plan if there is something to convolve, and arrays are what kernels take on trust."""
    if x.dtype != FLOAT32 or x.ndim != 4 or x.size == 0:
        return None
    plan = make_plan(x.shape[1:], scales.size, window)
    if plan is None or values.dtype != INT8 or values.shape != (plan.weight_bytes,):
        return None
    each = (scales.size,)
    is_safe = (
        (scales.dtype == FLOAT32 and scales.shape == each)
        and (sums is None or (sums.dtype == INT32 and sums.shape == each))
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
            *window.padding, window.kernel[1], window.dilation[1], *window.stride, plan.rows,
            plan.output[1], plan.is_plain, plan.plane_bytes, min(THREADS, len(here)), steps,
            facts, images, work=here.size * (1 + window.kernel[1]) // BYTES_PER_ELEMENT,
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
    *,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int = 1,
) -> Array:
    window = Window(kernel_size, stride, padding, dilation, groups)
    if _plan_for(x, values, scales, None, bias, window) is None:
        return plain.KERNELS["int8_conv2d_weight_only"](
            x, values, scales, sums, bias, kernel_size=kernel_size, stride=stride,
            padding=padding, dilation=dilation, groups=groups,
        )  # fmt: skip
    weight = np.empty((scales.size, x.shape[1] // groups, *kernel_size), np.float32)
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
    *,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int = 1,
) -> Array:
    window = Window(kernel_size, stride, padding, dilation, groups)
    plan = _plan_for(x, values, scales, sums, bias, window)
    if plan is None:
        return plain.KERNELS["int8_conv2d_dynamic"](
            x, values, scales, sums, bias, kernel_size=kernel_size, stride=stride,
            padding=padding, dilation=dilation, groups=groups,
        )  # fmt: skip
    return _convolve(x, values, scales, sums, OFFSET, bias, plan, window)


def int8_conv2d_static(
    x: Array,
    values: Array,
    scales: Array,
    sums: Array,
    bias: Array | None = None,
    *,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int = 1,
    scale: float,
    zero_point: int = 0,
) -> Array:
    scale, zero_point = float(scale), int(zero_point)  # NumPy's may be too narrow to add to
    window = Window(kernel_size, stride, padding, dilation, groups)
    whole = bias if bias is not None and bias.dtype == INT32 else None
    plan = _plan_for(x, values, scales, sums, bias if whole is None else None, window)
    is_safe = -OFFSET <= zero_point < OFFSET and (whole is None or whole.shape == scales.shape)
    if plan is None or not is_safe:
        return plain.KERNELS["int8_conv2d_static"](
            x, values, scales, sums, bias, kernel_size=kernel_size, stride=stride,
            padding=padding, dilation=dilation, groups=groups, scale=scale, zero_point=zero_point,
        )  # fmt: skip
    offset = OFFSET + zero_point
    if whole is not None:  # it is put in where the offset is taken out
        sums, offset, bias = np.int32(offset) * sums - whole, 1, None
    return _convolve(x, values, scales, sums, offset, bias, plan, window, scale, zero_point)


KERNELS: dict[str, Kernel] = {
    "int8_conv2d_weight_only": int8_conv2d_weight_only,
    "int8_conv2d_dynamic": int8_conv2d_dynamic,
    "int8_conv2d_static": int8_conv2d_static,
}
