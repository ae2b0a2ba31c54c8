"""PyTorch twins of the models of core_vs_torch.py, and how they get the same weights.

Only the side of PyTorch imports this file: in one process its threads and ours would wait for each
other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from core_vs_torch import CLASSES, GPT2_SMALL, SMALL_GPT
from torch.nn import functional as F

from tinytorch.core.module import Module


class TorchBlock(torch.nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = torch.nn.Linear(dim, 4 * dim), torch.nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, dim = x.shape
        h = self.norm1(x)
        q, k, v = (
            p(h).view(batch, time, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class TorchGPT(torch.nn.Module):
    def __init__(self, vocab: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = (
            torch.nn.Embedding(vocab, dim),
            torch.nn.Embedding(128, dim),
        )
        self.blocks = torch.nn.ModuleList(TorchBlock(dim, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(dim)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def torch_mlp() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )


def torch_cnn() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, CLASSES),
    )  # fmt: skip


# Part of a name in our GPT, by the name in PyTorch's above.
OUR_NAMES = {
    "tokens": "token_embedding",
    "positions": "position_embedding",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "out": "attention.out_proj",
    "up": "mlp.layers.0",
    "down": "mlp.layers.2",
}


def copy_weights(ours: Module, theirs: torch.nn.Module) -> None:
    """Give PyTorch's model the weights of ours. Its linear layers hold the transposed matrix."""
    arrays = ours.state_dict()
    with torch.no_grad():
        for path, module in theirs.named_modules():
            for kind, parameter in module.named_parameters(recurse=False):
                parts = [OUR_NAMES.get(part, part) for part in path.split(".")]
                name = ".".join(["layers", *parts] if parts[0].isdigit() else parts)
                array = arrays[f"{name}.{kind}"]
                if isinstance(module, torch.nn.Linear) and kind == "weight":
                    array = array.T.copy()
                parameter.copy_(torch.from_numpy(array))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "mlp": torch_mlp,
    "cnn": torch_cnn,
    "small_gpt": lambda: TorchGPT(**SMALL_GPT),
    "gpt2_small": lambda: TorchGPT(**GPT2_SMALL),
}
