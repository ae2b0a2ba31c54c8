import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from example_gates import comparison
from example_records import record
from git_projects import BENCH, commit, git, project, worktrees, write

from tinytorch.errors import (
    MeasurementError,
    ModelError,
    RecordError,
    SettingError,
    TargetError,
)
from tinytorch.records import gate as gate_module
from tinytorch.records import gate_targets
from tinytorch.records.gate import run_gate
from tinytorch.records.settings import GateSettings
from tinytorch.records.store import RecordStore

MAKE = "bench.py:make"
SLOW = BENCH.replace("WORK = 2_000", "WORK = 20_000")
# Six rounds, the fewest: everything here differs by a factor of ten, or not at all.
QUICK = GateSettings((MAKE,), budget_s=0.01)


@pytest.fixture(autouse=True)
def _machine_is_not_checked(monkeypatch):
    use_floor(monkeypatch, None)


def use_floor(monkeypatch, floor):
    module = SimpleNamespace(known_floor=lambda: floor)
    monkeypatch.setitem(sys.modules, "tinytorch.comparison.self_check", module)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "records.sqlite"))
    return project(tmp_path / "project")


@pytest.fixture
def quick(monkeypatch):
    """Let the comparer find no difference without measuring, and count how often it is asked."""
    asked = []

    def compare(first, second, **settings):
        asked.append((first, second))
        return comparison()

    monkeypatch.setattr(gate_targets, "compare", compare)
    return asked


@pytest.mark.slow
def test_ten_times_the_work_is_a_regression(folder):
    write(folder, bench=SLOW)
    seen = []
    gate = run_gate("main", QUICK, folder=folder, on_result=seen.append)
    (row,) = gate.results
    assert row.verdict == "regression"
    assert row.outputs.startswith("outputs differ")
    assert seen == [row]
    assert worktrees(folder) == [str(folder)]
    with RecordStore(folder.parent / "records.sqlite") as store:
        kept = store.get(row.record)
    assert kept.details["verdict"] == "regression"
    assert kept.commit == git(folder, "rev-parse", "HEAD")


@pytest.mark.slow
def test_identical_code_never_is_a_regression(folder):
    # Six rounds may all be disturbed, but not by that much.
    gate = run_gate("HEAD", QUICK.changed(tolerance=0.9), folder=folder, save=False)
    assert gate.results[0].verdict in ("passed", "inconclusive")
    assert "both sides are the same commit: any difference is noise" in gate.notes
    assert not (folder.parent / "records.sqlite").exists()


@pytest.mark.slow
def test_identical_code_passes_a_wide_tolerance_between_commits(folder):
    write(folder, other="")
    commit(folder, "second")
    settings = GateSettings((MAKE, "bench.py:scored"), tolerance=0.9)
    gate = run_gate("HEAD~1", settings, folder=folder, candidate="HEAD")
    assert {row.verdict for row in gate.results} <= {"passed", "inconclusive"}


@pytest.mark.slow
def test_worse_scores_are_lost_accuracy(folder):
    write(folder, bench=BENCH.replace("[1.0, 0.0]", "[0.0, 0.0]"))
    settings = GateSettings(("bench.py:scored",), tolerance=0.9, budget_s=0.01)
    (row,) = run_gate("main", settings, folder=folder).results
    assert row.accuracy_verdict == "accuracy"
    assert row.verdict == "accuracy"


@pytest.mark.slow
def test_a_stored_record_finds_ten_times_the_work(folder):
    (row,) = run_gate("main", QUICK, folder=folder).results
    write(folder, bench=SLOW)
    (later,) = run_gate(row.record[:12], QUICK.changed(targets=()), folder=folder).results
    assert later.verdict == "regression"
    assert later.target == MAKE


def test_each_side_runs_its_own_code(folder, quick):
    """The candidate's check would raise in the baseline's code, and the baseline's has none."""
    (folder / "src" / "ours").mkdir(parents=True)
    (folder / "src" / "ours" / "__init__.py").write_text(f"{BENCH}\nSIDE = 'old'\n", "utf-8")
    commit(folder, "a package")
    check = "\n\ndef make():\n    assert SIDE == 'new', SIDE\n    return compute, (3,)\n"
    text = f"{BENCH}\nSIDE = 'new'\n{check}"
    (folder / "src" / "ours" / "__init__.py").write_text(text, "utf-8")
    gate = run_gate("HEAD", GateSettings(("ours:make",)), folder=folder)
    assert gate.results[0].verdict == "passed"
    first, second = quick[0]
    assert str(folder) not in first.environment["PYTHONPATH"]
    assert second.environment["PYTHONPATH"].startswith(str(folder))


