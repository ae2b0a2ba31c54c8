from dataclasses import dataclass, replace

import numpy as np
import pytest

from tinytorch.comparison.sides import LocalSide
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor
from tinytorch.errors import ModelError, SettingError
from tinytorch.models.adapter import GeneratingModel
from tinytorch.models.workload import Preparation, Workload
from tinytorch.transforms.plan import GOALS, Plan, Skipped, Step
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BROKEN,
    DROPPED,
    FAILED,
    IN_MEMORY,
    INACCURATE,
    NOT_TRIED,
    RELOADED,
    SKIPPED,
    TOO_SLOW,
    Settings,
)
from tinytorch.tuning.catalog import Entry, find_entries
from tinytorch.tuning.trying import Trials, build_stack, by_place

BUDGET = 0.05


@dataclass(frozen=True)
class Scale:
    """Multiply the weight of a Linear; with 0 there is nothing to do."""

    factor: float = 1.0

    def plan(self, workload, profile=None):
        if self.factor == 0:
            return Plan("Scale", {}, (), (Skipped("", "there is nothing to scale"),))
        reason = {"speedup": "none", "shrinkage": "none"}
        return Plan(
            "Scale", {}, (Step("", f"times {self.factor}", "a test"),), not_predicted=reason
        )

    def apply(self, workload, plan):
        if self.factor < 0:
            raise RuntimeError("it went wrong\nin two lines")
        old = workload.model
        model = Linear(4, 4)
        model.weight.data[...] = old.weight.data * self.factor
        model.bias.data[...] = old.bias.data
        return model


def entry(factor, name="scale", risk="rounding"):
    return Entry(name, (Scale(factor),), name, 1, risk, frozenset(GOALS), "scale weights")


def workload(**changes):
    fields = {
        "name": "line",
        "model": Linear(4, 4, rng=0),
        "inputs": (Tensor(np.eye(4, dtype=np.float32)),),
    }
    return Workload(**(fields | changes))


def scores(model):
    out = model(Tensor(np.ones((64, 4), np.float32))).data
    return -np.abs(out[:, 0] - 1.0)


def tried(factor, given=None, *, risk="rounding", **settings):
    trials = Trials(given or workload(), Settings(**settings))
    return trials.attempt([entry(factor, risk=risk)], budget_s=BUDGET)


def test_what_is_as_good_is_compared_and_its_model_given():
    attempt, built = tried(1.0)
    assert attempt.is_acceptable
    assert attempt.comparison.candidate_name == "scale"
    assert attempt.comparison.outputs.is_identical
    assert attempt.seconds > 0
    assert built.stack == ("scale",)
    assert [each.transform for each in attempt.plans] == ["Scale"]


def test_outputs_decide_where_nobody_evaluates():
    attempt, built = tried(1.5)
    assert attempt.outcome == INACCURATE
    assert "output error" in attempt.reason
    assert attempt.comparison is None
    assert built is None
    assert tried(1.5, max_output_error=2.0)[0].is_acceptable


class Rounding(Linear, GeneratingModel):
    """A layer that gives whole numbers, and knows which others are as good."""

    def __init__(self):
        super().__init__(4, 4, rng=0)
        self.weight.data[...] = np.eye(4)
        self.bias.data[...] = 0

    def __call__(self, x):
        return super().__call__(x).data.round().astype(int)

    def shortened_for_profile(self):
        return self, ""

    def rounding_explains(self, inputs, keywords, expected, found):
        assert keywords == {}
        assert inputs[0].shape == expected[0].shape
        is_near = abs(expected[0] - found[0]).max() <= 1
        return ("they are one apart, which is no more than rounding",) if is_near else ()


@dataclass(frozen=True)
class Larger(Scale):
    """Make the numbers on the diagonal of the weight larger, in a model of the same class."""

    def apply(self, workload, plan):
        model = Rounding()
        model.weight.data[...] = workload.model.weight.data * self.factor
        return model


