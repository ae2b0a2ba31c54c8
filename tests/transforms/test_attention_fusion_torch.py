from parts import require_part

torch = require_part("torch")
nn = torch.nn

from attention_models_torch import WIDTH, NanoGPT
from torch_workloads import seeded

from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_attention.graph import is_fused, observe_attention
from tinytorch.transforms.fuse_attention.torch import AT_ONCE, fuse_sites, fused_copy

X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def fusions_of(model, *inputs):
    case = Workload("case", model.eval(), inputs)
    sites = observe_attention(case, TorchAdapter().clone(model)).sites
    return fuse_sites(case, sites.values())


class Weights(nn.Module):
    """Gives attention weights alone: the values are multiplied outside."""

    def forward(self, q, k):
        return (q @ k.transpose(-2, -1) * 0.25).softmax(-1)


class Softmaxed(nn.Module):
    """Gets scores: the product is outside."""

    def forward(self, scores, v):
        return scores.softmax(-1) @ v


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights, self.again, self.last = Weights(), Weights(), Softmaxed()

    def forward(self, x):
        x = self.weights(x, x) @ x
        x = self.again(x, x) @ x
        return self.last(x @ x.transpose(-2, -1), x)


def test_chains_across_modules_are_fused_in_the_one_that_holds_all_of_it():
    model = seeded(Around)
    fusions, reasons = fusions_of(nn.Sequential(model), X)
    assert reasons == {}
    assert [each.path for each in fusions] == ["0"]
    assert sum(site.matrices for site in fusions[0].sites) == 3
    assert {*fusions[0].calls.seen} == {"", "weights", "again", "last"}
    twin = fused_copy(TorchAdapter().clone(nn.Sequential(model)), fusions)
    assert is_fused(twin[0])
    assert torch.allclose(twin(X), model(X), rtol=1e-4, atol=1e-5)


def test_a_hook_inside_keeps_a_chain_across_modules_by_hand():
    model = Around()
    model.weights.register_forward_hook(lambda *call: None)
    fusions, reasons = fusions_of(nn.Sequential(model), X)
    assert fusions == []
    assert "a hook watches 'weights'" in reasons["0"]


def test_more_modules_than_are_looked_at_at_once_are_all_fused():
    layers = AT_ONCE + 1
    fusions, reasons = fusions_of(seeded(NanoGPT, layers=layers), torch.arange(6)[None])
    assert [each.path for each in fusions] == [f"h.{place}.attn" for place in range(layers)]
    assert all(each.is_causal for each in fusions)
    assert reasons == {}


def test_one_module_that_cannot_be_followed_does_not_keep_the_others():
    class Odd(nn.Module):
        def forward(self, x):
            weights = (x @ x.transpose(-2, -1)).softmax(-1)
            return weights @ x if x.sum() < 1e9 else x

    fusions, reasons = fusions_of(nn.Sequential(Odd(), Around()), X)
    assert [each.path for each in fusions] == ["1"]
    assert reasons == {"0": "numbers in its inputs decide what it computes"}


def test_masks_that_the_kernel_has_no_place_for_stay_by_hand():
    class Spread(nn.Module):
        def forward(self, x):
            mask = torch.zeros(3, 1, 5, 5)
            return (x @ x.transpose(-2, -1) + mask).softmax(-1) @ x

    fusions, reasons = fusions_of(nn.Sequential(Spread()), X)
    assert fusions == []
    assert reasons == {"0": "its masks or scales have more axes than its scores"}
