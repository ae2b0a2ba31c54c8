"""Small untrained models of every structure, as workloads with calibration data."""

import numpy as np

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module
from tinytorch.core.spatial import BatchNorm2d, Conv2d, Flatten, MaxPool2d
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.models.workload import Workload

__all__ = ["workload"]


class Branches(Module):
    """Layers in lists and dictionaries, with a residual sum and a grouped convolution."""

    def __init__(self):
        self.stem = Conv2d(3, 16, 3, padding=1, rng=0)
        self.norm = BatchNorm2d(16)
        self.paths = {
            "wide": [Conv2d(16, 16, 3, padding=1, groups=4, rng=1), ReLU()],
            "narrow": (Conv2d(16, 16, 1, rng=2),),
        }
        self.head = Sequential(Flatten(), Linear(16 * 36, 5, rng=3))

    def forward(self, x):
        x = self.norm(self.stem(x))
        total = x
        for layers in self.paths.values():
            branch = x
            for layer in layers:
                branch = layer(branch)
            total = total + branch
        return self.head(total)


class Shared(Module):
    """A layer that is used twice, and a second one with the same weight."""

    def __init__(self):
        self.first = Linear(24, 24, rng=0)
        self.again = self.first
        self.twin = Linear(24, 24, rng=1)
        self.twin.weight = self.first.weight
        self.activation = ReLU()

    def forward(self, x):
        for layer in (self.first, self.again):
            x = self.activation(layer(x))
        return self.twin(x)


def _mlp():
    return Sequential(
        Linear(64, 48, rng=0), ReLU(), Linear(48, 32, rng=1), ReLU(), Linear(32, 10, rng=2)
    )


def _cnn():
    return Sequential(
        Conv2d(1, 8, 3, padding=1, rng=0), ReLU(), MaxPool2d(2),
        Conv2d(8, 16, 3, padding=1, rng=1), ReLU(), MaxPool2d(2),
        Flatten(), Linear(16 * 9, 10, rng=2),
    )  # fmt: skip


def _gpt():
    return GPT(50, 32, 2, 4, max_seq_len=16, rng=0)


_MODELS = {
    "mlp": (_mlp, (64,)),
    "cnn": (_cnn, (1, 12, 12)),
    "gpt": (_gpt, (8,)),
    "branches": (Branches, (3, 6, 6)),
    "shared": (Shared, (24,)),
}


def workload(name: str, *, seed: int = 0) -> Workload:
    """Give a fresh model in evaluation mode, one batch as input, and three for calibration."""
    build, shape = _MODELS[name]
    rng = np.random.default_rng(seed)

    def batch(size):
        if name == "gpt":
            return (Tensor(rng.integers(0, 50, (size, *shape))),)
        return (Tensor(rng.standard_normal((size, *shape)).astype(np.float32)),)

    return Workload(name, build().eval(), batch(2), calibration=tuple(batch(4) for _ in range(3)))
