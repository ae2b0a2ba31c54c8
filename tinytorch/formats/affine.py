"""Quantization arithmetic on arrays: x = scale * (value - zero_point), with whole values.

There may be one scale for an array, one for each index of an axis, or one for each column and
each group of neighbouring rows. Ranges always contain zero, so zero is exact.

A round trip is off by at most half a step wherever nothing is clipped. With a zero point this needs
a reason, since rounding it moves the range by up to half a step: low / scale + zero_point lies
within half a step of the lowest value, and as the scale is rounded up, the range is no longer than
the values reach; so high / scale + zero_point is at most half a step above the highest value. What
lies in between has a value within half a step, and at the ends the clipped one is no farther away.
(Floats add their own rounding: the quotient and the product are each off by an eps of themselves,
in float32 together by less than 2**-15 of a step.)"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tinytorch.core.kernels.backend import Array
from tinytorch.errors import DTypeError, SettingError, ShapeError

# ---------------------------------------------------------------- narrowing ranges where cutting
# off the extremes makes everything else more exact

Error = Callable[[Array, Array], Array]
"""Computes the sum of squared errors of each scale for these lower and upper ends."""

MOST_HALVINGS = 10
FINER_STEPS = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Powers of two by which a range is made longer and shorter to find the best one."""

WORTHWHILE = 1 - 1e-3
"""Clipping must save so much of the squared error: the half-step bound is given up for it, and
what rounding errors could feign is far less."""


def narrowed_ranges(
    squared_error: Error, low: Array, high: Array, *, is_symmetric: bool
) -> tuple[Array, Array]:
    """Return the range within low..high that has the least error, for each scale."""
    return _Narrowing(squared_error, low, high).run(is_symmetric)


class _Narrowing:
    """A search for the range of each scale that has the least sum of squared errors.

    A narrower range must be worth giving up the half-step bound; what is not, stays as wide.
    """

    def __init__(self, squared_error: Error, low: Array, high: Array) -> None:
        self.squared_error = squared_error
        self.widest = self.low, self.high = low, high
        self.error = squared_error(low, high)

    def run(self, is_symmetric: bool) -> tuple[Array, Array]:
        """Clip both sides at the same distance from zero and then, without symmetry, each alone."""
        self.search(_within)
        if not is_symmetric:
            self.search(lambda low, high, factor: (low, high * factor))
            self.search(lambda low, high, factor: (low * factor, high))
        return self.low, self.high

    def search(self, moved: Callable[[Array, Array, float], tuple[Array, Array]]) -> None:
        """Halve what is moved until that is hopeless, then look about the best."""
        start = self.low, self.high
        for halvings in range(1, MOST_HALVINGS + 1):
            error = self.attempt(*moved(*start, 0.5**halvings))
            if (error >= 2 * self.error).all():
                break  # What is clipped only grows.
        for step in FINER_STEPS:
            start = self.low, self.high
            self.attempt(*moved(*start, 2**-step))
            self.attempt(*moved(*start, 2**step))

    def attempt(self, low: Array, high: Array) -> Array:
        """Keep these ranges for the scales whose error they lower, and return all errors."""
        low, high = np.maximum(low, self.widest[0]), np.minimum(high, self.widest[1])
        if (low == self.low).all() and (high == self.high).all():
            return self.error
        error = self.squared_error(low, high)
        is_better = error < WORTHWHILE * self.error
        self.low = np.where(is_better, low, self.low)
        self.high = np.where(is_better, high, self.high)
        self.error = np.where(is_better, error, self.error)
        return error


def _within(low: Array, high: Array, factor: float) -> tuple[Array, Array]:
    reach = factor * np.maximum(-low, high)
    return -reach, reach


# ---------------------------------------------------------------- quantization arithmetic on
# arrays: x = scale * (value - zero_point), with whole values

BITS = (8, 4)
FITS = ("range", "mse")

