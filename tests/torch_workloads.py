"""Small PyTorch models as workloads with calibration data, and what quantizing does to them."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.quantize import Quantize

ADAPTER = TorchAdapter()


class Residual(nn.Module):
    """Convolutions with batch norms, a sum around them and a functional pooling."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.stem(x)))
        x = F.relu(self.norm(self.conv(x)) + x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Branching(nn.Module):
    """A model that looks at its inputs, so that nobody can trace it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv(x) if x.sum() < 1e9 else x
        return self.head(x.mean((2, 3)))


class Tied(nn.Module):
    """A table whose rows are looked up and multiplied with."""

    def __init__(self, heads=1):
        super().__init__()
        self.table = nn.Embedding(96, 64)
        self.body = nn.Linear(64, 64)
        self.heads = nn.ModuleList(nn.Linear(64, 96, bias=False) for _ in range(heads))
        for head in self.heads:
            head.weight = self.table.weight

    def forward(self, ids):
        x = torch.tanh(self.body(self.table(ids)))
        return sum(head(x) for head in self.heads)


def mlp(width=128):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 32))


def workload(model, *shape, vocabulary=None, dtype=torch.float32):
    """Give a workload with three batches of calibration data."""
    generator = torch.Generator().manual_seed(0)
    if vocabulary:
        batches = [torch.randint(0, vocabulary, shape, generator=generator) for _ in range(3)]
    else:
        batches = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    calibration = tuple((each,) for each in batches)
    return Workload("small", model.to(dtype).eval(), (batches[0],), calibration=calibration)


def seeded(make, *args, **kwargs):
    """Make a model with the same weights in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*args, **kwargs)


def quantized(case, **settings):
    """Give the plan and the quantized copy."""
    transform = Quantize(**settings)
    plan = transform.plan(case)
    return plan, transform.apply(case, plan)


def outputs(model, case):
    with torch.no_grad():
        return ADAPTER.arrays(model(*case.inputs, **case.keywords))[0]


def relative_error(case, model):
    """Give the change of the outputs over their size."""
    expected = outputs(case.model, case)
    return float(np.linalg.norm(outputs(model, case) - expected) / np.linalg.norm(expected))


def held(model):
    """Give the bytes that a model holds."""
    return sum(each.nbytes for each in ADAPTER.parameters(model))


def bits_of(model):
    """Give the contents of a model, to be compared bit by bit."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def is_unchanged(model, before):
    after = model.state_dict()
    return before.keys() == after.keys() and all(
        torch.equal(after[name], value) for name, value in before.items()
    )