def test_a_change_that_an_installed_copy_hides_is_invalid(folder, quick, tmp_path, monkeypatch):
    """A package in a folder that is not looked into, and a copy of it in the environment."""
    installed = tmp_path / "env" / "site-packages"
    for place in (installed / "pkg", folder / "python" / "pkg"):
        place.mkdir(parents=True)
        write(place, __init__=BENCH)
    write(folder, bench="from pkg import make\n")
    commit(folder, "a package")
    write(folder / "python" / "pkg", __init__=SLOW)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    gate = run_gate("HEAD", QUICK, folder=folder)
    assert gate.verdict == "invalid"
    assert "and not python/pkg/__init__.py of its own tree" in gate.results[0].reason
    assert quick == []
    places = [str(folder / "python"), str(installed)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    assert run_gate("HEAD", QUICK, folder=folder).verdict == "passed"


def test_the_same_target_in_another_folder_is_another_series(folder, quick, tmp_path):
    for name in ("a", "b"):
        (folder / name).mkdir()
        write(folder / name, bench=BENCH)
    commit(folder, "two parts")
    for name in ("a", "b"):
        run_gate("HEAD", QUICK, folder=folder / name)
    with RecordStore(tmp_path / "records.sqlite") as store:
        records = store.find(kind="gate", name=MAKE)
    assert [each.settings["target_file"] for each in records] == ["a/bench.py", "b/bench.py"]
    assert len({each.series for each in records}) == 2


def test_a_result_that_cannot_be_kept_is_a_note(folder, quick, monkeypatch):
    def keep(record, store):
        raise RecordError("the disk is full")

    monkeypatch.setattr(gate_module, "keep", keep)
    gate = run_gate("main", QUICK, folder=folder)
    assert gate.verdict == "passed"
    assert "the result was not kept: the disk is full" in gate.results[0].notes


def test_a_file_of_records_that_cannot_be_read_is_wrong_usage(folder, tmp_path, monkeypatch):
    def refused(path, *mode):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "records.jsonl").write_text("{}", "utf-8")
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(SettingError, match=r"cannot be read .Permission denied"):
        run_gate(str(tmp_path / "records.jsonl"), QUICK, folder=folder)


def test_a_candidate_that_raises_fails_and_one_that_is_new_does_not(folder, quick):
    write(folder, bench="1 / 0\n", fresh=BENCH)
    settings = GateSettings((MAKE, "fresh.py:make"))
    gate = run_gate("main", settings, folder=folder)
    assert [row.verdict for row in gate.results] == ["failed", "new"]
    assert "ZeroDivisionError" in gate.results[0].reason
    assert gate.verdict == "failed"
    assert quick == []


def test_a_function_that_is_new_in_an_old_file_is_new(folder, quick):
    write(folder, bench=f"{BENCH}\n\nother = make\n")
    gate = run_gate("main", GateSettings(("bench.py:other",)), folder=folder)
    assert gate.verdict == "new"


def test_a_folder_that_is_new_has_new_targets(folder, quick):
    part = folder / "part"
    part.mkdir()
    write(part, bench=BENCH)
    assert run_gate("main", QUICK, folder=part).verdict == "new"


def test_targets_are_relative_to_the_same_folder_on_both_sides(folder, quick):
    part = folder / "part"
    part.mkdir()
    write(part, bench=BENCH)
    commit(folder, "a part")
    write(part, bench=f"# changed\n{BENCH}")
    assert run_gate("HEAD", QUICK, folder=part).verdict == "passed"
    assert quick[0][0].folder.name == "part"


def test_another_commit_can_be_the_candidate(folder, quick):
    write(folder, bench=f"# second\n{BENCH}")
    commit(folder, "second")
    write(folder, bench="1 / 0\n")  # of no concern
    gate = run_gate("HEAD~1", QUICK, folder=folder, candidate="main")
    assert gate.verdict == "passed"
    assert gate.candidate.startswith("main (")
    assert gate.baseline.startswith("HEAD~1 (")


