import os
import tempfile
from pathlib import Path

import pytest

from tinytorch.records.store import refuge_path, store_path


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv("TINYTORCH_RECORDS", raising=False)


@pytest.fixture
def deep(tmp_path, monkeypatch):
    folder = tmp_path / "project" / "a" / "b"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_the_store_belongs_to_the_project(deep, tmp_path, mark):
    (tmp_path / "project" / mark).touch()
    assert store_path() == tmp_path / "project" / ".tinytorch" / "records.sqlite"


def test_the_nearest_project_counts(deep, tmp_path):
    (tmp_path / "project" / ".git").mkdir()
    (deep.parent / "pyproject.toml").touch()
    assert store_path() == deep.parent / ".tinytorch" / "records.sqlite"


def test_without_a_project_it_is_the_working_directory(deep):
    assert not any((each / ".git").exists() for each in deep.parents), "of this machine"
    assert store_path() == deep / ".tinytorch" / "records.sqlite"


def test_the_variable_comes_before_the_project(deep, tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTORCH_RECORDS", str(tmp_path / "mine.db"))
    assert store_path() == tmp_path / "mine.db"


def test_an_empty_variable_is_none(deep, monkeypatch):
    monkeypatch.setenv("TINYTORCH_RECORDS", "")
    assert store_path() == deep / ".tinytorch" / "records.sqlite"


def test_an_argument_comes_before_everything(deep, monkeypatch):
    monkeypatch.setenv("TINYTORCH_RECORDS", "elsewhere.db")
    assert store_path("here.db") == deep / "here.db"
    assert store_path(Path("~/x.db")) == Path.home() / "x.db"


def test_asking_creates_nothing(deep):
    store_path()
    assert list(deep.iterdir()) == []


def test_the_refuge_is_in_the_temporary_folder_and_of_one_user(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert refuge_path().parent == tmp_path
    assert refuge_path().suffix == ".jsonl"
    if hasattr(os, "getuid"):
        assert str(os.getuid()) in refuge_path().name
