import subprocess
import sys

import pytest
from project_files import ROOT

HEAVY = {
    "matplotlib",
    "numba",
    "pandas",
    "psutil",
    "rich",
    "safetensors",
    "scipy",
    "torch",
    "transformers",
}


def loaded_by(statement):
    """Give the top-level modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in ran.stderr.split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import tinytorch",
        "from tinytorch import Tensor",
        "import tinytorch.cli.main",
        "from tinytorch.cli.main import main; main(['--help'])",
    ],
)
def test_nothing_heavy_is_loaded(statement):
    assert loaded_by(statement) & HEAVY == set()


def test_help_does_without_numpy():
    assert "numpy" not in loaded_by("from tinytorch.cli.main import main; main(['--help'])")