def test_a_target_that_is_nowhere_is_wrong_usage(folder):
    with pytest.raises(TargetError, match=r"none.py:make is not there, on no side"):
        run_gate("main", GateSettings(("none.py:make",)), folder=folder)
    assert worktrees(folder) == [str(folder)]


def test_without_targets_the_advice_is_to_name_some(folder):
    with pytest.raises(SettingError, match=r"\[tool.tinytorch.gate\]"):
        run_gate("main", GateSettings(), folder=folder)


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("mian", "'mian' is no file of records, and there is no revision.*did you mean main"),
        ("abcdef12", "no file and no revision, and there are no records in"),
    ],
)
def test_what_cannot_be_compared_with_is_explained(folder, against, message):
    with pytest.raises(SettingError, match=message):
        run_gate(against, QUICK, folder=folder)


def test_an_unknown_record_is_explained(folder, quick):
    run_gate("main", QUICK, folder=folder)
    with pytest.raises(SettingError, match=r"no record in .* starts with abcdef12"):
        run_gate("abcdef12", QUICK, folder=folder)


def test_an_unknown_candidate_is_explained(folder):
    with pytest.raises(SettingError, match="no revision 'nonsense'"):
        run_gate("main", QUICK, folder=folder, candidate="nonsense")


def test_outside_of_a_repository_only_records_will_do(tmp_path):
    with pytest.raises(SettingError, match="is in no git repository"):
        run_gate("main", QUICK, folder=tmp_path)


def test_a_file_of_another_machine_shows_nothing(folder, quick, tmp_path):
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(record(name=MAKE, kind="gate").to_dict()), "utf-8")
    gate = run_gate(str(file), QUICK.changed(targets=()), folder=folder)
    assert gate.verdict == "inconclusive"
    assert "cannot be compared with this run" in gate.results[0].reason
    assert quick == []


def test_setup_runs_on_both_sides_and_its_failure_has_a_side(folder, quick):
    settings = QUICK.changed(setup="echo $TINYTORCH_GATE_SIDE >> ../said.txt; touch built")
    run_gate("main", settings, folder=folder)
    assert (folder.parent / "said.txt").read_text("utf-8") == "candidate\n"
    with pytest.raises(MeasurementError, match="for the baseline"):
        run_gate("main", QUICK.changed(setup="exit 1"), folder=folder)
    failing = "test $TINYTORCH_GATE_SIDE = baseline"
    with pytest.raises(ModelError, match="for the candidate"):
        run_gate("main", QUICK.changed(setup=failing), folder=folder)
    assert worktrees(folder) == [str(folder)]


def test_a_tolerance_below_what_the_machine_showed_is_refused(folder, quick, monkeypatch):
    use_floor(monkeypatch, 0.08)
    with pytest.raises(SettingError, match=r"5.00% is below 8.00%"):
        run_gate("main", QUICK, folder=folder)
    use_floor(monkeypatch, 0.006)
    assert not any("--selfcheck" in n for n in run_gate("main", QUICK, folder=folder).notes)
    use_floor(monkeypatch, None)
    assert any("--selfcheck" in n for n in run_gate("main", QUICK, folder=folder).notes)


def test_what_is_finished_is_kept_when_interrupted(folder, monkeypatch, tmp_path):
    calls = []

    def compare(first, second, **settings):
        calls.append(first)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return comparison()

    monkeypatch.setattr(gate_targets, "compare", compare)
    with pytest.raises(KeyboardInterrupt):
        run_gate("main", GateSettings((MAKE, "bench.py:scored")), folder=folder)
    assert worktrees(folder) == [str(folder)]
    with RecordStore(tmp_path / "records.sqlite") as store:
        assert [each.name for each in store.find(kind="gate")] == [MAKE]


def test_a_changed_submodule_is_named(folder, quick, tmp_path):
    library = project(tmp_path / "library", lib="VALUE = 1\n")
    git(folder, "submodule", "add", "-q", str(library), "lib")
    commit(folder, "with a submodule")
    write(folder / "lib", lib="VALUE = 2\n")
    notes = run_gate("HEAD", QUICK, folder=folder).notes
    assert any("(lib): part of the candidate" in note for note in notes)
