"""Images for INT8 convolution: quantized once, and laid out so that a tile reads runs of bytes.

What one input of a patch (a channel, and a place of the kernel) sees of an image is one run of
bytes, position by position, without gaps at the ends of rows. For that each plane is written once
for each column of the kernel, shifted; strides and borders are dealt with there. Rows of the kernel
need no copies: they are further on in the same bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import prange

from tinytorch.core.backends import numba_math as fast
from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.int8_packing import STEP, packed_length
from tinytorch.core.backends.numba_compile import compiled, inlined
from tinytorch.core.backends.numba_int8 import NAN, largest_of, row_scale
from tinytorch.core.backends.numba_int8_convolution_tiles import LINE_BYTES, copy_bytes, fill_bytes
from tinytorch.core.backends.reference_int8 import OFFSET
from tinytorch.core.backends.reference_int8_convolution import Window
from tinytorch.core.backends.reference_spatial import Pair, output_size

__all__ = ["Plan", "lay_out", "make_plan"]

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
    """Turn floats into bytes, 128 too high; tell whether all are numbers."""
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
    """Quantize planes, lay them out as a Plan describes, and give the step of each image.

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
