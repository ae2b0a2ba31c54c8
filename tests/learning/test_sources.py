"""The sources of the labs, and what is made of them."""

import json
import re
import subprocess
import sys

import pytest
from parts import require_part
from project_files import ROOT

from tinytorch.errors import SettingError
from tinytorch.learning.sources import (
    Lab,
    existing_labs,
    lab_of_step,
    load_lab,
    read_cells,
    to_markdown,
    to_notebook,
    to_percent,
)

SOURCE = '''\
# what stands before the first cell is no part of it
# %% [markdown] hours="3"
# # Counting: how many?
#
# Text with a [link](x.md).

# %% [markdown] step="words"
# ## Step 1: Words

# %% step="words"
def count(text):
    """Return a number."""
    ### BEGIN SOLUTION
    return len(text)
    ### END SOLUTION


GUESS = {
    ### BEGIN SOLUTION
    #: "words": None,
    "words": 3,
    ### END SOLUTION
}

# %% [markdown] answer="reflection"
# Because.
'''


@pytest.fixture
def lab():
    return Lab("counting", tuple(read_cells(SOURCE)))


def test_a_lab_says_what_it_is(lab):
    assert (lab.title, lab.hours) == ("Counting: how many?", "3")
    assert [(each.name, each.title) for each in lab.steps] == [("words", "Words")]


def test_the_hand_out_has_stubs_instead_of_solutions(lab):
    text = to_percent(lab.handed_out())
    assert "return len(text)" not in text
    assert "Because." not in text
    assert '    raise NotImplementedError("words: your code goes here")' in text
    assert '    "words": None,\n}' in text
    assert "SOLUTION" not in text


def test_the_solved_lab_has_no_marks(lab):
    text = to_percent(lab.solved())
    assert '"""Return a number."""\n    return len(text)\n' in text
    assert '    "words": 3,\n}' in text
    assert "None" not in text
    assert "SOLUTION" not in text


def test_solutions_and_answers_are_found_by_their_names(lab):
    assert "return len(text)" in lab.solution("words")
    assert lab.solution("reflection") == "Because."


def test_the_percent_file_reads_as_the_lab_again(lab):
    for each in (lab.handed_out(), lab.solved()):
        again = Lab("counting", tuple(read_cells(to_percent(each))))
        assert [(cell.is_text, cell.source, cell.step) for cell in again.cells] == [
            (cell.is_text, cell.source, cell.step) for cell in each.cells
        ]


@pytest.mark.parametrize("name", existing_labs())
def test_a_notebook_is_valid_and_has_no_outputs(name):
    nbformat = require_part("nbformat")
    notebook = nbformat.reads(to_notebook(load_lab(name).handed_out()), as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] for cell in code)


@pytest.mark.parametrize("name", existing_labs())
def test_nothing_of_a_solution_is_handed_out(name):
    lab = load_lab(name)
    for text in (to_percent(lab.handed_out()), to_markdown(lab.handed_out())):
        assert "SOLUTION" not in text
        assert "#: " not in text
    assert "SOLUTION" not in to_percent(lab.solved())
    assert lab.solution("reflection")
    assert all(len(lab.solution(step.name)) > 100 for step in lab.steps)


@pytest.mark.parametrize("name", existing_labs())
def test_a_power_in_the_text_is_code_and_does_not_begin_bold_letters(name):
    for cell in load_lab(name).solved().cells:
        if cell.is_text:
            words = re.sub(r"```.*?```|`[^`]*`|^    .*?$", "", cell.source, flags=re.S | re.M)
            assert re.findall(r"\w\*\*[\w(]", words) == []


def test_the_pages_and_notebooks_are_made_from_the_labs(tmp_path):
    # In a process: the script stands in the documentation, outside of any package.
    script = "import json, make; print(json.dumps(make.pages()))"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "docs" / "learn",
    )
    made = json.loads(ran.stdout)
    folder = ROOT / "docs" / "learn"
    stale = [name for name, text in made.items() if (folder / name).read_text("utf-8") != text]
    assert stale == []  # python docs/learn/make.py


def test_unknown_labs_and_steps_are_refused_with_what_there_is():
    with pytest.raises(SettingError, match="profiling"):
        load_lab("profilling")
    with pytest.raises(SettingError, match="timer"):
        lab_of_step("timmer")
    assert lab_of_step("timer") == "profiling"
