"""The notebooks of the labs run from top to bottom, with the reference solutions."""

import pytest
from parts import require_part

from tinytorch.learning.sources import existing_labs, load_lab, to_notebook

nbformat = require_part("nbformat")
nbclient = require_part("nbclient")
require_part("ipykernel")

PREDICTED = "predict before you measure"


def run_notebook(lab, folder, **settings):
    notebook = nbformat.reads(to_notebook(lab), as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(folder)}}, **settings
    )
    client.execute()
    return notebook


def outputs_of(notebook, kind):
    return [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == kind
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", existing_labs())
def test_the_solved_notebook_runs_from_top_to_bottom(name, tmp_path):
    notebook = run_notebook(load_lab(name).solved(), tmp_path)
    assert outputs_of(notebook, "error") == []
    printed = "".join(each.text for each in outputs_of(notebook, "stream") if each.name == "stdout")
    assert "predicted" in printed  # what was expected beside what was measured
    assert " of its time (" in printed  # the learner's version and another, compared


@pytest.mark.slow
@pytest.mark.parametrize("name", existing_labs())
def test_the_hand_out_asks_for_predictions_and_code_and_nothing_else_fails(name, tmp_path):
    notebook = run_notebook(load_lab(name).handed_out(), tmp_path, allow_errors=True)
    errors = outputs_of(notebook, "error")
    assert PREDICTED in errors[0].evalue
    # Later cells need what was not written, and say so.
    raised = {each.ename for each in errors if "NotImplementedError" not in each.evalue}
    assert raised <= {"SettingError", "NotImplementedError", "NameError"}
