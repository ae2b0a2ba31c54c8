"""Tests fail on the warnings of our own code, and not on those that another library raises."""

import tomllib

import pytest
from inner_pytest import InnerPytest
from project_files import ROOT

pytest_plugins = ["pytester"]

WARN = "import warnings\ndef act(): warnings.warn('x', {category}, stacklevel={level})"
UFUNC = "import numpy as np\ndef act(): return np.log(np.zeros(1))"
NUMPY_FUNCTION = "import numpy as np\ndef act(): return np.mean(np.zeros(0))"
DESTRUCTOR = "class Broken:\n    def __del__(self): 1 / 0\ndef act(): Broken()"
OPEN_FILE = "def act(): open(__file__)"

# In which module the code stands, and the code.
OURS = {
    "a warning": ("tinytorch.perf.some", WARN.format(category="UserWarning", level=1)),
    "a deprecation": ("tinytorch", WARN.format(category="DeprecationWarning", level=1)),
    "a ufunc": ("tinytorch.core.some", UFUNC),
    "a function of NumPy": ("tinytorch.core.some", NUMPY_FUNCTION),
    "an open file": ("tinytorch.records.some", OPEN_FILE),
    "a broken destructor": ("tinytorch.records.some", DESTRUCTOR),
}
FOREIGN = {
    "a warning": ("transformers.some", WARN.format(category="UserWarning", level=1)),
    "a deprecation": ("torch.some", WARN.format(category="DeprecationWarning", level=1)),
    "a warning about its caller": ("torch.some", WARN.format(category="FutureWarning", level=2)),
    "a ufunc": ("scipy.some", UFUNC),
}


@pytest.fixture
def outcomes(pytester, monkeypatch):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    filters = settings["tool"]["pytest"]["ini_options"]["filterwarnings"]
    pytester.makeini("\n    ".join(["[pytest]\nfilterwarnings =", *filters]))
    inner = InnerPytest(pytester, monkeypatch)

    def run(module, code):
        scope = f"scope = {{'__name__': {module!r}, '__file__': __file__}}"
        source = f"{scope}\nexec({code!r}, scope)\ndef test_it(): scope['act']()"
        return inner.run(source).parseoutcomes()

    return run


@pytest.mark.parametrize(("module", "code"), OURS.values(), ids=OURS)
def test_a_warning_of_ours_fails_a_test(outcomes, module, code):
    assert outcomes(module, code) == {"failed": 1}


@pytest.mark.parametrize(("module", "code"), FOREIGN.values(), ids=FOREIGN)
def test_a_warning_of_another_library_passes(outcomes, module, code):
    assert outcomes(module, code)["passed"] == 1
