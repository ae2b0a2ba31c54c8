"""Attention by hand becomes calls of the fused kernel, and whatever it is called with is followed.

What is not fused, nanoGPT, models of transformers and CUDA have files of their own.
"""

import math

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
F = torch.nn.functional

from attention_checks_torch import BOUNDS, case_of, counted, drawn, fused, is_same, reasons
from attention_models_torch import (
    CAUSAL,
    MASKED,
    SPELLINGS,
    WIDTH,
    Block,
    Inner,
    Outer,
    Written,
    example_mask,
    plain,
    with_added_mask,
    with_filled_mask,
)
from torch_workloads import bits_of, is_unchanged, seeded

from tinytorch.transforms.fuse_attention import FuseAttention


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("plain", "bmm", "late einsum", "lower buffer")),
        *((name, torch.float64) for name in ("learned scale", "upcast")),
        *((name, torch.bfloat16) for name in ("upcast", "in place", "band")),
    ],
)
def test_attention_by_hand_becomes_one_call_of_the_kernel(name, dtype):
    core, layout = SPELLINGS[name]
    case = case_of(seeded(Written, core, layout).to(dtype), drawn(2, 5, WIDTH, dtype=dtype))
    if (name, dtype) == ("upcast", torch.float64):  # it is a downcast: by hand is less exact
        assert "outputs would not be the same" in reasons(case)[""]
        return
    before = bits_of(case.model)
    plan, twin = fused(case)
    assert plan.layers == ("",)
    calls = counted(twin, *case.inputs)
    assert len(calls) == 1
    assert calls[0]["is_causal"] == (name in CAUSAL)
    assert counted(case.model, *case.inputs) == []
    assert is_same(case.model, twin, *case.inputs, bound=BOUNDS[dtype])
    assert is_unchanged(case.model, before)
    assert is_unchanged(twin, before)


@pytest.mark.parametrize(
    ("name", "by_name"), [*((name, False) for name in MASKED), ("added", True), ("filled", True)]
)
def test_masks_that_are_given_are_kept(name, by_name):
    core, layout, kind = MASKED[name]
    x, mask = drawn(2, 5, WIDTH), example_mask(kind)
    model = seeded(Written, core, layout)
    case = case_of(model, x, mask=mask) if by_name else case_of(model, x, mask)
    plan, twin = fused(case)
    assert len(plan.steps) == 1
    assert len(counted(twin, *case.inputs, **case.keywords)) == 1
    assert is_same(model, twin, *case.inputs, **case.keywords)
    other = example_mask(kind, batch=1, time=3)
    arguments = ((drawn(1, 3, WIDTH, seed=2),), {"mask": other})
    if not by_name:
        arguments = ((*arguments[0], other), {})
    assert len(counted(twin, *arguments[0], **arguments[1])) == 1
    assert is_same(model, twin, *arguments[0], **arguments[1])


@pytest.mark.parametrize("kind", ["whole", "truth"])
def test_queries_without_any_key_are_as_by_hand_where_that_is_a_number(kind):
    mask = example_mask(kind)
    mask[0, 0, 2] = 0
    mask[1] = 0
    case = case_of(seeded(Written, with_filled_mask), drawn(2, 5, WIDTH), mask)
    plan, twin = fused(case)
    assert len(plan.steps) == 1
    assert is_same(case.model, twin, *case.inputs)


def test_queries_without_any_key_that_are_nan_by_hand_are_stated():
    core, layout, kind = MASKED["infinite"]
    mask = example_mask(kind)
    case = case_of(seeded(Written, core, layout), drawn(2, 5, WIDTH), mask)
    plan = FuseAttention().plan(case)
    assert any("gets NaN by hand and 0 fused" in note for note in plan.notes)
    blind = mask.clone()
    blind[0, 0, 2] = False
    case = case_of(case.model, drawn(2, 5, WIDTH), blind)
    assert "outputs would change by inf" in reasons(case)[""]


class Head(nn.Module):
    """One head of its own, without an axis for heads."""

    def __init__(self, width=8):
        super().__init__()
        self.key = nn.Linear(WIDTH, width, bias=False)
        self.query = nn.Linear(WIDTH, width, bias=False)
        self.value = nn.Linear(WIDTH, width, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(12, 12)))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        _, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        return wei @ self.value(x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(2))

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


def test_heads_without_an_axis_of_their_own_are_fused():
    case = case_of(seeded(Heads), drawn(2, 5, WIDTH))
    plan, twin = fused(case)
    assert plan.layers == ("heads.0", "heads.1")
    assert [each["is_causal"] for each in counted(twin, *case.inputs)] == [True, True]
    assert is_same(case.model, twin, drawn(3, 9, WIDTH))


