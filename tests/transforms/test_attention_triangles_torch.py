import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from tinytorch.transforms.fuse_attention.graph import trace_call
from tinytorch.transforms.fuse_attention.kernel import causal_addend, causal_mask

ONES = torch.ones(6, 6)
X = torch.ones(4, 4)


class Masks(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make
        self.register_buffer("lower", ONES.tril())
        self.register_buffer("truth", ONES.tril().bool().view(1, 1, 6, 6))
        self.register_buffer("upper", ONES.triu(1))
        self.register_buffer("added", torch.full((6, 6), -torch.inf).triu(1))
        self.register_buffer("strict", ONES.tril(-1))
        self.register_buffer("batched", ONES.tril().expand(2, 6, 6).clone())
        self.learned = nn.Parameter(ONES.tril())

    def forward(self, x):
        return self.make(self, x.size(0))


def mask_of(make):
    module = Masks(make)
    _, graph = trace_call(module, (X,), {})
    return module, next(reversed(graph.nodes)).args[0]


@pytest.mark.parametrize(
    ("make", "is_kept", "kind"),
    [
        (lambda self, n: self.lower[:n, :n] == 0, False, "keep"),
        (lambda self, n: self.lower[:n, :n] != 0, True, "keep"),
        (lambda self, n: self.truth[:, :, :n, :n], True, "keep"),
        (lambda self, n: ~self.truth[..., :n, :n], False, "keep"),
        (lambda self, n: self.truth[..., :n, :n].logical_not(), False, "keep"),
        (lambda self, n: self.upper[None, :n, :n].bool(), False, "drop"),
        (lambda self, n: self.upper[:n, :n].to(torch.bool), False, "drop"),
        (lambda self, n: torch.ones(n, n).tril() == 0, False, "keep"),
        (lambda self, n: torch.triu(torch.ones(n, n), diagonal=1).bool(), False, "drop"),
    ],
)
def test_triangles_are_known(make, is_kept, kind):
    module, node = mask_of(make)
    assert causal_mask(node, module, is_kept=is_kept).kind == kind
    assert causal_mask(node, module, is_kept=not is_kept) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda self, n: self.lower[1 : n + 1, :n] == 0,
        lambda self, n: self.lower[:n, :n] == 1,
        lambda self, n: self.lower[:n:2, :n:2] == 0,
        lambda self, n: self.strict[:n, :n] == 0,
        lambda self, n: self.batched[:, :n, :n] == 0,
        lambda self, n: self.learned[:n, :n] == 0,
        lambda self, n: torch.ones(n, n).tril(1) == 0,
        lambda self, n: torch.rand(n, n).tril() == 0,
        lambda self, n: self.lower[:n, :n].flip(0) == 0,
    ],
)
def test_what_may_be_no_triangle_is_not_taken_for_one(make):
    module, node = mask_of(make)
    assert causal_mask(node, module, is_kept=False) is None


@pytest.mark.parametrize(
    ("make", "is_causal"),
    [
        (lambda self, n: self.added[:n, :n], True),
        (lambda self, n: torch.full((n, n), float("-inf")).triu(1), True),
        (lambda self, n: torch.triu(torch.full((n, n), -1e9), diagonal=1), True),
        (lambda self, n: torch.triu(torch.full((n, n), -3.0), diagonal=1), False),
        (lambda self, n: self.upper[:n, :n], False),
        (lambda self, n: self.added[1:n, :n], False),
    ],
)
def test_triangles_that_are_added_are_known(make, is_causal):
    module, node = mask_of(make)
    assert (causal_addend(node, module) is not None) == is_causal


def test_what_a_module_holds_is_named():
    module, node = mask_of(lambda self, n: self.lower[:n, :n] == 0)
    assert causal_mask(node, module, is_kept=False).held.target == "lower"
    module, node = mask_of(lambda self, n: torch.ones(n, n).tril() == 0)
    assert causal_mask(node, module, is_kept=False).held is None
