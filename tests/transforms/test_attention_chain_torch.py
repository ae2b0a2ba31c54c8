import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from attention_models_torch import CAUSAL, MASKED, SPELLINGS, WIDTH, Written, example_mask

from tinytorch.transforms.fuse_attention.chain import find_chains, fuse_chains
from tinytorch.transforms.fuse_attention.graph import GraphCode, trace_call
from tinytorch.transforms.fuse_attention.kernel import NotFused, ReachesOut, attend

X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def chains_of(module, *inputs):
    with torch.no_grad():
        _, graph = trace_call(module.eval(), inputs, {})
    return graph, *find_chains(graph, module)


class Function(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, *inputs):
        return self.compute(*inputs)


def reason_of(compute, *inputs):
    _, chains, reasons = chains_of(Function(compute), *inputs)
    assert not chains
    return reasons[0]


def test_masks_are_told_apart():
    found = {}
    for name, (core, layout, kind) in MASKED.items():
        _, (chain,), _ = chains_of(Written(core, layout), X, example_mask(kind))
        found[name] = (len(chain.add), len(chain.keep), len(chain.drop), chain.is_causal)
    assert found["added"] == (1, 0, 0, False)
    assert found["filled"] == found["infinite"] == found["both"] == (0, 0, 1, False)
    assert found["scaled after"] == (0, 0, 1, False)


def test_modules_that_are_left_out_are_named():
    _, (chain,), _ = chains_of(Written(*SPELLINGS["bmm"]), X)
    assert chain.silenced == ("softmax",)
    _, (chain,), _ = chains_of(Written(*SPELLINGS["matmul"]), X)
    assert chain.silenced == ("dropout",)


def scores(x):
    return x @ x.transpose(-2, -1)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda x: scores(x).softmax(1) @ x, "not over the last axis"),
        (lambda x: scores(x).sigmoid().softmax(-1) @ x, "its scores are of sigmoid"),
        (lambda x: scores(x).softmax(-1).pow(2) @ x, "between its softmax and the values"),
        (
            lambda x: scores(x).softmax(-1)[..., :3] @ x[..., :3, :],
            "between its softmax and the values",
        ),
        (lambda x: x.mT @ scores(x).softmax(-1), "from the other side"),
        (lambda x: (lambda s: s.softmax(-1) @ x + s.mean())(scores(x)), "scores are used elsewh"),
        (lambda x: scores(x).masked_fill(x[..., :1] > 0, 0.0).softmax(-1) @ x, "becomes 0"),
        (
            lambda x: (
                scores(x)
                .masked_fill(x[..., :1] > 9, -1e9)
                .masked_fill(x[..., :1] > 8, -1e4)
                .softmax(-1)
                @ x
            ),
            "different numbers",
        ),
        (lambda x: (scores(x) * x[:, :1, :5]).softmax(-1) @ x, "differs from key to key"),
        (lambda x: ((scores(x) + x[..., :1]) / 2).softmax(-1) @ x, "scaled after something"),
        (
            lambda x: (scores(x).masked_fill(x[..., :1] > 9, -1e9) * x[..., :1]).softmax(-1) @ x,
            "may be negative",
        ),
        (
            lambda x: (scores(x).masked_fill(x[..., :1] > 9, -1e9) * -1).softmax(-1) @ x,
            "may be negative",
        ),
        (lambda x: scores(x).add(x[..., :1], alpha=2).softmax(-1) @ x, "add with alpha"),
        (lambda x: torch.dropout(scores(x).softmax(-1), 0.5, True) @ x, "dropout is active"),
    ],
)
def test_chains_that_mean_something_else_have_a_reason(compute, reason):
    found = reason_of(compute, X)
    assert reason in str(found)
    assert isinstance(found, NotFused)
    assert not isinstance(found, ReachesOut)


def test_what_reaches_out_of_the_module_is_told_apart():
    returned = reason_of(lambda x: (scores(x).softmax(-1), x), X)
    given = reason_of(lambda s, x: s.softmax(-1) @ x, scores(X), X)
    assert isinstance(returned, ReachesOut)
    assert isinstance(given, ReachesOut)
    assert "come from outside" in str(given)


@pytest.mark.parametrize("name", [*SPELLINGS])
def test_nothing_of_the_chain_is_left(name):
    module = Written(*SPELLINGS[name])
    graph, _, _ = chains_of(module, X)
    chains, reasons = fuse_chains(graph, module)
    assert (len(chains), reasons) == (1, [])
    targets = [node.target for node in graph.nodes]
    assert targets.count(attend) == 1
    assert not {torch.nn.functional.softmax, torch.matmul, torch.bmm, "softmax"} & {*targets}
    assert not {"masked_fill", "masked_fill_", "dropout", torch.einsum} & {*targets}
    assert not {*chains[0].nodes} & {*graph.nodes}
    assert chains[0].is_causal == (name in CAUSAL)
    with torch.no_grad():
        for x in (X, X[:1, :3]):
            found, expected = GraphCode.of(graph)(module, x), module(x)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_questions_about_scores_are_answered_without_them():
    def compute(x):
        found = scores(x)
        mask = torch.zeros(found.size(), dtype=found.dtype, device=found.device)
        weights = (found + mask).softmax(dim=-1)
        return weights @ x * found.size(-1) * weights.shape[0] * found.dim()

    module = Function(compute)
    graph, _, _ = chains_of(module, X)
    fuse_chains(graph, module)
    code = GraphCode.of(graph)
    for x in (X, X[:1, :3]):
        assert torch.allclose(code(module, x), module(x), rtol=1e-4, atol=1e-4)


def test_chains_that_take_from_each_other_are_all_rewritten():
    module = Function(lambda x: (lambda y: scores(y).softmax(-1) @ y)(scores(x).softmax(-1) @ x))
    graph, (first, second), _ = chains_of(module, X)
    assert second.query.node is first.nodes[0]
    done, reasons = fuse_chains(graph, module)
    assert (len(done), reasons) == (2, [])
    assert [node.target for node in graph.nodes].count(attend) == 2
    assert torch.allclose(GraphCode.of(graph)(module, X), module(X), rtol=1e-4, atol=1e-5)
