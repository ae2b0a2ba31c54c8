"""Small PyTorch models that compute attention by hand, in the spellings that people use."""

import math

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LONGEST = 16, 2, 12


class CausalSelfAttention(nn.Module):
    """The attention of nanoGPT."""

    def __init__(self, width=WIDTH, heads=HEADS, longest=LONGEST):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)
        self.n_head = heads
        self.n_embd = width
        triangle = torch.tril(torch.ones(longest, longest))
        self.register_buffer("bias", triangle.view(1, 1, longest, longest))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = attention
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, layers=2, vocabulary=20):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, WIDTH)
        self.wpe = nn.Embedding(LONGEST, WIDTH)
        self.h = nn.ModuleList(Block(CausalSelfAttention()) for _ in range(layers))
        self.lm_head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


class Written(nn.Module):
    """Projections and heads, with attention as a function writes it: `core(self, q, k, v, mask)`.

    By default q, k and v have the shape (batch, heads, time, width of a head), with `flat` one of
    (batch * heads, ...), with `late` one of (batch, time, heads, ...), which the function returns.
    """

    def __init__(self, core, layout="heads", heads=HEADS):
        super().__init__()
        self.core = core
        self.layout = layout
        self.heads = heads
        self.scale = (WIDTH // heads) ** -0.5
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(0.2)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 0.4))
        ones = torch.ones(LONGEST, LONGEST)
        self.register_buffer("root", torch.tensor(math.sqrt(WIDTH / heads)))
        self.register_buffer("lower", ones.tril().bool())
        self.register_buffer("upper", ones.triu(1))
        self.register_buffer("added", torch.full_like(ones, -torch.inf).triu(1))
        self.register_buffer("banded", ones.tril().triu(-3).bool())

    def forward(self, x, mask=None):
        batch, time, width = x.shape
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (each.view(batch, time, self.heads, width // self.heads) for each in parts)
        if self.layout != "late":
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if self.layout == "flat":
            q, k, v = (each.reshape(-1, time, width // self.heads) for each in (q, k, v))
        y = self.core(self, q, k, v, mask)
        if self.layout == "flat":
            y = y.view(batch, self.heads, time, width // self.heads)
        if self.layout != "late":
            y = y.transpose(1, 2)
        return self.out(y.reshape(batch, time, width))


class Inner(nn.Module):
    """Attention that gives its weights, too."""

    def __init__(self):
        super().__init__()
        self.temperature = 4.0

    def forward(self, q, k, v, mask=None):
        weights = (q @ k.transpose(-2, -1) / self.temperature).softmax(-1)
        return weights @ v, weights


class Outer(nn.Module):
    """Calls such attention, and discards its weights, returns them or stores them."""

    def __init__(self, use="discard"):
        super().__init__()
        self.attention = Inner()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.use = use

    def forward(self, x):
        y, weights = self.attention(x, self.project(x), x)
        if self.use == "store":
            self.weights = weights
        return (y, weights) if self.use == "return" else y


def plain(self, q, k, v, mask):
    return F.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1) @ v


def with_matmul(self, q, k, v, mask):
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.size(-1))
    return torch.matmul(self.dropout(scores.softmax(dim=3)), v)


def with_bmm(self, q, k, v, mask):
    return torch.bmm(self.softmax(torch.bmm(q * self.scale, k.transpose(1, 2))), v)


def with_einsum(self, q, k, v, mask):
    weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * self.scale, -1)
    return torch.einsum("bhij, bhjd -> bhid", weights, v)


def with_late_einsum(self, q, k, v, mask):
    scores = torch.einsum("bthd,bshd->bhts", [q, k]) * self.scale
    return torch.einsum("bhqk,bkhd->bqhd", F.softmax(scores, dim=-1), v)


def with_swapped_einsum(self, q, k, v, mask):
    scores = torch.einsum("bhjd,bhid->bhij", k, q).mul(self.scale)
    return torch.einsum("bhjd,bhij->bhid", v, scores.softmax(-1))


def with_constant_scale(self, q, k, v, mask):
    scores = (q @ k.mT) / torch.sqrt(torch.tensor(8.0))
    return scores.softmax(-1) @ v


def with_learned_scale(self, q, k, v, mask):
    return (self.temperature * (q @ k.transpose(-2, -1))).softmax(-1) @ v


def with_zero_scale(self, q, k, v, mask):
    return ((q @ k.transpose(-2, -1)) * 0.0).softmax(-1) @ v


def with_upcast(self, q, k, v, mask):
    scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, p=0.3, training=self.training) @ v


def with_lower_buffer(self, q, k, v, mask):
    time = q.shape[-2]
    scores = q @ k.transpose(-2, -1) * self.scale
    scores = torch.where(self.lower[:time, :time], scores, -1e9)
    return scores.softmax(-1) @ v


def with_upper_buffer(self, q, k, v, mask):
    time = q.size(2)
    scores = q @ k.transpose(-2, -1) * self.scale
    return scores.masked_fill(self.upper[:time, :time].bool(), -1e9).softmax(-1) @ v


def with_added_buffer(self, q, k, v, mask):
    time = q.size(2)
    scores = q @ k.transpose(-2, -1) * self.scale
    return (scores + self.added[None, None, :time, :time]).softmax(-1) @ v


def with_made_triangle(self, q, k, v, mask):
    time = q.size(2)
    hidden = torch.triu(torch.ones(time, time, device=q.device), diagonal=1).bool()
    scores = (q @ k.transpose(-2, -1) * self.scale).masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def with_band(self, q, k, v, mask):
    time = q.size(2)
    scores = q @ k.transpose(-2, -1) * self.scale
    return scores.masked_fill(~self.banded[:time, :time], -torch.inf).softmax(-1) @ v


def with_mask_in_place(self, q, k, v, mask):
    scores = q @ k.transpose(-2, -1)
    scores *= self.scale
    scores.masked_fill_(~self.lower[: q.size(2), : q.size(2)], torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


def with_added_mask(self, q, k, v, mask):
    scores = q @ k.transpose(-2, -1) * self.scale
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1) @ v


def with_filled_mask(self, q, k, v, mask):
    scores = q @ k.transpose(-2, -1) * self.scale
    return scores.masked_fill(mask == 0, -1e9).softmax(-1) @ v


def with_infinite_mask(self, q, k, v, mask):
    scores = q @ k.transpose(-2, -1) * self.scale
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def with_scale_after_mask(self, q, k, v, mask):
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-1e20"))
    return torch.softmax(scores / WIDTH**0.5, dim=3) @ v


def with_both_masks(self, q, k, v, mask):
    time = q.size(2)
    scores = q @ k.transpose(-2, -1) * self.scale
    scores = scores.masked_fill(~self.lower[:time, :time], -1e9)
    return scores.masked_fill(mask == 0, -1e9).softmax(-1) @ v


def with_checks(self, q, k, v, mask):
    assert q.shape[-1] == WIDTH // self.heads
    if q.dim() != 4 or q.size(2) > 6:
        return v
    return F.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1) @ v


