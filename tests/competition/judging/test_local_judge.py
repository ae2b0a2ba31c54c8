"""The local judge: a Python object against the reference, in this process."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scripted_models import ScriptedClock, ScriptedModel

from tinytorch.competition import classic as module
from tinytorch.competition import heats as heats_module
from tinytorch.competition.classic import judge_model
from tinytorch.competition.entry import Entry, Technique
from tinytorch.competition.events import EVENTS
from tinytorch.competition.judgement import score_of
from tinytorch.competition.rounds import PRACTICE
from tinytorch.errors import SettingError
from tinytorch.models.zoo import build_mlp

EVENT = replace(EVENTS["mlp_sprint"], examples=100)
ENTRY = Entry("Team Ada", "mlp_sprint", "open", 0.99, precision="int4")


@pytest.fixture(autouse=True)
def _scripted(monkeypatch):
    """Let the reference take three seconds a call, and spare the long warm-up."""
    reference = SimpleNamespace(model=ScriptedModel(3.0))
    monkeypatch.setattr(module, "load_zoo", lambda name: reference)
    monkeypatch.setattr(module, "perf_counter", ScriptedClock.read)
    monkeypatch.setattr(ScriptedClock, "now", 0.0)
    monkeypatch.setitem(heats_module.WARM_UP_EXAMPLES, "mlp_sprint", 2)


def judged(model, *, entry=ENTRY, **settings):
    return judge_model(
        entry, model, event=EVENT, questions_of=PRACTICE, **{"heats": 6, "seed": 0} | settings
    )


def fatal(judgement):
    return [each.rule for each in judgement.findings if each.is_fatal]


@pytest.mark.parametrize("seed", range(4))
def test_the_sides_are_not_mixed_up_whichever_starts_first(seed):
    found = judged(ScriptedModel(1.0, build_mlp(0)), seed=seed)
    assert found.accuracy.baseline_mean > 0.95
    assert found.accuracy.candidate_mean < 0.3
    for heat in found.heats:
        assert heat.reference["p90 latency"] == pytest.approx(3)
        assert heat.entry["p90 latency"] == pytest.approx(1)


def test_three_times_faster_scores_three():
    found = judged(ScriptedModel(1.0))
    assert found.is_valid
    assert (found.score.value, found.score.low, found.score.high) == pytest.approx((3, 3, 3))
    assert found.score.verdict == "faster"


def test_the_reference_scores_one():
    found = judged(ScriptedModel(3.0))
    assert found.is_valid
    assert found.score.value == pytest.approx(1)
    assert found.score.verdict == "same"


def test_a_fast_model_that_has_not_learned_is_refused():
    found = judged(ScriptedModel(0.001, build_mlp(0)))
    assert not found.is_valid
    assert "A2" in fatal(found)


def test_nan_is_refused():
    def forward(x):
        return np.full((len(x.data), 10), np.nan, dtype=np.float32)

    found = judged(forward)
    assert fatal(found) == ["A1"]
    assert not found.heats
    assert not found.is_valid


def test_a_constant_answer_is_refused():
    def forward(x):
        return np.eye(10, dtype=np.float32)[[3] * len(x.data)]

    assert {"A2", "A3"} <= set(fatal(judged(forward)))


def test_another_shape_is_refused():
    assert fatal(judged(lambda x: np.zeros((len(x.data), 7), dtype=np.float32))) == ["A1"]


def test_a_model_that_raises_is_refused_with_its_words():
    def forward(x):
        raise ValueError("no weights")

    found = judged(forward)
    assert fatal(found) == ["E8"]
    assert "no weights" in found.findings[0].seen
    assert found.accuracy is None


def test_a_model_that_raises_later_is_refused():
    class Tired(ScriptedModel):
        calls = 0

        def forward(self, inputs):
            Tired.calls += 1
            if Tired.calls > 200:
                raise RuntimeError("enough")
            return super().forward(inputs)

    found = judged(Tired(1.0))
    assert fatal(found) == ["E8"]
    assert not found.is_valid


def test_what_a_technique_contributes_is_measured():
    entry = replace(ENTRY, techniques=(Technique("trick"),))
    found = judged(ScriptedModel(1.0), entry=entry, without={"trick": ScriptedModel(2.0)})
    (ablation,) = found.ablations
    assert score_of(ablation.heats, found.event.scored).value == pytest.approx(2)


def test_a_technique_that_cannot_be_left_out_has_a_reason():
    def broken(x):
        raise ValueError("I need the trick")

    entry = replace(ENTRY, techniques=(Technique("trick"),))
    (ablation,) = judged(ScriptedModel(1.0), entry=entry, without={"trick": broken}).ablations
    assert "I need the trick" in ablation.reason
    assert not ablation.heats


def test_the_judgement_says_what_it_is_of():
    found = judged(ScriptedModel(1.0))
    assert (found.round_name, found.commitment) == (PRACTICE.name, PRACTICE.commitment)
    assert len(found.data_sha256) == 64
    assert "judge's own process" in found.notes[0]
    assert all(state.startswith("none") for state in found.protection.values())


def test_too_few_heats_are_refused():
    with pytest.raises(SettingError, match="at least 6"):
        judged(ScriptedModel(1.0), heats=5)
