"""Which backend a fresh process computes with, by what is installed and by its variable."""

import os
import subprocess
import sys
from importlib.util import find_spec


def run_python(code, **variables):
    environment = {k: v for k, v in os.environ.items() if k != "TINYTORCH_BACKEND"} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


SHOW_BACKEND = "from tinytorch.core.dispatch import active_backend; print(active_backend().name)"


def test_a_variable_chooses_the_backend_of_the_process():
    assert run_python(SHOW_BACKEND, TINYTORCH_BACKEND="numpy").stdout.strip() == "numpy"
    assert run_python(SHOW_BACKEND, TINYTORCH_BACKEND="reference").stdout.strip() == "reference"


def test_the_compiled_backend_is_the_default_where_it_is_installed():
    expected = "numba" if find_spec("numba") else "numpy"
    assert run_python(SHOW_BACKEND).stdout.strip() == expected


BROKEN = """
import sys
from importlib.machinery import ModuleSpec
class Broken:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == "numba" else None
    def create_module(self, spec):
        raise ImportError("needs another NumPy")
    def exec_module(self, module): ...
sys.meta_path.insert(0, Broken())
"""


def test_without_numba_everything_is_computed_with_numpy():
    ran = run_python(f"import importlib.util as u; u.find_spec = lambda name: None\n{SHOW_BACKEND}")
    assert (ran.stdout.strip(), ran.stderr) == ("numpy", "")


def test_a_numba_that_cannot_be_imported_is_told_and_worked_without():
    ran = run_python(BROKEN + SHOW_BACKEND)
    assert ran.stdout.strip() == "numpy"
    assert "numba is installed but cannot be used (needs another NumPy)" in ran.stderr
    chosen = run_python(BROKEN + SHOW_BACKEND, TINYTORCH_BACKEND="numba")
    assert chosen.returncode != 0
    assert "the backend 'numba' cannot be loaded: needs another NumPy" in chosen.stderr


def test_importing_the_framework_imports_no_compiler():
    code = "import sys, tinytorch; from tinytorch import Tensor; print('numba' in sys.modules)"
    assert run_python(code).stdout.strip() == "False"


def test_a_variable_that_names_no_backend_is_an_error():
    ran = run_python(SHOW_BACKEND, TINYTORCH_BACKEND="nonsense")
    assert ran.returncode != 0
    assert "unknown backend 'nonsense'; available: " in ran.stderr