LARGEST = float(np.finfo(np.float32).max)
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Below this float32 loses digits, and the inverse of a scale overflows."""

BLOCK = 1 << 16
"""Elements that are worked on at once: what is in between stays small, and in the cache."""

PART = 16 * BLOCK
"""Elements whose ranges are searched for at once."""


@dataclass(frozen=True)
class Scheme:
    """How an array is quantized.

    symmetric: the zero point is 0 and values lie in -127..127 or -7..7, else in -128..127 or -8..7.
    axis: one scale for each index of this axis; None: one for the whole array.
    group_size: for matrices with axis=1, one scale for each column and each group of this many
    neighbouring rows; it must divide the number of rows.
    """

    bits: int = 8
    symmetric: bool = False
    axis: int | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        value_limits(self.bits, self.symmetric)
        if self.group_size is None:
            return
        if self.group_size < 1:
            raise SettingError(f"group_size={self.group_size}; a group has at least one row")
        if self.axis not in (1, -1):
            raise SettingError(
                f"group_size={self.group_size} with axis={self.axis}; groups of rows need axis=1, "
                "one scale for each column of a matrix"
            )


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """An array as integers: x = scale * (value - zero_point).

    values: int8, of the shape of the original; values of 4 bits take a byte each until packed.
    scale: float32, () or (n,) for the axis or (groups, n). zero_point: int32, of the same shape.
    """

    values: Array
    scale: Array
    zero_point: Array
    scheme: Scheme

    def dequantize(self) -> Array:
        """Return the float32 array that the values stand for."""
        result = np.empty(self.values.shape, np.float32)
        layout = _Layout.of(result, self.scheme)
        scale, values = layout.spread(self.scale), self.values.reshape(layout.view.shape)
        offset = layout.spread(self.zero_point).astype(np.float32)
        with np.errstate(over="ignore"):
            for block, shared in layout.blocks():
                steps = np.subtract(values[block], offset[shared], dtype=np.float32)
                np.multiply(steps, scale[shared], out=layout.view[block])
        if float(np.max(self.scale, initial=0)) * 2**self.scheme.bits >= LARGEST:
            np.clip(result, -LARGEST, LARGEST, out=result)  # The last step may lead beyond.
        return result

    @property
    def nbytes(self) -> int:
        """The bytes that are held. A symmetric array has no need to hold its zero points."""
        held = self.values.nbytes + self.scale.nbytes
        return held if self.scheme.symmetric else held + self.zero_point.nbytes


def value_limits(bits: int = 8, symmetric: bool = False) -> tuple[int, int]:
    """Return the lowest and the highest value: -128 and 127, or -127 and 127 where symmetric."""
    if bits not in BITS:
        raise SettingError(f"bits={bits!r}; values have {' or '.join(map(str, BITS))} bits")
    highest: int = 2 ** (bits - 1) - 1
    return (-highest if symmetric else -highest - 1), highest


def scale_shape(shape: tuple[int, ...], scheme: Scheme) -> tuple[int, ...]:
    """Return the shape that the scales of an array of `shape` have."""
    if scheme.axis is None:
        return ()
    axis = _checked_axis(shape, scheme)
    if scheme.group_size is None:
        return (shape[axis],)
    return shape[0] // scheme.group_size, shape[1]


def affine_parameters(
    low: Any, high: Any, *, bits: int = 8, symmetric: bool = False
) -> tuple[Array, Array]:
    """Return the scale (float32) and the zero point (int32) of values for the range low..high.

    `low` and `high` are numbers or arrays of one shape; the range is widened to contain zero, and
    where symmetric to reach equally far to both sides. A range of nothing but zero has the scale 1
    and the zero point 0.
    """
    lowest, highest = value_limits(bits, symmetric)
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    is_range = np.isfinite(low) & np.isfinite(high) & (low <= high)
    if not is_range.all():
        wrong = [end[~is_range][0] for end in np.broadcast_arrays(low, high)]
        raise SettingError(
            f"a range from {wrong[0]} to {wrong[1]} cannot be quantized; "
            "pass finite numbers, the lower one first"
        )
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    with np.errstate(over="ignore"):
        reach = np.maximum(-low, high) if symmetric else high - low
    steps = highest if symmetric else highest - lowest
    if reach.size and reach.max() / steps > LARGEST:
        raise SettingError(
            f"a range as long as {reach.max():.3g} needs a scale that float32 does not have; "
            "divide the array by a constant first"
        )
    scale = np.maximum(reach / steps, SMALLEST_SCALE).astype(np.float32)
    is_short = scale.astype(np.float64) * steps < reach  # The product is exact: 24 and 8 bits.
    scale = np.where(is_short, np.nextafter(scale, np.float32(np.inf)), scale)
    scale = np.where(reach == 0, np.float32(1), scale)
    if symmetric:
        return scale, np.zeros(scale.shape, np.int32)
    zero_point = np.where(reach == 0, 0, np.rint(lowest - low / scale.astype(np.float64)))
    return scale, zero_point.astype(np.int32)


def quantize_array(
    array: Any,
    scheme: Scheme = Scheme(),
    *,
    limits: tuple[Any, Any] | None = None,
    fit: str = "range",
) -> QuantizedArray:
    """Return the array as integers, rounded half to even.

    fit="range" takes each scale's range from its extremes, so that the round trip is off by at most
    half a step. fit="mse" narrows it where clipping the extremes makes the squared error smaller,
    as it often does with 4 bits. `limits` is a range that is known before, such as a calibrated
    one: two numbers, or two arrays of the shape of the scales; what lies outside is clipped.

    >>> quantized = quantize_array([-0.5, 0.0, 0.75])
    >>> quantized.values, quantized.dequantize().round(2)
    (array([-128,  -26,  127], dtype=int8), array([-0.5 ,  0.  ,  0.75], dtype=float32))
    """
    if fit not in FITS:
        raise SettingError(f"fit={fit!r}; choose one of {', '.join(FITS)}")
    if limits is not None and fit != "range":
        raise SettingError(f"limits are a range and fit={fit!r} searches for one; pass only one")
    array = checked_array(array)
    layout = _Layout.of(array, scheme)
    if scheme.axis is not None:
        scheme = replace(scheme, axis=scheme.axis % array.ndim)
    low, high = layout.extremes()
    check_finite(array, low, high)
    farthest = float(np.maximum(-low, high).max(initial=0))
    if farthest > LARGEST:
        raise SettingError(
            f"{farthest:.3g} is beyond float32, the dtype of dequantized numbers; "
            "divide the array by a constant first"
        )
    if limits is not None:
        low, high = _checked_limits(limits, layout.shape)
    elif fit == "mse":
        for place, part in layout.parts():
            error = partial(part.squared_error, scheme=scheme)
            low[place], high[place] = narrowed_ranges(
                error, low[place], high[place], is_symmetric=scheme.symmetric
            )
    scale, zero_point = affine_parameters(low, high, bits=scheme.bits, symmetric=scheme.symmetric)
    values = np.empty(array.shape, np.int8)
    target = values.reshape(layout.view.shape)
    for block, offset, _, whole in layout.whole_numbers(scale, zero_point, scheme):
        np.add(whole, offset, out=target[block], casting="unsafe")
    return QuantizedArray(values, scale, zero_point, scheme)


def checked_array(array: Any) -> Array:
    """Convert a list to an array; raise unless the elements are real numbers."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"an array of {array.dtype} cannot be quantized; pass floats or integers")
    return array


