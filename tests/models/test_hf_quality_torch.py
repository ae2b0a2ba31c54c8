"""Quality of transformers models by task: scores per held-out text, named for what they are."""

import copy
import json

import numpy as np
import pytest
from parts import require_part

torch = require_part("torch")
transformers = require_part("transformers")
tokenizers = require_part("tokenizers")

import tiny_transformers

from tinytorch.cli.main import main
from tinytorch.errors import TargetError
from tinytorch.models.hf_quality_torch import (
    ACCURACY,
    AGREEMENT,
    LIKELIHOOD,
    SIMILARITY,
    TEXTS,
    TEXTS_OF_CLASSES,
    read_texts,
)
from tinytorch.models.hf_torch import SentenceEncoder
from tinytorch.models.new_workload import FACTORY, new_workload
from tinytorch.models.targets import load_workload

WORDS = ["<pad>", "</s>", "<unk>", "the", "a", "of", "and", "to", "in", "was", "he", "she", "it"]


def with_tokenizer(folder, model):
    """Save a model with a tokenizer of a few words."""
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    model.save_pretrained(folder)
    return f"hf:{folder}"


def lines(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def damaged(model, by=0.3):
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for each in twin.parameters():
            each.add_(by * torch.randn_like(each))
    return twin


def test_a_causal_model_is_scored_by_the_likelihood_of_text(tmp_path):
    workload = load_workload(with_tokenizer(tmp_path, tiny_transformers.gpt2()))
    scores = workload.evaluate(workload.model)
    assert (workload.metric, scores.shape) == (LIKELIHOOD, (TEXTS,))
    # transformers computes the same loss of one text
    batch = {name: each[:1] for name, each in workload.evaluate.batches[0].items()}
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    loss = workload.model(**batch, labels=labels).loss
    assert scores[0] == pytest.approx(-loss.item(), rel=1e-4)
    assert np.all(scores < 0)


def test_classes_agree_with_the_baseline_until_it_is_changed(tmp_path):
    workload = load_workload(with_tokenizer(tmp_path, tiny_transformers.bert()))
    assert workload.metric == AGREEMENT
    scores = workload.evaluate(workload.model)
    assert scores.shape == (TEXTS_OF_CLASSES,)
    assert np.all(scores == 1)
    assert workload.evaluate(damaged(workload.model, 3.0)).mean() < 1


def test_embeddings_are_compared_by_their_direction(tmp_path):
    config = tiny_transformers.bert().config
    torch.manual_seed(0)
    workload = load_workload(with_tokenizer(tmp_path, transformers.BertModel(config)))
    assert workload.metric == SIMILARITY
    assert np.allclose(workload.evaluate(workload.model), 1, atol=1e-5)
    assert workload.evaluate(damaged(workload.model)).mean() < 0.999


def test_the_baseline_computes_its_outputs_once_to_be_scored(tmp_path):
    workload = load_workload(with_tokenizer(tmp_path, tiny_transformers.bert()))
    calls = []
    workload.model.register_forward_hook(lambda *_: calls.append(1))
    assert workload.evaluate(workload.model) == pytest.approx(1)
    assert len(calls) == len(workload.evaluate.batches)


def test_calibration_data_is_other_text_of_the_same_size(tmp_path):
    workload = load_workload(with_tokenizer(tmp_path, tiny_transformers.gpt2()))
    shape = workload.keywords["input_ids"].shape
    assert [x["input_ids"].shape for x in workload.calibration] == [shape] * 4
    held_out = {tuple(row.tolist()) for x in workload.evaluate.batches for row in x["input_ids"]}
    seen = {tuple(row.tolist()) for x in workload.calibration for row in x["input_ids"]}
    assert not held_out & seen


def test_labels_of_a_file_give_an_accuracy(tmp_path):
    target = with_tokenizer(tmp_path / "model", tiny_transformers.bert())
    texts = ["the a of", "he was in it", "she"]
    plain = load_workload(
        target, data=lines(tmp_path / "plain.jsonl", *[{"text": x} for x in texts])
    )
    assert plain.metric == AGREEMENT
    logits = plain.evaluate.expected()[0][:3]
    chosen = logits.argmax(-1).tolist()
    rows = [{"text": x, "label": label} for x, label in zip(texts, chosen, strict=True)]
    rows[2]["label"] = f"LABEL_{(chosen[2] + 1) % 5}"
    workload = load_workload(target, data=lines(tmp_path / "data.jsonl", *rows))
    assert workload.metric == ACCURACY
    assert workload.evaluate(workload.model).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no texts"),
        ("{", "data.jsonl:1"),
        ('{"text": "a"}\n\n{"label": 1}\n', "data.jsonl:3"),
        ("[1]\n", "data.jsonl:1"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_line(text, told, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(TargetError, match=told):
        read_texts(path)


def test_a_missing_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(TargetError, match="cannot be read"):
        read_texts(tmp_path / "none.jsonl")


def test_unknown_labels_are_named_with_those_that_are_known(tmp_path):
    target = with_tokenizer(tmp_path / "model", tiny_transformers.bert())
    path = lines(tmp_path / "data.jsonl", {"text": "a", "label": "good"})
    with pytest.raises(TargetError, match="LABEL_0"):
        load_workload(target, data=path)


def test_labels_for_what_does_not_classify_are_refused(tmp_path):
    model = transformers.BertModel(tiny_transformers.bert().config)
    target = with_tokenizer(tmp_path / "model", model)
    path = lines(tmp_path / "data.jsonl", {"text": "a", "label": 1})
    with pytest.raises(TargetError, match="BertModel"):
        load_workload(target, data=path)


def test_texts_for_a_model_without_a_tokenizer_are_refused(tmp_path):
    tiny_transformers.vit().save_pretrained(tmp_path / "model")
    path = lines(tmp_path / "data.jsonl", {"text": "a"})
    with pytest.raises(TargetError, match="tokenizer"):
        load_workload(f"hf:{tmp_path / 'model'}", data=path)


def test_texts_are_for_folders_of_transformers(tmp_path, capsys):
    path = lines(tmp_path / "data.jsonl", {"text": "a"})
    with pytest.raises(TargetError, match="hf:PATH"):
        load_workload("mlp", data=path)
    assert main(["optimize", "mlp", "--data", str(path)]) == 2
    assert "hf:PATH" in capsys.readouterr().err


# ---------------------------------------------------------------- sentence-transformers


def sentences(folder, pooling, *more):
    torch.manual_seed(0)
    target = with_tokenizer(folder, transformers.BertModel(tiny_transformers.bert().config))
    kinds = ["Transformer", "Pooling", *more]
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, f"2_{kind}")}
        for kind in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({pooling: True}), "utf-8")
    return target


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_max_tokens", "max"),
    ],
)
def test_a_folder_of_sentence_transformers_gives_vectors(tmp_path, pooling, name):
    workload = load_workload(sentences(tmp_path, pooling, "Normalize"))
    assert isinstance(workload.model, SentenceEncoder)
    assert workload.model.pooling == name
    found = workload.run()
    assert found.shape == (8, 32)
    assert torch.allclose(found.norm(dim=-1), torch.ones(8))
    assert workload.metric == SIMILARITY


