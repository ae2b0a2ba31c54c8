"""The same small model in every form that the profiling tools take, and a watch over its state."""

import gc
import sys
import tracemalloc
from contextlib import contextmanager

import numpy as np
from parts import require_part

from tinytorch import Tensor
from tinytorch.core.layers import Dropout, Linear, ReLU, Sequential

KINDS = ("core", "torch", "plain core", "plain torch")
BATCH, INPUTS, HIDDEN, OUTPUTS = 6, 8, 16, 4
PARAMETERS = INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS
MACS_PER_SAMPLE = INPUTS * HIDDEN + HIDDEN * OUTPUTS


class OnlyForward:
    """An object that is no module of any framework and cannot be called."""

    def __init__(self, inner):
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

    def parameters(self):
        return self.inner.parameters()


def make_model(kind):
    """Give a model of three layers with dropout, in training mode."""
    if "torch" in kind:
        nn = require_part("torch").nn
        layers = nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, OUTPUTS)
        model = nn.Sequential(*layers)
    else:
        first, last = Linear(INPUTS, HIDDEN, rng=0), Linear(HIDDEN, OUTPUTS, rng=1)
        model = Sequential(first, ReLU(), Dropout(0.1, rng=2), last)
    return OnlyForward(model) if "plain" in kind else model


def make_input(kind, *shape):
    values = np.random.default_rng(3).standard_normal(shape or (BATCH, INPUTS)).astype(np.float32)
    return require_part("torch").from_numpy(values) if "torch" in kind else Tensor(values)


def call(model, x):
    return model(x) if callable(model) else model.forward(x)


def _random_state(inner):
    generators = [m.rng.bit_generator.state for m in inner.modules() if hasattr(m, "rng")]
    torch = sys.modules.get("torch")
    numbers = None if torch is None else torch.get_rng_state().tolist()
    return generators, numbers, np.random.get_state()[1].tolist()  # noqa: NPY002


def _state(model):
    inner = getattr(model, "inner", model)
    parameters = list(inner.parameters())
    return {
        "collector": gc.isenabled(),
        "tracer": tracemalloc.is_tracing(),
        "training": [module.training for module in inner.modules()],
        "gradients": [parameter.grad is None for parameter in parameters],
        "values": [np.asarray(parameter.data).tolist() for parameter in parameters],
        "random numbers": _random_state(inner),
        "attributes": [sorted(vars(module)) for module in inner.modules()],
    }


@contextmanager
def leaving_no_trace(model):
    """Check that a block leaves a model and the interpreter as they were."""
    before = _state(model)
    yield
    after = _state(model)
    assert {name: after[name] == before[name] for name in before} == dict.fromkeys(before, True)
