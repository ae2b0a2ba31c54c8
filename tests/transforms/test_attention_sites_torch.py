from parts import require_part

torch = require_part("torch")
nn = torch.nn

from attention_models_torch import WIDTH, NanoGPT, Written, plain, with_added_mask, with_einsum

from tinytorch.models.pytorch import TorchAdapter
from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_attention.graph import calls_of_modules, observe_attention

X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def observed(model, *inputs):
    case = Workload("case", model.eval(), inputs)
    return observe_attention(case, TorchAdapter().clone(model))


def test_places_are_named_with_the_modules_around_them():
    sites = observed(NanoGPT(), torch.arange(6)[None]).sites
    assert [*sites] == ["h.0.attn", "h.1.attn"]
    site = sites["h.0.attn"]
    assert site.stack == ("", "h.0", "h.0.attn")
    assert (site.shape, site.matrices, site.nbytes) == ((1, 2, 6, 6), 1, 2 * 36 * 4)


def test_modules_of_torch_inside_are_no_places():
    class WithSoftmax(nn.Module):
        def __init__(self):
            super().__init__()
            self.softmax = nn.Softmax(-1)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            return self.dropout(self.softmax(x @ x.transpose(1, 2))) @ x

    site = observed(nn.Sequential(WithSoftmax()), X).sites["0"]
    assert site.stack == ("", "0")
    assert site.inner == ("0.softmax",)


def test_einsum_and_casts_are_followed():
    assert [*observed(nn.Sequential(Written(with_einsum)), X).sites] == ["0"]


def test_softmax_alone_is_no_attention():
    found = observed(nn.Sequential(nn.Linear(WIDTH, 4), nn.Softmax(-1), nn.Linear(4, 3)), X)
    assert found.sites == {}


def test_fused_attention_is_no_place():
    class Fused(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    assert observed(nn.Sequential(Fused(), Fused()), X).sites == {}


def test_what_asks_for_weights_is_named():
    class Asking(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = (nn.MultiheadAttention(WIDTH, 2) for _ in range(2))

        def forward(self, x):
            return self.one(x, x, x, None, False)[0] + self.other(x, x, value=x)[0]

    assert observed(Asking(), X).asked_for_weights == {"other"}


def test_calls_of_each_kind_are_kept_once_as_copies():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Written(with_added_mask)

        def forward(self, x):
            y = self.inner(self.inner(x))
            return self.inner(y, mask=torch.zeros(5, 5))

    case = Workload("case", Twice().eval(), (X,))
    calls = calls_of_modules(case, TorchAdapter().clone(case.model), ("inner",))["inner"]
    assert [(len(inputs), [*keywords]) for inputs, keywords in calls] == [(1, []), (1, ["mask"])]
    assert torch.equal(calls[0][0][0], X)
    assert calls[0][0][0] is not X


def test_the_workload_is_not_touched():
    model = nn.Sequential(Written(plain)).eval()
    case = Workload("case", model, (X,))
    observe_attention(case, TorchAdapter().clone(model))
    assert "forward" not in vars(model[0])
    assert not model[0]._forward_pre_hooks
