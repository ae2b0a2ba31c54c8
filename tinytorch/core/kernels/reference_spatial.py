"""Convolution, pooling and batch normalisation of the reference backend.

Images are (batch, channels, height, width). The loops run over output positions: slow, and as close
to the definition as code can be.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tinytorch.core.kernels.backend import Array

Pair = tuple[int, int]
Window = tuple[int, int, tuple[slice, slice]]


def output_size(
    size: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Pair:
    """Return the height and width that a sliding window produces."""
    height, width = (
        (length + 2 * pad - dilate * (taps - 1) - 1) // step + 1
        for length, taps, step, pad, dilate in zip(
            size, kernel, stride, padding, dilation, strict=True
        )
    )
    return height, width


def pad_image(x: Array, padding: Pair, value: float = 0.0) -> Array:
    """Surround each image with a border of `value`."""
    rows, columns = padding
    if rows == columns == 0:
        return x
    border = ((0, 0), (0, 0), (rows, rows), (columns, columns))
    return np.pad(x, border, constant_values=value)


def unpad_image(x: Array, padding: Pair) -> Array:
    """Cut off the border that :func:`pad_image` added."""
    rows, columns = padding
    return x[:, :, rows : x.shape[2] - rows, columns : x.shape[3] - columns]


def windows(size: tuple[int, ...], kernel: Pair, stride: Pair, dilation: Pair) -> Iterator[Window]:
    """Yield each output position (row, column) with the part of the padded input it looks at."""
    rows, columns = output_size(size, kernel, stride, (0, 0), dilation)
    for row in range(rows):
        for column in range(columns):
            top, left = row * stride[0], column * stride[1]
            yield (
                row,
                column,
                (
                    slice(top, top + dilation[0] * (kernel[0] - 1) + 1, dilation[0]),
                    slice(left, left + dilation[1] * (kernel[1] - 1) + 1, dilation[1]),
                ),
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
    """Correlate x (batch, in, h, w) with weight (out, in / groups, kh, kw)."""
    batch, (out_channels, _, *taps) = len(x), weight.shape
    kernel = (taps[0], taps[1])
    padded = pad_image(x, padding)
    grouped_x = padded.reshape(batch, groups, x.shape[1] // groups, *padded.shape[2:])
    grouped_weight = weight.reshape(groups, out_channels // groups, -1, *kernel)
    rows, columns = output_size(padded.shape[2:], kernel, stride, (0, 0), dilation)
    dtype = np.result_type(x, weight)
    result = np.zeros((batch, groups, out_channels // groups, rows, columns), dtype)
    for row, column, window in windows(padded.shape[2:], kernel, stride, dilation):
        patch = grouped_x[:, :, :, *window]  # (batch, groups, in, kh, kw)
        result[..., row, column] = np.einsum("bgikl,goikl->bgo", patch, grouped_weight)
    result = result.reshape(batch, out_channels, rows, columns)
    return result if bias is None else result + bias[:, None, None]


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
    batch, channels, height, width = input_shape
    kernel = (weight.shape[2], weight.shape[3])
    size = (height + 2 * padding[0], width + 2 * padding[1])
    grouped_grad = grad.reshape(batch, groups, len(weight) // groups, *grad.shape[2:])
    grouped_weight = weight.reshape(groups, len(weight) // groups, -1, *kernel)
    result = np.zeros((batch, groups, channels // groups, *size), grad.dtype)
    for row, column, window in windows(size, kernel, stride, dilation):
        here = grouped_grad[..., row, column]
        result[:, :, :, *window] += np.einsum("bgo,goikl->bgikl", here, grouped_weight)
    return unpad_image(result.reshape(batch, channels, *size), padding)


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
    kernel = (weight_shape[2], weight_shape[3])
    padded = pad_image(x, padding)
    grouped_x = padded.reshape(len(x), groups, x.shape[1] // groups, *padded.shape[2:])
    grouped_grad = grad.reshape(len(x), groups, weight_shape[0] // groups, *grad.shape[2:])
    result = np.zeros((groups, weight_shape[0] // groups, *weight_shape[1:]), grad.dtype)
    for row, column, window in windows(padded.shape[2:], kernel, stride, dilation):
        patch = grouped_x[:, :, :, *window]
        result += np.einsum("bgo,bgikl->goikl", grouped_grad[..., row, column], patch)
    return result.reshape(weight_shape)


def max_pool2d(x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    padded = pad_image(x, padding, -np.inf)
    rows, columns = output_size(padded.shape[2:], kernel, stride, (0, 0), (1, 1))
    result = np.empty((*x.shape[:2], rows, columns), x.dtype)
    for row, column, window in windows(padded.shape[2:], kernel, stride, (1, 1)):
        result[:, :, row, column] = padded[:, :, *window].max(axis=(2, 3))
    return result


def max_pool2d_backward(
    grad: Array, x: Array, output: Array, *, kernel: Pair, stride: Pair, padding: Pair
) -> Array:
    """Send each gradient to the first largest element of its window."""
    padded = pad_image(x, padding, -np.inf)
    result = np.zeros(padded.shape, grad.dtype)
    images, channels = np.indices(x.shape[:2])
    for row, column, window in windows(padded.shape[2:], kernel, stride, (1, 1)):
        patch = padded[:, :, *window].reshape(*x.shape[:2], kernel[0] * kernel[1])
        first = patch.argmax(axis=-1)
        down, right = np.divmod(first, kernel[1])
        where = (images, channels, row * stride[0] + down, column * stride[1] + right)
        result[where] += grad[:, :, row, column]
    return unpad_image(result, padding)


def avg_pool2d(x: Array, *, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    padded = pad_image(x, padding)
    rows, columns = output_size(padded.shape[2:], kernel, stride, (0, 0), (1, 1))
    result = np.empty((*x.shape[:2], rows, columns), x.dtype)
    for row, column, window in windows(padded.shape[2:], kernel, stride, (1, 1)):
        result[:, :, row, column] = padded[:, :, *window].mean(axis=(2, 3))
    return result


def avg_pool2d_backward(
    grad: Array, *, input_shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair
) -> Array:
    batch, channels, height, width = input_shape
    size = (height + 2 * padding[0], width + 2 * padding[1])
    result = np.zeros((batch, channels, *size), grad.dtype)
    share = grad / (kernel[0] * kernel[1])
    for row, column, window in windows(size, kernel, stride, (1, 1)):
        result[:, :, *window] += share[:, :, row, column, None, None]
    return unpad_image(result, padding)


def batch_norm(
    x: Array, weight: Array, bias: Array, *, eps: float
) -> tuple[Array, Array, Array, Array, Array]:
    """Normalise each channel. Returns output, normalised input, 1/deviation, mean, variance."""
    mean = x.mean(axis=(0, 2, 3))
    variance = x.var(axis=(0, 2, 3))
    inverse = 1 / np.sqrt(variance + eps)
    normalised = (x - mean[:, None, None]) * inverse[:, None, None]
    output = normalised * weight[:, None, None] + bias[:, None, None]
    return output, normalised, inverse, mean, variance


def batch_norm_backward(
    grad: Array, weight: Array, normalised: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    over = (0, 2, 3)
    grad_bias = grad.sum(axis=over)
    grad_weight = (grad * normalised).sum(axis=over)
    count = grad.size // grad.shape[1]
    mean = (grad_bias / count)[:, None, None]
    projection = normalised * (grad_weight / count)[:, None, None]
    grad_x = (grad - mean - projection) * (weight * inverse)[:, None, None]
    return grad_x, grad_weight, grad_bias
