"""Compiled pooling, and the table of all compiled kernels that work on images.

Windows of 2 x 2 side by side, by far the most usual, have their own loops: there each element
belongs to one window, and a row of windows is two rows of pairs.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from tinytorch.core.kernels import numpy_spatial as fallback
from tinytorch.core.kernels.backend import Array, Kernel
from tinytorch.core.kernels.numba import convolution
from tinytorch.core.kernels.numba.compile import compiled, inlined
from tinytorch.core.kernels.numba.simd import larger
from tinytorch.core.kernels.reference_spatial import Pair, output_size

ZERO = np.float32(0)
LOWEST = np.float32(-np.inf)
NO_PADDING = (0, 0)
PAIRS = (2, 2)


# ---------------------------------------------------------------- kernels


@compiled
def pool_pairs(x, out, is_max):
    """Pool x (planes, rows, 2, columns, 2) to out (planes, rows, columns)."""
    planes, rows, columns = out.shape
    for plane in prange(planes):
        for row in range(rows):
            upper, lower, target = x[plane, row, 0], x[plane, row, 1], out[plane, row]
            if is_max:
                for i in range(columns):
                    above = larger(upper[i, 0], upper[i, 1])
                    target[i] = larger(above, larger(lower[i, 0], lower[i, 1]))
            else:
                for i in range(columns):
                    total = (upper[i, 0] + upper[i, 1]) + (lower[i, 0] + lower[i, 1])
                    target[i] = total * np.float32(0.25)


@compiled
def pool(x, kernel, stride, padding, out, is_max):
    """Pool x (planes, height, width): first over the rows of a window, which are contiguous."""
    height, width = x.shape[1:]
    planes, rows, columns = out.shape
    border = LOWEST if is_max else ZERO
    count = np.float32(kernel[0] * kernel[1])
    for plane in prange(planes):
        tall = np.empty(width + 2 * padding[1], np.float32)
        middle = tall[padding[1] : padding[1] + width]
        for row in range(rows):
            tall[:] = border
            first = row * stride[0] - padding[0]
            for source in range(max(first, 0), min(first + kernel[0], height)):
                _fold(middle, x[plane, source], is_max)
            target = out[plane, row]
            target[:] = border
            if columns >= kernel[1]:
                for tap in range(kernel[1]):
                    _fold(target, tall[tap :: stride[1]], is_max)
            else:
                for i in range(columns):
                    target[i] = _folded(tall[i * stride[1] : i * stride[1] + kernel[1]], is_max)
            if not is_max:
                for i in range(columns):
                    target[i] /= count


@inlined
def _fold(target, source, is_max):
    """Take the largest of, or add, what is already there and the source."""
    if is_max:
        for i in range(len(target)):
            target[i] = larger(target[i], source[i])
    else:
        for i in range(len(target)):
            target[i] += source[i]


@inlined
def _folded(row, is_max):
    """Return the maximum or the sum of a row."""
    result = LOWEST if is_max else ZERO
    if is_max:
        for i in range(len(row)):
            result = larger(result, row[i])
    else:
        for i in range(len(row)):
            result += row[i]
    return result


@compiled
def send_pairs(grad, x, largest, out):
    """Send gradients (planes, rows, columns) to out, like x (planes, rows, 2, columns, 2)."""
    planes, rows, columns = grad.shape
    for plane in prange(planes):
        for row in range(rows):
            upper, lower = x[plane, row, 0], x[plane, row, 1]
            to_upper, to_lower = out[plane, row, 0], out[plane, row, 1]
            slopes, most = grad[plane, row], largest[plane, row]
            for i in range(columns):  # without `and` and `or`, which are branches
                is_first = _is_largest(upper[i, 0], most[i])
                is_above = is_first | _is_largest(upper[i, 1], most[i])
                is_before_last = is_above | _is_largest(lower[i, 0], most[i])
                slope = slopes[i]
                to_upper[i, 0] = slope if is_first else ZERO
                to_upper[i, 1] = slope if is_above & (not is_first) else ZERO
                to_lower[i, 0] = slope if is_before_last & (not is_above) else ZERO
                to_lower[i, 1] = ZERO if is_before_last else slope


@inlined
def _is_largest(value, largest):
    """Compare with the largest of a window; if there is a NaN in it, the first NaN counts."""
    return (value == largest) | (value != value)


@compiled
def send(grad, x, largest, kernel, stride, padding, out):
    """Send each gradient to the first largest element of its window in x (planes, h, w).

    The taps of all windows in a row take their turns, and what a tap took waits no more.
    """
    height, width = x.shape[1:]
    planes, rows, columns = grad.shape
    for plane in prange(planes):
        out[plane] = ZERO
        waiting = np.empty(columns, np.float32)
        for row in range(rows):
            slopes, most = grad[plane, row], largest[plane, row]
            top = row * stride[0] - padding[0]
            for i in range(columns):
                # If all is minus infinity, the first of it may be the border.
                is_border = (top < 0) | (i * stride[1] < padding[1])
                waiting[i] = ZERO if is_border & (most[i] == LOWEST) else slopes[i]
            for down in range(max(top, 0), min(top + kernel[0], height)):
                source, target = x[plane, down], out[plane, down]
                for tap in range(kernel[1]):
                    # The windows whose tap is inside of the image, and where it is for the first.
                    first = max(0, -((tap - padding[1]) // stride[1]))
                    last = min(columns, (width + padding[1] - tap - 1) // stride[1] + 1)
                    at = first * stride[1] + tap - padding[1]
                    left, here = waiting[first:last], most[first:last]
                    if first < last and stride[1] == 1:  # in vectors
                        _take(left, here, source[at:], target[at:])
                    elif first < last:
                        _take(left, here, source[at :: stride[1]], target[at :: stride[1]])


@inlined
def _take(waiting, most, source, target):
    """Add the gradients of windows to those of their elements that are the largest."""
    for i in range(len(waiting)):
        is_here, slope = _is_largest(source[i], most[i]), waiting[i]
        target[i] += slope if is_here else ZERO
        waiting[i] = ZERO if is_here else slope


@compiled
def share_out(grad, kernel, stride, padding, out):
    """Spread the gradient (planes, rows, columns) evenly over the elements of each window."""
    height, width = out.shape[1:]
    planes, rows, columns = grad.shape
    count = np.float32(kernel[0] * kernel[1])
    for plane in prange(planes):
        out[plane] = ZERO
        shares = np.empty(columns, np.float32)
        wide = np.empty(width + 2 * padding[1], np.float32)  # one row of what is added
        for row in range(rows):
            for i in range(columns):
                shares[i] = grad[plane, row, i] / count
            wide[:] = ZERO
            for tap in range(kernel[1]):
                _add(wide[tap :: stride[1]], shares)
            top = row * stride[0] - padding[0]
            for down in range(max(top, 0), min(top + kernel[0], height)):
                _add(out[plane, down], wide[padding[1] : padding[1] + width])


@inlined
def _add(target, addend):
    for i in range(min(len(target), len(addend))):
        target[i] += addend[i]


# ---------------------------------------------------------------- calls


def _planes(images: Array, *shape: int) -> Array:
    """View images plane by plane, read-only, so that one compiled version serves all callers."""
    planes = images.reshape(images.shape[0] * images.shape[1], *(shape or images.shape[2:]))
    if not planes.flags.c_contiguous:
        planes = planes.copy()
    planes.flags.writeable = False
    return planes


def _is_ours(shape: tuple[int, ...], window: tuple[Pair, Pair, Pair], *arrays: Array) -> bool:
    """Return whether the compiled loops take images of this shape."""
    kernel, stride, padding = window
    return (
        all(array.dtype == np.float32 and array.ndim == 4 for array in arrays)
        and len(shape) == 4
        and min(*shape, *output_size(shape[2:], kernel, stride, padding, (1, 1))) > 0
    )


def _pooled_shape(shape: tuple[int, ...], window: tuple[Pair, Pair, Pair]) -> tuple[int, ...]:
    return (*shape[:2], *output_size(shape[2:], *window, (1, 1)))


def _is_paired(shape: tuple[int, ...], window: tuple[Pair, Pair, Pair]) -> bool:
    height, width = shape[2:]
    return window == (PAIRS, PAIRS, NO_PADDING) and height % 2 == 0 and width % 2 == 0


def _paired(images: Array) -> Array:
    """View images as (planes, rows, 2, columns, 2)."""
    return _planes(images, images.shape[2] // 2, 2, images.shape[3] // 2, 2)


def _pool(x: Array, kernel: Pair, stride: Pair, padding: Pair, *, is_max: bool) -> Array:
    window = kernel, stride, padding
    size = output_size(x.shape[2:], *window, (1, 1))
    out = np.empty((*x.shape[:2], *size), np.float32)
    planes = out.reshape(-1, *size)
    if _is_paired(x.shape, window):
        pool_pairs(_paired(x), planes, is_max, work=x.size)
    else:
        pool(_planes(x), kernel, stride, padding, planes, is_max, work=x.size + out.size)
    return out


def max_pool2d(x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    if not _is_ours(x.shape, (kernel, stride, padding), x):
        return fallback.max_pool2d(x, kernel=kernel, stride=stride, padding=padding)
    return _pool(x, kernel, stride, padding, is_max=True)


def avg_pool2d(x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    if not _is_ours(x.shape, (kernel, stride, padding), x):
        return fallback.avg_pool2d(x, kernel=kernel, stride=stride, padding=padding)
    return _pool(x, kernel, stride, padding, is_max=False)


def max_pool2d_backward(
    grad: Array, x: Array, output: Array, *, kernel: Pair, stride: Pair, padding: Pair
) -> Array:
    window = kernel, stride, padding
    if not (
        _is_ours(x.shape, window, grad, x, output)
        and grad.shape == output.shape == _pooled_shape(x.shape, window)
    ):
        return fallback.max_pool2d_backward(
            grad, x, output, kernel=kernel, stride=stride, padding=padding
        )
    out = np.empty(x.shape, np.float32)
    slopes, largest = _planes(grad), _planes(output)
    if _is_paired(x.shape, window):
        pairs = _paired(x)
        send_pairs(slopes, pairs, largest, out.reshape(pairs.shape), work=2 * x.size)
    else:
        planes = out.reshape(-1, *x.shape[2:])
        work = x.size + grad.size * kernel[0] * kernel[1]
        send(slopes, _planes(x), largest, kernel, stride, padding, planes, work=work)
    return out


def avg_pool2d_backward(
    grad: Array, *, input_shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair
) -> Array:
    window = kernel, stride, padding
    if not (
        _is_ours(input_shape, window, grad) and grad.shape == _pooled_shape(input_shape, window)
    ):
        return fallback.avg_pool2d_backward(
            grad, input_shape=input_shape, kernel=kernel, stride=stride, padding=padding
        )
    out = np.empty(input_shape, np.float32)
    planes = out.reshape(-1, *input_shape[2:])
    work = out.size + grad.size * kernel[0] * kernel[1]
    share_out(_planes(grad), kernel, stride, padding, planes, work=work)
    return out


KERNELS: dict[str, Kernel] = {
    "conv2d": convolution.conv2d,
    "conv2d_backward_input": convolution.conv2d_backward_input,
    "conv2d_backward_weight": convolution.conv2d_backward_weight,
    "max_pool2d": max_pool2d,
    "max_pool2d_backward": max_pool2d_backward,
    "avg_pool2d": avg_pool2d,
    "avg_pool2d_backward": avg_pool2d_backward,
}
