"""A model of this process, asked as a contender in a process of its own."""

import math

import numpy as np
import pytest
from parts import require_part
from scripted_models import NotCopied, ScriptedClock, ScriptedModel

from tinytorch.competition import classic as module
from tinytorch.competition.classic import LocalContender, prepare_model
from tinytorch.competition.events import EVENTS, warm_up_questions
from tinytorch.competition.sandbox.contender_process import ContenderProcess
from tinytorch.core.layers import Linear
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import ModelError
from tinytorch.models.zoo import load_zoo, tokenizer
from tinytorch.transforms.kv_cache import enable_kv_cache

MLP, GPT_EVENT = EVENTS["mlp_sprint"], EVENTS["transformer_decathlon"]


@pytest.fixture
def question():
    return warm_up_questions(MLP).inputs[:1]


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(module, "perf_counter", ScriptedClock.read)
    monkeypatch.setattr(ScriptedClock, "now", 0.0)


def loaded(model, event=MLP):
    contender = LocalContender(prepare_model("the model", model, event))
    contender.load()
    return contender


def test_an_answer_is_that_of_the_model(question):
    model = load_zoo("mlp").model
    with loaded(model) as contender:
        answer = contender.ask("forward", question)
    assert np.array_equal(answer.output, model(Tensor(question)).data)
    assert answer.is_question_intact


def test_a_request_takes_as_long_as_the_call(scripted, question):
    with loaded(ScriptedModel(0.25)) as contender:
        answer = contender.ask("forward", question)
    assert answer.inner_s == answer.round_trip_s == pytest.approx(0.25)


def test_the_model_itself_is_left_as_it_was(question):
    model = load_zoo("mlp").model.train()
    with loaded(model) as contender:
        contender.ask("forward", question)
        assert contender.model is not model
        assert not contender.model.training
    assert model.training


def test_what_cannot_be_copied_is_used_itself_and_said_so():
    model = NotCopied(0.1)
    contender = LocalContender(prepare_model("the model", model, MLP))
    notes = contender.load().notes
    assert contender.model is model
    assert "all heats use the same object" in notes[0]


class Greedy(Module):
    """Writes into its question."""

    def __init__(self):
        super().__init__()
        self.inner = Linear(784, 10, rng=0)

    def forward(self, x):
        x.data[:] = 0
        return self.inner(x)


def test_a_question_that_was_changed_is_noticed(question):
    before = question.copy()
    with loaded(Greedy()) as contender:
        assert not contender.ask("forward", question).is_question_intact
    assert np.array_equal(question, before)


def test_an_answer_is_a_copy(question):
    held = np.zeros((1, 10), dtype=np.float32)

    def forward(x):
        held[:] += 1
        return held

    with loaded(forward) as contender:
        one, two = (contender.ask("forward", question).output for _ in range(2))
    assert (two - one == 1).all()


def test_what_a_model_raises_is_named(question):
    def forward(x):
        raise KeyError("weights")

    with pytest.raises(ModelError, match=r"the model cannot answer: .*weights"):
        prepare_model("the model", forward, MLP)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_module_of_pytorch_answers(question, dtype):
    torch = require_part("torch")
    model = torch.nn.Linear(784, 10).to(getattr(torch, dtype))
    with loaded(model) as contender:
        answer = contender.ask("forward", question)
    expected = model(torch.tensor(question, dtype=getattr(torch, dtype))).detach().numpy()
    assert answer.output == pytest.approx(expected, abs=1e-6)
    assert answer.is_question_intact


def test_load_time_and_size_are_measured_only_where_they_count():
    mlp = LocalContender(prepare_model("the model", load_zoo("mlp").model, MLP))
    loading = mlp.load()
    assert math.isnan(loading.seconds)
    assert loading.file_bytes == 0


def test_what_cannot_be_written_to_a_file_cannot_enter_the_decathlon():
    gpt = load_zoo("gpt").model
    with pytest.raises(ModelError, match="cannot be written to a file"):
        prepare_model("the model", lambda ids: gpt(ids), GPT_EVENT)


def small_gpt():
    return GPT(tokenizer().vocab_size, 16, 1, 2, max_seq_len=64, rng=0)


def test_a_text_has_a_file_and_is_continued():
    model = small_gpt()
    contender = LocalContender(prepare_model("the model", model, GPT_EVENT))
    loading = contender.load()
    assert loading.seconds > 0
    assert loading.file_bytes > sum(each.data.nbytes for each in model.parameters())
    prompt = np.arange(16)
    answer = contender.ask("generate", prompt, count=5)
    expected = model.generate(prompt, 5, use_cache=False).data[16:]
    assert np.array_equal(answer.output, expected)


class Wrapped:
    """A GPT that shows nothing but `forward`."""

    def __init__(self, model):
        self.model = model

    def forward(self, ids):
        return self.model(ids)


def test_what_has_no_generate_writes_the_same_by_reading():
    model = small_gpt()
    answers = [
        loaded(each, GPT_EVENT).ask("generate", np.arange(16), count=5).output
        for each in (model, Wrapped(model))
    ]
    assert np.array_equal(answers[0], answers[1])


def test_an_attached_cache_is_used_for_writing_and_not_for_reading(monkeypatch):
    model = small_gpt()
    question = np.arange(64)[None]
    expected = model(Tensor(question)).data
    enable_kv_cache(model)
    with loaded(model, GPT_EVENT) as contender:
        used = []
        generate = contender.model.generate
        monkeypatch.setattr(
            contender.model, "generate", lambda *a, **k: used.append(k) or generate(*a, **k)
        )
        for _ in range(2):  # a cache that went on would be full the second time
            answer = contender.ask("forward", question)
            assert answer.output == pytest.approx(expected, abs=1e-5)
        contender.ask("generate", question[0, :16], count=3)
    assert used == [{"use_cache": True}]


def test_usage_counts_the_time_of_requests(question):
    with loaded(load_zoo("mlp").model) as contender:
        before = contender.usage()
        for _ in range(20):
            contender.ask("forward", question)
        after = contender.usage()
    assert after.cpu_s > before.cpu_s == 0
    assert after.peak_bytes > 784 * 128 * 4
    assert contender.pause(60) == 0


def test_it_can_do_what_a_contender_in_a_process_can():
    offered = {name for name in vars(ContenderProcess) if not name.startswith("_")}
    assert offered - {"close"} <= set(dir(LocalContender))


def test_nothing_is_said_to_be_protected():
    contender = LocalContender(prepare_model("the model", load_zoo("mlp").model, MLP))
    assert not any(state.is_in_force for state in contender.protection.values())
