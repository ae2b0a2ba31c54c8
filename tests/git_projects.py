"""Small projects in real git repositories, for tests."""

import os
import subprocess
from pathlib import Path

BENCH = """\
WORK = 2_000
SCORES = [1.0, 0.0] * 200


def compute(start):
    return float(sum(index * index for index in range(WORK)) + start)


def make():
    return compute, (3,)


def scored():
    import numpy as np

    from tinytorch import Workload

    return Workload("scored", compute, (3,), evaluate=lambda model: np.array(SCORES))
"""
IDENTITY = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")


def git(folder, *arguments):
    """Run git with nobody's settings, and give what it says."""
    ran = subprocess.run(
        ["git", "-C", str(folder), *IDENTITY, "-c", "protocol.file.allow=always", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )
    return ran.stdout.strip()


def project(folder, **files):
    """Make a repository on the branch main with one commit; names are without ``.py``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", ".")
    write(folder, **(files or {"bench": BENCH}))
    commit(folder, "first")
    return Path(folder)


def write(folder, **files):
    for name, text in files.items():
        (Path(folder) / f"{name}.py").write_text(text, "utf-8")


def commit(folder, words):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", words)
    return git(folder, "rev-parse", "HEAD")


def worktrees(folder):
    """Give the folders that git knows as trees of a repository."""
    lines = git(folder, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]
