"""The guide in CONTRIBUTING.md is enough: its transform is found, tried, saved and loaded."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from project_files import ROOT

from tinytorch.transforms import find_transforms
from tinytorch.transforms.plan import Transform

GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Add a transform")[1]
CODE, SETTINGS = (
    re.search(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[1] for language in ("python", "toml")
)
GROUP = "tinytorch.transforms"
PACKAGE = "half-weights"
LOAD = (
    "from tinytorch import load_optimized, load_workload; "
    "print(next(iter(load_optimized('saved', load_workload('mlp')).parameters())).data.dtype)"
)


def install(folder: Path, entry: str, value: str) -> None:
    """Make a folder look as pip leaves it: the module, and what says where it comes from."""
    (folder / "half_weights.py").write_text(CODE, "utf-8")
    about = folder / "half_weights-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{entry} = {value}\n")


def run(*words: str, folder: Path, packages: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(packages or "")
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_the_transform_of_the_guide_is_found_tried_saved_and_loaded(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    ((entry, value),) = tomllib.loads(SETTINGS)["project"]["entry-points"][GROUP].items()
    install(packages, entry, value)
    target = ["-m", "tinytorch", "optimize", "mlp", "--goal", "size", "--no-store"]
    words = ["--only", "half-weights", "--budget", "3", "--save", "saved", "--json"]
    found = run(*target, *words, folder=tmp_path, packages=packages)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)["optimization"]
    (attempt,) = result["attempts"]
    assert (attempt["stack"], attempt["outcome"]) == (["half-weights"], "better")
    (plan,) = attempt["plans"]
    assert (plan["transform"], plan["settings"]) == ("HalfWeights", {"smallest": 2})
    assert plan["shrinkage"]["value"] == 2
    assert result["recommended"] == "half-weights"
    recipe = json.loads((tmp_path / "saved" / "recipe.json").read_text("utf-8"))
    assert recipe["packages"] == {"HalfWeights": f"{PACKAGE} 1.2"}
    loaded = run("-c", LOAD, folder=tmp_path, packages=packages)
    assert (loaded.returncode, loaded.stdout) == (0, "float16\n")
    missing = run("-c", LOAD, folder=tmp_path, packages=None)
    assert missing.returncode != 0
    assert f"pip install {PACKAGE}==1.2" in missing.stderr


class Entry:
    """An entry point that gives an object, without a package around it."""

    def __init__(self, found):
        self.found, self.name, self.value, self.dist = found, "name", "module:Name", None

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Prune(Transform):
    """Has the name of one of ours."""


class Good(Transform):
    """Has a name of its own."""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ImportError("no module x"), "ImportError: no module x"),
        (dict, "no subclass of"),
        (Good(), "no subclass of"),
        (Prune, "there is a Prune already"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_warning(monkeypatch, found, words):
    known, points = find_transforms(), [Entry(found), Entry(Good)]
    monkeypatch.setattr("tinytorch.transforms.metadata.entry_points", lambda group: points)
    with pytest.warns(RuntimeWarning, match=words):
        fresh = find_transforms.__wrapped__()
    assert list(fresh) == [*known, "Good"]
