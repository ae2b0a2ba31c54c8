"""The attention of nanoGPT is fused, and the model can still be used in every way."""

import copy
import pickle

import pytest
from parts import require_part

torch = require_part("torch")

from attention_checks_torch import case_of, counted, fused, is_same, reasons
from attention_models_torch import CausalSelfAttention, NanoGPT
from torch_workloads import bits_of, is_unchanged, seeded

from tinytorch.errors import SettingError
from tinytorch.transforms.fuse_attention import FuseAttention
from tinytorch.transforms.fuse_attention.graph import is_fused


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
