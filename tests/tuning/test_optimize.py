"""The loop for real, on the smallest model; nothing here depends on which candidate wins."""

import numpy as np
import pytest
from example_work import linear, work_profile
from parts import require_part

from tinytorch.errors import ModelError, SettingError
from tinytorch.models.adapter import GeneratingModel
from tinytorch.models.targets import load_workload
from tinytorch.records.store import RecordStore
from tinytorch.transforms.plan import Gain
from tinytorch.tuning import optimize as optimize_module
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import RELOADED, Attempt
from tinytorch.tuning.catalog import find_entries
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.optimize import optimize
from tinytorch.tuning.trying import Trials

QUICK = {"only": ("int8-dynamic", "fused-layers"), "budget_s": 2.0}


@pytest.fixture(scope="module")
def found():
    return optimize("mlp", goal="size", **QUICK)


def test_what_is_smaller_and_as_good_is_recommended_and_given(found):
    assert found.recommended.stack == ("int8-dynamic",)
    assert found.recommended.measured.size.value < 0.5
    assert found.recommended.comparison.accuracy.verdict == "not worse"
    model = load_workload("mlp").model
    assert found.model is not None
    assert type(found.model) is not type(model) or found.model is not model


def test_the_recommended_model_is_the_one_that_was_saved_loaded_and_confirmed(found):
    assert found.confirmation.confirmed_on == RELOADED
    assert {each.confirmed_on for each in found.attempts} == {""}
    written = found.to_dict()
    assert written["confirmations"][0]["confirmed_on"] == RELOADED
    del written["confirmations"][0]["confirmed_on"]  # as earlier versions wrote it
    assert Optimization.from_dict(written).confirmation.confirmed_on == ""


def test_the_profile_and_the_environment_are_part_of_it(found):
    assert found.profile.name == "mlp"
    assert found.environment["fingerprint"]
    assert Optimization.from_dict(found.to_dict()).to_dict() == found.to_dict()


def test_a_goal_decides_what_is_tried(found):
    assert [each.name for each in found.attempts] == ["int8-dynamic"]  # fusing saves no bytes


def test_what_was_named_and_does_not_fit_is_in_the_notes(found):
    assert "fused-layers does not serve the goal size" in found.notes


def test_the_target_is_part_of_it_where_it_is_known(found):
    assert found.target == "mlp"
    workload = load_workload("mlp")
    settings = {"goal": "size", "only": ("fewer-layers",), "budget_s": 1.0}
    assert optimize(workload, target="own.py:make", **settings).target == "own.py:make"
    assert optimize(workload, **settings).target == ""


def test_nothing_helps_is_an_answer():
    found = optimize("mlp", goal="size", only=("fewer-layers",), budget_s=2.0)
    assert found.recommended is None
    assert found.front == ("",)
    assert found.model is not None
    assert found.attempts[0].outcome == "skipped"


def test_attempts_are_kept_and_not_repeated(tmp_path, monkeypatch):
    with RecordStore(tmp_path / "records.sqlite") as store:
        first = optimize("mlp", goal="size", store=store, **QUICK)

        def never(*_, **__):
            raise AssertionError("it was tried again")

        monkeypatch.setattr(Trials, "attempt", never)
        again = optimize("mlp", goal="size", store=store, **QUICK)
        kinds = [each.kind for each in store.find()]
    assert [each.stack for each in again.attempts] == [each.stack for each in first.attempts]
    assert again.chosen.measured == first.chosen.measured
    assert again.confirmation is not None  # the best is measured again in every run
    assert again.confirmation.comparison.rounds != first.confirmation.comparison.rounds
    assert again.model is not None
    assert kinds.count("optimization") == 2
    assert kinds.count("attempt") == 1


def test_an_interrupt_keeps_what_is_finished(monkeypatch):
    attempt = Trials.attempt

    def interrupted(self, entries, **settings):
        if entries[0].name == "int8-weights":
            raise KeyboardInterrupt
        return attempt(self, entries, **settings)

    monkeypatch.setattr(Trials, "attempt", interrupted)
    monkeypatch.setattr(optimize_module, "advise", lambda profile, **_: ())
    found = optimize("mlp", goal="size", only=("int8-dynamic", "int8-weights"), budget_s=60.0)
    assert found.was_interrupted
    assert [each.name for each in found.attempts] == ["int8-dynamic"]
    assert found.recommended.name == "int8-dynamic"


