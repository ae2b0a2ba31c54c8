import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from git_projects import BENCH

from tinytorch.errors import MeasurementError, ModelError, SettingError
from tinytorch.records.gate_targets import GateSide


@pytest.fixture(autouse=True)
def _no_python_path(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bench.py").write_text(BENCH, "utf-8")
    return tmp_path


def side(folder, **changes):
    fields = {"name": "candidate", "label": "the working tree", "folder": folder, "top": folder}
    return GateSide(**(fields | changes))


def python_path(one):
    return one.isolated("x").environment["PYTHONPATH"].split(os.pathsep)


def test_the_own_tree_is_imported_first_also_its_src(tmp_path):
    part = tmp_path / "part"
    (part / "src").mkdir(parents=True)
    expected = [part, part / "src", tmp_path]
    found = python_path(side(part, top=tmp_path))
    assert list(dict.fromkeys(found)) == [str(each) for each in expected]


def test_places_in_the_tree_of_people_are_moved_to_the_own_tree(tmp_path, monkeypatch):
    work, tree = tmp_path / "work", tmp_path / "tree"
    (work / "lib").mkdir(parents=True)
    tree.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(work / "lib"), str(tmp_path / "far")]))
    found = python_path(side(tree, top=tree, origin=work))
    assert str(tree / "lib") in found
    assert str(work / "lib") not in found
    assert str(tmp_path / "far") in found


def test_an_interpreter_with_a_folder_is_looked_for_on_each_side(tmp_path):
    assert side(tmp_path).interpreter == sys.executable
    assert side(tmp_path, python="python3").interpreter == "python3"
    assert side(tmp_path, python=".venv/bin/python").interpreter == str(
        tmp_path / ".venv/bin/python"
    )
    assert side(tmp_path, python="/usr/bin/python3").interpreter == "/usr/bin/python3"


def test_a_side_that_works_has_no_error(folder):
    seen = side(folder).probe("bench.py:make", others=[Path("/nowhere")])
    assert (seen.error, seen.is_missing, seen.has_evaluate, seen.foreign) == ("", False, False, ())


def test_code_of_another_tree_is_noticed(folder, tmp_path):
    """As with an editable install that wins over the folder."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "library.py").write_text("", "utf-8")
    text = f"import sys\nsys.path.insert(0, {str(other)!r})\nimport library\n{BENCH}"
    (folder / "bench.py").write_text(text, "utf-8")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "bench.py").write_text(text, "utf-8")
    seen = side(tree).probe("bench.py:make", others=[other])
    assert seen.foreign == (str(other / "library.py"),)


def test_an_interpreter_that_is_not_there_is_named(folder):
    with pytest.raises(SettingError, match="no-such-python cannot be started for the candidate"):
        side(folder, python="no-such-python").probe("bench.py:make")


def test_a_process_that_dies_is_an_error_with_its_last_words(folder):
    (folder / "dies.py").write_text(
        "import os, sys\n\n\ndef make():\n    print('last words', flush=True)\n    os._exit(7)\n",
        "utf-8",
    )
    seen = side(folder).probe("dies.py:make")
    assert seen.error == "its process ended with code 7; it said: last words"
    assert not seen.is_missing


def has_ended(pid, patience_s=10.0):
    """Wait for a process that was killed: a busy machine takes a moment to end it."""
    for _ in range(int(patience_s / 0.05)):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_a_target_that_hangs_is_given_up_with_what_it_started(folder):
    marker = folder / "pid"
    (folder / "hangs.py").write_text(
        "import subprocess, sys, time\n\n\ndef make():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"    open({str(marker)!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n",
        "utf-8",
    )
    seen = side(folder, timeout_s=3.0).probe("hangs.py:make")
    assert "gave no answer within 3 s" in seen.error
    if marker.exists():  # it may have been too slow to get so far
        pid = int(marker.read_text("utf-8"))
        assert has_ended(pid)


def test_the_setup_command_knows_its_side(folder):
    side(folder).set_up("echo $TINYTORCH_GATE_SIDE > said.txt")
    assert (folder / "said.txt").read_text("utf-8") == "candidate\n"


def test_a_setup_that_fails_is_the_fault_of_a_candidate(folder):
    with pytest.raises(ModelError, match=r"ended with 3 for the candidate.*it said: no compiler"):
        side(folder).set_up("echo no compiler >&2; exit 3")


def test_without_a_baseline_nothing_can_be_measured(folder):
    with pytest.raises(MeasurementError, match=r"for the baseline .*it said: nothing"):
        side(folder, name="baseline").set_up("exit 1")


def test_imported_files_are_sorted_by_whose_they_are(folder, tmp_path, monkeypatch):
    installed = tmp_path.parent / "site-packages"
    (installed / "pkg").mkdir(parents=True, exist_ok=True)
    (installed / "pkg" / "__init__.py").write_text("", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    (folder / "near.py").write_text("", "utf-8")
    (folder / "bench.py").write_text(f"import json, near, pkg\n{BENCH}", "utf-8")
    found = side(folder).probe("bench.py:make").origins
    assert found.own == {"bench.py": "bench.py", "near": "near.py"}
    assert found.outside["pkg"] == str(installed / "pkg" / "__init__.py")
    assert "json" not in found.outside
    assert found.file == "bench.py"
    assert side(folder).probe("near:make").origins.file == "near.py"


def test_a_file_target_of_another_tree_is_foreign(folder, tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    seen = side(tree).probe(f"{folder / 'bench.py'}:make", others=[folder])
    assert seen.foreign == (str(folder / "bench.py"),)


def test_without_a_repository_the_file_of_a_target_is_that_of_its_project(folder):
    alone = side(folder, top=None)
    assert alone.probe("bench.py:make").origins.file == str((folder / "bench.py").resolve())
    (folder / "pyproject.toml").write_text("", "utf-8")
    assert alone.probe("bench.py:make").origins.file == "bench.py"
