"""The models of claims.py, each a workload that `tinytorch optimize` takes as a target.

CPU: a GPT of the zoo, GPT-2, BERT, ViT and ResNet-50 of transformers with random weights, an LSTM
tagger, attention written by hand, and a CNN trained on scikit-learn's digits, which alone has an
`evaluate` beside the zoo's. CUDA: three models of torchvision, a U-Net, the tagger, GPT-2, and a
Llama that generates text.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch_transform_cases as shapes
from torch import nn
from torch.nn import functional as F

from tinytorch import Workload

TAGS, VOCABULARY = 20, 5000
HELD_OUT = 597
"""Of scikit-learn's 1,797 digits."""


class Tagger(nn.Module):
    """Embedding, a bidirectional LSTM of two layers, and one score for each tag."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2 * width, TAGS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.tags(self.lstm(self.embedding(ids))[0])
        return found


class HandWrittenBlock(nn.Module):
    """A block of a transformer whose attention is products and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # (batch, heads, time, width / heads) each
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (batch, heads, time, time)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.out(mixed)
        found: torch.Tensor = x + self.mlp(self.norm2(x))
        return found


class UNet(nn.Module):
    """A small U-Net of diffusion: residual blocks that know the time step, two levels down."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(Residual(a, b, width) for a, b in pairs)
        self.middle = Residual(widths[-1], widths[-1], width)
        self.up = nn.ModuleList(Residual(2 * b, a, width) for a, b in reversed(pairs))

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        half = self.first.out_channels // 2
        rates = torch.exp(-math.log(1e4) * torch.arange(half, device=x.device) / half)
        angles = step[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x, kept = self.first(x), []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], dim=1)
            x = block(x, time)
        found: torch.Tensor = self.last(x)
        return found


class Residual(nn.Module):
    """Two convolutions with norms, the time step added in between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time, self.skip = nn.Linear(time, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        found: torch.Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(hidden)))
        return found


def zoo_gpt() -> Workload:
    from tinytorch import load_workload

    return load_workload("gpt")


def lstm(device: str = "cpu") -> Workload:
    ids = torch.randint(VOCABULARY, (1, 64), generator=torch.Generator().manual_seed(1))
    return shapes.made("LSTM tagger, 1 x 64", Tagger, ids, device)


def hand_written_attention() -> Workload:
    x = torch.randn(4, 128, 128, generator=torch.Generator().manual_seed(1))

    def make() -> nn.Module:
        return nn.Sequential(*(HandWrittenBlock(128, 8) for _ in range(4)))

    return shapes.made("hand-written attention, 4 x 128", make, x, "cpu")


def digits_cnn() -> Workload:
    """Return a CNN trained for some seconds on scikit-learn's digits, with the rest to judge it."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy(data.images[order] / 8 - 1).float()[:, None]  # (n, 1, 8, 8)
    labels = torch.from_numpy(data.target[order]).long()
    torch.manual_seed(shapes.SEED)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(6):
        for part in torch.randperm(len(labels) - HELD_OUT).split(64):
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval().requires_grad_(False)
    held_out, answers = images[-HELD_OUT:], labels[-HELD_OUT:]

    def evaluate(candidate: Any) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            scores = torch.cat([candidate(part) for part in held_out.split(32)])
        return (scores.argmax(-1) == answers).numpy().astype(np.float64)

    calibration = [(part,) for part in images[:256].split(32)]
    return Workload("CNN on digits, 32 images", model, (held_out[:32],), calibration, evaluate)


def unet(device: str) -> Workload:
    torch.manual_seed(shapes.SEED)
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    step = torch.tensor([500.0])
    return Workload("U-Net, 64 x 64", UNet().eval().to(device), (x.to(device), step.to(device)))


def of_torchvision(name: str, device: str) -> Workload:
    import torchvision

    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    make = getattr(torchvision.models, name)
    return shapes.made(f"{name}, 1 image", partial(make, weights=None), image, device)


# Factories without arguments: targets such as `claim_cases.py:bert`.
gpt2 = partial(shapes.gpt2, False)
bert = partial(shapes.bert, False)
vit = partial(shapes.vit, False)
resnet50 = partial(shapes.resnet, False)
cuda_efficientnet = partial(of_torchvision, "efficientnet_v2_s", "cuda")
cuda_resnet18 = partial(of_torchvision, "resnet18", "cuda")
cuda_swin = partial(of_torchvision, "swin_t", "cuda")
cuda_unet = partial(unet, "cuda")
cuda_lstm = partial(lstm, "cuda")
cuda_gpt2 = partial(shapes.gpt2, False, "cuda")
cuda_llama_text = partial(shapes.llama_text, False, "cuda")