class Annotated(nn.Module):
    """The attention of "The Annotated Transformer", which keeps the weights for pictures."""

    def __init__(self, is_kept):
        super().__init__()
        self.d_k, self.h, self.is_kept = WIDTH // 2, 2, is_kept
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attn = None
        self.dropout = nn.Dropout(0.1)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        batches = query.size(0)
        query, key, value = [
            lin(x).view(batches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        p_attn = self.dropout(scores.softmax(dim=-1))
        x = torch.matmul(p_attn, value)
        if self.is_kept:
            self.attn = p_attn
        x = x.transpose(1, 2).contiguous().view(batches, -1, self.h * self.d_k)
        return self.linears[-1](x)


def test_the_annotated_transformer_is_fused_if_it_keeps_no_weights():
    x, memory, mask = drawn(2, 5, WIDTH), drawn(2, 7, WIDTH, seed=1), torch.ones(2, 1, 7)
    mask[0, :, 4:] = 0
    case = case_of(seeded(Annotated, False), x, memory, memory, mask)
    _, twin = fused(case)
    assert len(counted(twin, *case.inputs)) == 1
    for hidden in (mask, torch.zeros(2, 1, 7)):
        assert is_same(case.model, twin, x, memory, memory, hidden)
    case = case_of(seeded(Annotated, True), x, memory, memory, mask)
    assert reasons(case) == {"": "a call changes its attribute 'attn', which may be read later"}


def test_weights_that_the_module_around_it_discards_are_no_hindrance():
    case = case_of(seeded(Outer), drawn(2, 5, WIDTH))
    plan, twin = fused(case)
    assert plan.layers == ("",)
    assert len(counted(twin, *case.inputs)) == 1
    assert is_same(case.model, twin, *case.inputs)
    seen = []
    twin.attention.register_forward_hook(lambda *call: seen.append(call))
    twin(*case.inputs)
    assert len(seen) == 1


def test_what_changes_in_a_module_inside_is_followed():
    case = case_of(seeded(Outer), drawn(2, 5, WIDTH))
    _, twin = fused(case)
    case.model.attention.temperature = twin.attention.temperature = 1.0
    assert is_same(case.model, twin, *case.inputs)
    _, twin = fused(case)
    case.model.attention = twin.attention = Inner()
    assert is_same(case.model, twin, *case.inputs)


def test_a_mask_that_was_not_there_before_is_not_forgotten():
    case = case_of(seeded(Written, with_added_mask), drawn(2, 5, WIDTH))
    _, twin = fused(case)
    assert len(counted(twin, *case.inputs)) == 1
    mask = example_mask("numbers")
    assert counted(twin, *case.inputs, mask) == []
    assert is_same(case.model, twin, *case.inputs, mask)


def test_a_branch_that_was_not_taken_before_is_computed_by_hand():
    core, layout = SPELLINGS["checks"]
    case = case_of(seeded(Written, core, layout), drawn(2, 5, WIDTH))
    _, twin = fused(case)
    for length, calls in ((6, 1), (7, 0)):
        x = drawn(1, length, WIDTH, seed=length)
        assert len(counted(twin, x)) == calls
        assert is_same(case.model, twin, x)


def test_a_module_that_is_called_in_two_ways_is_fused_in_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Written(with_added_mask)
            self.again = self.attention

        def forward(self, x, mask):
            return self.again(self.attention(x), mask=mask)

    case = case_of(seeded(Twice), drawn(2, 5, WIDTH), example_mask("numbers"))
    plan, twin = fused(case)
    assert plan.layers == ("attention",)
    assert "2 score matrices" in plan.steps[0].why
    assert len(counted(twin, *case.inputs)) == 2
    assert twin.again is twin.attention
    assert is_same(case.model, twin, *case.inputs)


def test_a_fused_module_that_is_called_in_another_way_is_fused_for_that_too():
    first = case_of(seeded(Written, with_added_mask), drawn(2, 5, WIDTH))
    _, once = fused(first)
    second = case_of(once, drawn(2, 5, WIDTH), example_mask("numbers"))
    plan, twice = fused(second)
    assert len(plan.steps) == 1
    assert len(counted(twice, *first.inputs)) == len(counted(twice, *second.inputs)) == 1
    assert is_same(first.model, twice, *first.inputs)
    assert is_same(first.model, twice, *second.inputs)
    once.scale = 0.1  # which the graph does not know
    plan, new = fused(case_of(once, *second.inputs))
    first.model.scale = 0.1
    assert is_same(first.model, new, *first.inputs)
    assert is_same(first.model, new, *second.inputs)
    assert len(counted(new, *first.inputs)) == 0


def test_queries_may_be_fewer_than_keys():
    class Cross(nn.Module):
        def forward(self, x, memory):
            return (x @ memory.transpose(-2, -1) * 0.3).softmax(-1) @ memory

    case = case_of(Cross(), drawn(2, 2, 3, 8), drawn(2, 2, 6, 8))
    _, twin = fused(case)
    assert len(counted(twin, *case.inputs)) == 1
    assert is_same(case.model, twin, *case.inputs)


def test_own_attention_beside_that_of_torch_is_fused():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    case = case_of(nn.Sequential(layer, Block(Written(plain))), drawn(2, 5, WIDTH))
    plan, twin = fused(case)
    assert plan.layers == ("1.attn",)
    assert [each.layer for each in plan.skipped] == ["0"]
    assert is_same(case.model, twin, *case.inputs)
