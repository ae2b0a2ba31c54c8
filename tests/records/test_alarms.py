"""Suspicions in a history, and what measuring both commits again makes of them."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from example_gates import timed
from example_records import ENVIRONMENT, record
from git_projects import BENCH, commit, project, write
from hypothesis import given
from hypothesis import strategies as st

from tinytorch.cli.main import main
from tinytorch.errors import SettingError
from tinytorch.records import alarms
from tinytorch.records.alarms import (
    CHANGE_POINT,
    SHIFT,
    Confirmations,
    Suspicion,
    confirm_suspicions,
    suspicion_in,
    suspicions,
    suspicious_shift,
)
from tinytorch.records.gate_result import GateResult
from tinytorch.records.history import KIND, settings_of, trends
from tinytorch.records.settings import GateSettings
from tinytorch.records.store import RecordStore

MAKE = "bench.py:make"
SLOW = BENCH.replace("WORK = 2_000", "WORK = 20_000")


def noisy(rng, count, spread=0.01):
    return list(np.exp(rng.normal(0, spread, count)))


def test_a_shift_of_the_last_values_is_suspicious(rng):
    quiet = noisy(rng, 40)
    assert suspicious_shift(quiet, 0.05) is None
    for count in (1, 2, 3):
        slower = [*quiet[:-count], *(1.1 * value for value in quiet[-count:])]
        found = suspicious_shift(slower, 0.05)
        assert found.reason == SHIFT
        assert found.before == 36, "the last one that cannot be slower yet"


def test_it_is_found_wherever_it_began_within_three_commits(rng):
    values = noisy(rng, 60)
    for start in range(20, 57):
        slower = [value * (1.05 if place >= start else 1) for place, value in enumerate(values)]
        seen = [suspicious_shift(slower[:end], 0.05) for end in range(start + 1, start + 4)]
        assert any(each and each.before < start for each in seen)


@given(st.lists(st.floats(1e-9, 1e9), max_size=9), st.floats(0.01, 0.5))
def test_few_values_or_any_are_no_error(values, effect):
    found = suspicious_shift(values, effect)
    assert found is None or (0 <= found.before < len(values) - 1 and found.ratio > 1)


def test_what_became_faster_is_no_suspicion(rng):
    values = [value * (1 if place < 30 else 0.8) for place, value in enumerate(noisy(rng, 40))]
    assert suspicious_shift(values, 0.05) is None


def test_a_young_change_point_is_suspicious_and_an_old_one_is_not(rng):
    """The last three commits were lucky; the level is slower all the same."""
    levels = [1.0] * 30 + [1.06] * 7 + [1.0] * 3
    values = [level * value for level, value in zip(levels, noisy(rng, 40, 0.002), strict=True)]
    lucky = [*values[:37], *(1.01 * value for value in values[37:])]
    assert suspicious_shift([*values[:30], *values[37:]], 0.05) is None
    young = suspicious_shift(lucky, 0.05)
    assert (young.before, young.reason) == (29, CHANGE_POINT)
    old = [*values[:37], *(1.06 * value for value in noisy(rng, 23, 0.002))]
    assert suspicious_shift(old, 0.05) is None


def gate_record(value, sha, hours, name=MAKE, **changes):
    environment = {**ENVIRONMENT, "commit": {"hash": sha, "is_dirty": False}}
    made = {"kind": KIND, "settings": settings_of(file="bench.py"), "environment": environment}
    return record(value, name=name, hours=hours, **(made | changes))


def test_records_of_a_commit_count_once_and_changed_files_do_not(rng):
    values = noisy(rng, 20, 0.002)
    records = [gate_record(value, f"{n:040x}", n) for n, value in enumerate(values)]
    records.append(gate_record(2.0, f"{19:040x}", 19.5))
    records.append(gate_record(values[0], f"{19:040x}", 19.6))
    dirty = {**ENVIRONMENT, "commit": {"hash": "f" * 40, "is_dirty": True}}
    records.append(gate_record(9.0, "", 21, environment=dirty))
    (trend,) = trends(records)
    assert suspicion_in(trend, 0.05) is None
    records += [gate_record(1.2, f"{n:040x}", n) for n in (22, 23)]
    (trend,) = trends(records)
    found = suspicion_in(trend, 0.05)
    assert (found.before, found.after) == (f"{18:040x}", f"{23:040x}")
    assert found.commits == tuple(f"{n:040x}" for n in (19, 22, 23))
    assert Suspicion.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_each_machine_has_a_history_of_its_own(tmp_path, rng):
    with RecordStore(tmp_path / "x.db") as store:
        for place, machine in enumerate(("a" * 16, "b" * 16)):
            for n, value in enumerate(noisy(rng, 20, 0.002)):
                slow = 1.2 if place and n > 17 else 1.0
                environment = {**ENVIRONMENT, "fingerprint": machine,
                               "commit": {"hash": f"{n:040x}", "is_dirty": False}}  # fmt: skip
                level = 0.001 * (1 + place)
                store.add(gate_record(level * value * slow, "", n, environment=environment))
        found, names = suspicions(store, 0.05)
    assert names == (MAKE,)
    assert [each.machine for each in found] == ["b" * 16]


# ---------------------------------------------------------------- measured again


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    checked = SimpleNamespace(known_floor=lambda: None)
    monkeypatch.setitem(sys.modules, "tinytorch.comparison.self_check", checked)
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "records.sqlite"))
    monkeypatch.chdir(project(tmp_path / "project"))
    return tmp_path / "project"


def write_history(folder, *, slow_from=None, told_slow_from=None):
    """Make 14 commits, and a record of each: 20% slower where told, whatever the code is."""
    commits = []
    for number in range(14):
        is_slow = slow_from is not None and number >= slow_from
        write(folder, bench=(SLOW if is_slow else BENCH) + f"# {number}\n")
        commits.append(commit(folder, f"change {number}"))
    with RecordStore(folder.parent / "records.sqlite") as store:
        for number, sha in enumerate(commits):
            told = told_slow_from is not None and number >= told_slow_from
            store.add(
                gate_record(0.001 * (1 + number % 3 / 1000) * (1.2 if told else 1), sha, number)
            )
    return commits


@pytest.mark.slow
def test_a_slowdown_is_confirmed_by_measuring_both_commits(folder, capsys):
    commits = write_history(folder, slow_from=12, told_slow_from=12)
    assert main(["gate", "--confirm", "--budget", "0.01", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "regression"
    assert found["suspicions"][0]["before"] == commits[10]
    assert found["suspicions"][0]["after"] == commits[13]
    assert found["results"][0]["time_ratio"]["low"] > 1.5
    with RecordStore(folder.parent / "records.sqlite") as store:
        assert len(store) == 15, "what was measured again is a record of the newest commit"
        assert store.get(found["results"][0]["record"]).commit == commits[13]


@pytest.mark.slow
def test_a_suspicion_that_nothing_is_behind_is_no_regression(folder, capsys):
    write_history(folder, told_slow_from=12)
    # A tolerance so wide that no noise reaches beyond half of it.
    with RecordStore(folder.parent / "records.sqlite") as store:
        assert suspicions(store, 0.15)[0]
    code = main(["gate", "--confirm", "--tolerance", "0.15", "--budget", "5", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code in (0, 3)
    assert found["results"][0]["verdict"] in ("passed", "inconclusive")


def test_without_a_suspicion_nothing_is_measured(folder, monkeypatch, capsys):
    write_history(folder)
    monkeypatch.setattr(alarms, "run_gate", None)
    assert main(["gate", "--confirm"]) == 0
    assert "no suspicion in the history of 1 target" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ratio", "spread", "code", "verdict"),
    [(1.06, 0.001, 1, "regression"), (1.0, 0.001, 0, "passed"), (1.03, 0.02, 3, "inconclusive")],
)
def test_the_line_is_drawn_at_half_of_the_tolerance(
    folder, monkeypatch, capsys, ratio, spread, code, verdict
):
    commits = write_history(folder, told_slow_from=12)
    asked = []

    def run_gate(against, settings, **others):
        asked.append((against, others["candidate"], settings))
        row = timed(MAKE, ratio, tolerance=settings.tolerance, spread=spread)
        return GateResult("a", "b", (row,))

    monkeypatch.setattr(alarms, "run_gate", run_gate)
    markdown, junit = folder.parent / "gate.md", folder.parent / "gate.xml"
    assert main(["gate", "--confirm", "--markdown", str(markdown), "--junit", str(junit)]) == code
    ((against, candidate, settings),) = asked
    assert (against, candidate) == (commits[10], commits[13])
    assert settings.tolerance == 0.025
    assert settings.targets == (MAKE,)
    text = markdown.read_text("utf-8")
    assert commits[13][:10] in text
    assert ("not confirmed" in text) is (verdict == "passed")
    assert junit.read_text("utf-8").count("<testcase") == 1


def test_results_are_written_and_read():
    suspicion = Suspicion("x", "a" * 40, "b" * 40, 1.07, SHIFT, ("b" * 40,), "m")
    found = Confirmations(("x", "y"), (suspicion,), (timed("x", 1.2),), 0.05)
    assert found.confirmed == ((suspicion, found.results[0]),)
    read = Confirmations.from_dict(json.loads(json.dumps(found.to_dict())))
    assert (read.suspicions, read.verdict) == (found.suspicions, "regression")


@pytest.mark.parametrize(
    "options", [["--against", "main"], ["--candidate", "HEAD"], ["--baseline-python", "p"]]
)
def test_confirming_takes_its_commits_from_the_history(folder, capsys, options):
    assert main(["gate", "--confirm", *options]) == 2
    assert "leave out" in capsys.readouterr().err


def test_no_baseline_at_all_is_wrong_usage(folder, capsys):
    assert main(["gate", "x:y"]) == 2
    assert "--against main" in capsys.readouterr().err


def test_a_history_without_a_gate_says_how_to_get_one(folder):
    with pytest.raises(SettingError, match=r"has no records of a gate; .* adds one"):
        confirm_suspicions(GateSettings(), folder=folder)
