"""A small model that was trained on scikit-learn's digits, with its data. Made once a run."""

from functools import lru_cache

import numpy as np
from parts import require_part

from tinytorch.core.autograd import no_grad
from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload

__all__ = ["build", "digits_loader", "digits_workload"]

TRAINING = 1200


def build():
    """Give the model, untrained."""
    return Sequential(Linear(64, 48, rng=0), ReLU(), Linear(48, 10, rng=1))


@lru_cache(1)
def _images():
    found = require_part("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.data[order] / 8 - 1).astype(np.float32)
    return images, found.target[order]


def digits_loader(*, batch_size=32):
    images, labels = _images()
    data = TensorDataset(images[:TRAINING], labels[:TRAINING])
    return DataLoader(data, batch_size, shuffle=True, seed=0)


@lru_cache(1)
def digits_workload():
    """Give the trained model with one example, calibration data and held-out images."""
    images, labels = _images()
    model = build()
    model.fit(digits_loader(), epochs=8)
    held_out, wanted = Tensor(images[TRAINING:]), labels[TRAINING:]

    def evaluate(candidate):
        with no_grad():
            return (candidate(held_out).data.argmax(axis=-1) == wanted).astype(np.float64)

    calibration = ((Tensor(images[:64]),),)
    return Workload("digits", model.eval(), (Tensor(images[:1]),), calibration, evaluate)
