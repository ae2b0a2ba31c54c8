"""A feed-forward stack of 226 MB, for a place where 100 MB and 100 ms are allowed."""

import numpy as np

from tinytorch import Tensor
from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.module import Module

WIDTH, INNER, PAIRS = 768, 3072, 12


def make() -> tuple[Module, Tensor]:
    """Give the stack, and an input of four rows."""
    rng, layers = np.random.default_rng(0), []
    for _ in range(PAIRS):
        layers += [Linear(WIDTH, INNER, rng=rng), ReLU(), Linear(INNER, WIDTH, rng=rng)]
    x = Tensor(rng.standard_normal((4, WIDTH), dtype=np.float32))
    return Sequential(*layers).eval(), x
