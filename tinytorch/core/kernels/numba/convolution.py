"""Compiled convolution: weights slide over images that stay where they are.

The usual way copies what each output position sees into columns and multiplies matrices. Here
tiles of the product read the padded image itself, through tables of offsets, so that the nine taps
of a 3 x 3 window share what lies in the cache instead of nine copies of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from numba import prange

from tinytorch.core.kernels import numpy_spatial as fallback
from tinytorch.core.kernels.backend import Array
from tinytorch.core.kernels.numba.compile import THREADS, compiled, flat, inlined
from tinytorch.core.kernels.numba.convolution_tiles import (
    SUM_ROWS,
    SUM_TAPS,
    clear,
    copy_row,
    slide_tile,
    sum_tile,
)
from tinytorch.core.kernels.numba.simd import LANES, TILE_COLUMNS, TILE_ROWS, VECTORS
from tinytorch.core.kernels.reference_spatial import Pair, output_size

# ---------------------------------------------------------------- where a convolution finds its
# numbers: tables of offsets, made once for each shape
#
# With stride 1, the image that one tap sees is the padded image, shifted. With stride s it would be
# every s-th element; laying out the image as s x s smaller ones (its *phases*) makes it a shifted
# image again. The derivative by the image slides over the gradient in the same way, once for each
# phase, with the taps that reach that phase.

COPY_OUT = TILE_ROWS * TILE_COLUMNS
"""Cost of moving a tile from flat positions to its place, in steps of the inner loop."""

KEPT_PLANS = 64


@dataclass(frozen=True)
class Layout:
    """How a plane of an image lies in memory while it is convolved: phases x rows x columns.

    Element (i, j, row, column) is the element (row * step + phase - before) of the plane along
    each axis, and 0 where that is outside. With step 1, the zeros before a row are also those
    after the row above it, and so are those before a plane. A layout that `is_plain` is the plane
    itself.
    """

    steps: Pair
    before: Pair
    after: Pair
    rows: int
    columns: int
    is_plain: bool

    @property
    def size(self) -> int:
        return self.steps[0] * self.steps[1] * self.rows * self.columns

    @property
    def spare(self) -> int:
        """Zeros after the last plane: its border, and what lanes without a position look at."""
        return max(self.after) * (self.columns + 1) + LANES


@dataclass(frozen=True, eq=False)
class Slide:
    """Tables for one slide over an image; all offsets count elements.

    A vector holds LANES output positions. If the slide `is_direct`, they are neighbours in the
    output too, and vector v goes to out_at[v]; the last one of a row begins early enough to end
    with it. Otherwise vectors run over the image without regard to its rows, the positions
    between two rows are computed for nothing, and lane_at tells where each lane belongs (-1:
    nowhere; of positions in two vectors, only the first has its place in lane_at). Where is_run[v]
    is 1, the lanes of vector v have neighbouring places.
    """

    taps: int
    a_at: Array
    tap_at: Array
    vector_at: Array
    out_at: Array
    lane_at: Array
    is_run: Array
    is_direct: bool

    @property
    def is_exact(self) -> bool:
        """Whether vectors hold each output position once, in order."""
        return bool(self.is_direct and self.lane_at[-1] == len(self.lane_at) - 1)


@dataclass(frozen=True)
class _Grid:
    """Output positions: rows x columns of them, from `start` in a plane `width` wide.

    They belong to rows[i] and columns[j] of the output, which is `out_width` wide.
    """

    start: int
    width: int
    rows: range
    columns: range
    out_width: int


@lru_cache(KEPT_PLANS)
def forward_plan(
    channels: int, size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Layout, Slide]:
    """Plan the slide of weights (out, channels, *kernel) over images; `channels` of one group."""
    rows, columns = output_size(size, kernel, stride, padding, dilation)
    taps = channels * kernel[0] * kernel[1]
    layout_rows, layout_columns = (
        max(length + pad, count) if step == 1 else -(-(length + 2 * pad) // step)
        for length, pad, step, count in zip(size, padding, stride, (rows, columns), strict=True)
    )
    is_direct = _is_direct(rows, columns, layout_columns, taps)
    is_plain = is_direct and stride == (1, 1) and padding == (0, 0)
    layout = Layout(stride, padding, padding, layout_rows, layout_columns, is_plain)
    down, right = (np.arange(count) * step for count, step in zip(kernel, dilation, strict=True))
    phase = (down % stride[0] * stride[1])[:, None] + right % stride[1]
    shift = (down // stride[0] * layout.columns)[:, None] + right // stride[1]
    window = phase * (layout.rows * layout.columns) + shift
    tap_at = np.arange(channels)[:, None, None] * layout.size + window
    grid = _Grid(0, layout.columns, range(rows), range(columns), columns)
    return layout, _slide(np.arange(taps), tap_at.reshape(-1), grid, is_direct)


@dataclass(frozen=True)
class BackwardPlan:
    layout: Layout
    slides: tuple[Slide, ...]


@dataclass(frozen=True)
class _Phase:
    """Along one axis, the elements of an image that the same taps reach."""

    taps: list[int]
    shifts: list[int]
    first: int
    places: range


def _phase(phase: int, *, size: int, taps: int, stride: int, pad: int, dilation: int) -> _Phase:
    """Find padded positions q * stride + phase, which tap t reaches from output q - shift."""
    reaching = [tap for tap in range(taps) if (tap * dilation - phase) % stride == 0]
    first = -(-(pad - phase) // stride)
    places = range(first * stride + phase - pad, size, stride)
    return _Phase(reaching, [(tap * dilation - phase) // stride for tap in reaching], first, places)


def _margins(phases: list[_Phase], outputs: int) -> tuple[int, int]:
    """Return how many zeros are seen before and after the gradient along one axis."""
    used = [phase for phase in phases if phase.shifts and phase.places]
    before = max((max(phase.shifts) - phase.first for phase in used), default=0)
    after = max((phase.first + len(phase.places) - outputs for phase in phases), default=0)
    return max(before, 0), max(after, 0)


@lru_cache(KEPT_PLANS)
def backward_plan(
    weight_shape: tuple[int, ...], size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> BackwardPlan:
    """Plan slides over the gradient of the output; `weight_shape` is that of one group."""
    out_channels, channels, *kernel = weight_shape
    outputs = output_size(size, (kernel[0], kernel[1]), stride, padding, dilation)
    axes = [
        [
            _phase(
                phase, size=size[axis], taps=kernel[axis], stride=stride[axis],
                pad=padding[axis], dilation=dilation[axis],
            )
            for phase in range(stride[axis])
        ]
        for axis in (0, 1)
    ]  # fmt: skip
    (top, bottom), (left, right) = (_margins(axes[axis], outputs[axis]) for axis in (0, 1))
    rows, columns = outputs[0] + max(top, bottom), outputs[1] + max(left, right)
    is_one = stride == (1, 1)
    is_direct = is_one and _is_direct(*size, columns, out_channels * kernel[0] * kernel[1])
    is_plain = is_direct and top == bottom == left == right == 0
    layout = Layout((1, 1), (top, left), (bottom, right), rows, columns, is_plain)
    slides = []
    for down, across in product(*axes):
        if not (down.places and across.places):
            continue
        a_window = np.add.outer(np.array(down.taps, int) * kernel[1], np.array(across.taps, int))
        window = np.add.outer(np.array(down.shifts, int) * columns, np.array(across.shifts, int))
        channel = np.arange(out_channels)[:, None, None]
        a_at = channel * (channels * kernel[0] * kernel[1]) + a_window
        tap_at = channel * layout.size - window
        start = (down.first + top) * columns + across.first + left
        grid = _Grid(start, columns, down.places, across.places, size[1])
        slides.append(_slide(a_at.reshape(-1), tap_at.reshape(-1), grid, is_direct))
    return BackwardPlan(layout, tuple(slides))


def _is_direct(rows: int, columns: int, width: int, taps: int) -> bool:
    """Return whether vectors that stay within rows are less work than those that run across."""
    if columns < LANES:
        return False
    within = rows * -(-columns // LANES)
    across = -(-((rows - 1) * width + columns) // LANES)
    step = TILE_ROWS * VECTORS
    return within * step * taps <= across * (step * taps + COPY_OUT)


def _slide(a_at: Array, tap_at: Array, grid: _Grid, is_direct: bool) -> Slide:
    rows, columns = np.array(grid.rows), np.array(grid.columns)
    places = rows[:, None] * grid.out_width + columns  # of each position in the output
    if is_direct:
        starts = np.minimum(np.arange(0, len(columns), LANES), len(columns) - LANES)
        at = np.arange(len(rows))[:, None] * grid.width + starts
        out_at = (rows[:, None] * grid.out_width + starts).reshape(-1)
        lanes = starts[:, None] + np.arange(LANES)
        is_first = lanes >= np.arange(0, len(columns), LANES)[:, None]
        lane_at = np.where(is_first, places[:, lanes], -1)
    else:
        count = -(-((len(rows) - 1) * grid.width + len(columns)) // LANES)
        at = np.arange(count) * LANES
        out_at = np.arange(VECTORS) * LANES
        row, column = np.divmod(np.arange(count * LANES), grid.width)
        is_inside = (row < len(rows)) & (column < len(columns))
        lane_at = np.full(count * LANES, -1)
        lane_at[is_inside] = places[row[is_inside], column[is_inside]]
    spare = -len(tap_at) % SUM_TAPS if len(tap_at) else 0  # sums take several taps at once
    return Slide(
        taps=len(tap_at),
        a_at=_frozen(a_at),
        tap_at=_frozen(np.pad(tap_at, (0, spare), "edge") if spare else tap_at),
        vector_at=_frozen(at.reshape(-1) + grid.start),
        out_at=_frozen(out_at),
        lane_at=_frozen(lane_at.reshape(-1)),
        is_run=_frozen(_are_neighbours(lane_at.reshape(-1, LANES))),
        is_direct=is_direct,
    )


def _are_neighbours(lane_at: Array) -> Array:
    """Tell for each vector whether its lanes follow each other in the output."""
    is_placed = lane_at[:, 0] >= 0
    result: Array = is_placed & (np.diff(lane_at, axis=1) == 1).all(axis=1)
    return result


def _frozen(table: Array) -> Array:
    table = np.ascontiguousarray(table, np.int64)
    table.flags.writeable = False
    return table


# ---------------------------------------------------------------- compiled convolution: weights
# slide over images that stay where they are

BLOCK_FLOATS = 1 << 16
"""Elements of an image over which all weights slide before the next part of it: a share of L2."""

MACS_PER_ELEMENT = 8
"""Multiplications that take about as long as touching one element."""

SUM_JOBS = 16
"""Independent sums of a derivative by the weights below which the images are shared out too."""

TAP_PARTS = 16
"""Jobs that the taps of the same output channels are shared out to."""


# ---------------------------------------------------------------- kernels


@compiled
def spread(planes, height, width, before_rows, before_columns, steps_down, steps_right,
           rows, columns, out):  # fmt: skip
    """Lay out each plane as a Layout describes."""
    size = steps_down * steps_right * rows * columns
    count = len(planes) // (height * width)
    for plane in prange(count):
        at = plane * size
        clear(out, at, size if plane < count - 1 else len(out) - at)
        for down in range(steps_down):
            for right in range(steps_right):
                first = max(0, -((right - before_columns) // steps_right))
                last = min(columns, (width + before_columns - right - 1) // steps_right + 1)
                for row in range(rows):
                    source_row = row * steps_down + down - before_rows
                    if 0 <= source_row < height:
                        start = (plane * height + source_row) * width + right - before_columns
                        if steps_right == 1 and last - first >= LANES:
                            copy_row(planes, start + first, out, at + first, last - first)
                        else:
                            for column in range(first, last):
                                out[at + column] = planes[start + column * steps_right]
                    at += columns


@inlined
def _next_height(left):
    """Choose how many of the rows that are left the next tile takes: 8 are 4 + 4, not 6 + 2."""
    if left >= TILE_ROWS and left != 8 and left != 9:
        return TILE_ROWS
    return min(left, 4)


@inlined
def _next_width(left):
    if left >= VECTORS:
        return VECTORS
    return 2 if left >= 2 else 1


@compiled
def slide(weights, a_row, a_group, a_at, images, image_step, group_step, tap_at, taps, vector_at,
          bias, out, rows, plane, out_at, lane_at, is_run, is_direct, groups, blocks, chunks,
          batch):  # fmt: skip
    """Convolve: blocks of positions and chunks of output channels (`rows` in a group) are jobs."""
    tiles = -(-len(vector_at) // VECTORS)
    for job in prange(batch * groups * blocks * chunks):
        chunk, block = job % chunks, job // chunks % blocks
        part = job // (chunks * blocks)  # a group of an image
        group, image = part % groups, part // groups
        scratch = np.empty(TILE_ROWS * TILE_COLUMNS, np.float32)
        target = out if is_direct else scratch
        row, last_row = rows * chunk // chunks, rows * (chunk + 1) // chunks
        first = tiles * block // blocks * VECTORS
        last = min(len(vector_at), tiles * (block + 1) // blocks * VECTORS)
        while row < last_row:
            height = _next_height(last_row - row)
            out_offset = (part * rows + row) * plane
            vector = first
            while vector < last:
                width = _next_width(last - vector)
                slide_tile(
                    height, width, weights, group * a_group + row * a_row, a_row, a_at,
                    images, image * image_step + group * group_step, tap_at, taps,
                    vector_at, vector, bias, group * rows + row,
                    target, out_offset if is_direct else 0, plane if is_direct else TILE_COLUMNS,
                    out_at, vector if is_direct else 0,
                )  # fmt: skip
                if not is_direct:
                    _put(scratch, height, lane_at, is_run, vector, width, out, out_offset, plane)
                vector += width
            row += height


@inlined
def _put(tile, height, lane_at, is_run, first, width, out, out_offset, plane):
    """Write the lanes of a tile that belong to an output position to their place."""
    for vector in range(width):
        lanes = (first + vector) * LANES
        for row in range(height):
            tile_start, out_start = row * TILE_COLUMNS + vector * LANES, out_offset + row * plane
            if is_run[first + vector]:
                copy_row(tile, tile_start, out, out_start + lane_at[lanes], LANES)
            else:
                for i in range(LANES):
                    at = lane_at[lanes + i]
                    if at >= 0:
                        out[out_start + at] = tile[tile_start + i]


@compiled
def gather(grad, plane, lane_at, rows, padded_rows, out):
    """Lay out gradients as the vectors of a slide, with zeros where lanes have no place."""
    size = len(lane_at)
    for index in prange(len(out) // size):
        part, row = index // padded_rows, index % padded_rows
        # Slices, since an index that may be negative keeps LLVM from using vectors.
        target = out[index * size : (index + 1) * size]
        if row < rows:
            source = grad[(part * rows + row) * plane : (part * rows + row + 1) * plane]
            for lane in range(size):
                at = lane_at[lane]
                target[lane] = source[at] if at >= 0 else np.float32(0)
        else:
            clear(target, 0, size)


@compiled
def weight_sums(grad, grad_rows, images, image_step, group_step, tap_at, taps, vector_at,
                rows, groups, batch, chunks, out):  # fmt: skip
    """Sum gradient times image for each weight: out (chunks, groups, rows, taps)."""
    row_tiles, tap_tiles = -(-rows // SUM_ROWS), -(-taps // SUM_TAPS)
    plane = len(vector_at) * LANES
    tap_parts = min(tap_tiles, TAP_PARTS)
    for job in prange(chunks * groups * row_tiles * tap_parts):
        row = job // tap_parts % row_tiles * SUM_ROWS
        part = job // (tap_parts * row_tiles)  # a group in a chunk of the images
        group, chunk = part % groups, part // groups
        first, last = batch * chunk // chunks, batch * (chunk + 1) // chunks
        sums = np.empty(SUM_ROWS * SUM_TAPS, np.float32)
        tap_part = job % tap_parts
        first_tile = tap_tiles * tap_part // tap_parts
        last_tile = tap_tiles * (tap_part + 1) // tap_parts
        for tap in range(first_tile * SUM_TAPS, last_tile * SUM_TAPS, SUM_TAPS):
            sum_tile(
                grad, ((first * groups + group) * grad_rows + row) * plane, plane,
                groups * grad_rows * plane, images, first * image_step + group * group_step,
                image_step, tap_at, tap, vector_at, len(vector_at), last - first, sums, 0,
            )  # fmt: skip
            for i in range(min(SUM_ROWS, rows - row)):
                for j in range(min(SUM_TAPS, taps - tap)):
                    out[(part * rows + row + i) * taps + tap + j] = sums[i * SUM_TAPS + j]


# ---------------------------------------------------------------- calls


def _laid_out(images: Array, layout: Layout) -> Array:
    """Copy images to the layout that a slide reads, unless they have it already."""
    if layout.is_plain and images.flags.c_contiguous:
        return flat(images)
    batch, channels, height, width = images.shape
    size = batch * channels * layout.size
    result = np.empty(size + layout.spare, np.float32)
    spread(
        flat(images), height, width, *layout.before, *layout.steps,
        layout.rows, layout.columns, result, work=size,
    )  # fmt: skip
    return result


def _slide_over(
    weights: Array, steps: Pair, images: Array, layout: Layout, channels: int, plan: Slide,
    bias: Array, out: Array, groups: int,
) -> None:  # fmt: skip
    """Convolve `channels` of each group in `images`; `steps` lead to the next row and group."""
    batch, rows = len(out), out.shape[1] // groups
    plane = out.shape[2] * out.shape[3]
    image_part = channels * layout.size
    tiles = -(-len(plan.vector_at) // VECTORS)
    blocks = min(tiles, -(-image_part // BLOCK_FLOATS))
    jobs = batch * groups * blocks
    chunks = 1 if jobs >= 4 * THREADS else min(THREADS // gcd(jobs, THREADS), -(-rows // TILE_ROWS))
    macs = batch * groups * rows * plan.taps * len(plan.vector_at) * LANES
    slide(
        weights, *steps, plan.a_at, images, groups * image_part, image_part, plan.tap_at,
        plan.taps, plan.vector_at, bias, out.reshape(-1), rows, plane, plan.out_at, plan.lane_at,
        plan.is_run, plan.is_direct, groups, blocks, chunks, batch, work=macs // MACS_PER_ELEMENT,
    )  # fmt: skip


def _is_pointwise(kernel: Pair, padding: Pair) -> bool:
    """Return whether this is a pointwise convolution, whose rows can be joined."""
    return kernel == (1, 1) and padding == (0, 0)


def _as_row(images: Array, stride: Pair = (1, 1)) -> Array:
    """Return the positions that a stride leaves as images of one long row."""
    seen = images[:, :, :: stride[0], :: stride[1]]
    return seen.reshape(*seen.shape[:2], 1, seen.shape[2] * seen.shape[3])


def _fits(x_shape: tuple[int, ...], weight_shape: tuple[int, ...], groups: int, out: Pair) -> bool:
    """Return whether shapes are what the kernels take on trust."""
    return (
        len(x_shape) == len(weight_shape) == 4
        and x_shape[1] == weight_shape[1] * groups
        and weight_shape[0] % groups == 0
        and min(*x_shape, *weight_shape, *out) > 0
    )


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    kernel = (weight.shape[2], weight.shape[3])
    rows, columns = output_size(x.shape[2:], kernel, stride, padding, dilation)
    if not (
        x.dtype == weight.dtype == np.float32
        and _fits(x.shape, weight.shape, groups, (rows, columns))
        and (bias is None or (bias.dtype == np.float32 and bias.shape == weight.shape[:1]))
    ):
        return fallback.conv2d(
            x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups
        )
    if _is_pointwise(kernel, padding):
        x, stride = _as_row(x, stride), (1, 1)
    channels, size = weight.shape[1], (x.shape[2], x.shape[3])
    layout, plan = forward_plan(channels, size, kernel, stride, padding, dilation)
    start = np.zeros(len(weight), np.float32) if bias is None else bias
    out = np.empty((len(x), len(weight), rows, columns), np.float32)
    steps = plan.taps, len(weight) // groups * plan.taps
    _slide_over(
        flat(weight), steps, _laid_out(x, layout), layout, channels, plan, flat(start), out,
        groups,
    )  # fmt: skip
    return out


def conv2d_backward_input(
    grad: Array,
    weight: Array,
    *,
    input_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    kernel = (weight.shape[2], weight.shape[3])
    size = output_size(input_shape[2:], kernel, stride, padding, dilation)
    weights = flat(weight)
    if not (
        grad.dtype == weight.dtype == np.float32
        and _fits(input_shape, weight.shape, groups, size)
        and grad.shape == (input_shape[0], len(weight), *size)
        # Zeros around the gradient must stay zeros, whatever they are multiplied by.
        and np.isfinite(np.vdot(weights, weights))
    ):
        return fallback.conv2d_backward_input(
            grad, weight, input_shape=input_shape,
            stride=stride, padding=padding, dilation=dilation, groups=groups,
        )  # fmt: skip
    channels, per_group = len(weight) // groups, weight.shape[1]
    out = np.empty(input_shape, np.float32)
    size = (input_shape[2], input_shape[3])
    if _is_pointwise(kernel, padding) and stride == (1, 1):
        grad, size = _as_row(grad), (1, size[0] * size[1])
    plan = backward_plan((channels, *weight.shape[1:]), size, stride, padding, dilation)
    laid_out = _laid_out(grad, plan.layout)
    taps = kernel[0] * kernel[1]
    steps = taps, channels * per_group * taps
    zeros = np.zeros(input_shape[1], np.float32)
    for part in plan.slides:
        _slide_over(weights, steps, laid_out, plan.layout, channels, part, zeros, out, groups)
    return out


def conv2d_backward_weight(
    grad: Array,
    x: Array,
    *,
    weight_shape: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Array:
    settings: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    kernel = (weight_shape[2], weight_shape[3])
    outputs = output_size(x.shape[2:], kernel, stride, padding, dilation)
    if not (
        grad.dtype == x.dtype == np.float32
        and _fits(x.shape, weight_shape, groups, outputs)
        and grad.shape == (len(x), weight_shape[0], *outputs)
    ):
        return fallback.conv2d_backward_weight(grad, x, weight_shape=weight_shape, **settings)
    result, is_sure = _weight_sums(grad, x, weight_shape, stride, padding, dilation, groups)
    if not is_sure and not np.isfinite(result).all():
        # A lane without a position may have multiplied its zero by an infinity.
        return fallback.conv2d_backward_weight(grad, x, weight_shape=weight_shape, **settings)
    return result


def _weight_sums(
    grad: Array, x: Array, weight_shape: tuple[int, ...],
    stride: Pair, padding: Pair, dilation: Pair, groups: int,
) -> tuple[Array, bool]:  # fmt: skip
    """Return the derivative, and whether all lanes held positions: only then is it exact."""
    kernel = (weight_shape[2], weight_shape[3])
    if _is_pointwise(kernel, padding):
        x, grad, stride = _as_row(x, stride), _as_row(grad), (1, 1)
    size = (x.shape[2], x.shape[3])
    layout, plan = forward_plan(weight_shape[1], size, kernel, stride, padding, dilation)
    rows, batch = weight_shape[0] // groups, len(x)
    is_copied = not plan.is_exact or rows % SUM_ROWS != 0
    slopes = _vectors(grad, plan, groups) if is_copied else flat(grad)
    tiles = groups * -(-rows // SUM_ROWS) * -(-plan.taps // SUM_TAPS)
    chunks = min(batch, -(-SUM_JOBS // tiles))
    out = np.empty((chunks, *weight_shape), np.float32)
    image_part = weight_shape[1] * layout.size
    weight_sums(
        slopes, len(slopes) // (batch * groups * len(plan.lane_at)), _laid_out(x, layout),
        groups * image_part, image_part, plan.tap_at, plan.taps, plan.vector_at, rows, groups,
        batch, chunks, out.reshape(-1), work=grad.size * plan.taps // MACS_PER_ELEMENT,
    )  # fmt: skip
    result: Array = out[0] if chunks == 1 else out.sum(axis=0)
    return result, not is_copied


def _vectors(grad: Array, plan: Slide, groups: int) -> Array:
    """Return the gradient as vectors of output positions, rows of a group filled up with zeros."""
    batch, channels, *size = grad.shape
    rows = channels // groups
    padded_rows = -(-rows // SUM_ROWS) * SUM_ROWS
    result = np.empty(batch * groups * padded_rows * len(plan.lane_at), np.float32)
    gather(
        flat(grad), size[0] * size[1], plan.lane_at, rows, padded_rows,
        result, work=result.size,
    )  # fmt: skip
    return result