def test_a_new_workload_file_of_one_gives_the_same_vectors(tmp_path):
    target = sentences(tmp_path / "folder", "pooling_mode_mean_tokens", "Normalize")
    file = tmp_path / "yours.py"
    file.write_text(new_workload(file, target), "utf-8")
    made, loaded = load_workload(f"{file}:{FACTORY}"), load_workload(target)
    assert isinstance(made.model, SentenceEncoder)
    assert torch.equal(made.model(**loaded.keywords), loaded.run())
    assert made.run().shape[1] == 32
    assert "judged by the task" in file.read_text("utf-8")


def test_padding_does_not_change_a_vector(tmp_path):
    model = load_workload(sentences(tmp_path, "pooling_mode_mean_tokens")).model
    ids = torch.tensor([[3, 4, 5]])
    padded = torch.tensor([[3, 4, 5, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    alone = model(ids, torch.ones_like(ids))
    assert torch.allclose(model(padded, mask), alone, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "more"), [("pooling_mode_lasttoken", ()), ("pooling_mode_mean_tokens", ("Dense",))]
)
def test_what_is_not_known_leaves_the_encoder_and_is_said(tmp_path, pooling, more):
    workload = load_workload(sentences(tmp_path, pooling, *more))
    assert not isinstance(workload.model, SentenceEncoder)
    assert any("only the encoder" in note for note in workload.notes)
