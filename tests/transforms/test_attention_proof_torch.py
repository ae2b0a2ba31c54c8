import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.fuse_attention.graph import (
    BLIND,
    prove,
    tolerance_for,
    why_stateful,
)

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 5, 5, dtype=torch.bool).tril()


class ByHand(nn.Module):
    def __init__(self, fill=-torch.inf):
        super().__init__()
        self.fill = fill

    def forward(self, x, mask=None):
        scores = x @ x.transpose(-2, -1)
        if mask is not None:
            scores = scores.masked_fill(~mask, self.fill)
        return scores.softmax(-1) @ x


def fused(module, x, mask=None):
    return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask, scale=1.0)


def test_the_same_is_the_same():
    assert prove(ByHand(), fused, (X,), {}) == ("", ())


def test_other_numbers_are_seen_on_the_real_inputs():
    reason, _ = prove(ByHand(), lambda module, x: x, (X,), {})
    assert "its outputs would not be the same: its outputs would change by" in reason


def test_a_mask_that_is_forgotten_is_seen_on_random_masks():
    everything = torch.ones_like(MASK)
    forgetful = lambda module, x, mask: fused(module, x)  # noqa: E731
    reason, _ = prove(ByHand(), forgetful, (X, everything), {})
    assert "on random inputs" in reason


def test_queries_without_keys_are_stated_where_they_were_nan():
    assert prove(ByHand(), fused, (X, MASK), {}) == ("", (BLIND,))


def test_queries_without_keys_are_wrong_where_they_were_numbers():
    reason, _ = prove(ByHand(fill=-1e9), fused, (X,), {"mask": MASK})
    assert "on random inputs" in reason


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda y: y.double(), "float64"),
        (lambda y: (y,), "tuple"),
        (lambda y: y[None], "(1, 2, 5, 8)"),
        (lambda y: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_other_kinds_of_outputs_are_wrong(change, word):
    reason, _ = prove(ByHand(), lambda module, x: change(fused(module, x)), (X,), {})
    assert word in reason


@pytest.mark.parametrize("mask", [torch.zeros(5, 5), torch.ones(5, 5)])
def test_numbers_that_may_be_a_mask_are_drawn_as_one(mask):
    class Adding(nn.Module):
        def forward(self, x, mask):
            return (x @ x.transpose(-2, -1) + 3 * mask).softmax(-1) @ x

    reason, _ = prove(Adding(), lambda module, x, mask: fused(module, x), (X, mask), {})
    assert "on random inputs" in reason


class Stateful(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change, self.count, self.seen = change, 0, []
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.change(self, x)
        return x + 1


def count(module, x):
    module.count += 1


def recompute(module, x):
    module.size = float("1" + "0" * len(x))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda module, x: None, ""),
        (lambda module, x: x.add_(0), "writes to its inputs"),
        (count, "attribute 'count'"),
        (lambda module, x: setattr(module, "last", x), "attribute 'last'"),
        (lambda module, x: module.seen.append(x), "attribute 'seen'"),
        (lambda module, x: module.calls.add_(1), "attribute 'calls'"),
    ],
)
def test_what_a_call_changes_is_named(change, reason):
    x = X.clone()
    found = why_stateful(nn.Sequential(Stateful(change)), (x,), {})
    assert reason in found
    assert bool(found) == bool(reason)
    assert torch.equal(x, X)


def test_an_attribute_that_is_given_its_own_value_is_no_state():
    module = Stateful(recompute)
    module(X)
    assert why_stateful(module, (X,), {}) == ""


def test_the_coarsest_dtype_decides_what_is_rounding():
    half, double = X.to(torch.bfloat16), X.double()
    assert tolerance_for(double) < tolerance_for(X) < tolerance_for(half)
    assert tolerance_for((double, [half])) == tolerance_for(half)
    assert tolerance_for(torch.arange(3)) == tolerance_for(X)
