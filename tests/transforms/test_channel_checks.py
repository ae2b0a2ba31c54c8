import numpy as np
import pytest

from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.models.workload import Workload
from tinytorch.transforms.remove_channels import why_broken
from tinytorch.transforms.remove_channels.core import group_of
from tinytorch.transforms.support.channels import trace_channels
from tinytorch.transforms.support.observing import calls_of


class Net(Module):
    """Two layers, with something done to what comes out."""

    def __init__(self, after, width=16):
        self.first, self.last = Linear(6, width, rng=0), Linear(width, 4, rng=1)
        self.after = after

    def forward(self, x):
        hidden = self.first(x)
        return self.after(self.last(hidden), hidden)


def reason(after, width=16, count=8):
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    work = Workload("net", Net(after, width), (Tensor(x),))
    (family,) = trace_channels(work).families
    return why_broken(work.model, calls_of(work), [(group_of(family, {}), range(count))])


MASK = Tensor(np.array([0, 0, 0, -np.inf], np.float32))


@pytest.mark.parametrize(
    "after",
    [lambda y, h: y, lambda y, h: y * 2 + 1, lambda y, h: y + MASK],
    ids=["as it is", "scaled", "masked"],
)
def test_a_model_that_only_sums_over_its_channels_is_sound(after):
    assert reason(after) == ""


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (lambda y, h: y * (16 / h.shape[-1]), "computes something else"),
        (lambda y, h: y * (16 / h.shape[-1]) + MASK, "computes something else"),
        (lambda y, h: y + (np.nan if h.shape[-1] < 16 else 0), "not finite"),
        (lambda y, h: y + Tensor(h.data[:, 5:6].copy()), "computes something else"),
        (lambda y, h: y.reshape(-1, 4 if h.shape[-1] == 16 else 2), "another shape"),
        (
            lambda y, h: y.reshape(3, h.shape[-1] // 4),
            "does not compute without some of its channels",
        ),
    ],
)
def test_a_model_that_needs_its_channels_is_noticed(after, why):
    assert why in reason(after)


def test_many_channels_of_a_wide_layer_show_what_one_would_hide():
    def scaled(y, h):
        return y * (1 / h.shape[-1])

    assert reason(scaled, width=2048, count=1) == ""
    assert "something else" in reason(scaled, width=2048, count=1024)