@pytest.mark.parametrize(("factor", "is_as_good"), [(1.0, True), (2.0, True), (3.0, False)])
def test_a_model_may_know_that_other_whole_numbers_are_a_matter_of_rounding(factor, is_as_good):
    trials = Trials(workload(model=Rounding()), Settings())
    attempt, _ = trials.attempt(
        [replace(entry(factor), transforms=(Larger(factor),))], budget_s=BUDGET
    )
    assert attempt.is_acceptable == is_as_good
    if not is_as_good:
        assert "of the integers" in attempt.reason
    told = ("they are one apart, which is no more than rounding",)
    assert attempt.notes == (told if factor == 2.0 else ())


def test_scores_decide_where_somebody_evaluates():
    given = workload(evaluate=scores)
    attempt, _ = tried(1.001, given, max_accuracy_drop=0.5)
    assert attempt.comparison.accuracy.n == 64
    assert "accuracy" not in attempt.comparison.not_measured
    attempt, _ = tried(30.0, given, max_accuracy_drop=0.001)
    assert attempt.outcome == INACCURATE
    assert "accuracy" in attempt.reason


def test_nan_is_broken_whatever_the_scores_say():
    assert tried(float("nan"), workload(evaluate=scores))[0].outcome == BROKEN


def test_a_failure_is_explained_in_one_line_and_ends_nothing():
    attempt, built = tried(-1.0)
    assert (attempt.outcome, attempt.reason) == (FAILED, "RuntimeError: it went wrong")
    assert built is None


def test_an_evaluate_that_fails_for_a_candidate_fails_that_one():
    def picky(model):
        if model.weight.data.max() > 1.5:
            raise ValueError("too large")
        return np.ones(50)

    attempt, _ = tried(100.0, workload(evaluate=picky))
    assert attempt.outcome == FAILED
    assert "too large" in attempt.reason


def test_an_empty_plan_is_nothing_to_do():
    attempt, _ = tried(0.0)
    assert (attempt.outcome, attempt.reason) == (
        SKIPPED,
        "Scale: there is nothing to scale",
    )


def test_another_function_needs_somebody_who_evaluates():
    attempt, _ = tried(1.0, risk="approximate")
    assert attempt.outcome == NOT_TRIED
    assert "needs an evaluate" in attempt.reason
    assert not attempt.lacked_time
    assert tried(1.0, workload(evaluate=scores), risk="approximate")[0].is_acceptable


def test_an_evaluate_that_fails_for_the_model_as_it_is_is_said_first():
    def broken(model):
        raise KeyError("labels")

    with pytest.raises(ModelError, match=r"could not be evaluated: KeyError"):
        Trials(workload(evaluate=broken), Settings())


def test_a_model_that_never_repeats_itself_needs_scores():
    rng = np.random.default_rng(0)

    def noise(x):
        return Tensor(x.data + rng.normal(size=x.data.shape).astype(np.float32))

    given = workload(model=noise)
    with pytest.raises(ModelError, match="not deterministic"):
        Trials(given, Settings())
    trials = Trials(replace(given, evaluate=lambda model: np.ones(20)), Settings())
    assert "not deterministic" in trials.notes[0]


def test_a_stack_is_built_one_on_the_other():
    given = workload()
    built = build_stack(given, [entry(2.0, "a"), entry(3.0, "b")])
    assert built.stack == ("a", "b")
    np.testing.assert_allclose(built.model.weight.data, 6 * given.model.weight.data, rtol=1e-6)


def test_the_best_so_far_is_compared_too():
    trials = Trials(workload(), Settings())
    _, best = trials.attempt([entry(1.0)], budget_s=BUDGET)
    attempt, _ = trials.attempt([entry(1.0), entry(1.0, "other")], budget_s=BUDGET, best=best)
    assert attempt.against_best.baseline_name == "scale"
    assert attempt.against_best.candidate_name == "scale + other"


