import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from git_projects import BENCH, commit, git, project, worktrees, write
from project_files import ROOT

from tinytorch.errors import MeasurementError, SettingError
from tinytorch.records.worktrees import checked_out, find_repository, python_files, remove_stale

# In the background of a shell SIGINT is ignored, and programs inherit that from us.
LONG_BLOCK = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tinytorch.records.worktrees import checked_out, find_repository
repository = find_repository(sys.argv[1])
with checked_out(repository, repository.head) as tree:
    print(tree, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def folder(tmp_path):
    return project(tmp_path / "project")


def start_long_block(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_BLOCK, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return process, Path(process.stdout.readline().strip())


def test_a_commit_is_checked_out_and_gone_afterwards(folder):
    old = git(folder, "rev-parse", "HEAD")
    write(folder, bench="changed = True\n")
    commit(folder, "second")
    write(folder, bench="not_committed = True\n")
    with checked_out(find_repository(folder), old) as tree:
        assert (tree / "bench.py").read_text("utf-8") == BENCH
        assert len(worktrees(folder)) == 2
    assert worktrees(folder) == [str(folder)]
    assert not tree.parent.exists()
    assert (folder / "bench.py").read_text("utf-8") == "not_committed = True\n"


def test_an_error_in_the_block_leaves_nothing(folder):
    repository = find_repository(folder)

    def fail():
        with checked_out(repository, repository.head) as tree:
            (tree / "left.txt").write_text("changes", "utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert worktrees(folder) == [str(folder)]


def test_an_interrupted_process_leaves_nothing(folder):
    process, tree = start_long_block(folder)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert not tree.exists()
    assert worktrees(folder) == [str(folder)]


def test_what_a_killed_process_left_is_removed_by_the_next(folder):
    process, tree = start_long_block(folder)
    repository = find_repository(folder)
    assert remove_stale(repository) == ()  # its owner lives
    assert tree.exists()
    process.kill()
    process.communicate()
    assert remove_stale(repository) == (tree,)
    assert worktrees(folder) == [str(folder)]
    assert not tree.parent.exists()


def test_a_stale_tree_whose_folder_is_gone_is_forgotten(folder):
    process, tree = start_long_block(folder)
    process.kill()
    process.communicate()
    shutil.rmtree(tree.parent)
    assert remove_stale(find_repository(folder)) == (tree,)
    assert worktrees(folder) == [str(folder)]


def test_worktrees_of_people_stay(folder, tmp_path):
    git(folder, "worktree", "add", "-q", "--detach", str(tmp_path / "theirs"))
    assert remove_stale(find_repository(folder)) == ()
    assert len(worktrees(folder)) == 2


def test_a_folder_inside_is_the_same_in_every_commit(folder):
    (folder / "part" / "inner").mkdir(parents=True)
    repository = find_repository(folder / "part" / "inner")
    assert repository.top == folder
    assert repository.prefix == Path("part/inner")


def test_a_folder_without_repository_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"is in no git repository.*not a git repository"):
        find_repository(tmp_path)


def test_without_git_the_advice_is_to_install_it(folder, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingError, match="git is not installed"):
        find_repository(folder)


def test_git_variables_of_a_hook_do_not_lead_astray(folder, monkeypatch, tmp_path):
    other = project(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert find_repository(folder).top == folder


def test_revisions_are_found_in_all_their_forms(folder):
    first = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "-a", "v1", "-m", "with a tag object of its own")
    write(folder, bench="x = 1\n")
    commit(folder, "second")
    repository = find_repository(folder)
    assert [repository.find_commit(each) for each in ("v1", "HEAD~1", first[:8])] == [first] * 3
    assert repository.find_commit("nonsense") is None
    assert repository.find_commit("--all") is None
    assert repository.find_commit("") is None


def test_an_unknown_revision_has_near_names(folder):
    git(folder, "branch", "feature/fast")
    git(folder, "update-ref", "refs/remotes/origin/release", "HEAD")
    repository = find_repository(folder)
    assert "did you mean main?" in repository.unknown("mian")
    assert "did you mean origin/release?" in repository.unknown("release")
    assert "`git branch --all` lists" in repository.unknown("zzzzzz")


def test_a_shallow_clone_is_told_to_fetch(folder, tmp_path):
    write(folder, bench="x = 1\n")
    commit(folder, "second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "shallow")
    message = find_repository(tmp_path / "shallow").unknown("HEAD~1")
    assert "fetch-depth: 0" in message
    assert "GIT_DEPTH: 0" in message


def test_changes_are_noticed_and_ignored_files_are_not(folder):
    repository = find_repository(folder)
    (folder / ".gitignore").write_text("*.log\n", "utf-8")
    commit(folder, "ignore logs")
    (folder / "a.log").write_text("x", "utf-8")
    assert not repository.has_changes
    (folder / "new.txt").write_text("x", "utf-8")
    assert repository.has_changes


def test_submodules_come_from_the_clones_that_are_there(folder, tmp_path):
    library = project(tmp_path / "library", lib="VALUE = 1\n")
    git(folder, "submodule", "add", "-q", str(library), "vendor/lib")
    old = commit(folder, "with a submodule")
    write(library, lib="VALUE = 2\n")
    commit(library, "second")
    git(folder / "vendor" / "lib", "pull", "-q", "origin", "main")
    shutil.rmtree(library)  # no network, either
    repository = find_repository(folder)
    assert repository.changed_submodules == ("vendor/lib",)
    with checked_out(repository, old) as tree:
        assert (tree / "vendor" / "lib" / "lib.py").read_text("utf-8") == "VALUE = 1\n"
    assert worktrees(folder) == [str(folder)]


def test_a_worktree_that_cannot_be_made_is_explained(folder):
    with (
        pytest.raises(MeasurementError, match=r"could not be checked out.*set TMPDIR"),
        checked_out(find_repository(folder), "0" * 40),
    ):
        pass
    assert list(Path(os.environ["TMPDIR"]).iterdir()) == []


def test_python_files_are_those_of_git_new_ones_and_those_of_submodules(tmp_path):
    library = project(tmp_path / "library", lib="")
    top = project(tmp_path / "top", gone="", kept="")
    git(top, "submodule", "add", "-q", str(library), "part")
    (top / ".gitignore").write_text("ignored.py\n", "utf-8")
    for name in ("ignored.py", "new.py", "words.txt"):
        (top / name).write_text("", "utf-8")
    (top / "gone.py").unlink()
    assert python_files(top) == {"kept.py", "new.py", "part/lib.py"}
    assert python_files(tmp_path) == frozenset()
