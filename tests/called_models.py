"""Models that are called in many ways, once in each framework, with what they are called with."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from parts import require_part

from tinytorch.core.dataloader import DataLoader, TensorDataset
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor


@dataclass
class Scored:
    """What some models return."""

    scores: Any
    hidden: Any = None


class Added(Module):
    """Adds what two arguments give; the second may be missing."""

    def __init__(self, width=6):
        self.layer = Linear(width, 4, rng=0)

    def forward(self, x, other=None):
        out = self.layer(x)
        return out if other is None else out + self.layer(other)


class Summed(Added):
    """Takes one argument, a list of tensors."""

    def forward(self, parts):
        return self.layer(parts[0]) + self.layer(parts[1])


class AsDictionary(Added):
    """Returns a dictionary."""

    def forward(self, x, other=None):
        return {"scores": super().forward(x, other), "n": 3}


class AsDataclass(Added):
    """Returns a dataclass."""

    def forward(self, x, other=None):
        return Scored(super().forward(x, other))


def core():
    """Return the models of TinyTorch."""

    def loader(*arrays, **settings):
        return DataLoader(TensorDataset(*arrays), batch_size=4, **settings)

    kinds = (Added, Summed, AsDictionary, AsDataclass)
    return SimpleNamespace(
        tensor=Tensor, loader=loader, **{each.__name__: each for each in kinds}, name="core"
    )


def pytorch():
    """Return the models of PyTorch."""
    torch = require_part("torch")
    import called_models_torch as models

    def loader(*arrays, **settings):
        tensors = [torch.tensor(np.asarray(each)) for each in arrays]
        data = torch.utils.data
        return data.DataLoader(data.TensorDataset(*tensors), batch_size=4, **settings)

    return SimpleNamespace(
        tensor=lambda array: torch.tensor(np.asarray(array)),
        loader=loader,
        Added=models.Added,
        Summed=models.Summed,
        AsDictionary=models.AsDictionary,
        AsDataclass=models.AsDataclass,
        name="pytorch",
    )


FRAMEWORKS = {"core": core, "pytorch": pytorch}
