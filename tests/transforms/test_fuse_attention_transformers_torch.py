"""Models of transformers are told to compute their attention fused."""

import pytest
from parts import require_part

torch = require_part("torch")
nn = torch.nn

from attention_checks_torch import case_of, counted, fused, reasons
from tiny_transformers import continued, tiny
from torch_workloads import outputs


@pytest.mark.slow
class TestTransformers:
    @pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
    def test_eager_models_are_switched(self, name):
        case = tiny(name, attn_implementation="eager")
        plan, model = fused(case)
        assert plan.layers == ("",)
        assert plan.steps[0].what == "attention by 'sdpa' instead of 'eager'"
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
