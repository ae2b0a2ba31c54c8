"""Folders of transformers as targets: small models, saved with and without weights."""

import pytest
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")

import tiny_transformers

from tinytorch.errors import TargetError
from tinytorch.models import hf_torch
from tinytorch.models.targets import check_reference, load_workload, located, resolved
from tinytorch.profiling.model_profile import profile_workload

T5 = {"d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 50, "d_kv": 8}


def saved(folder, name):
    if name == "t5":
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
    else:
        model = getattr(tiny_transformers, name)()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("bert", {"input_ids": (8, 128), "attention_mask": (8, 128)}),
        ("gpt2", {"input_ids": (8, 16), "attention_mask": (8, 16)}),
        ("vit", {"pixel_values": (8, 3, 16, 16)}),
        (
            "t5",
            {"input_ids": (8, 64), "attention_mask": (8, 64), "decoder_input_ids": (8, 1)},
        ),
    ],
)
def test_a_folder_is_its_model_with_inputs_that_fit(tmp_path, name, shapes):
    model = saved(tmp_path, name)
    workload = load_workload(f"hf:{tmp_path}")
    assert {key: tuple(value.shape) for key, value in workload.keywords.items()} == shapes
    assert type(workload.model) is type(model)
    assert not workload.model.training
    ours, theirs = workload.model.state_dict(), model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert len(workload.notes) == 1
    profile = profile_workload(workload, runs=3, ceilings=False)
    assert set(workload.notes) <= set(profile.notes)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_a_larger_model_gets_fewer_examples(tmp_path, monkeypatch, name):
    model = saved(tmp_path, name)
    monkeypatch.setattr(hf_torch, "MOST_FLOPS", 1)
    values = load_workload(f"hf:{tmp_path}").keywords[model.main_input_name]
    assert len(values) == 1


def test_without_weights_they_are_random_the_same_each_time_and_said_to_be(tmp_path):
    config = tiny_transformers.bert().config
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path)
    before = torch.get_rng_state()
    first, second = (load_workload(f"hf:{tmp_path}") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.model.classifier.weight, second.model.classifier.weight)
    assert any("random weights" in note for note in first.notes)


def test_a_tokenizer_makes_the_inputs(tmp_path):
    saved(tmp_path, "bert")
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "of", "and", "to"]
    (tmp_path / "vocab.txt").write_text("\n".join(letters))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    workload = load_workload(f"hf:{tmp_path}")
    assert workload.notes == ()
    assert workload.keywords["input_ids"].shape[0] == 8
    assert "attention_mask" in workload.keywords
    workload.run()


def test_what_is_no_folder_of_a_model_says_so(tmp_path):
    with pytest.raises(TargetError, match=r"there is no .*config\.json"):
        load_workload(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TargetError, match=f"hf:{tmp_path}: "):
        load_workload(f"hf:{tmp_path}")


def test_a_suite_may_name_a_folder(tmp_path):
    saved(tmp_path / "folder", "vit")
    check_reference("hf:folder", str(tmp_path))
    assert load_workload(resolved("hf:folder", str(tmp_path))).keywords
    assert located("hf:folder", str(tmp_path)).endswith("folder")
