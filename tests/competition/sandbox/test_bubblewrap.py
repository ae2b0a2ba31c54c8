"""A sandbox is made where that is possible; where it is not, code is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parts import require_sandbox

import tinytorch
from tinytorch.competition.sandbox import bubblewrap
from tinytorch.competition.sandbox.bubblewrap import (
    check_sandbox,
    control_groups,
    program_paths,
    why_no_sandbox,
)
from tinytorch.competition.sandbox.contender import Contender, Limits
from tinytorch.competition.sandbox.contender_process import ContenderProcess
from tinytorch.errors import MissingPartError

CODE = f"{Path(__file__).parent / 'entry_code' / 'models.py'}:same"
IMAGE = np.zeros((1, 784), np.float32)


@pytest.fixture(params=["no program", "no package", "no namespaces"])
def without_sandbox(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """Take away a part that a sandbox needs, and return what has to be installed."""
    if sys.platform != "linux":
        pytest.skip("there is none elsewhere")
    if request.param == "no program":
        monkeypatch.setattr(shutil, "which", lambda name: None)
        return "apt install bubblewrap"
    if request.param == "no package":
        monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
        return r"pip install '\.\[sandbox\]'"
    failing = tmp_path / bubblewrap.PROGRAM
    failing.write_text("#!/bin/sh\necho No permissions to create a namespace >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return r"No permissions to create a namespace.*user namespaces"


def test_code_is_refused_with_what_to_install(without_sandbox: str) -> None:
    with (
        pytest.raises(MissingPartError, match=without_sandbox) as caught,
        ContenderProcess(Contender("mlp_sprint", code=CODE)),
    ):
        pass
    assert "--unconfined" in str(caught.value)


def test_data_runs_without_a_sandbox_and_says_so(without_sandbox: str) -> None:
    with ContenderProcess(Contender("mlp_sprint")) as contender:
        contender.load()
        assert contender.ask("forward", IMAGE).output.shape == (1, 10)
        assert not contender.protection["sandbox"].is_in_force


def test_code_runs_unconfined_if_that_is_asked_for(without_sandbox: str) -> None:
    limits = Limits(unconfined=True)
    with ContenderProcess(Contender("mlp_sprint", code=CODE), limits=limits) as contender:
        contender.load()
        assert contender.ask("forward", IMAGE).output.shape == (1, 10)
        assert not contender.protection["sandbox"].is_in_force


def test_unconfined_is_obeyed_where_there_is_a_sandbox() -> None:
    assert check_sandbox(CODE, unconfined=True) is False


def test_here_there_is_one() -> None:
    require_sandbox()
    assert why_no_sandbox() == ""
    assert check_sandbox(CODE) is check_sandbox(None) is True


def test_the_current_folder_is_no_path_of_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    assert str(tmp_path) not in program_paths()
    assert "/" not in program_paths()
    assert str(Path(tinytorch.__file__).parent) in program_paths()


# ---------------------------------------------------------------- control groups


def test_control_groups_bound_memory_and_tasks_and_are_removed() -> None:
    with control_groups(memory_bytes=64 << 20, tasks=5) as groups:
        if not groups:
            pytest.skip("no control group can be made here")
        folders = [each.folder for each in groups]
        bounds = {
            path.name: path.read_text().strip()
            for folder in folders
            for path in folder.iterdir()
            if path.name in ("memory.limit_in_bytes", "memory.max", "pids.max")
        }
        child = subprocess.Popen(
            [sys.executable, "-c", "input(); held = b'x' * (256 << 20)"], stdin=subprocess.PIPE
        )
        for group in groups:
            group.add(child.pid)
        child.communicate(b"\n")
        assert child.returncode == -9
        assert sum(each.kills() for each in groups) == 1
    assert sorted(bounds.values()) == ["5", str(64 << 20)]
    assert not any(folder.exists() for folder in folders)


def files_of_version_2(folder: Path, handed_on: str) -> dict[str, Path]:
    """Write what the kernel shows of a hierarchy of version 2: a session in a slice."""
    mounted = folder / "cgroup"
    session = mounted / "user.slice" / "session-1.scope"
    session.mkdir(parents=True)
    for each, names in ((mounted, ""), (session.parent, handed_on), (session, "")):
        (each / "cgroup.subtree_control").write_text(names)
    (folder / "own").write_text("0::/user.slice/session-1.scope\n")
    (folder / "mounts").write_text(f"cgroup2 {mounted} cgroup2 rw,nosuid 0 0\n")
    return {"OWN_GROUPS": folder / "own", "MOUNTED": folder / "mounts"}


@pytest.mark.parametrize(("handed_on", "count"), [("cpu memory pids", 1), ("cpu", 0)])
def test_of_version_2_the_nearest_folder_that_hands_both_on_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed_on: str, count: int
) -> None:
    for name, path in files_of_version_2(tmp_path, handed_on).items():
        monkeypatch.setattr(bubblewrap, name, path)
    places = list(bubblewrap._places(memory_bytes=7, tasks=5))
    assert len(places) == count
    for folder, bounds, kills_in in places:
        assert folder == tmp_path / "cgroup" / "user.slice"
        assert bounds == {"memory.max": 7, "memory.swap.max": 0, "pids.max": 5}
        assert kills_in == "memory.events"


def test_without_any_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "OWN_GROUPS", tmp_path / "nothing")
    with control_groups(memory_bytes=1, tasks=1) as groups:
        assert groups == ()