SPELLINGS = {
    "plain": (plain, "heads"),
    "matmul": (with_matmul, "heads"),
    "bmm": (with_bmm, "flat"),
    "einsum": (with_einsum, "heads"),
    "late einsum": (with_late_einsum, "late"),
    "swapped einsum": (with_swapped_einsum, "heads"),
    "constant scale": (with_constant_scale, "heads"),
    "learned scale": (with_learned_scale, "heads"),
    "zero scale": (with_zero_scale, "heads"),
    "upcast": (with_upcast, "heads"),
    "lower buffer": (with_lower_buffer, "heads"),
    "upper buffer": (with_upper_buffer, "heads"),
    "added buffer": (with_added_buffer, "heads"),
    "made triangle": (with_made_triangle, "heads"),
    "band": (with_band, "heads"),
    "in place": (with_mask_in_place, "heads"),
    "checks": (with_checks, "heads"),
}
CAUSAL = ("lower buffer", "upper buffer", "added buffer", "made triangle", "in place")
MASKED = {
    "added": (with_added_mask, "heads", "numbers"),
    "filled": (with_filled_mask, "heads", "whole"),
    "infinite": (with_infinite_mask, "heads", "truth"),
    "scaled after": (with_scale_after_mask, "heads", "whole"),
    "both": (with_both_masks, "heads", "whole"),
}


def example_mask(kind, batch=2, time=5):
    """Give a mask (batch, 1, time, time) that hides some keys, but not all of a query."""
    generator = torch.Generator().manual_seed(1)
    kept = torch.rand(batch, 1, time, time, generator=generator) < 0.6
    kept |= torch.eye(time, dtype=torch.bool)
    if kind == "truth":
        return kept
    if kind == "whole":
        return kept.long()
    return torch.zeros(kept.shape).masked_fill(~kept, torch.finfo(torch.float32).min)
