"""All heats of an entry, from questions to a judgement."""

import numpy as np
import pytest
from example_legs import a_leg, an_entry, outputs_of, some_questions

from tinytorch.competition import judge as judging
from tinytorch.competition import judge as module
from tinytorch.competition.entry import Technique
from tinytorch.competition.events import Questions
from tinytorch.competition.heats import LegError
from tinytorch.competition.judge import judge, steps_of
from tinytorch.competition.judgement_record import as_record
from tinytorch.competition.rounds import PRACTICE
from tinytorch.competition.sandbox.contender import ContenderError
from tinytorch.errors import MeasurementError


class Scripted:
    """Heats that take no time: what each contender is like is said by its techniques."""

    def __init__(self, *, fails=None, **changes):
        self.fails, self.changes, self.sides = fails, changes, []

    def run_heat(self, event, sides, questions, *, rng, limits, start):
        number = len(self.sides) % 6  # the questions of this heat, where there are six
        self.sides.append(sides)
        if self.fails is not None and self.fails(sides):
            side = self.fails(sides) - 1
            raise LegError(side, ContenderError("E8", "it raised ZeroDivisionError"))
        fast, slow = self.changes, {}
        is_whole = [bool(each.techniques) for each in sides]
        return tuple(a_leg(event, seed=number, **(fast if whole else slow)) for whole in is_whole)


@pytest.fixture
def scripted(monkeypatch):
    """Let heats follow a script, on questions that take no time to draw."""

    def install(**changes):
        script = Scripted(**changes)

        def draw(event, round, *, heats):
            inputs = [some_questions(event, seed=number).inputs for number in range(heats)]
            right = [outputs_of(event, each).argmax(axis=-1) for each in inputs]
            prompts = [some_questions(event, seed=number).prompts for number in range(heats)]
            has_prompts = prompts[0] is not None
            return Questions(
                np.concatenate(inputs),
                np.concatenate(right),
                np.concatenate(prompts) if has_prompts else None,
            )

        monkeypatch.setattr(module, "run_heat", script.run_heat)
        monkeypatch.setattr(module, "draw_questions", draw)
        monkeypatch.setattr(judging, "check_entry", lambda entry, **_: ())
        monkeypatch.setattr(judging, "floor_s", lambda event: 0.0)
        return script

    return install


def test_a_faster_entry_scores_what_it_is_faster(scripted):
    scripted(inner_s=10e-6)
    judged = judge(an_entry(), heats=6, ablations=False)
    assert judged.score.value == pytest.approx(2.0, rel=0.02)
    assert len(judged.heats) == 6
    assert judged.round_name == PRACTICE.name
    assert judged.commitment == PRACTICE.commitment


def test_accuracy_is_that_of_the_timed_answers(scripted):
    scripted(change=lambda outputs: -outputs)
    judged = judge(an_entry(division="open"), heats=6, ablations=False)
    assert judged.accuracy.n == 360
    assert judged.accuracy.baseline_mean == 1
    assert judged.accuracy.candidate_mean < 0.1
    assert "A2" in {each.rule for each in judged.findings}
    assert not judged.is_valid


def test_each_technique_is_switched_off_in_turn(scripted):
    script = scripted(inner_s=10e-6)
    entry = an_entry(techniques=(Technique("fused-layers"), Technique("int8-dynamic")))
    judged = judge(entry, heats=6)
    assert [each.technique for each in judged.ablations] == ["fused-layers", "int8-dynamic"]
    without = [[each.name for each in first.techniques] for first, _ in script.sides]
    assert without == [[]] * 6 + [["int8-dynamic"]] * 6 + [["fused-layers"]] * 6


@pytest.mark.parametrize("sharper", [2e3, 1e20])
def test_texts_beyond_all_perplexity_are_a_finding(scripted, sharper):
    """Certain of what is wrong: the perplexity has more than 300 digits."""
    scripted(change=lambda outputs: -sharper * outputs)
    judged = judge(an_entry("transformer_decathlon", division="open"), heats=6, ablations=False)
    assert "A2" in {each.rule for each in judged.findings}
    assert judged.heats == ()
    assert judged.score is None
    assert as_record(judged).details["score"] is None


def test_an_invalid_entry_is_not_taken_apart(scripted):
    script = scripted(change=lambda outputs: np.full_like(outputs, np.nan))
    judged = judge(an_entry(), heats=6)
    assert judged.ablations == ()
    assert judged.heats == ()
    assert {each.rule for each in judged.findings if each.is_fatal} == {"A1"}
    assert len(script.sides) == 6


def test_an_entry_that_raises_is_a_finding(scripted):
    scripted(fails=lambda sides: 2)
    judged = judge(an_entry())
    assert [each.rule for each in judged.findings if each.is_fatal] == ["E8"]
    assert judged.score is None


def test_a_reference_that_raises_is_no_ones_fault(scripted):
    scripted(fails=lambda sides: 1)
    with pytest.raises(MeasurementError, match="the reference did not answer"):
        judge(an_entry())


def test_an_entry_that_needs_a_technique_says_so(scripted):
    # Only the ablation has a first side without the reference's lack of techniques.
    script = scripted(inner_s=10e-6)
    script.fails = lambda sides: 1 if len(script.sides) > 6 else 0
    (removed,) = judge(an_entry(), heats=6).ablations
    assert "without it the entry does not work" in removed.reason
    assert removed.heats == ()


def test_progress_ends_when_the_judge_does(scripted):
    scripted()

    class Counter:
        steps = 0

        def advance(self, steps=1):
            self.steps += steps

        def describe(self, text):
            assert text

    counter, entry = Counter(), an_entry()
    judge(entry, heats=6, progress=counter)
    assert counter.steps == steps_of(entry, heats=6, ablations=True)
    assert steps_of(entry, heats=6, ablations=False) == 6
