"""INT8 convolutions for tests: shapes with odd settings, drawn weights, and exact results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from oracles import torch

from tinytorch.core.kernels.packing import PackedInt8, pack_int8
from tinytorch.core.kernels.reference_spatial import output_size
from tinytorch.errors import DTypeError, SettingError, ShapeError

KINDS = ("int8_conv2d_weight_only", "int8_conv2d_dynamic", "int8_conv2d_static")


@dataclass(frozen=True)
class Shape:
    """Images (batch, channels, height, width), output channels, and how a kernel slides."""

    images: tuple[int, int, int, int]
    outputs: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def __str__(self) -> str:
        return f"{self.images}-{self.outputs}-{self.kernel}-{tuple(self.how.values())}"

    @property
    def how(self) -> dict[str, Any]:
        """What `conv2d` takes."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What the INT8 kernels take."""
        return {"kernel_size": self.kernel, **self.how}

    @property
    def weight(self) -> tuple[int, int, int, int]:
        return (self.outputs, self.images[1] // self.groups, *self.kernel)


SHAPES = [
    Shape((2, 3, 9, 20), 70, padding=(1, 1)),  # more than one panel
    Shape((2, 16, 14, 14), 33, padding=(1, 1)),
    Shape((3, 6, 9, 7), 11, (1, 1)),
    Shape((2, 6, 15, 18), 8, (1, 1), (2, 3), groups=2),
    Shape((2, 4, 40, 37), 6, (5, 3), (2, 2), (2, 1)),
    Shape((1, 3, 30, 31), 9, (7, 7), (2, 2), (3, 3)),
    Shape((2, 8, 10, 12), 8, padding=(1, 1), groups=8),
    Shape((1, 4, 8, 8), 130, padding=(1, 1), groups=2),  # a group ends within a panel
    Shape((2, 6, 17, 19), 12, dilation=(2, 3), groups=3),
    Shape((1, 2, 3, 2), 5, (2, 2)),  # fewer positions than a register has lanes
    Shape((1, 2, 5, 30), 4, (3, 1)),
    Shape((1, 2, 4, 6), 3, (1, 3), padding=(0, 70)),  # a border wider than a register
    Shape((2, 3, 11, 200), 3, (4, 2), (3, 1), (2, 3)),
]


SMALL = Shape((3, 2, 5, 6), 4, padding=(1, 1))
STATIC = {"scale": 0.02, "zero_point": 7}


def settings_of(kind: str, shape: Shape = SMALL) -> dict[str, Any]:
    """Give the settings for a kernel, with a scale and a zero point where it takes them."""
    return {**shape.settings, **(STATIC if kind.endswith("static") else {})}


WRONG = [
    ({"x": np.zeros((2, 5, 6), np.float32)}, ShapeError, r"got shape \(2, 5, 6\)"),
    ({"x": np.zeros((1, 2, 5, 6), np.int8)}, DTypeError, "floating-point images, got int8"),
    ({"x": np.zeros((1, 3, 5, 6), np.float32)}, ShapeError, "packed weight of 27 inputs"),
    ({"x": np.zeros((1, 0, 5, 6), np.float32)}, ShapeError, "packed weight of 0 inputs"),
    ({"scales": np.ones(5, np.float32)}, ShapeError, "packed weight of 18 inputs and 5 out"),
    ({"scales": np.ones((4, 1), np.float32)}, ShapeError, r"scales have shape \(4, 1\)"),
    ({"bias": np.ones(1, np.float32)}, ShapeError, r"the bias \(1,\)"),
    ({"bias": np.ones(3, np.int32)}, ShapeError, r"the bias \(3,\)"),
    ({"groups": 3}, SettingError, "groups=3 must divide 2 input and 4 output channels"),
    ({"groups": 0}, SettingError, "groups=0 must divide"),
    ({"stride": (0, 1)}, SettingError, r"at least 1 .* got \(3, 3\), \(0, 1\)"),
    ({"padding": (-1, 0)}, SettingError, r"and \(-1, 0\)"),
    ({"dilation": (9, 1)}, ShapeError, r"does not fit into images of \(5, 6\)"),
    ({"kernel_size": (3, 0)}, SettingError, "at least 1"),
    ({"values": np.ones(72, np.int8)}, ShapeError, r"values of shape \(72,\)"),
]
"""Arguments that do not go with those of SMALL, the error, and words of its message."""


def wrong_call(kind: str, wrong: dict[str, Any]) -> dict[str, Any]:
    """Give the arguments of a call of which some are wrong."""
    layer, _, images = draw_layer(SMALL, np.random.default_rng(0))
    arrays = {
        "x": images,
        "values": layer.values,
        "scales": layer.scales,
        "sums": layer.sums,
        "bias": None,
    }
    return {**arrays, **settings_of(kind), **wrong}


@st.composite
def shapes(draw: Any) -> Shape:
    """Draw settings under which the kernel fits."""
    pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
    groups = draw(st.integers(1, 3))
    channels, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 25))
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 40)))
    kernel, border = draw(pairs), draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    stride, dilation = draw(pairs), draw(pairs)
    if min(output_size(size, kernel, stride, border, dilation)) < 1:
        kernel = (1, 1)
    images = (draw(st.integers(1, 3)), channels, *size)
    return Shape(images, outputs, kernel, stride, border, dilation, groups)


def packed(weight: np.ndarray, scales: np.ndarray | None = None) -> PackedInt8:
    """Pack an int8 weight (out, in / groups, height, width), with scales of 1 unless told."""
    if scales is None:
        scales = np.ones(len(weight), np.float32)
    return pack_int8(weight.reshape(len(weight), -1).T, scales)


def draw_weight(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-128, 128, shape.weight).astype(np.int8)


def draw_layer(shape: Shape, rng: np.random.Generator) -> tuple[PackedInt8, np.ndarray, np.ndarray]:
    """Draw a packed weight, the floats that it means, and images."""
    weight = draw_weight(shape, rng)
    scales = rng.uniform(0.001, 0.01, shape.outputs).astype(np.float32)
    images = rng.normal(size=shape.images).astype(np.float32)
    return packed(weight, scales), weight * scales[:, None, None, None], images


def exact(images: np.ndarray, weight: np.ndarray, shape: Shape) -> np.ndarray:
    """Convolve whole numbers with PyTorch, in floats that have all of them."""
    twins = (torch.tensor(array.astype(np.float64)) for array in (images, weight))
    return torch.nn.functional.conv2d(*twins, **shape.how).numpy()
