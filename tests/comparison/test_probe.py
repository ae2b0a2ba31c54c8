import sys

import pytest
from git_projects import BENCH

from tinytorch.comparison import worker
from tinytorch.comparison.processes import Isolated


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bench.py").write_text(f"import neighbour\nprint('noise')\n{BENCH}", "utf-8")
    (tmp_path / "neighbour.py").write_text("", "utf-8")
    (tmp_path / "fails.py").write_text("1 / 0\n", "utf-8")
    return tmp_path


def ask(folder, target):
    """Run the probe as a gate does, in a process of its own."""
    process = Isolated(target, folder=folder).start()
    try:
        return process.ask("probe", timeout_s=600, target=target)
    finally:
        process.close()


def test_a_target_that_works_says_where_it_comes_from(folder):
    seen = ask(folder, "bench.py:scored")
    assert "error" not in seen
    assert seen["has_evaluate"] is True
    assert seen["python"] == "{}.{}.{}".format(*sys.version_info[:3])
    assert seen["modules"]["neighbour"] == str(folder / "neighbour.py")
    assert "numpy" in seen["modules"]
    assert "__main__" not in seen["modules"]


@pytest.mark.parametrize(
    ("target", "error", "is_missing"),
    [
        ("none.py:make", "no file none.py", True),
        ("bench.py:none", "has no function 'none'", True),
        ("fails.py:make", "ZeroDivisionError", False),
        ("no_such_package.bench:make", "No module named", True),
        ("bench:none", "has no function 'none'", True),
        ("fails:make", "ZeroDivisionError", False),
        ("mpl", "did you mean 'mlp'", False),
    ],
)
def test_missing_and_failing_are_told_apart(folder, target, error, is_missing):
    seen = ask(folder, target)
    assert error in seen["error"]
    assert seen["is_missing"] is is_missing


def test_a_model_that_raises_is_an_answer(folder):
    (folder / "raises.py").write_text("def make():\n    return (lambda x: 1 / x), (0,)\n", "utf-8")
    seen = ask(folder, "raises.py:make")
    assert seen["error"] == "ZeroDivisionError: division by zero"
    assert seen["is_missing"] is False


def test_a_parent_that_is_no_package_has_no_modules():
    assert worker.has_module("json.decoder")
    assert not worker.has_module("json.nonsense")
    assert not worker.has_module("nonsense.deeper")


def test_a_target_that_reads_gets_nothing_and_does_not_wait(folder):
    (folder / "reads.py").write_text(
        "import sys\nREAD = sys.stdin.read()\n\n\ndef make():\n    return len, (READ,)\n", "utf-8"
    )
    assert "error" not in ask(folder, "reads.py:make")