def test_every_attempt_is_told_as_soon_as_it_is_known():
    heard: list[Attempt] = []
    optimize("mlp", goal="size", on_attempt=heard.append, **QUICK)
    assert [each.name for each in heard] == ["int8-dynamic"]


def test_a_full_store_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(optimize_module, "add_record", lambda store, record: "the disk is full")
    with RecordStore(tmp_path / "records.sqlite") as store:
        found = optimize("mlp", goal="size", store=store, **QUICK)
    assert found.recommended is not None
    assert found.notes.count("the disk is full") == 1


def test_pytorch_models_go_the_same_way():
    torch = require_part("torch")
    from tinytorch.models.workload import Workload

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    before = [each.clone() for each in model.parameters()]
    x = torch.randn(4, 64)
    found = optimize(
        Workload("net", model.eval(), (x,)), goal="size", only=("bfloat16",), budget_s=2.0
    )
    assert found.recommended.stack == ("bfloat16",)
    assert next(found.model.parameters()).dtype == torch.bfloat16
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_baseline_and_candidates_of_a_model_in_training_mode_are_in_evaluation_mode():
    torch = require_part("torch")
    from tinytorch.models.workload import Workload

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    workload = Workload("net", model, (torch.ones(4, 8),))
    settings = {"goal": "size", "only": ("fold-batch-norm",), "budget_s": 1.0}
    found = optimize(workload, **settings)
    assert found.was_training
    assert found.notes == (optimize_module.MADE_TO_EVALUATE,)
    assert found.attempts[0].plans[0].steps, "a batch norm in training mode cannot be folded"
    assert all(each.training for each in model.modules())
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    again = type(found).from_dict(found.to_dict())
    assert again.was_training
    model.eval()
    found = optimize(workload, **settings)
    assert not found.was_training
    assert optimize_module.MADE_TO_EVALUATE not in found.notes


