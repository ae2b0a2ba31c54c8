"""A layer of causal attention, written out and fused: what grows with the square of the length."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS = 64, 4, 128


class WrittenOut(nn.Module):
    """Scores of every token with every other are a matrix, which is held in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        heads = self.attend(*parts.permute(2, 0, 3, 1, 4))
        return self.out(heads.transpose(1, 2).reshape(batch, tokens, WIDTH))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Take and give (batch, heads, tokens, width)."""
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ value


class Fused(WrittenOut):
    """The same numbers; scores live a tile at a time, in the cache."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def slow() -> tuple[nn.Module, torch.Tensor]:
    """Give attention that writes its scores down, and its input."""
    return _made(WrittenOut)


def fixed() -> tuple[nn.Module, torch.Tensor]:
    """Give attention with the same weights that does not."""
    return _made(Fused)


def _made(attention: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return attention().eval(), torch.randn(1, TOKENS, WIDTH)
