"""Layers for images (batch, channels, height, width), or one image (channels, height, width)."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from tinytorch.core import operations
from tinytorch.core.kernels.reference_spatial import Pair, output_size
from tinytorch.core.layers import Seed, uniform
from tinytorch.core.module import Module, check_floating_point
from tinytorch.core.tensor import Parameter, Tensor, apply
from tinytorch.errors import SettingError, ShapeError

__all__ = ["AvgPool2d", "BatchNorm2d", "Conv2d", "Flatten", "MaxPool2d"]


def _pair(value: int | Pair, name: str, least: int) -> Pair:
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        first, second = map(operator.index, pair)
    except (TypeError, ValueError):
        first = second = least - 1  # no integers, or not two of them
    if min(first, second) < least:
        raise SettingError(f"{name} must be one or two integers of at least {least}, got {value}")
    return first, second


def on_batch(
    layer: Module, x: Tensor, channels: int | None, run: Callable[[Tensor], Tensor]
) -> Tensor:
    """Run on a batch of images; a single image is made a batch of one and taken out again."""
    check_floating_point(layer, x)
    wanted = "channels" if channels is None else channels
    if x.ndim not in (3, 4) or (channels is not None and x.shape[-3] != channels):
        raise ShapeError(
            f"{layer!r} needs (batch, {wanted}, height, width) or ({wanted}, height, width), "
            f"got {x.shape}"
        )
    if x.ndim == 4:
        return run(x)
    result = run(x.reshape(1, *x.shape))
    return result.reshape(*result.shape[1:])


def check_window(layer: Module, x: Tensor, size: Pair) -> None:
    """Raise unless a layer whose output has this size fits into the images."""
    if min(size) < 1:
        raise ShapeError(f"{layer!r} does not fit into images of {x.shape[-2]}x{x.shape[-1]}")


class Conv2d(Module):
    """Convolution; weight is (out_channels, in_channels / groups, kernel height, kernel width)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        groups: int = 1,
        dilation: int | Pair = 1,
        bias: bool = True,
        *,
        rng: Seed = None,
    ) -> None:
        if (
            min(in_channels, out_channels, groups) < 1
            or in_channels % groups
            or out_channels % groups
        ):
            raise SettingError(
                f"groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _pair(kernel_size, "kernel_size", 1)
        self.stride = _pair(stride, "stride", 1)
        self.padding = _pair(padding, "padding", 0)
        self.dilation = _pair(dilation, "dilation", 1)
        self.groups = groups
        rng = np.random.default_rng(rng)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        fan_in = shape[1] * shape[2] * shape[3]
        self.weight = Parameter(uniform(shape, fan_in, rng))
        self.bias = Parameter(uniform((out_channels,), fan_in, rng)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, self.in_channels, self._convolve)

    def _convolve(self, x: Tensor) -> Tensor:
        size = output_size(x.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation)
        check_window(self, x, size)
        operation = operations.Conv2d(self.stride, self.padding, self.dilation, self.groups)
        if self.bias is None:
            return apply(operation, x, self.weight)
        return apply(operation, x, self.weight, self.bias)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        defaults = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text if self.bias is not None else f"{text}, bias=False"


class _Pool2d(Module):
    operation: type[operations.MaxPool2d] | type[operations.AvgPool2d]

    def __init__(
        self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0
    ) -> None:
        self.kernel_size = _pair(kernel_size, "kernel_size", 1)
        self.stride = self.kernel_size if stride is None else _pair(stride, "stride", 1)
        self.padding = _pair(padding, "padding", 0)
        if any(2 * pad > size for pad, size in zip(self.padding, self.kernel_size, strict=True)):
            raise SettingError(
                f"padding {self.padding} must be at most half of the kernel {self.kernel_size}"
            )

    def forward(self, x: Tensor) -> Tensor:
        return on_batch(self, x, None, self._pool)

    def _pool(self, x: Tensor) -> Tensor:
        size = output_size(x.shape[2:], self.kernel_size, self.stride, self.padding, (1, 1))
        check_window(self, x, size)
        return apply(self.operation(self.kernel_size, self.stride, self.padding), x)

    def extra_repr(self) -> str:
        text = f"kernel_size={self.kernel_size}, stride={self.stride}"
        return text if self.padding == (0, 0) else f"{text}, padding={self.padding}"


class MaxPool2d(_Pool2d):
    """The largest element of each window."""

    operation = operations.MaxPool2d


class AvgPool2d(_Pool2d):
    """The mean of each window; the padding counts as zeros."""

    operation = operations.AvgPool2d


class BatchNorm2d(Module):
    """Normalise each channel: by the batch while training, by running statistics in `eval`."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        if num_features < 1:
            raise SettingError(f"BatchNorm2d needs num_features of at least 1, got {num_features}")
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = Parameter(np.ones(num_features, np.float32))
        self.bias = Parameter(np.zeros(num_features, np.float32))
        self.running_mean = Tensor(np.zeros(num_features, np.float32))
        self.running_var = Tensor(np.ones(num_features, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        by_batch = self._by_batch if self.training else self._by_running_statistics
        return on_batch(self, x, self.num_features, by_batch)

    def _by_batch(self, x: Tensor) -> Tensor:
        count = x.size // self.num_features
        if count < 2:
            raise ShapeError(
                f"{self!r} needs more than one value per channel to train, got {x.shape}"
            )
        operation = operations.BatchNorm(self.eps)
        result = apply(operation, x, self.weight, self.bias)
        unbiased = operation.variance * (count / (count - 1))
        for running, seen in ((self.running_mean, operation.mean), (self.running_var, unbiased)):
            running.data = running.data + self.momentum * (seen - running.data).astype(
                running.dtype
            )
        return result

    def _by_running_statistics(self, x: Tensor) -> Tensor:
        scale = self.weight / (self.running_var + self.eps).sqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class Flatten(Module):
    """Join all axes from `start` on; an image batch becomes (batch, features)."""

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[: self.start], int(np.prod(x.shape[self.start :])))