def test_entries_are_carried_out_by_their_place():
    late = replace(entry(1.0, "late"), place=9)
    assert [each.name for each in by_place([late, entry(1.0)])] == ["scale", "late"]


def test_the_given_model_is_not_changed():
    given = workload()
    before = given.model.weight.data.copy()
    tried(1.0, given)
    np.testing.assert_array_equal(given.model.weight.data, before)


@pytest.mark.parametrize(("goal", "has_bytes"), [("latency", False), ("size", True)])
def test_two_stacks_are_compared_by_what_the_goal_needs(goal, has_bytes):
    trials = Trials(workload(), Settings(goal=goal))
    one, other = (build_stack(trials.workload, [entry(1.0, name)]) for name in ("a", "b"))
    found = trials.compare_with(one, other, budget_s=BUDGET)
    assert (found.resources is not None) is has_bytes


# ---------------------------------------------------------------- what is hopelessly slow


class Slow(Linear):
    """Takes as long as it says, by a clock that tests move."""

    def __init__(self, ratio):
        super().__init__(4, 4, rng=0)
        self.ratio, self.calls = ratio, 0

    def __call__(self, x):
        self.calls += 1
        return super().__call__(x)


@dataclass(frozen=True)
class Slowed(Scale):
    def apply(self, workload, plan):
        return Slow(60.0)


@pytest.mark.parametrize(
    ("settings", "is_dropped"),
    [
        ({}, True),
        ({"goal": "throughput"}, True),
        ({"limits": {"latency_ms": 1e9}}, True),
        ({"goal": "size"}, False),  # what is slower may still be smaller
        ({"limits": {"size_mb": 1.0}}, False),
    ],
)
def test_what_has_to_be_faster_and_is_nowhere_near_is_dropped_before_it_is_judged(
    monkeypatch, settings, is_dropped
):
    def seconds(side):
        side.call()
        return getattr(side.workload.model, "ratio", 1.0)

    real = LocalSide.outputs_and_seconds
    monkeypatch.setattr(LocalSide, "call_seconds", seconds)
    monkeypatch.setattr(
        LocalSide,
        "outputs_and_seconds",
        lambda side: (real(side)[0], getattr(side.workload.model, "ratio", 1.0)),
    )
    evaluated = []

    def evaluate(model):
        evaluated.append(model)
        return np.ones(64)

    trials = Trials(workload(evaluate=evaluate), Settings(**settings))
    evaluated.clear()
    slow = Entry("slow", (Slowed(),), "slow", 1, "exact", frozenset(GOALS), "")
    attempt, built = trials.attempt([slow], budget_s=BUDGET)
    assert (attempt.outcome == DROPPED) is is_dropped
    if is_dropped:
        assert attempt.code == TOO_SLOW
        assert "60x slower" in attempt.reason
        assert attempt.comparison is None
        assert built is None
        assert evaluated == []


# ---------------------------------------------------------------- scores that say nothing


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (np.ones((4, 2)), "have shape"),
        (np.array(0.75), "have shape"),
        (np.array([]), "no scores"),
        (np.array([1.0, np.nan]), "example 1 is nan"),
        (np.array(["good", "bad"]), "no numbers"),
        (None, "no numbers|have shape|is nan"),
    ],
)
def test_scores_of_no_use_are_refused_before_anything_is_tried(scores, words):
    with pytest.raises(ModelError, match=words):
        Trials(workload(evaluate=lambda model: scores), Settings())


def test_a_candidate_with_other_many_scores_fails_alone():
    given = workload(evaluate=lambda model: np.ones(3 if model.weight.data.max() > 50 else 4))
    attempt, _ = tried(1000.0, given)
    assert attempt.outcome == FAILED
    assert "4 scores of the baseline but 3" in attempt.reason


def test_a_candidate_whose_scores_are_no_numbers_is_inaccurate():
    def evaluate(model):
        return np.full(40, np.nan if model.weight.data.max() > 50 else 1.0)

    attempt, _ = tried(1000.0, workload(evaluate=evaluate))
    assert attempt.outcome == INACCURATE
    assert "40 of 40 scores are no finite numbers" in attempt.reason


