"""What the tests of the comparer compare, and the processes that it must not leave behind."""

import contextlib
import time

import numpy as np
import psutil
from parts import require_part

from tinytorch.core.layers import Linear, ReLU, Sequential
from tinytorch.core.tensor import Tensor

torch = require_part("torch")
nn = torch.nn

SHORT = {"budget_s": 0.05}
TIME_ALONE = {"budget_s": 0.05, "evidence": False}
"""Far more work is found in the six rounds that are always taken, on any machine."""
WIDE = 60_000


def work(amount):
    return lambda: sum(range(amount))


LITTLE, MUCH = work(1000), work(30_000)


def core_model(width=16):
    return Sequential(Linear(8, width, rng=0), ReLU(), Linear(width, 4, rng=0))


def torch_model(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))


CORE_X, TORCH_X = Tensor(np.ones((2, 8), np.float32)), torch.ones(2, 8)


def children():
    """Give the Pythons that this one has started; a database server starts others by itself."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name().startswith("python"):
                found.add(child.pid)
    return found


def are_gone(before):
    """Say whether the processes since then have ended; a moment is theirs."""
    end = time.monotonic() + 10
    while children() - before and time.monotonic() < end:
        time.sleep(0.01)
    return not children() - before
