import json

import pytest

from tinytorch.transforms.kernel_choice import (
    ONLY_ONE,
    Choice,
    choices_file,
    forget_choices,
    load_choices,
    save_choices,
)

ONE = Choice("exp", "small", "numpy", "numpy", (), 0, ONLY_ONE)
TWO = Choice("exp", "large", "numpy", "numpy", (), 0, ONLY_ONE)


def keyed(*choices):
    return {(each.op, each.size_class): each for each in choices}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTORCH_CACHE", str(tmp_path / "cache"))
    return choices_file("abc")


def test_what_was_saved_is_loaded(path):
    assert save_choices(keyed(ONE), path) is None
    assert load_choices(path) == keyed(ONE)


def test_what_another_process_has_added_stays(path):
    save_choices(keyed(ONE), path)
    save_choices(keyed(TWO), path)
    assert load_choices(path) == keyed(ONE, TWO)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', "null", "\x00"])
def test_a_broken_file_is_none(path, text):
    path.parent.mkdir()
    path.write_text(text)
    assert load_choices(path) == {}
    assert save_choices(keyed(ONE), path) is None
    assert load_choices(path) == keyed(ONE)


@pytest.mark.parametrize("field", ["schema", "version"])
def test_a_file_of_another_version_is_measured_again(path, field):
    save_choices(keyed(ONE), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: "other"}))
    assert load_choices(path) == {}


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("no folder")
    problem = save_choices(keyed(ONE), tmp_path / "file" / "kernels.json")
    assert problem.startswith("not kept for the next time: ")


def test_forgetting_removes_the_file_if_there_is_one(path):
    save_choices(keyed(ONE), path)
    forget_choices(path)
    forget_choices(path)
    assert not path.exists()


def test_each_machine_has_a_file_of_its_own(path):
    assert choices_file("abc") == path != choices_file("def")
