"""A file of targets that are measured in processes of their own: models with one trouble each."""

import os
import signal
import subprocess
import sys
import time

import numpy as np

from tinytorch import Tensor, Workload
from tinytorch.core.layers import Linear, Sequential

FILE = __file__


class Troubled:
    """A model that computes as a Linear does, up to a number of examples."""

    def __init__(self, most, trouble):
        self.layer = Linear(4, 3)
        self.most, self.trouble = most, trouble

    def forward(self, x):
        if x.shape[0] > self.most:
            self.trouble()
        return self.layer(x)


def refuse():
    raise ValueError("too many examples")


def vanish():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(60)


def inputs(rows=2):
    return Tensor(np.ones((rows, 4), np.float32))


def refusing():
    return Troubled(12, refuse), inputs()


def vanishing():
    return Troubled(4, vanish), inputs()


def hanging():
    return Troubled(4, hang), inputs()


def failing():
    return Troubled(0, refuse), inputs()


def breeding():
    """Give a model beside which a process runs that nobody ends."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return Sequential(Linear(4, 3)), inputs()


def forking():
    """Give a model that leaves a copy of its process behind with every call."""
    layer = Linear(4, 3)

    def forward(x):
        os.fork()
        return layer(x)

    return forward, inputs()


def chatty():
    print("a target may print")
    return Sequential(Linear(4, 3)), inputs()


def holding():
    """Give a model that holds 1 MB for each example while it computes."""

    def forward(x):
        rows = np.ones((x.shape[0], 1 << 20), np.uint8)
        return Tensor(rows[:, :3].astype(np.float32))

    return forward, inputs(1)


def plain():
    return Workload("plain", Sequential(Linear(4, 3)), (inputs(),))
