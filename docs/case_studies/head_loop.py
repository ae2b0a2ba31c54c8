"""A transformer block whose attention runs once per head: many small operations, much Python."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS = 192, 12, 64


class HeadByHead(nn.Module):
    """Attention as the formula reads: a head at a time, its scores, their softmax, their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        width = WIDTH // HEADS
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device))
        heads = []
        for head in range(HEADS):
            mine = slice(head * width, (head + 1) * width)
            scores = query[..., mine] @ key[..., mine].transpose(-2, -1) / width**0.5
            scores = scores.masked_fill(mask == 0, float("-inf"))
            heads.append(torch.softmax(scores, dim=-1) @ value[..., mine])
        return self.out(torch.cat(heads, dim=-1))


class AllHeads(HeadByHead):
    """The same function: heads are an axis, and one fused call computes all of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (batch, heads, tokens, width)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(heads.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Block(nn.Module):
    """Attention and a feed-forward part, each with its norm and its residual sum."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


def slow() -> tuple[nn.Module, torch.Tensor]:
    """Give four blocks that loop over their heads, and their input."""
    return _made(HeadByHead)


def fixed() -> tuple[nn.Module, torch.Tensor]:
    """Give the same blocks, with the same weights, that do not."""
    return _made(AllHeads)


def _made(attention: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(attention()) for _ in range(4))).eval()
    return model, torch.randn(1, TOKENS, WIDTH)
