"""The notebooks of the documentation run, and what they show can show itself."""

import ast
import json

import pytest
from example_profiles import example_ceilings
from project_files import ROOT

from tinytorch.profiling import model_profile

NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
BY_NAME = {"argvalues": NOTEBOOKS, "ids": [path.name for path in NOTEBOOKS]}
QUICK = "budget_s = 0.5"
"""What stands in for the cell that is tagged `parameters`."""


def cells_of(path):
    return json.loads(path.read_text("utf-8"))["cells"]


def code_of(path, parameters=None):
    """Give the source of each code cell; `parameters` replaces the cell of that tag."""
    for cell in cells_of(path):
        if cell["cell_type"] != "code":
            continue
        is_set = parameters is not None and "parameters" in cell["metadata"].get("tags", ())
        yield parameters if is_set else "".join(cell["source"])


def run_cells(sources):
    """Run cells in order and give the value of each last line, or None where it has none."""
    names, values = {"__name__": "__main__"}, []
    for number, source in enumerate(sources, 1):
        tree = ast.parse(source, filename=f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        shown = last and compile(ast.Expression(last.value), f"cell {number}", "eval")
        values.append(shown and eval(shown, names))
    return values


def check_shown(values):
    shown = {type(each).__name__: each for each in values if hasattr(each, "_repr_html_")}
    assert {"Profile", "Optimization", "Comparison"} <= set(shown)
    for each in shown.values():
        assert "<pre" in each._repr_html_()


@pytest.mark.parametrize("path", **BY_NAME)
def test_a_notebook_runs_and_its_results_show_themselves(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_profile, "machine_ceilings", lambda *_, **__: example_ceilings())
    check_shown(run_cells(code_of(path, QUICK)))
    assert {each.name for each in tmp_path.glob("*.html")} == {
        "comparison.html",
        "optimization.html",
        "profile.html",
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", **BY_NAME)
def test_a_notebook_runs_as_it_stands(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_shown(run_cells(code_of(path)))


@pytest.mark.parametrize("path", **BY_NAME)
def test_a_notebook_is_stored_without_outputs_and_has_parameters(path):
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert sum("parameters" in cell["metadata"].get("tags", ()) for cell in code) == 1


def test_the_last_expression_of_a_cell_is_its_value():
    assert run_cells(["x = 2", "x + 1", "x = 3; x", "def f(): return x"]) == [None, 3, 3, None]
