"""What can be compared, with which settings, and what a comparison finds.

That nothing is changed, and the conditions of timing, have files of their own.
"""

import json
import math
import time

import numpy as np
import pytest
from two_sides import (
    CORE_X,
    LITTLE,
    MUCH,
    SHORT,
    TIME_ALONE,
    TORCH_X,
    WIDE,
    children,
    core_model,
    torch,
    torch_model,
)

from tinytorch import Comparison, Isolated, compare
from tinytorch.comparison.compare import FLOOR, FLOOR_OF_FINISHED, _stopping_rule
from tinytorch.comparison.evidence import IN_PROCESSES
from tinytorch.comparison.processes import THREAD_VARIABLES
from tinytorch.comparison.sequential import Rule
from tinytorch.comparison.sides import Known, WorkloadSide
from tinytorch.errors import SettingError, TargetError
from tinytorch.measure.estimate import FASTER, INCONCLUSIVE, SAME, SLOWER, Estimate
from tinytorch.measure.interleaving import FEWEST
from tinytorch.models.workload import Workload

# ---------------------------------------------------------------- verdicts


def test_much_more_work_is_slower_and_much_less_is_faster():
    slower = compare(LITTLE, MUCH, **SHORT)
    assert slower.verdict == SLOWER
    assert slower.time_ratio_low > 3
    faster = compare(MUCH, LITTLE, **SHORT)
    assert faster.verdict == FASTER
    assert faster.speedup_low > 3


def test_a_function_against_itself_does_not_differ_by_half():
    found = compare(LITTLE, LITTLE, floor=0.5, band=0.4, budget_s=0.2, evidence=False)
    assert found.verdict in (SAME, INCONCLUSIVE)
    assert found.time_ratio_low < 1.5
    assert found.time_ratio_high > 1 / 1.5


def test_waiting_counts_as_time():
    found = compare(lambda: time.sleep(0.0005), lambda: time.sleep(0.02), **TIME_ALONE)
    assert found.verdict == SLOWER
    assert found.time_ratio_low > 2


def test_functions_that_do_nothing_have_a_time_too():
    found = compare(lambda: None, lambda: None, **SHORT)
    assert found.pace.loops[0] > 100
    assert 0 < found.baseline.median < 1e-5
    assert math.isfinite(found.time_ratio_high)


# ---------------------------------------------------------------- what can be compared

