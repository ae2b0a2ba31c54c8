"""Keeping crossovers for the next process."""

import json

import pytest

from tinytorch.transforms.sparse_layers import (
    crossover_file,
    load_crossovers,
    save_crossover,
)

FIELDS = {"inputs": 3, "outputs": 4, "rows": 5, "backend": "numpy", "threads": 1}
KEY = (3, 4, 5, "numpy")


def test_what_is_saved_is_read_again_beside_others(tmp_path):
    path = tmp_path / "new" / "crossovers.json"
    assert save_crossover(path, KEY, FIELDS)
    other = FIELDS | {"rows": 6}
    assert save_crossover(path, (3, 4, 6, "numpy"), other)
    assert load_crossovers(path) == {KEY: FIELDS, (3, 4, 6, "numpy"): other}


@pytest.mark.parametrize("name", ["schema", "version"])
def test_what_another_version_wrote_is_measured_again(tmp_path, name):
    path = tmp_path / "crossovers.json"
    save_crossover(path, KEY, FIELDS)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: "other"}))
    assert load_crossovers(path) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', "\x00"])
def test_a_broken_file_holds_nothing(tmp_path, text):
    path = tmp_path / "crossovers.json"
    path.write_text(text)
    assert load_crossovers(path) == {}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert not save_crossover(tmp_path / "file" / "crossovers.json", KEY, FIELDS)


def test_each_machine_has_its_own_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path))
    assert crossover_file("a").parent == tmp_path
    assert crossover_file("a") != crossover_file("b")
