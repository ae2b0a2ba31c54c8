"""Code is read and never run; learners' code loads TinyTorch, NumPy and the standard library."""

from pathlib import Path

import pytest
from example_entries import MAKE, PLAIN, a_code_entry

from tinytorch.competition.entry_checks import check_code


def _found(folder: Path, source: str, division: str = "learner") -> list[tuple[str, str]]:
    entry = a_code_entry(folder, source, division=division)
    return [(each.rule, each.seen) for each in check_code(entry)]


def test_an_entry_without_code_has_nothing_to_read() -> None:
    assert check_code(PLAIN) == ()


@pytest.mark.parametrize(
    "lines",
    [
        "import numpy as np\nfrom tinytorch.core.layers import Linear\nimport math, os.path\n",
        "from . import helper\nimport helper\nfrom helper.deep import x\n",
        "compiled = 1\nself = 'eval'\n",
        '"""import torch"""\n# import torch\n',
    ],
)
def test_learners_may_use_tinytorch_numpy_and_their_own_files(tmp_path: Path, lines: str) -> None:
    (tmp_path / "helper.py").write_text("")
    assert _found(tmp_path, lines + MAKE) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import torch", "imports 'torch'"),
        ("import torch.nn as nn", "imports 'torch'"),
        ("from torch import nn", "imports 'torch'"),
        ("def f():\n    import jax.numpy", "imports 'jax'"),
        ("try:\n    import onnxruntime\nexcept ImportError: pass", "imports 'onnxruntime'"),
        ("import numpy, scipy.linalg", "imports 'scipy'"),
        ("import importlib", "imports importlib, with which anything"),
        ("import ctypes", "imports ctypes"),
        ("x = __import__('torch')", "calls __import__"),
        ("exec('import torch')", "calls exec"),
    ],
)
def test_learners_load_no_other_framework(tmp_path: Path, line: str, words: str) -> None:
    found = _found(tmp_path, f"{line}\n{MAKE}")
    assert [rule for rule, _ in found] == ["E7"]
    assert words in found[0][1]
    assert _found(tmp_path, f"{line}\n{MAKE}", "open") == []


def test_every_file_of_a_learner_is_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "more.py").write_text("\nimport torch\n")
    (tmp_path / "fast.so").write_bytes(b"\x7fELF")
    assert _found(tmp_path, MAKE) == [
        ("E7", "fast.so is compiled"),
        (
            "E7",
            "deep/more.py, line 2: imports 'torch'; learners use the standard library, NumPy and "
            "TinyTorch",
        ),
    ]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def make(:\n", "model.py, line 1: "),
        ("x = 1\0\n", "model.py"),
        ("(" * 3000, "model.py"),
        ("def made(reference): ...\n", "model.py defines no make"),
    ],
)
def test_code_that_cannot_be_used_is_found(tmp_path: Path, source: str, words: str) -> None:
    ((rule, seen),) = _found(tmp_path, source, "open")
    assert (rule, words in seen) == ("E8", True)


@pytest.mark.parametrize(
    "source",
    ["from parts import make\n", "make = lambda reference: reference.model\n", "class make: ...\n"],
)
def test_a_function_may_come_from_anywhere(tmp_path: Path, source: str) -> None:
    assert _found(tmp_path, source, "open") == []


def test_code_that_warns_when_it_is_read_does_not_disturb(tmp_path: Path) -> None:
    assert _found(tmp_path, "x = '\\d'\n" + MAKE) == []


def test_a_file_that_went_away_since_is_a_finding(tmp_path: Path) -> None:
    entry = a_code_entry(tmp_path)
    (tmp_path / "model.py").unlink()
    assert [each.rule for each in check_code(entry)] == ["E1"]