# ---------------------------------------------------------------- whole numbers in outputs


class Answers:
    """Gives logits and the place of the largest; `flip` names another place."""

    def __init__(self, flip=False):
        self.flip = flip

    def __call__(self, x):
        logits = x.data * 1.0
        return Tensor(logits), np.argmin(logits, -1) if self.flip else np.argmax(logits, -1)


@dataclass(frozen=True)
class Flip(Scale):
    def apply(self, workload, plan):
        return Answers(flip=True)


def test_other_whole_numbers_are_no_rounding():
    flip = Entry("flip", (Flip(),), "flip", 1, "rounding", frozenset(GOALS), "")
    trials = Trials(workload(model=Answers()), Settings())
    attempt, built = trials.attempt([flip], budget_s=BUDGET)
    assert attempt.outcome == INACCURATE
    assert "100.00% of the integers" in attempt.reason
    assert built is None


# ---------------------------------------------------------------- once more


def test_what_was_chosen_is_checked_and_timed_once_more():
    trials = Trials(workload(), Settings())
    attempt, built = trials.attempt([entry(1.0)], budget_s=BUDGET)
    again, same = trials.confirm([entry(1.0)], built, budget_s=BUDGET, seed=7)
    assert same is built
    assert (attempt.confirmed_on, again.confirmed_on) == ("", IN_MEMORY)  # no recipe knows Scale
    assert again.stack == attempt.stack
    assert again.comparison.rounds != attempt.comparison.rounds


QUANTIZED = find_entries(["int8-dynamic"])


@pytest.fixture(scope="module")
def quantizable():
    x = Tensor(np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32))
    return Workload("line", Linear(64, 64, rng=0), (x,))


def test_what_is_confirmed_was_saved_and_loaded(quantizable):
    trials = Trials(quantizable, Settings())
    attempt, built = trials.attempt(QUANTIZED, budget_s=BUDGET)
    again, given = trials.confirm(QUANTIZED, built, budget_s=BUDGET)
    assert (attempt.confirmed_on, again.confirmed_on) == ("", RELOADED)
    assert given.model is not built.model
    x = quantizable.inputs[0]
    np.testing.assert_array_equal(given.model(x).data, built.model(x).data)
    assert given.plans == built.plans == again.plans


def test_what_is_loaded_is_checked_like_anything_else(quantizable, monkeypatch):
    def damaged(path, workload):
        model = Linear(64, 64, rng=0)
        model.weight.data *= 3.0
        return model

    trials = Trials(quantizable, Settings())
    _, built = trials.attempt(QUANTIZED, budget_s=BUDGET)
    monkeypatch.setattr("tinytorch.tuning.trying.load_optimized", damaged)
    again, given = trials.confirm(QUANTIZED, built, budget_s=BUDGET)
    assert (again.outcome, again.confirmed_on) == (INACCURATE, RELOADED)
    assert given is None


@pytest.mark.parametrize("why", ["disk", "long"])
def test_what_cannot_be_saved_is_confirmed_in_memory_with_the_reason(quantizable, monkeypatch, why):
    def full(*_, **__):
        raise OSError("no space left")

    trials = Trials(quantizable, Settings())
    _, built = trials.attempt(QUANTIZED, budget_s=BUDGET)
    if why == "disk":
        monkeypatch.setattr("tinytorch.tuning.trying.write_stack", full)
    else:
        built.model.preparations = (Preparation("compiled", 100.0),)
    again, given = trials.confirm(QUANTIZED, built, budget_s=BUDGET, limit_s=60.0)
    assert given is built
    assert again.confirmed_on == IN_MEMORY
    reason = {"disk": "no space left", "long": "takes 100 s"}[why]
    assert any(reason in each for each in again.notes)