FORMS = {
    "functions": ((LITTLE, MUCH), {}),
    "factories": ((lambda: LITTLE, lambda: MUCH), {"factories": True}),
    "core models": ((core_model(), core_model(WIDE)), {"inputs": CORE_X}),
    "torch models": ((torch_model(), torch_model(WIDE)), {"inputs": TORCH_X}),
    "inputs in a tuple": ((core_model(), core_model(WIDE)), {"inputs": (CORE_X,)}),
    "inputs by name": ((core_model(), core_model(WIDE)), {"inputs": {"x": CORE_X}}),
    "pairs": (((core_model(), CORE_X), (core_model(WIDE), (CORE_X,))), {}),
    "workloads": (
        (Workload("a", core_model(), (CORE_X,)), Workload("b", core_model(WIDE), (CORE_X,))),
        {},
    ),
    "two frameworks": (((core_model(), CORE_X), (torch_model(WIDE), TORCH_X)), {}),
    "a function and a model": ((lambda: None, (torch_model(WIDE), TORCH_X)), {}),
    "functions with inputs": ((len, sum), {"inputs": ([1] * 3000,)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_many_things_can_be_compared(form):
    pair, settings = FORMS[form]
    found = compare(*pair, **TIME_ALONE, **settings)
    assert found.verdict == SLOWER
    assert (found.baseline_name, found.candidate_name) == ("baseline", "candidate")


def test_files_and_built_in_names_are_targets(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def slow():\n    return (lambda n: sum(range(n))), 300_000\n", "utf-8")
    found = compare("mlp", f"{file}:slow", **TIME_ALONE)
    assert found.verdict == SLOWER


def test_an_object_with_nothing_but_forward_is_a_model():
    class Plain:
        def __init__(self, amount):
            self.amount = amount

        def forward(self, x):
            return x + sum(range(self.amount))

    assert compare(Plain(10), Plain(10_000), inputs=1, **TIME_ALONE).verdict == SLOWER


def test_isolated_targets_are_compared(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def fast():\n    return (lambda n: sum(range(n))), 10_000\n"
        "def slow():\n    return (lambda n: sum(range(n))), 200_000\n",
        "utf-8",
    )
    (tmp_path / "tinytorch").mkdir()  # hidden: processes that import nothing start fast
    (tmp_path / "tinytorch/__init__.py").write_text("raise ImportError", "utf-8")
    before = children()
    pair = [
        Isolated(target, folder=tmp_path, variables=dict.fromkeys(THREAD_VARIABLES, "1"))
        for target in ("mine:fast", "mine:slow")
    ]
    found = compare(*pair, **SHORT)
    assert found.verdict == SLOWER
    assert found.outputs.equal_share == 0  # sums of other numbers
    assert found.not_measured["resources"] == IN_PROCESSES
    assert set(children()) <= set(before)


@pytest.mark.slow
def test_an_isolated_target_and_one_in_this_process_are_compared():
    found = compare("mlp", Isolated("mlp"), floor=0.9, band=0.89, **SHORT)
    assert found.outputs.max_error == 0
    assert found.accuracy.verdict == "not worse"
    assert found.accuracy.metric == "accuracy"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "the candidate is a int; give a function"),
        (None, "the candidate is a NoneType"),
        (core_model(), r"the candidate is a model \(Sequential\); say what to call it with"),
        (torch_model(), r"the candidate is a model \(Sequential\); say what to call it with"),
    ],
)
def test_what_cannot_be_compared_is_refused(given, message):
    with pytest.raises(SettingError, match=message):
        compare(LITTLE, given, **TIME_ALONE)


def test_inputs_beside_something_that_has_its_own_are_refused():
    with pytest.raises(SettingError, match="inputs= is for models; the baseline"):
        compare((core_model(), CORE_X), core_model(), inputs=CORE_X)


def test_a_target_that_is_none_is_refused():
    with pytest.raises(TargetError, match="did you mean 'mlp'"):
        compare("mlp", "mlpp", **TIME_ALONE)


@pytest.mark.parametrize(
    "settings",
    [
        {"budget_s": 0},
        {"band": 0},
        {"floor": 2},
        {"confidence": 1},
        {"precision": -1},
        {"margin": -0.1},
        {"margin": math.nan},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": math.nan},
        {"seed": -1},
        {"cache": "lukewarm"},
        {"names": ("a", "a")},
        {"names": "ab"},
        {"names": ("a",)},
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(settings):
    ran = []
    with pytest.raises(SettingError, match=next(iter(settings))):
        compare(lambda: ran.append(1), LITTLE, **settings)
    assert ran == []


# ---------------------------------------------------------------- settings


def test_names_are_used_everywhere():
    found = compare(LITTLE, MUCH, names=("old", "new"), **SHORT)
    assert str(found).startswith("new against old: slower")
    assert (found.baseline.name, found.candidate.name) == ("old", "new")
    assert found.calls[1].name == "new"


def test_a_side_about_which_more_is_known_is_taken_as_it_is():
    sides = [
        WorkloadSide(Workload(name, lambda x: x, (CORE_X,)), name=name, known=Known(()))
        for name in ("old", "new")
    ]
    found = compare(*sides, budget_s=0.01, names=("old", "new"))
    assert (found.baseline_name, found.candidate_name) == ("old", "new")
    assert found.not_measured["outputs"].code == "no-arrays"
    with pytest.raises(SettingError, match="inputs="):
        compare(*sides, inputs=CORE_X)


@pytest.mark.slow
@pytest.mark.parametrize(("evidence", "expected"), [(True, 12), (False, 9)])
def test_a_model_that_is_slow_for_the_budget_is_called_no_more_often_than_it_must(
    evidence, expected
):
    calls = {"a": 0, "b": 0}

    def nap(name):
        def model(x):
            calls[name] += 1
            time.sleep(0.15)
            return x

        return model

    pair = [(nap(name), CORE_X) for name in calls]
    found = compare(*pair, budget_s=0.5, evidence=evidence)
    assert calls == {"a": expected, "b": expected}
    assert found.n == FEWEST
    assert found.calls is None or [each.count for each in found.calls] == [FEWEST] * 2


def test_finished_functions_have_a_larger_floor_and_a_note():
    finished = compare(LITTLE, MUCH, **TIME_ALONE)
    assert finished.floor == FLOOR_OF_FINISHED
    assert any("minimum effect 1.0%: baseline and candidate" in note for note in finished.notes)
    built = compare(lambda: LITTLE, lambda: MUCH, factories=True, **TIME_ALONE)
    assert built.floor == FLOOR
    assert not any("memory layout" in note for note in built.notes)
    mixed = compare(LITTLE, (core_model(), CORE_X), budget_s=1.0, evidence=False)
    assert mixed.floor == FLOOR_OF_FINISHED
    assert any(": baseline kept one memory layout" in note for note in mixed.notes)
    assert compare(LITTLE, MUCH, floor=0.2, **TIME_ALONE).floor == 0.2


def test_a_rule_of_ones_own_says_when_to_stop():
    seen = []

    def never(ratio):
        seen.append(ratio)
        return False

    found = compare(LITTLE, MUCH, is_known=never, budget_s=0.3, evidence=False)
    assert all(ratio.low <= ratio.value <= ratio.high for ratio in seen)
    early = compare(LITTLE, MUCH, is_known=lambda ratio: True, budget_s=30.0, evidence=False)
    assert early.n <= found.n or len(seen) == 0


def test_a_rule_that_is_content_with_open_ends_does_not_fail():
    found = compare(
        LITTLE, MUCH, is_known=lambda ratio: True, confidence=0.999999, budget_s=1.0, evidence=False
    )
    assert found.n >= 6
    assert json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("ratio", "precision", "stops"),
    [
        (Estimate(2.0, 1.9, 2.1), None, True),
        (Estimate(1.0, 0.5, 2.0), None, False),  # nothing is decided yet
        (Estimate(2.0, 1.9, 2.1), 0.1, True),
        (Estimate(2.0, 1.9, 2.1), 0.01, False),
        (Estimate(1.0, 0.5, 2.0), 10.0, False),
    ],
)
def test_it_stops_once_the_verdict_is_known_and_the_interval_narrow_enough(ratio, precision, stops):
    stop = _stopping_rule(Rule(precision=precision), FLOOR, None)
    assert stop(ratio) is stops
    assert _stopping_rule(Rule(), FLOOR, lambda ratio: not stops)(ratio) is not stops


def test_precision_asks_for_more_than_a_verdict():
    quick = compare(LITTLE, MUCH, budget_s=0.6, evidence=False)
    # Nobody can reach this: it ends with the budget.
    exact = compare(LITTLE, MUCH, budget_s=0.6, evidence=False, precision=1e-9)
    assert exact.verdict == quick.verdict == SLOWER
    assert exact.n >= quick.n


def test_a_watcher_is_told_what_is_done():
    told = []

    class Watcher:
        def describe(self, text):
            told.append(text)

        def advance(self, steps=1):
            pass

    found = compare(LITTLE, MUCH, progress=Watcher(), **SHORT)
    assert told[0] == "candidate against baseline: checking"
    assert f"candidate against baseline: round {found.n}" in told
    assert told[-1].endswith("memory, size, single calls")


def test_the_seed_says_who_is_built_first():
    def first_round(seed):
        log = []
        compare(
            lambda: log.append("a") or LITTLE,
            lambda: log.append("b") or LITTLE,
            factories=True,
            seed=seed,
            **TIME_ALONE,
        )
        return "".join(log[4:6])  # both are built before, for first calls and to find the pace

    orders = [first_round(seed) for seed in range(4)]
    assert set(orders) == {"ab", "ba"}
    assert [first_round(seed) for seed in range(4)] == orders


# ---------------------------------------------------------------- the result


def test_a_comparison_of_models_survives_strict_json():
    found = compare(torch_model(), torch_model(WIDE), inputs=TORCH_X, **SHORT)
    again = Comparison.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found


def test_models_have_evidence_beside_time():
    model = core_model()
    found = compare(model, model, inputs=CORE_X, **SHORT)
    assert found.outputs.is_identical
    assert found.resources[0].parameter_bytes == (8 * 16 + 16 + 16 * 4 + 4) * 4
    assert found.throughputs[0] > 0
    assert found.calls[0].median > 0
    assert "evaluate" in str(found.not_measured["accuracy"])
    assert found.environment["python"]
    assert found.seconds_used > 0


def test_a_candidate_that_is_worse_is_told():
    good, bad = core_model(), core_model(WIDE)

    def evaluate(model):
        return np.resize([1.0, 1.0, 0.0] if model is good else [0.0, 1.0, 0.0], 300)

    found = compare(
        Workload("good", good, (CORE_X,), evaluate=evaluate, metric="top-1"),
        Workload("bad", bad, (CORE_X,)),
        **SHORT,
    )
    assert found.accuracy.verdict == "worse"
    assert found.accuracy.metric == "top-1"
    assert found.is_accurate is False


@pytest.mark.parametrize(("threads", "is_named"), [(1, False), (2, True)])
def test_idle_threads_of_two_frameworks_are_named(monkeypatch, threads, is_named):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr("tinytorch.measure.environment.usable_cores", lambda: 8)
    found = compare((core_model(), CORE_X), (torch_model(WIDE), TORCH_X), **SHORT)
    assert any("two frameworks" in note for note in found.notes) is is_named
