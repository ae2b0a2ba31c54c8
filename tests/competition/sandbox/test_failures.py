"""An error of an entry's code is told with the line of that code."""

from pathlib import Path

import pytest

from tinytorch.competition.sandbox.building import build
from tinytorch.competition.sandbox.contender import Contender
from tinytorch.competition.sandbox.contender_worker import failure_text
from tinytorch.core.tensor import Tensor
from tinytorch.errors import TinyTorchError

MAKE = "from own_parts import halve\n\n\ndef make(reference):\n    return halve(0)\n"
HALVE = "def halve(number):\n    return 1 // number\n"
CLEAN_UP = (
    "def make(reference):\n"
    "    try:\n"
    "        return 1 // 0\n"
    "    except ZeroDivisionError:\n"
    "        raise KeyError('lost')\n"
)


def told(folder: Path, text: str, **others: str) -> str:
    for name, each in {"own_model": text, **others}.items():
        (folder / f"{name}.py").write_text(each)
    contender = Contender("mlp_sprint", code=f"{folder}/own_model.py:make")
    with pytest.raises(Exception) as caught:  # noqa: PT011 (of any kind)
        build(contender)
    return failure_text("building it", caught.value, contender)


def test_the_line_of_the_entry_is_named(tmp_path: Path) -> None:
    assert told(tmp_path, "def make(reference):\n    return 1 // 0\n") == (
        "own_model.py:2 in make: building it raised ZeroDivisionError: "
        "integer division or modulo by zero"
    )


def test_it_is_the_innermost_line_of_all_files_of_the_entry(tmp_path: Path) -> None:
    assert told(tmp_path, MAKE, own_parts=HALVE).startswith("own_parts.py:2 in halve: ")


def test_lines_of_others_are_left_out(tmp_path: Path) -> None:
    text = "def make(reference):\n    x = 1\n    return reference.model('text')\n"
    assert told(tmp_path, text).startswith("own_model.py:3 in make: building it raised ")


def test_a_file_that_does_not_import_has_its_line(tmp_path: Path) -> None:
    assert told(tmp_path, "import json\nimport no_such_part\n").startswith(
        "own_model.py:2 in <module>: building it raised TargetError: "
    )


def test_an_error_in_handling_another_has_its_own_line(tmp_path: Path) -> None:
    assert told(tmp_path, CLEAN_UP).startswith("own_model.py:5 in make: building it raised KeyErr")


def test_a_link_to_the_folder_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    said = told(tmp_path / "link", MAKE, own_parts=HALVE)
    assert said.startswith("own_parts.py:2 in halve: ")


def test_errors_in_a_ring_come_to_an_end() -> None:
    one, two = KeyError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    contender = Contender("mlp_sprint", code="/nowhere/model.py:make")
    assert failure_text("answering", one, contender) == "answering raised KeyError: 'one'"


def test_without_code_there_is_no_line() -> None:
    with pytest.raises(TinyTorchError) as caught:
        Tensor([1.0, 2.0]).reshape(3)
    said = failure_text("answering", caught.value, Contender("mlp_sprint"))
    assert said.startswith("answering raised ShapeError: ")
