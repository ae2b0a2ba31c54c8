"""Models that are right, constant or broken, and real digits to try them on."""

import numpy as np
import pytest
from parts import require_part

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear, ReLU, Sequential


class Constant:
    """Say the same class whatever the input is."""

    def __init__(self, answer, classes=10):
        self.answer, self.classes = answer, classes

    def forward(self, x):
        return np.tile(np.eye(self.classes)[self.answer], (len(x.data), 1))


class Broken:
    """Raise, at once or from some call on."""

    def __init__(self, good_calls=0):
        self.good_calls = good_calls

    def forward(self, x):
        self.good_calls -= 1
        if self.good_calls < 0:
            raise ValueError("the wires are crossed")
        return x


@pytest.fixture
def constant():
    return Constant


@pytest.fixture
def broken():
    return Broken


@pytest.fixture(scope="session")
def digits():
    """Scikit-learn's real 8x8 digits: images and labels to train on, and others to judge by."""
    images, labels = require_part("sklearn.datasets").load_digits(return_X_y=True)
    images = (images / 16 - 0.3).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    return (images[:1200], labels[:1200]), (images[1200:], labels[1200:])


@pytest.fixture(scope="session")
def trained(digits):
    """A small model that has learned the digits, in training mode."""
    (images, labels), _ = digits
    model = Sequential(Linear(64, 32, rng=0), ReLU(), Linear(32, 10, rng=1))
    loader = DataLoader(TensorDataset(images, labels), 32, shuffle=True, seed=0)
    model.fit(loader, epochs=12)
    return model.train()
