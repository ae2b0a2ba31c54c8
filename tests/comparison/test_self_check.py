import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tinytorch.comparison import self_check as module
from tinytorch.comparison.compare import FLOOR
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.self_check import SelfCheck, Trial, known_floor, self_check
from tinytorch.comparison.sequential import Rule
from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.interleaving import Pace, Round

SAME = Trial("same", Estimate(1.001, 0.997, 1.004), 0.4)
OPEN = Trial("inconclusive", Estimate(0.99, 0.97, 1.02), 2.0)
ALARM = Trial("slower", Estimate(1.03, 1.02, 1.04), 0.3)
ALARM_DOWN = Trial("faster", Estimate(0.95, 0.94, 1 / 1.05), 0.3)


def checked(*trials):
    return SelfCheck("mlp", trials, "fingerprint")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep results in a folder of this test."""
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def told(monkeypatch):
    """Let comparisons say what they are told, and remember how they were asked for."""
    asked = []

    def compare(baseline, candidate, **settings):
        asked.append((baseline, candidate, settings))
        rounds = tuple(Round((1.0,), (1.02 + 0.0001 * index,)) for index in range(9))
        pace = Pace((1, 1), 1, 0, 0.1, (1.0, 1.0))
        return Comparison("a", "b", rounds, Rule(), FLOOR, 0.05, pace, "wall", 0.25)

    monkeypatch.setattr(module, "compare", compare)
    return asked


# ---------------------------------------------------------------- what trials say


def test_false_alarms_and_open_questions_are_counted():
    check = checked(SAME, OPEN, ALARM, ALARM_DOWN)
    assert (check.false_alarms, check.undecided) == (2, 1)


def test_the_floor_is_what_was_claimed_at_most():
    assert checked(SAME, SAME).floor == FLOOR
    assert checked(SAME, ALARM).floor == pytest.approx(0.02)
    assert checked(ALARM, ALARM_DOWN).floor == pytest.approx(0.05)


def test_the_floor_is_no_smaller_than_what_undecided_trials_could_see():
    check = checked(OPEN, OPEN, OPEN)
    assert check.floor == check.reach == pytest.approx(1.02 / 0.99 - 1)
    mixed = checked(SAME, SAME, OPEN)
    assert mixed.floor == max(FLOOR, mixed.reach)
    assert checked(OPEN, OPEN, ALARM_DOWN).floor == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("trial", "claimed"), [(SAME, 0), (OPEN, 0), (ALARM, 0.02), (ALARM_DOWN, 0.05)]
)
def test_a_trial_claims_what_its_interval_excludes(trial, claimed):
    assert trial.claimed == pytest.approx(claimed)


def test_an_open_interval_claims_nothing():
    assert Trial("inconclusive", Estimate(1.0, 0.0, math.inf), 1.0).claimed == 0


def test_differences_count_both_ways():
    assert checked(SAME, ALARM).largest_difference == pytest.approx(0.03)
    assert checked(SAME, ALARM_DOWN).largest_difference == pytest.approx(1 / 0.95 - 1)


def test_reach_and_seconds_are_medians():
    check = checked(SAME, OPEN, ALARM)
    assert check.median_seconds == 0.4
    reaches = sorted(trial.ratio.high / trial.ratio.value - 1 for trial in (SAME, OPEN, ALARM))
    assert check.reach == pytest.approx(reaches[1])


def test_trials_of_former_versions_are_read():
    fields = {"verdict": "not shown", "ratio": 0.99, "low": 0.97, "high": 1.02, "seconds": 2.0}
    assert Trial.from_dict(fields) == OPEN


def test_an_end_that_nothing_is_known_about_is_none_in_json():
    open_end = Trial("inconclusive", Estimate(1.0, 0.0, math.inf, n=3), 1.0)
    fields = open_end.to_dict()
    assert (fields["ratio"], fields["low"], fields["high"], fields["n"]) == (1.0, 0.0, None, 3)
    assert Trial.from_dict(fields) == open_end


def test_a_check_survives_json():
    check = replace(checked(SAME, ALARM), kept="somewhere", budget_s=3.0)
    fields = json.loads(json.dumps(check.to_dict(), allow_nan=False))
    assert SelfCheck.from_dict(fields) == check
    assert fields["false_alarms"] == 1


# ---------------------------------------------------------------- running it


def test_a_target_is_compared_with_itself_each_time_by_another_seed(told):
    check = self_check("mlp", trials=4, budget_s=0.7, seed=10)
    assert len(check.trials) == 4
    assert all(baseline == candidate == "mlp" for baseline, candidate, _ in told)
    assert [settings["seed"] for _, _, settings in told] == [10, 11, 12, 13]
    assert {settings["budget_s"] for _, _, settings in told} == {0.7}
    assert check.trials[0].verdict == "slower"
    assert check.trials[0].seconds == 0.25


def test_without_a_target_it_is_one_of_the_zoo(told):
    assert self_check(trials=1).target == "mlp"
    assert told[0][0] == "mlp"


@pytest.mark.parametrize("trials", [0, -3])
def test_no_trials_are_refused(told, trials):
    with pytest.raises(SettingError, match=f"trials={trials}"):
        self_check(trials=trials)
    assert told == []


def test_a_watcher_sees_every_trial(told):
    steps = []

    class Watcher:
        def advance(self, count=1):
            steps.append(count)

        def describe(self, text):
            pass

    self_check(trials=3, progress=Watcher())
    assert steps == [1, 1, 1]


def test_a_real_check_gives_no_wild_result():
    check = self_check(lambda: sum(range(500)), trials=2, budget_s=0.05)
    assert len(check.trials) == 2
    assert check.floor >= FLOOR
    assert all(trial.ratio.low <= trial.ratio.value <= trial.ratio.high for trial in check.trials)


# ---------------------------------------------------------------- keeping it


def test_what_was_found_is_known_afterwards(told, folder):
    assert known_floor() is None
    check = self_check("mlp", trials=1)
    assert known_floor() == check.floor > FLOOR
    assert check.kept.startswith(str(folder))
    assert [path.suffix for path in folder.iterdir()] == [".json"]


def test_a_check_that_says_less_does_not_replace_a_better_one(told):
    better = self_check("mlp", trials=12, budget_s=2.0)
    for settings in ({"trials": 9}, {"trials": 1}, {"trials": 20, "budget_s": 1.0}):
        check = self_check("mlp", **settings)
        assert not check.is_kept
        assert "12 trials of 2 s" in check.obstacle
        assert f"remove {better.kept} to replace it" in check.obstacle
    fields = json.loads(Path(better.kept).read_text("utf-8"))
    assert SelfCheck.from_dict(fields) == better


@pytest.mark.parametrize(
    ("before", "after"),
    [((12, 2.0), (10, 2.0)), ((12, 2.0), (12, 3.0)), ((3, 9.0), (10, 2.0)), ((3, 2.0), (3, 2.0))],
)
def test_a_check_that_says_as_much_replaces_the_one_before(told, before, after):
    self_check("mlp", trials=before[0], budget_s=before[1])
    check = self_check("mlp", trials=after[0], budget_s=after[1])
    assert check.is_kept
    fields = json.loads(Path(check.kept).read_text("utf-8"))
    assert (len(fields["trials"]), fields["budget_s"]) == after


def test_a_check_without_any_finite_floor_is_not_kept(monkeypatch, folder):
    endless = Trial("inconclusive", Estimate(1.0, 0.0, math.inf), 1.0)
    check = module._keep(SelfCheck("mlp", (endless,) * 12, "fingerprint"))
    assert "unbounded" in check.obstacle
    assert list(folder.iterdir()) == []


def test_what_nobody_else_has_is_not_kept(told, folder):
    check = self_check(lambda: None, trials=1)
    assert (check.kept, check.target) == ("", "function")
    assert list(folder.iterdir()) == []
    assert known_floor() is None


def test_a_folder_that_cannot_be_written_is_told(told, monkeypatch, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("", "utf-8")
    monkeypatch.setenv("TINYTORCH_CACHE", str(occupied / "below"))
    check = self_check("mlp", trials=1)
    assert check.obstacle
    assert not check.is_kept
    assert len(check.trials) == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"schema": 99}', '{"schema": 1}', "\0"]
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(told, content):
    check = self_check("mlp", trials=1)
    with open(check.kept, "w", encoding="utf-8") as file:
        file.write(content)
    assert known_floor() is None


def test_another_machine_has_another_floor(told, monkeypatch):
    self_check("mlp", trials=1)
    described = module.describe_environment()
    monkeypatch.setattr(
        module, "describe_environment", lambda: Elsewhere(described.fingerprint + "x")
    )
    assert known_floor() is None


class Elsewhere:
    def __init__(self, fingerprint):
        self.fingerprint = fingerprint