def test_a_model_that_cannot_be_copied_stays_in_training_mode_and_is_noted():
    torch = require_part("torch")
    from tinytorch.models.adapter import adapter_for

    class Uncopied(torch.nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("no")

    model = Uncopied(4, 4)
    assert adapter_for(model, ()).in_evaluation_mode(model) is model
    assert model.training


def test_bad_settings_are_refused_before_anything_is_measured():
    with pytest.raises(SettingError, match="goal='speed'"):
        optimize("mlp", goal="speed")
    with pytest.raises(SettingError, match="'magic'"):
        optimize("mlp", only=("magic",))
    with pytest.raises(SettingError, match="an optimization is made for a Workload, got int"):
        optimize(3)


def test_a_model_that_raises_is_named():
    from tinytorch.models.workload import Workload

    def broken(x):
        raise ValueError("no such thing")

    with pytest.raises(ModelError, match="no such thing"):
        optimize(Workload("broken", broken, (np.ones(3),)), budget_s=1.0)


def ordered_by(names, advice=(), *, goal="latency", check_s=0.0, budget_s=120.0):
    """Give these entries in the order in which they are tried on a PyTorch model."""
    found = optimize_module._most_promising_first(
        find_entries(names),
        [Advice("rule", "title", ("1",), name, gain) for name, gain in advice],
        goal=goal,
        profile=work_profile(linear(1)),
        check_s=check_s,
        budget_s=budget_s,
    )
    return [each.name for each in found]


@pytest.mark.parametrize("goal", ["latency", "throughput", "memory"])
def test_inference_mode_is_tried_early_where_the_goal_is_time(goal):
    names = ("compiled", "bfloat16", "inference-mode", "static-generation")
    ordered = ordered_by(names, goal=goal)
    assert ordered[0] == "static-generation"  # made for this model
    assert (ordered[1] == "inference-mode") is (goal != "memory")


def gain(value):
    return Gain(value, value, value, basis="a test")


def test_the_largest_gain_for_its_time_comes_first():
    names = ("fewer-channels", "int8-dynamic", "compiled", "bfloat16")
    predicted = [("bfloat16", gain(1.3)), ("compiled", gain(1.5)), ("int8-dynamic", gain(1.1))]
    assert ordered_by(names, predicted) == [
        "bfloat16",
        "int8-dynamic",
        "compiled",  # it takes 20 s to compile
        "fewer-channels",
    ]


def test_what_promises_most_comes_first_where_each_attempt_takes_long_anyway():
    predicted = [("bfloat16", gain(1.1)), ("compiled", gain(2.0))]
    names = ("bfloat16", "compiled")
    assert ordered_by(names, predicted) == ["bfloat16", "compiled"]
    assert ordered_by(names, predicted, check_s=30.0) == ["compiled", "bfloat16"]


def test_what_is_known_to_be_slow_comes_last():
    assert ordered_by(("int4-weights", "int8-weights", "compiled"))[-1] == "int4-weights"


def test_where_bytes_are_the_goal_what_is_cheap_comes_first():
    names = ("compiled", "int4-weights", "int8-weights")
    assert ordered_by(names, goal="size") == ["int4-weights", "int8-weights", "compiled"]


# ---------------------------------------------------------------- the proof


def test_what_is_recommended_was_compared_afresh(found):
    tried, again = found.attempts[0], found.confirmation
    assert found.recommended is again
    assert tried.comparison.rounds != again.comparison.rounds
    assert again.comparison.accuracy.verdict == "not worse"


def test_a_gain_that_does_not_repeat_itself_is_not_recommended(monkeypatch):
    def worse(self, entries, built=None, **settings):
        attempt = Attempt(tuple(each.name for each in entries), "inaccurate", "it was luck")
        return attempt, None

    monkeypatch.setattr(Trials, "confirm", worse)
    model = load_workload("mlp")
    result = optimize(model, goal="size", **QUICK)
    assert result.recommended is None
    assert [again.reason for _, again in result.refuted] == ["it was luck"]
    assert result.model is model.model


# ---------------------------------------------------------------- interrupts


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_an_interrupt_before_the_first_attempt_keeps_the_profile(monkeypatch):
    monkeypatch.setattr(optimize_module, "Trials", interrupted)
    result = optimize("mlp", goal="size", **QUICK)
    assert result.was_interrupted
    assert result.attempts == ()
    assert result.profile.name == "mlp"
    assert result.advice
    assert result.model is not None


@pytest.mark.parametrize("stage", ["confirm", "take_apart"])
def test_an_interrupt_near_the_end_keeps_every_attempt(monkeypatch, stage):
    monkeypatch.setattr(optimize_module.Search, stage, interrupted)
    result = optimize("mlp", goal="size", **QUICK)
    assert result.was_interrupted
    assert result.recommended.stack == ("int8-dynamic",)
    assert (result.confirmation is None) is (stage == "confirm")
    assert result.model is not None


def test_an_interrupt_while_the_model_is_made_keeps_every_number(monkeypatch):
    monkeypatch.setattr(optimize_module.Search, "model_of", interrupted)
    result = optimize("mlp", goal="size", **QUICK)
    assert result.was_interrupted
    assert result.recommended is not None
    assert result.model is None
    assert any("not made again" in note for note in result.notes)


def test_an_interrupt_while_the_result_is_kept_keeps_it_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(optimize_module, "optimization_record", interrupted)
    with RecordStore(tmp_path / "records.sqlite") as store:
        result = optimize("mlp", goal="size", store=store, **QUICK)
        kinds = [each.kind for each in store.find()]
    assert result.was_interrupted
    assert result.recommended is not None
    assert any("interrupted" in note for note in result.notes)
    assert kinds == ["attempt"]


def test_a_model_with_a_shorter_call_is_profiled_by_that_and_the_profile_says_so(monkeypatch):
    """As text generation: recording hundreds of tokens would take longer than the whole budget."""
    profiled, workload = [], load_workload("mlp")
    real = optimize_module.profile_workload

    def profile(workload, **settings):
        profiled.append(workload.model)
        return real(workload, **settings)

    shorter = load_workload("mlp").model

    class Long(type(shorter), GeneratingModel):
        def shortened_for_profile(self):
            return shorter, "the profile is of a part"

    workload.model.__class__ = Long
    monkeypatch.setattr(optimize_module, "profile_workload", profile)
    found = optimize(workload, goal="size", only=("fewer-layers",), budget_s=2.0)
    assert [each is shorter for each in profiled] == [True]
    assert "the profile is of a part" in found.profile.notes
    assert "the profile is of a part" in found.profile_summary["notes"]


def test_inference_mode_waits_where_trying_it_would_take_much_of_the_budget():
    names, predicted = ("inference-mode", "bfloat16"), [("bfloat16", gain(1.5))]
    assert ordered_by(names, predicted, check_s=5.0)[0] == "inference-mode"
    assert ordered_by(names, predicted, check_s=24.0)[-1] == "inference-mode"
