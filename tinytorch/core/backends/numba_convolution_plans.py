"""Where a convolution finds its numbers: tables of offsets, made once for each shape.

With stride 1, the image that one tap sees is the padded image, shifted. With stride s it would be
every s-th element; laying out the image as s x s smaller ones (its *phases*) makes it a shifted
image again. The derivative by the image slides over the gradient in the same way, once for each
phase, with the taps that reach that phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from tinytorch.core.backends.backend import Array
from tinytorch.core.backends.numba_convolution_tiles import SUM_TAPS
from tinytorch.core.backends.numba_simd import LANES, TILE_COLUMNS, TILE_ROWS, VECTORS
from tinytorch.core.backends.reference_spatial import Pair, output_size

__all__ = ["BackwardPlan", "Layout", "Slide", "backward_plan", "forward_plan"]

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
    """Give how many zeros are seen before and after the gradient along one axis."""
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
    """Tell whether vectors that stay within rows are less work than those that run across."""
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
