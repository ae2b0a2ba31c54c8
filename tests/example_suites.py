"""Suites of tiny functions, for tests that run them for real."""

from pathlib import Path

FACTORIES = """
import os, time
import numpy as np
from tinytorch.core.layers import Linear
from tinytorch.core.tensor import Tensor

def fine(): return Linear(4, 2, rng=0), Tensor(np.ones((3, 4), np.float32))
def broken(): raise ValueError("the wires are crossed")
def waits():
    open("is_waiting", "w").close()
    time.sleep(600)
"""


def write_suite(folder: Path, *targets: str, scenarios: str = '["single-stream"]', more: str = ""):
    """Write a suite of functions of a file beside it, and give the path of its file."""
    (folder / "tiny.py").write_text(FACTORIES, "utf-8")
    (folder / "pyproject.toml").write_text("", "utf-8")  # the records of a test stay with it
    tables = [
        f'[[workload]]\ntarget = "tiny.py:{target}"\nbatch_sizes = {sizes}\n'
        f"scenarios = {scenarios}\n"
        for target, _, sizes in (each.partition(" ") for each in targets)
    ]
    file = folder / "tiny.toml"
    file.write_text("\n".join(['name = "tiny"', "budget_s = 0.01", *tables, more]), "utf-8")
    return file