def check_finite(array: Array, low: Array, high: Array) -> None:
    """Raise if an array holds NaN or infinity, with how many and where.

    The extremes are known already and show it, which saves a pass over the elements.
    """
    if np.isfinite(low).all() and np.isfinite(high).all():
        return
    wrong = ~np.isfinite(array)
    first = tuple(int(index) for index in np.argwhere(wrong)[0])
    raise SettingError(
        f"{np.count_nonzero(wrong)} of {array.size} elements are not finite, the first is "
        f"{array[first]} at {first}; only finite numbers can be quantized"
    )


def _checked_axis(shape: tuple[int, ...], scheme: Scheme) -> int:
    axis, size = scheme.axis, scheme.group_size
    assert axis is not None
    if not -len(shape) <= axis < len(shape):
        raise SettingError(
            f"axis={axis} of an array of shape {shape}; "
            + (f"it has the axes 0 to {len(shape) - 1}" if shape else "it has no axis: axis=None")
        )
    if size is None:
        return axis % len(shape)
    if len(shape) != 2:
        raise SettingError(f"group_size={size} needs a matrix, but the shape is {shape}")
    if shape[0] % size:
        fitting = [divisor for divisor in range(1, shape[0] + 1) if shape[0] % divisor == 0]
        nearest = sorted(sorted(fitting, key=lambda divisor: abs(math.log(divisor / size)))[:3])
        raise SettingError(
            f"groups of {size} do not divide {shape[0]} rows; "
            f"a group_size that does is {', '.join(map(str, nearest))}"
        )
    return 1


def _checked_limits(limits: tuple[Any, Any], shape: tuple[int, ...]) -> tuple[Array, Array]:
    low, high = (np.asarray(limit, np.float64) for limit in limits)
    for limit in (low, high):
        if limit.shape not in ((), shape):
            raise ShapeError(
                f"limits of shape {limit.shape} do not fit scales of shape {shape}; "
                "pass two numbers, or two arrays of that shape"
            )
    return np.broadcast_to(low, shape), np.broadcast_to(high, shape)


