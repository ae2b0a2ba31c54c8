"""The speed of generation: one token, whole texts, and what follows from the two."""

import json

import pytest
from parts import require_part

torch = require_part("torch")
require_part("transformers")

from tiny_transformers import decoder, prompts

from tinytorch.cli.main import main
from tinytorch.errors import ModelError, SettingError
from tinytorch.measure.samples import Samples
from tinytorch.models.workload import Workload
from tinytorch.profiling.generation_speed import FEWEST, GenerationSpeed, measure_generation
from tinytorch.transforms.static_generation import generation_call
from tinytorch.transforms.static_generation.generation import Generation


def workload(count=4):
    call = generation_call(decoder("llama"), max_new_tokens=count).eval()
    return Workload("text", call, (prompts()[0],))


def test_what_follows_from_two_calls():
    first, whole = Samples("first", (1.0, 2.0, 3.0)), Samples("whole", (3.0, 6.0, 5.0))
    found = GenerationSpeed(2, 7, 5, first, whole)
    assert found.first_token_s == 2.0
    assert found.per_token.values == (0.5, 1.0, 0.5)
    assert found.per_token_s == 0.5
    assert found.tokens_per_s == 2 * 5 / 5.0
    assert GenerationSpeed.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.to_dict()["per_token_s"] == 0.5


def test_each_batch_size_calls_for_one_token_and_for_all_equally_often(monkeypatch):
    calls = []
    forward = Generation.forward

    def seen(self, input_ids, attention_mask=None):
        calls.append((self.max_new_tokens, len(input_ids)))
        return forward(self, input_ids, attention_mask)

    monkeypatch.setattr(Generation, "forward", seen)
    it = workload()
    found = measure_generation(it, batches=(1, 3), budget_s=0.01)
    assert [(each.batch, each.new_tokens) for each in found] == [(1, 4), (3, 4)]
    assert all(each.prompt_tokens == it.inputs[0].shape[1] for each in found)
    for batch in (1, 3):
        counts = [calls.count((tokens, batch)) for tokens in (1, 4)]
        assert counts[0] == counts[1] == FEWEST + 1


def test_what_generates_nothing_is_refused():
    with pytest.raises(SettingError):
        measure_generation(Workload("linear", torch.nn.Linear(2, 2), (torch.zeros(1, 2),)))
    with pytest.raises(SettingError):
        measure_generation(workload(), batches=(0,))


def test_one_token_has_no_time_per_token():
    with pytest.raises(ModelError):
        measure_generation(workload(1), batches=(1,), budget_s=0.01)


@pytest.mark.slow
def test_the_command_reports_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.py").write_text(
        "import torch, transformers\n"
        "from tinytorch import Workload\n"
        "from tinytorch.transforms.static_generation import generation_call\n"
        "def make():\n"
        "    sizes = {'hidden_size': 16, 'intermediate_size': 16, 'num_hidden_layers': 1}\n"
        "    config = transformers.LlamaConfig(\n"
        "        vocab_size=20, num_attention_heads=2, eos_token_id=None, **sizes)\n"
        "    call = generation_call(transformers.LlamaForCausalLM(config), max_new_tokens=3)\n"
        "    return Workload('text', call.eval(), (torch.ones(1, 4, dtype=torch.long),))\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    words = ["profile", "text.py:make", "--budget", "0.1", "--no-ceilings", "--batches", "1,2"]
    assert main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["generation"]
    assert [each["batch"] for each in found] == [1, 2]
    assert {"first_token_s", "per_token_s", "tokens_per_s"} <= found[0].keys()
    assert main(words) == 0
    assert "first token" in capsys.readouterr().out
