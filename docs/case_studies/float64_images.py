"""A convolutional network whose images became float64 on the way in, and all of it with them."""

import numpy as np

from tinytorch import Tensor
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import BatchNorm2d, Conv2d, Flatten, MaxPool2d

MEAN, DEVIATION = np.array([0.49, 0.48, 0.45]), np.array([0.25, 0.24, 0.26])


def slow() -> tuple[Module, Tensor]:
    """Give a network, and images that an ordinary line of NumPy has normalised."""
    return _network(), Tensor(_normalised(_pixels()))


def fixed() -> tuple[Module, Tensor]:
    """Give the same network, and the same images in the dtype of its weights."""
    return _network(), Tensor(_normalised(_pixels()).astype(np.float32))


def _normalised(pixels: np.ndarray) -> np.ndarray:
    """Scale each channel: bytes, divided by anything, are float64 from here on."""
    images = (pixels / 255.0 - MEAN) / DEVIATION
    return images.transpose(0, 3, 1, 2)  # (batch, channels, height, width)


def _pixels() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)


def _network() -> Module:
    rng, layers = np.random.default_rng(0), []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [Conv2d(before, after, 3, padding=1, rng=rng), BatchNorm2d(after), ReLU()]
        layers.append(MaxPool2d(2))
    return Sequential(*layers, Flatten(), Linear(64 * 4 * 4, 10, rng=rng)).eval()
