"""PyTorch models whose channels go together in many ways, each with an input."""

import torch
from torch import nn
from torch_workloads import Branching, Residual, mlp, seeded


class Concatenation(nn.Module):
    """Two branches side by side, then a layer that takes both."""

    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(3, 8, 3, padding=1)
        self.right = nn.Conv2d(3, 6, 1)
        self.after = nn.Conv2d(14, 10, 3)
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        both = torch.cat([self.left(x), torch.relu(self.right(x))], dim=1)
        return self.head(torch.relu(self.after(both)).mean((2, 3)))


class Grouped(nn.Module):
    """Convolutions in groups, then one whose channels have kernels of their own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, groups=2)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 12, 3, groups=2)
        self.depthwise = nn.Conv2d(12, 12, 3, groups=12, bias=False)
        self.last = nn.Conv2d(12, 6, 1)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.depthwise(self.second(x))))


class Gated(nn.Module):
    """A block as in Llama: a product of two layers, on a stream that is normalised."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.gate = nn.Linear(16, 24)
        self.up = nn.Linear(16, 24)
        self.down = nn.Linear(24, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = self.norm(x)
        return self.head(x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h)))


class Upsampling(nn.Module):
    """A transposed convolution, an instance norm without numbers, a PReLU with many."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2)
        self.norm = nn.InstanceNorm2d(8)
        self.act = nn.PReLU(8)
        self.up = nn.ConvTranspose2d(8, 6, 2)
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.last(torch.relu(self.up(self.act(self.norm(self.down(x))))))


def _pair(kind, size):
    return nn.Sequential(kind(4, 8, size), nn.ReLU(), kind(8, 2, size))


def _with(make, *shape):
    def build():
        return seeded(make).eval(), torch.randn(shape, generator=torch.Generator().manual_seed(1))

    return build


MODELS = {
    "mlp": _with(lambda: mlp(32), 3, 32),
    "residual": _with(Residual, 2, 3, 12, 12),
    "branching": _with(Branching, 2, 3, 8, 8),
    "concatenation": _with(Concatenation, 2, 3, 6, 6),
    "grouped": _with(Grouped, 2, 4, 9, 9),
    "gated": _with(Gated, 2, 5, 16),
    "upsampling": _with(Upsampling, 2, 3, 9, 9),
    "encoder": _with(lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, 5, 16),
    "sequence": _with(lambda: _pair(nn.Conv1d, 3), 2, 4, 9),
    "volume": _with(lambda: _pair(nn.Conv3d, 2), 1, 4, 4, 4, 4),
}
