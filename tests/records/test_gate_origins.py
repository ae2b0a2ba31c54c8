import pytest
from git_projects import BENCH, commit, project, write

from tinytorch.records.gate_targets import Origins, about_code

INSTALLED = "/env/lib/python3.11/site-packages/pkg/__init__.py"
BOTH = Origins({"bench.py": "bench.py"}, {"pkg": INSTALLED})


@pytest.fixture
def tops(tmp_path):
    """Two trees with the same files, which tests change."""
    made = []
    for name in ("old", "new"):
        top = project(tmp_path / name)
        for package in ("python/pkg", "python/pkg/inner"):
            (top / package).mkdir(parents=True)
            write(top / package, __init__="VALUE = 1\n", fast="VALUE = 1\n")
        commit(top, "packages")
        made.append(top)
    return tuple(made)


def change(top, file):
    (top / file).write_text("VALUE = 2\n", "utf-8")


def test_an_installed_copy_hides_a_changed_package(tops):
    change(tops[1], "python/pkg/__init__.py")
    problem, _ = about_code(tops, (BOTH, BOTH))
    assert problem.startswith(
        f"the candidate imports pkg from {INSTALLED}, and not python/pkg/__init__.py of its own"
    )
    assert "put the folder python on PYTHONPATH" in problem


def test_a_changed_target_does_not_excuse_a_hidden_package(tops):
    change(tops[1], "python/pkg/__init__.py")
    change(tops[1], "bench.py")
    assert about_code(tops, (BOTH, BOTH))[0]


def test_a_module_inside_of_the_package_counts_too(tops):
    change(tops[1], "python/pkg/inner/fast.py")
    fast = INSTALLED.replace("__init__", "inner/fast")
    seen = Origins({"bench.py": "bench.py"}, {"pkg": INSTALLED, "pkg.inner.fast": fast})
    assert "put the folder python on" in about_code(tops, (seen, seen))[0]


def test_a_package_that_is_the_same_on_both_sides_may_be_installed(tops):
    change(tops[1], "bench.py")
    assert about_code(tops, (BOTH, BOTH)) == ("", "")


def test_a_package_of_the_tree_is_no_installed_one_with_a_name_from_inside(tops):
    change(tops[1], "python/pkg/fast.py")
    other = INSTALLED.replace("pkg/__init__", "fast")
    seen = Origins({"bench.py": "bench.py"}, {"fast": other})
    assert about_code(tops, (seen, seen))[0] == ""


def test_environments_of_their_own_are_fine(tops):
    change(tops[1], "python/pkg/__init__.py")
    elsewhere = Origins(BOTH.own, {"pkg": f"/other{INSTALLED}"})
    assert about_code(tops, (BOTH, elsewhere))[0] == ""


def test_one_side_alone_with_an_installed_copy_is_a_problem(tops):
    change(tops[1], "python/pkg/__init__.py")
    own = Origins({"bench.py": "bench.py", "pkg": "python/pkg/__init__.py"})
    assert "the baseline imports pkg" in about_code(tops, (BOTH, own))[0]
    assert "the candidate imports pkg" in about_code(tops, (own, BOTH))[0]
    assert about_code(tops, (own, own)) == ("", "")


def test_nothing_from_either_tree_is_a_problem_only_when_they_differ(tops):
    seen = Origins({}, {"other": "/env/lib/site-packages/other.py"})
    assert about_code(tops, (seen, seen)) == ("", "")
    write(tops[1], fresh=BENCH)
    problem, _ = about_code(tops, (seen, seen))
    assert "nothing that this target imports is part of either tree" in problem
    another = Origins({}, {"other": "/other/lib/site-packages/other.py"})
    assert about_code(tops, (seen, another))[0] == ""


def test_a_change_elsewhere_is_noted(tops):
    change(tops[1], "python/pkg/fast.py")
    problem, note = about_code(tops, (BOTH, BOTH))
    assert problem == ""
    assert note == "no Python file that this target imports differs between the two sides"


def test_files_that_git_ignores_are_nobodys_code(tops):
    (tops[1] / ".gitignore").write_text("build/\n", "utf-8")
    (tops[1] / "build" / "lib" / "pkg").mkdir(parents=True)
    write(tops[1] / "build" / "lib" / "pkg", __init__="VALUE = 3\n")
    assert about_code(tops, (BOTH, BOTH)) == ("", "")