@dataclass(frozen=True, eq=False)
class _Layout:
    """An array with an axis of its own for its groups, and the axes that share a scale."""

    view: Array
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    """The shape of the scales."""

    @classmethod
    def of(cls, array: Array, scheme: Scheme) -> _Layout:
        shape = scale_shape(array.shape, scheme)
        if scheme.axis is None:
            view = array.reshape(1) if array.ndim == 0 else array
            return cls(view, tuple(range(view.ndim)), shape)
        if scheme.group_size is not None:
            view = array.reshape(shape[0], scheme.group_size, shape[1])
            return cls(view, (1,), shape)
        axis = scheme.axis % array.ndim
        return cls(array, tuple(other for other in range(array.ndim) if other != axis), shape)

    def spread(self, parameters: Array) -> Array:
        """Return one parameter for each scale so that it broadcasts over the view."""
        return np.expand_dims(parameters, self.axes)

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Yield the blocks of the view, each close in memory, and of what is spread over it."""
        lengths = list(self.view.shape)
        for axis in sorted(range(self.view.ndim), key=lambda axis: -abs(self.view.strides[axis])):
            rest = math.prod(lengths) // max(lengths[axis], 1)
            lengths[axis] = max(1, min(lengths[axis], BLOCK // max(rest, 1)))
        starts = map(range, itertools.repeat(0), self.view.shape, lengths)
        for corner in itertools.product(*starts):
            block = tuple(slice(at, at + part) for at, part in zip(corner, lengths, strict=True))
            yield (
                block,
                tuple(
                    slice(None) if axis in self.axes else part for axis, part in enumerate(block)
                ),
            )

    def parts(self) -> Iterator[tuple[Any, _Layout]]:
        """Yield parts of the array that share no scale, with the indices of their scales."""
        own = next((axis for axis in range(self.view.ndim) if axis not in self.axes), None)
        if own is None:
            yield ..., self
            return
        length = self.view.shape[own]
        count = max(1, PART * length // max(self.view.size, 1))
        for first in range(0, length, count):
            part = slice(first, first + count)
            view = self.view[(slice(None),) * own + (part,)]
            yield part, _Layout(view, self.axes, (view.shape[own], *self.shape[1:]))

    def extremes(self) -> tuple[Array, Array]:
        """Return the lowest and the highest element of each scale, or zero if that is beyond."""
        with np.errstate(invalid="ignore"):
            low = np.min(self.view, axis=self.axes, initial=0)
            high = np.max(self.view, axis=self.axes, initial=0)
        return np.asarray(low, np.float64), np.asarray(high, np.float64)

    def whole_numbers(
        self, scale: Array, zero_point: Array, scheme: Scheme
    ) -> Iterator[tuple[tuple[slice, ...], Array, Array, Array]]:
        """Yield, block by block: where it is, zero points, x / scale, and value - zero point."""
        wide = np.result_type(self.view.dtype, np.float32)
        kind = wide if wide.itemsize <= 8 else np.dtype(np.float64)
        steps = self.spread(scale).astype(kind)
        offsets = self.spread(zero_point).astype(kind)
        lowest, highest = value_limits(scheme.bits, scheme.symmetric)
        for block, shared in self.blocks():
            offset = offsets[shared]
            with np.errstate(over="ignore"):  # What lies far outside of the limits is clipped.
                quotient = np.divide(self.view[block], steps[shared], dtype=kind)
            whole = np.rint(quotient)
            np.maximum(whole, lowest - offset, out=whole)  # faster than clip, which is not SIMD
            np.minimum(whole, highest - offset, out=whole)
            yield block, offset, quotient, whole

    def squared_error(self, low: Array, high: Array, scheme: Scheme) -> Array:
        """Return the sum of squared errors of each scale, if it had the range low..high."""
        parameters = affine_parameters(low, high, bits=scheme.bits, symmetric=scheme.symmetric)
        total = np.zeros(self.shape)
        for block, _, quotient, whole in self.whole_numbers(*parameters, scheme):
            np.subtract(quotient, whole, out=whole)
            np.square(whole, out=whole)
            kept = tuple(part for axis, part in enumerate(block) if axis not in self.axes)
            total[kept] += whole.sum(axis=self.axes)
        return np.asarray(total * np.square(parameters[0].astype(np.float64)))
