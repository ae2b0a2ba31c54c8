import copy
import math
import pickle

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn
F = torch.nn.functional

from attention_models_torch import (
    CAUSAL,
    MASKED,
    SPELLINGS,
    WIDTH,
    Block,
    CausalSelfAttention,
    NanoGPT,
    Written,
    example_mask,
    plain,
    with_added_mask,
    with_filled_mask,
)
from tiny_transformers import continued, tiny
from torch_workloads import bits_of, is_unchanged, outputs, seeded

from tinytorch.errors import SettingError
from tinytorch.perf.acceleration.attention_module_torch import is_fused
from tinytorch.perf.acceleration.fuse_attention import FuseAttention
from tinytorch.workloads.workload import Workload

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""A few roundings of sums of at most 16 products."""
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case_of(model, *inputs, **keywords):
    return Workload("case", model.eval(), inputs, keywords=keywords)


def fused(case):
    plan = FuseAttention().plan(case)
    return plan, FuseAttention().apply(case, plan)


def reasons(case):
    plan = FuseAttention().plan(case)
    assert plan.is_empty
    return {each.layer: each.reason for each in plan.skipped}


def counted(model, *inputs, **keywords):
    """Call a model, and count how often fused attention is called; also give what was asked."""
    calls = []
    kernel = F.scaled_dot_product_attention

    def count(*args, **settings):
        calls.append(settings)
        return kernel(*args, **settings)

    F.scaled_dot_product_attention = count
    try:
        with torch.no_grad():
            model(*inputs, **keywords)
    finally:
        F.scaled_dot_product_attention = kernel
    return calls


def is_same(model, twin, *inputs, bound=1e-5, **keywords):
    with torch.no_grad():
        one, other = (each(*inputs, **keywords).double() for each in (model, twin))
    return float((one - other).abs().max()) <= bound * float(one.abs().max())


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


def write_to_buffer(model):
    model.h[0].attn.bias.fill_(1)


def load_buffer(model):
    model.load_state_dict({"h.0.attn.bias": torch.ones(1, 1, 12, 12)}, strict=False)


def set_buffer(model):
    model.h[0].attn.bias = torch.ones(1, 1, 12, 12)


@pytest.fixture(scope="module")
def made():
    case = case_of(seeded(NanoGPT), torch.arange(14).view(2, 7))
    before = bits_of(case.model)
    plan, model = fused(case)
    assert is_unchanged(case.model, before)
    return case, plan, model


class TestNanoGPT:
    @pytest.fixture
    def case(self, made):
        return case_of(copy.deepcopy(made[0].model), *made[0].inputs)

    @pytest.fixture
    def model(self, made):
        return copy.deepcopy(made[2])

    def test_each_block_is_fused_and_the_rest_stays(self, made):
        case, plan, model = made
        assert plan.layers == ("h.0.attn", "h.1.attn")
        assert {step.what for step in plan.steps} == {"causal attention fused"}
        assert plan.steps[0].settings == {"way": "graph", "score_bytes": 2 * 2 * 7 * 7 * 4}
        assert "score matrices of 1,568 bytes in all" in plan.notes[0]
        assert "outputs change by" in plan.notes[1]
        assert is_unchanged(model, bits_of(case.model))
        assert not any(map(is_fused, case.model.modules()))
        assert isinstance(model.h[0].attn, CausalSelfAttention)
        assert model.lm_head.weight is model.wte.weight

    def test_it_computes_the_same_at_every_length(self, case, model):
        for length in (1, 2, 12):
            ids = torch.arange(length)[None] + 3
            assert len(counted(model, ids)) == 2
            assert is_same(case.model, model, ids)

    def test_an_input_that_is_too_long_is_the_error_that_it_was(self, case, model):
        with pytest.raises(IndexError):
            model(torch.arange(13)[None])

    def test_training_is_by_hand_with_dropout(self, case, model):
        model.train()
        case.model.train()
        for each in (case.model, model):
            torch.manual_seed(0)
            each.result = each(*case.inputs)
        assert torch.equal(case.model.result, model.result)
        assert counted(model, *case.inputs) == []
        model.eval()
        assert len(counted(model, *case.inputs)) == 2

    def test_dropout_alone_in_training_mode_is_by_hand(self, case, model):
        model.h[1].attn.attn_dropout.train()
        assert len(counted(model, *case.inputs)) == 1

    def test_a_hook_on_what_is_left_out_is_called(self, case, model):
        seen = []
        model.h[0].attn.attn_dropout.register_forward_hook(lambda *call: seen.append(call[2]))
        model(*case.inputs)
        assert [each.shape for each in seen] == [(2, 2, 7, 7)]

    def test_a_hook_before_the_plan_keeps_a_module_by_hand(self, case):
        case.model.h[0].attn.attn_dropout.register_forward_hook(lambda *call: None)
        plan = FuseAttention().plan(case)
        assert plan.layers == ("h.1.attn",)
        assert plan.skipped[0].reason == "a hook watches 'attn_dropout' inside of it"

    def test_hooks_on_the_module_itself_stay(self, case):
        seen = []
        case.model.h[0].attn.register_forward_hook(lambda *call: seen.append(1))
        _, model = fused(case)
        seen.clear()
        model(*case.inputs)
        assert seen == [1]

    def test_changing_an_attribute_brings_the_hand_back(self, case, model):
        model.h[0].attn.n_head = 4
        case.model.h[0].attn.n_head = 4
        assert len(counted(model, *case.inputs)) == 1
        assert is_same(case.model, model, *case.inputs)

    @pytest.mark.parametrize("change", [write_to_buffer, load_buffer, set_buffer])
    def test_a_mask_that_changes_later_is_followed(self, case, model, change):
        expected = copy.deepcopy(case.model)
        for each in (expected, model):
            change(each)
        assert not is_same(case.model, expected, *case.inputs)
        assert is_same(expected, model, *case.inputs)
        assert [each["is_causal"] for each in counted(model, *case.inputs)] == [False, True]

    def test_copies_and_pickles_stay_fused(self, case, model):
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert len(counted(twin, *case.inputs)) == 2
            assert is_same(case.model, twin, *case.inputs)
            assert type(twin.h[0].attn).__name__ == "FusedCausalSelfAttention"
            twin.h[0].attn.c_proj.weight.data.zero_()
        assert is_same(case.model, model, *case.inputs)

    def test_gradients_are_those_by_hand(self, case, model):
        for each in (case.model, model):
            each(*case.inputs).square().sum().backward()
        pairs = zip(case.model.parameters(), model.parameters(), strict=True)
        assert all(torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4) for a, b in pairs)

    def test_other_weights_can_be_loaded_and_other_dtypes_be_had(self, case, model):
        other = seeded(NanoGPT).double().eval()
        with torch.no_grad():
            other.h[0].attn.c_attn.weight.mul_(3)
        model.double().load_state_dict(other.state_dict())
        assert len(counted(model, *case.inputs)) == 2
        assert is_same(other, model, *case.inputs, bound=1e-12)

    def test_it_can_be_fused_twice_without_harm(self, case, model):
        again = case_of(model, *case.inputs)
        assert reasons(again)[""] == "no attention by hand was seen when the model was called"

    @pytest.mark.slow
    def test_it_can_be_compiled_in_one_piece(self, case, model):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert is_same(case.model, compiled, *case.inputs)
        write_to_buffer(model)
        write_to_buffer(case.model)
        assert is_same(case.model, compiled, *case.inputs)

    def test_a_plan_for_another_model_is_refused(self, case):
        plan = FuseAttention().plan(case)
        other = case_of(seeded(NanoGPT, layers=1), *case.inputs)
        with pytest.raises(SettingError, match="no attention by hand in 'h"):
            FuseAttention().apply(other, plan)


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
    assert reasons(case) == {
        "": "a call changes its attribute 'attn', which somebody may read later"
    }


class Inner(nn.Module):
    """Attention that gives its weights, too."""

    def __init__(self):
        super().__init__()
        self.temperature = 4.0

    def forward(self, q, k, v, mask=None):
        weights = (q @ k.transpose(-2, -1) / self.temperature).softmax(-1)
        return weights @ v, weights


class Outer(nn.Module):
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
        (Counting, "a call changes its attribute 'calls', which somebody may read later"),
        (Listing, "a call changes its attribute 'seen', which somebody may read later"),
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


def test_own_attention_beside_that_of_torch_is_fused():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    case = case_of(nn.Sequential(layer, Block(Written(plain))), drawn(2, 5, WIDTH))
    plan, twin = fused(case)
    assert plan.layers == ("1.attn",)
    assert [each.layer for each in plan.skipped] == ["0"]
    assert is_same(case.model, twin, *case.inputs)


@pytest.mark.slow
class TestTransformers:
    @pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
    def test_eager_models_are_switched(self, name):
        case = tiny(name, attn_implementation="eager")
        plan, model = fused(case)
        assert plan.layers == ("",)
        assert plan.steps[0].what == "attention by 'sdpa' in the place of 'eager'"
        assert "3 score matrices" in plan.steps[0].why
        assert case.model.config._attn_implementation == "eager"
        assert len(counted(model, *case.inputs)) == 3
        expected = outputs(case.model, case)
        assert abs(outputs(model, case) - expected).max() < 1e-5 * abs(expected).max()

    def test_text_goes_on_as_before(self):
        case = tiny("llama", attn_implementation="eager")
        _, model = fused(case)
        expected = continued(case.model, *case.inputs)
        assert torch.equal(continued(model, *case.inputs), expected)

    def test_fused_models_are_left_alone(self):
        found = reasons(tiny("llama", attn_implementation="sdpa"))
        assert found == {"": "transformers computes it by 'sdpa' already"}

    def test_attention_weights_that_are_returned_are_kept(self):
        case = tiny("gpt2", attn_implementation="eager")
        case = case_of(case.model, *case.inputs, output_attentions=True)
        assert "output_attentions" in reasons(case)[""]

    def test_a_part_of_another_model_is_switched(self):
        inner = tiny("bert", attn_implementation="eager")

        class Around(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = inner.model
                self.head = nn.Linear(5, 2)

            def forward(self, ids):
                return self.head(self.body(ids).logits)

        plan, model = fused(case_of(Around(), *inner.inputs))
        assert plan.layers == ("body",)
        assert len(counted(model, *inner.inputs)) == 3


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "late einsum", "lower buffer", "learned scale"])
def test_spellings_are_fused_on_cuda(name, dtype):
    core, layout = SPELLINGS[name]
    model = seeded(Written, core, layout).to("cuda", dtype)
    case = case_of(model, drawn(2, 5, WIDTH, dtype=dtype).cuda())
    _, twin = fused(case)
    assert len(counted(twin, *case.inputs)) == 1
    assert is_same(case.model, twin, *case.inputs, bound=BOUNDS[dtype])


@needs_cuda
def test_fused_attention_needs_less_memory_on_cuda():
    attention = CausalSelfAttention(width=64, heads=4, longest=1024)
    case = case_of(seeded(lambda: attention).cuda(), drawn(2, 1024, 64).cuda())
    _, twin = fused(case)
    peaks = []
    for each in (case.model, twin):
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            each(*case.inputs)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] - peaks[1] > 2 * 4 * 1024 * 1024 * 4
