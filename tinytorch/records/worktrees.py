"""Commits of a git repository as folders: each in a temporary worktree that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tinytorch.errors import MeasurementError, SettingError
from tinytorch.measure.child_process import is_stale, owned_folder

FOLDERS, TREE = "gate", "tree"
NEAR_NAMES = 3
# What git sets for the hooks that it runs; in another folder it would lead astray.
OF_A_HOOK = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_QUARANTINE_PATH",
)


@dataclass(frozen=True)
class Repository:
    """A git repository: its working tree `top`, and the folder of interest inside of it."""

    top: Path
    folder: Path

    @property
    def prefix(self) -> Path:
        """The folder of interest, relative to the top; the same in every commit."""
        return self.folder.relative_to(self.top)

    @property
    def head(self) -> str | None:
        return self.find_commit("HEAD")

    @property
    def has_changes(self) -> bool:
        """Whether files differ from the last commit; new ones count unless they are ignored."""
        return self._git("status", "--porcelain") != ""

    @property
    def changed_submodules(self) -> tuple[str, ...]:
        """Paths of submodules with changes, or at another commit than the recorded one."""
        lines = (self._git("status", "--porcelain=2", "--ignore-submodules=none") or "").split("\n")
        rows = (line.split(" ", 8) for line in lines if line.startswith("1 "))
        return tuple(row[8] for row in rows if row[2].startswith("S"))

    def find_commit(self, revision: str) -> str | None:
        """Return the full hash of the commit that a revision names, or None."""
        if not revision or revision.startswith("-"):
            return None
        return self._git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") or None

    def unknown(self, revision: str) -> str:
        """Return the error for an unknown revision."""
        if self._git("rev-parse", "--is-shallow-repository") == "true":
            return (
                f"this shallow clone has no revision {revision!r}; fetch the whole history "
                "(`fetch-depth: 0` for actions/checkout, `GIT_DEPTH: 0` for GitLab, "
                "`git fetch --unshallow` by hand)"
            )
        places = ("refs/heads", "refs/tags", "refs/remotes")
        names = (self._git("for-each-ref", "--format=%(refname:short)", *places) or "").split("\n")
        near = [name for name in names if name.endswith(f"/{revision}")]
        near += get_close_matches(revision, names, n=NEAR_NAMES)
        shown = ", ".join(list(dict.fromkeys(near))[:NEAR_NAMES])
        advice = f"did you mean {shown}?" if shown else "`git branch --all` lists what there is"
        return f"there is no revision {revision!r} in {self.top}; {advice}"

    def submodules(self, tree: Path) -> dict[str, Path]:
        """Return the submodules of a tree that the repository holds locally: name to clone."""
        listed = _run(tree, "config", "-f", ".gitmodules", "--get-regexp", r"\.path$").stdout
        common = self._git("rev-parse", "--path-format=absolute", "--git-common-dir") or ""
        keys = (line.split(" ", 1)[0] for line in listed.splitlines())
        names = [key.removeprefix("submodule.").removesuffix(".path") for key in keys]
        clones = {name: Path(common) / "modules" / name for name in names}
        return {name: clone for name, clone in clones.items() if clone.is_dir()}

    def _git(self, *arguments: str) -> str | None:
        ran = _run(self.top, *arguments)
        return ran.stdout.strip("\n") if ran.returncode == 0 else None


def find_repository(folder: str | os.PathLike[str]) -> Repository:
    """Return the repository of a folder; raise SettingError if there is none."""
    here = Path(folder).resolve()
    ran = _run(here, "rev-parse", "--show-toplevel")
    if ran.returncode != 0:
        raise SettingError(
            f"{here} is in no git repository that can be used ({_complaint(ran)}); give a record "
            "or a file of records to compare with, or change to the repository"
        )
    return Repository(Path(ran.stdout.rstrip("\n")).resolve(), here)


def python_files(tree: Path) -> frozenset[str]:
    """Return the Python files of a tree, submodules included, without those git ignores."""
    tracked = _run(tree, "ls-files", "-z", "--cached", "--recurse-submodules", "--", "*.py")
    new = _run(tree, "ls-files", "-z", "--others", "--exclude-standard", "--", "*.py")
    listed = f"{tracked.stdout}\0{new.stdout}".split("\0")
    return frozenset(file for file in listed if file and (tree / file).is_file())


@contextmanager
def checked_out(repository: Repository, commit: str) -> Iterator[Path]:
    """Yield a folder with a commit checked out, for the duration of the block.

    It is a worktree of git in the temporary folder, with those submodules that the repository has.
    Whatever happens in the block, it is removed; what a killed process has left is removed by the
    next one.
    """
    with owned_folder(FOLDERS) as holder:
        tree = holder.resolve() / TREE
        try:
            ran = _run(repository.top, "worktree", "add", "--detach", "--force", str(tree), commit)
            if ran.returncode != 0:
                raise MeasurementError(
                    f"commit {commit[:12]} could not be checked out into {tree}: "
                    f"{_complaint(ran)}; make room there, or set TMPDIR to another folder"
                )
            _fill_submodules(repository, tree)
            yield tree
        finally:
            _remove(repository, tree.parent)


def remove_stale(repository: Repository) -> tuple[Path, ...]:
    """Remove the worktrees of processes on this machine that were killed, and name them."""
    removed = []
    for line in _run(repository.top, "worktree", "list", "--porcelain").stdout.splitlines():
        path = Path(line.removeprefix("worktree "))
        is_tree = line.startswith("worktree ") and path.name == TREE
        if is_tree and is_stale(path.parent, FOLDERS):
            _remove(repository, path.parent)
            removed.append(path)
    return tuple(removed)


def _remove(repository: Repository, holder: Path) -> None:
    # The folder first: git does not remove one with submodules in it, but forgets one that is gone.
    shutil.rmtree(holder, ignore_errors=True)
    _run(repository.top, "worktree", "remove", "--force", "--force", str(holder / TREE))


def _fill_submodules(repository: Repository, tree: Path) -> None:
    """Check out the submodules that the repository has, from its own clones: no network."""
    if not (tree / ".gitmodules").is_file():
        return
    for name, clone in repository.submodules(tree).items():
        path = _run(tree, "config", "-f", ".gitmodules", f"submodule.{name}.path").stdout.strip()
        local = ("-c", "protocol.file.allow=always", "-c", f"submodule.{name}.url={clone}")
        ran = _run(tree, *local, "submodule", "update", "--init", "--", path)
        if ran.returncode != 0:
            raise MeasurementError(
                f"submodule {path} could not be checked out as that commit has it: "
                f"{_complaint(ran)}; run `git submodule update --init` and `git fetch` in it"
            )


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_HOOK}
    try:
        return subprocess.run(
            # Hooks of the repository are about the work of people.
            ["git", "-C", str(folder), "-c", f"core.hooksPath={os.devnull}", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise SettingError(
            "git is not installed; install it, or give a record or a file of records"
        ) from error


def _complaint(ran: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in ran.stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or [f"git ended with {ran.returncode}"])[-1]
