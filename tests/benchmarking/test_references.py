import sys
from pathlib import Path

import pytest

from tinytorch.errors import SettingError, TargetError
from tinytorch.models.targets import (
    check_reference,
    is_installed,
    load_reference,
    located,
    resolved,
)

SOURCE = """
import os.path as paths
from json import dumps
raise SystemExit("was imported")
if True:
    def inside(): ...
value = other, third = 1, 2
class Kind:
    hidden = 1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file and a package, none of which may be imported."""
    (tmp_path / "models.py").write_text(SOURCE, "utf-8")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('was imported')", "utf-8")
    (tmp_path / "pack" / "fast.py").write_text("def convert(model): ...", "utf-8")
    (tmp_path / "star.py").write_text("from os import *", "utf-8")
    (tmp_path / "broken.py").write_text("def (", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["paths", "dumps", "inside", "value", "other", "third", "Kind"])
def test_names_are_found_without_running_the_file(folder, name):
    assert check_reference(f"models.py:{name}", str(folder)) is None


def test_modules_are_found_without_importing_them(folder):
    assert check_reference("pack.fast:convert", "") is None
    assert check_reference("json:dumps", "") is None
    assert "pack" not in sys.modules


def test_what_only_running_could_tell_is_believed(folder):
    assert check_reference("star.py:anything", str(folder)) is None
    assert check_reference("math:sqrt", "") is None


def test_a_name_of_the_zoo_needs_no_file():
    assert check_reference("mlp", "", names=("mlp", "cnn")) is None


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mlq", "did you mean 'mlp'"),
        ("something", "mlp, file.py:name or package.module:name"),
        (":name", "mlp"),
        ("missing.py:make", "there is no file .*missing.py"),
        ("models.py:insid", "models.py has no 'insid'; did you mean 'inside'"),
        ("models.py:hidden", "models.py has no 'hidden'; it has paths, dumps, inside"),
        ("broken.py:make", "broken.py is not valid Python"),
        ("nowhere:make", "there is no module nowhere"),
        ("pack.slow:make", "there is no module pack.slow"),
        ("pack.fast:convrt", "did you mean 'convert'"),
    ],
)
def test_what_is_wrong_is_said(folder, reference, message):
    with pytest.raises(SettingError, match=message):
        check_reference(reference, str(folder), names=("mlp",))


def test_files_are_found_from_the_folder_of_the_suite():
    assert resolved("models.py:make", "/suite").replace("\\", "/") == "/suite/models.py:make"
    assert resolved("/abs/models.py:make", "/suite").replace("\\", "/") == "/abs/models.py:make"
    assert resolved("package.module:make", "/suite") == "package.module:make"
    assert resolved("mlp", "/suite") == "mlp"


def test_a_function_of_a_file_is_loaded_with_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_it.py").write_text("ANSWER = 42", "utf-8")
    (tmp_path / "made.py").write_text("from neighbour_of_it import ANSWER", "utf-8")
    assert load_reference(f"{tmp_path}/made.py:ANSWER") == 42
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("source", "message"),
    [("1 / 0", "does not import: ZeroDivisionError"), ("", "has no 'make'")],
)
def test_what_does_not_load_is_named(tmp_path, source, message):
    (tmp_path / "made.py").write_text(source, "utf-8")
    with pytest.raises(TargetError, match=message):
        load_reference(f"{tmp_path}/made.py:make")


def test_namesakes_are_told_apart_by_their_place_in_the_project(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.py").write_text("", "utf-8")
    absolute = (tmp_path / "a" / "bench.py").resolve().as_posix()
    assert located("bench.py:make", str(tmp_path / "a")) == absolute
    (tmp_path / "pyproject.toml").write_text("", "utf-8")
    found = [located("bench.py:make", str(tmp_path / name)) for name in ("a", "b")]
    assert found == ["a/bench.py", "b/bench.py"]
    assert located("../b/bench.py:make", str(tmp_path / "a")) == "b/bench.py"


def test_the_repository_counts_before_projects_inside_of_it(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "pyproject.toml").write_text("", "utf-8")
    assert located("bench.py:make", str(tmp_path / "a")) == "a/bench.py"


def test_modules_of_the_project_have_a_place_and_others_none(folder):
    (folder / "pyproject.toml").write_text("", "utf-8")
    assert located("pack.fast:convert", "") == "pack/fast.py"
    assert located("numpy:dot", "") == ""
    assert located("json:dumps", "") == ""
    assert located("nowhere:make", "") == ""
    assert located("mlp", "") == ""


def test_environments_inside_of_a_tree_are_installed():
    assert is_installed(Path("/code/.venv/lib/python3.11/site-packages/pkg/fast.py"))
    assert is_installed(Path("/usr/lib/python3/dist-packages/pkg.py"))
    assert not is_installed(Path("/code/python/pkg/fast.py"))
