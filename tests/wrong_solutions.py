"""Typical wrong solutions: small changes of the reference, and the code of the hint they get."""

import importlib.util
from dataclasses import dataclass
from functools import cache

from project_files import TESTS

from tinytorch.learning.sources import load_lab, to_percent

FOLDER = TESTS / "learning" / "wrong"


@dataclass(frozen=True)
class Wrong:
    """A change of the reference solution of a step: `old` becomes `new`."""

    step: str
    code: str
    old: str
    new: str

    def applied_to(self, source: str) -> str:
        assert source.count(self.old) == 1, f"{self.old!r} occurs {source.count(self.old)} times"
        return source.replace(self.old, self.new)


@cache
def reference(lab: str) -> str:
    """Return the solved lab as a Python file."""
    return to_percent(load_lab(lab).solved())


def wrong_solutions(lab: str) -> list[Wrong]:
    """Return the wrong solutions of a lab: the rows of WRONG in tests/learning/wrong/LAB.py."""
    path = FOLDER / f"{lab}.py"
    spec = importlib.util.spec_from_file_location(f"wrong_{lab}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [Wrong(step, *row) for step, rows in module.WRONG.items() for row in rows]
