"""Rules of Landlock hold from the moment they are in force."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tinytorch.competition.cell import confinement as landlock
from tinytorch.competition.cell.confinement import LandlockRules, landlock_version
from tinytorch.errors import SettingError

SCRIPT = """
import json, sys
from pathlib import Path
from tinytorch.competition.cell.confinement import LandlockRules
paths = json.loads(sys.argv[1])
LandlockRules(*(tuple(paths[name]) for name in ("readable", "writable", "listed"))).enforce()
found = {}
for folder in paths["listed"]:
    found[f"list {Path(folder).name}"] = bool(list(Path(folder).iterdir()))
for path in paths["tried"]:
    for what, attempt in (("read", Path(path).read_text), ("write", lambda: Path(path).write_text("x"))):
        try:
            attempt()
            found[f"{what} {Path(path).name}"] = True
        except PermissionError:
            found[f"{what} {Path(path).name}"] = False
print(json.dumps(found))
"""  # noqa: E501


@pytest.mark.skipif(not landlock_version(), reason="this system has no Landlock")
def test_files_are_read_and_written_as_the_rules_say(tmp_path: Path) -> None:
    for name in ("readable", "writable", "listed", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text("as it was")
    (tmp_path / "single.txt").write_text("as it was")
    asked = {
        "readable": [str(tmp_path / "readable"), str(tmp_path / "single.txt"), "/not/there"],
        "writable": [str(tmp_path / "writable")],
        "listed": [str(tmp_path / "listed")],
        "tried": [*map(str, tmp_path.glob("*/*.txt")), str(tmp_path / "single.txt")],
    }
    command = [sys.executable, "-c", SCRIPT, json.dumps(asked)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "read readable.txt": True,
        "write readable.txt": False,
        "read writable.txt": True,
        "write writable.txt": True,
        "list listed": True,
        "read listed.txt": False,
        "write listed.txt": False,
        "read hidden.txt": False,
        "write hidden.txt": False,
        "read single.txt": True,
        "write single.txt": False,
    }


@pytest.mark.parametrize(
    ("version", "rights"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (7, 16), (12, 16)]
)
def test_only_rights_that_a_version_knows_are_asked_for(version: int, rights: int) -> None:
    assert landlock._known_rights(version) == (1 << rights) - 1


def test_without_landlock_the_error_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "landlock_version", lambda: 0)
    with pytest.raises(SettingError, match=r"no Landlock; Linux 5\.13 and newer"):
        LandlockRules((), ()).enforce()


def test_other_systems_have_version_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert landlock_version() == 0