def test_a_model_that_is_no_longer_as_good_is_not_confirmed():
    trials = Trials(workload(), Settings())
    _, built = trials.attempt([entry(1.0)], budget_s=BUDGET)
    built.model.weight.data *= 3.0
    again, given = trials.confirm([entry(1.0)], built, budget_s=BUDGET)
    assert again.outcome == INACCURATE
    assert given is None


def test_scores_that_are_drawn_anew_are_named():
    rng = np.random.default_rng(0)
    trials = Trials(workload(evaluate=lambda model: rng.random(20)), Settings())
    same = Trials(workload(evaluate=scores), Settings())
    found = [
        any("evaluate is not deterministic" in note for note in each.notes)
        for each in (trials, same)
    ]
    assert found == [True, False]


def test_what_a_workload_lacks_is_no_failure():
    @dataclass(frozen=True)
    class Needy(Scale):
        def plan(self, workload, profile=None):
            raise SettingError("it needs calibration data; give some")

    needy = Entry("needy", (Needy(),), "needy", 1, "exact", frozenset(GOALS), "")
    attempt, _ = Trials(workload(), Settings()).attempt([needy], budget_s=BUDGET)
    assert attempt.outcome == SKIPPED
    assert attempt.reason == "Needy: it needs calibration data; give some"


# ---------------------------------------------------------------- too few examples


def right_answers(count, *, lost_from=None):
    """Return an evaluate: all answers are right, but one for a weight above `lost_from`."""

    def evaluate(model):
        scores = np.ones(count)
        scores[0] = lost_from is None or np.abs(model.weight.data).max() <= lost_from
        return scores

    return evaluate


LARGEST = float(np.abs(Linear(4, 4, rng=0).weight.data).max())


@pytest.mark.parametrize("risk", ["exact", "rounding"])
@pytest.mark.parametrize("lost_from", [None, LARGEST])
def test_what_only_rounds_passes_by_its_outputs_where_examples_are_too_few(risk, lost_from):
    attempt, built = tried(
        1.001, workload(evaluate=right_answers(168, lost_from=lost_from)), risk=risk
    )
    assert attempt.is_acceptable
    assert built is not None
    assert attempt.comparison.accuracy.verdict == "inconclusive"
    assert attempt.comparison.accuracy.lost == (lost_from is not None)


@pytest.mark.parametrize(("factor", "risk"), [(1.5, "rounding"), (1.001, "approximate")])
def test_an_inconclusive_accuracy_is_timed_and_its_model_not_used(factor, risk):
    attempt, built = tried(factor, workload(evaluate=right_answers(168)), risk=risk)
    assert attempt.outcome == ACCURACY_INCONCLUSIVE
    assert attempt.comparison.accuracy.n == 168
    assert attempt.comparison.speedup > 0
    assert "299" in attempt.reason
    assert (attempt.is_acceptable, built) == (False, None)


def test_an_inconclusive_stack_is_not_compared_with_the_best():
    trials = Trials(workload(evaluate=right_answers(168)), Settings())
    best = build_stack(trials.workload, [entry(1.0)])
    attempt, _ = trials.attempt([entry(1.5), entry(1.0, "other")], budget_s=BUDGET, best=best)
    assert (attempt.outcome, attempt.against_best) == (ACCURACY_INCONCLUSIVE, None)


def test_the_risk_of_a_stack_is_its_largest():
    trials = Trials(workload(evaluate=right_answers(168)), Settings())
    stack = [entry(1.0005), entry(1.0005, "other", risk="approximate")]
    assert trials.attempt(stack, budget_s=BUDGET)[0].outcome == ACCURACY_INCONCLUSIVE


@pytest.mark.parametrize(("count", "margin", "is_named"), [(168, 0.01, True), (299, 0.01, False)])
def test_too_few_examples_are_named_before_anything_is_tried(count, margin, is_named):
    trials = Trials(workload(evaluate=right_answers(count)), Settings(max_accuracy_drop=margin))
    assert [f"{count} examples" in note for note in trials.notes] == [True] * is_named
