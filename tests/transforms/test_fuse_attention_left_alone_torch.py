"""What is not fused: attention that is left alone, and the reason that is given for it."""

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from attention_checks_torch import case_of, drawn, fused, is_same, reasons
from attention_models_torch import WIDTH, NanoGPT, Outer
from torch_workloads import seeded

from tinytorch.models.workload import Workload
from tinytorch.transforms.fuse_attention import FuseAttention


def test_modules_that_write_to_their_inputs_go_on_doing_so():
    class Writing(nn.Module):
        def forward(self, x):
            x += 1e-7
            return (x @ x.transpose(-2, -1)).softmax(-1) @ x

    assert reasons(case_of(nn.Sequential(Writing()), drawn(2, 5, 8))) == {
        "0": "a call writes to its inputs"
    }


def test_a_mask_that_is_used_only_if_it_is_a_tensor_is_not_forgotten():
    class Asking(nn.Module):
        def forward(self, x, mask=None):
            scores = x @ x.transpose(-2, -1)
            if isinstance(mask, torch.Tensor):  # which what torch.fx follows is not
                scores = scores + mask
            return scores.softmax(-1) @ x

    found = reasons(case_of(Asking(), drawn(2, 5, 8), torch.zeros(5, 5)))
    assert "on random inputs" in found[""]


@pytest.mark.parametrize("use", ["return", "store"])
def test_weights_that_somebody_wants_keep_attention_by_hand(use):
    case = case_of(seeded(Outer, use), drawn(2, 5, WIDTH))
    assert reasons(case) == {"attention": "its attention weights are returned"}


class Capped(nn.Module):
    def forward(self, x):
        return (30 * torch.tanh(x @ x.transpose(-2, -1) / 30)).softmax(-1) @ x


class OverQueries(nn.Module):
    def forward(self, x):
        return (x @ x.transpose(-2, -1)).softmax(-2) @ x


class Thinned(nn.Module):
    def forward(self, x):
        weights = (x @ x.transpose(-2, -1)).softmax(-1)
        return (weights * (weights > 0.1)) @ x


class LittleMask(nn.Module):
    def forward(self, x):
        scores = x @ x.transpose(-2, -1)
        return scores.masked_fill(x[..., :1] > 0, -5.0).softmax(-1) @ x


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 1e9:
            return x
        return (x @ x.transpose(-2, -1)).softmax(-1) @ x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class OwnGradient(nn.Module):
    def forward(self, x):
        return Doubled.apply((x @ x.transpose(-2, -1)).softmax(-1) @ x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return (x @ x.transpose(-2, -1)).softmax(-1) @ x


class Listing(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        weights = (x @ x.transpose(-2, -1)).softmax(-1)
        self.seen.append(weights)
        return weights @ x


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


class Boxed(nn.Module):
    def forward(self, box):
        return (box.tensor @ box.tensor.transpose(-2, -1)).softmax(-1) @ box.tensor


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Capped, "its scores are of tanh, no product of queries and keys"),
        (OverQueries, "its softmax is not over the last axis"),
        (Thinned, "its attention weights are used elsewhere, too"),
        (LittleMask, "what is masked becomes -5, which may still weigh something"),
        (Branching, "numbers in its inputs decide what it computes"),
        (Counting, "a call changes its attribute 'calls', which may be read later"),
        (Listing, "a call changes its attribute 'seen', which may be read later"),
    ],
)
def test_what_is_no_plain_attention_is_left_alone_with_the_reason(module, reason):
    case = case_of(nn.Sequential(module()), drawn(2, 5, 8))
    assert reasons(case) == {"0": reason}
    twin = FuseAttention().apply(case, FuseAttention().plan(case))
    assert is_same(case.model, twin, *case.inputs, bound=0)


def test_custom_functions_with_gradients_are_followed_or_left_alone():
    case = case_of(nn.Sequential(OwnGradient()), drawn(2, 5, 8))
    plan, twin = fused(case)
    assert plan.layers or "0" in {each.layer for each in plan.skipped}
    assert is_same(case.model, twin, *case.inputs)


def test_modules_that_are_given_objects_are_left_alone():
    class Boxing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Boxed()

        def forward(self, x):
            return self.inner(Box(x))

    assert "it is called with an object" in reasons(case_of(Boxing(), drawn(2, 5, 8)))["inner"]


def test_softmax_of_something_else_is_no_attention():
    model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1), nn.Linear(4, 2))
    assert reasons(case_of(model, drawn(3, 8))) == {
        "": "no attention by hand was seen when the model was called"
    }


def test_models_in_training_mode_keep_active_dropout():
    model = seeded(NanoGPT)
    case = Workload("training", model.train(), (torch.arange(6)[None],))
    plan = FuseAttention().plan(case)
    assert plan.is_empty
    assert plan.skipped[0].reason == "its dropout is active; call eval() on the model first"
    assert model.training


def test_what_is_no_module_is_left_alone():
    model = seeded(NanoGPT).eval()
    ids = torch.arange(6)[None]
    for candidate, reason in (
        (lambda x: model(x), "only the layers of a Module"),
        (nn.DataParallel(model), "spread over devices"),
        (torch.compile(model, backend="eager"), "it is compiled"),
    ):
        plan = FuseAttention().plan(Workload("odd", candidate, (ids,)))
        assert reason in plan.skipped[0].reason


def test_a_model_that_cannot_be_called_says_so():
    case = case_of(seeded(NanoGPT), torch.arange(50)[None])
    assert "it cannot be called: IndexError" in reasons(case)[""]


def test_layers_of_torch_are_fused_already_unless_weights_are_asked_for():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
            self.one = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
            self.other = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def forward(self, x):
            x = self.layer(x)
            return self.other(*(self.one(x, x, x, need_weights=False)[0],) * 3)[0]

    found = reasons(case_of(seeded(Two), drawn(2, 5, WIDTH)))
    assert found.keys() == {"layer", "one", "other"}
    assert found["layer"] == found["one"] == "torch computes its attention fused already"
    assert "call it with need_weights=False" in found["other"]
