"""A confined process reaches nothing but what it was given."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinytorch
from tinytorch.competition.cell.confinement import landlock_version, program_paths

PROBE = Path(__file__).parents[2] / "confined_probe.py"
needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this system has no Landlock")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are of Linux")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Start a process that confines itself and tries everything."""
    folder = tmp_path_factory.mktemp("cell")
    for name in ("entry", "cell", "judge"):
        (folder / name).mkdir()
    (folder / "entry" / "entry.json").write_text("{}")
    secret = folder / "judge" / "round.json"
    secret.write_text("seed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = {
            "entry": str(folder / "entry"),
            "secret": str(secret),
            "package": str(Path(tinytorch.__file__).parent),
            "port": listener.getsockname()[1],
        }
        ended = subprocess.run(
            [sys.executable, str(PROBE), json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=folder / "cell",
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    assert ended.returncode == 0, ended.stderr
    return {**json.loads(ended.stdout), "secret": secret}


@needs_landlock
@pytest.mark.parametrize(
    "attempt",
    [
        "read a secret",
        "read beside TinyTorch",
        "list the system",
        "write to the entry",
        "write elsewhere",
        "remove a secret",
        "read the judge's memory",
        "read the judge's variables",
    ],
)
def test_files_of_others_are_out_of_reach(seen: dict[str, Any], attempt: str) -> None:
    assert seen["found"][attempt] == "PermissionError"
    assert seen["secret"].read_text() == "seed"


@needs_landlock
@pytest.mark.parametrize(
    "attempt",
    ["read own entry", "read TinyTorch", "write here", "read own state", "start a thread"],
)
def test_what_is_needed_stays_allowed(seen: dict[str, Any], attempt: str) -> None:
    assert seen["found"][attempt] == "done"


@needs_linux
def test_there_is_no_network(seen: dict[str, Any]) -> None:
    if seen["protection"]["network"]["is_in_force"]:
        assert seen["protection"]["network"]["how"] in ("own namespace", "no TCP, by Landlock")
        assert seen["found"]["connect"] != "done"


@pytest.mark.skipif(landlock_version() < 6, reason="this Landlock does not know signals")
def test_the_judge_cannot_be_signalled(seen: dict[str, Any]) -> None:
    assert seen["found"]["signal the judge"] == "PermissionError"


@needs_linux
@pytest.mark.parametrize("attempt", ["mark the entry", "date the entry"])
def test_nothing_can_be_noted_on_files_for_the_next_process(
    seen: dict[str, Any], attempt: str
) -> None:
    assert seen["found"][attempt] == "PermissionError"


@needs_linux
@pytest.mark.parametrize("attempt", ["fork", "start a program", "use all cores"])
def test_no_process_can_be_started_and_no_other_core_used(
    seen: dict[str, Any], attempt: str
) -> None:
    if not seen["protection"]["processes"]["is_in_force"]:
        pytest.skip(seen["protection"]["processes"]["how"])
    assert seen["found"][attempt] == "PermissionError"


@needs_linux
def test_it_runs_on_one_core_without_privileges(seen: dict[str, Any]) -> None:
    assert len(seen["cores"]) == 1
    assert seen["protection"]["cores"] == {"how": "1", "is_in_force": True}
    assert re.search(r"NoNewPrivs:\s+1", seen["status"])
    held = re.search(r"CapEff:\s+(\w+)", seen["status"])
    assert held is not None
    assert int(held[1], 16) & ~0b110 == 0


def test_it_says_what_is_in_force(seen: dict[str, Any]) -> None:
    names = {"files", "network", "signals", "processes", "memory", "cores"}
    assert names <= set(seen["protection"])
    assert all(each["how"] for each in seen["protection"].values())
    if landlock_version():
        assert seen["protection"]["files"]["how"] == f"Landlock {landlock_version()}"


def test_the_current_folder_is_no_path_of_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    assert str(tmp_path) not in program_paths()
    assert "/" not in program_paths()
    assert str(Path(tinytorch.__file__).parent) in program_paths()
