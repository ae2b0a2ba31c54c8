import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from tiny_transformers import decoder, prompts

from tinytorch.models.workload import Workload
from tinytorch.transforms.static_generation import generation_call
from tinytorch.tuning.optimize import optimize


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_text_is_made_faster_and_its_tokens_part_only_by_rounding(dtype):
    text = generation_call(decoder("llama", dtype), max_new_tokens=20)
    ids, mask = prompts()
    workload = Workload("text", text, (ids, mask))
    found = optimize(workload, only=("inference-mode", "static-generation"), budget_s=5.0)
    first = found.attempts[0]
    assert first.stack == ("static-generation",)
    assert first.is_acceptable, first.reason
    assert all(each.endswith("no more than rounding") for each in first.notes)
    assert not first.notes or dtype == torch.bfloat16
    assert first.comparison.outputs.is_identical == (not first.notes)
