"""What is written of a saved model: its README, and memory of processes."""

from dataclasses import replace

import pytest
from document_reading import blocks
from example_optimizations import attempt, inconclusive, measured, optimization, plan

from tinytorch.measure.memory import ProcessUse
from tinytorch.models.workload import Preparation
from tinytorch.reporting.document import Bullets, Table
from tinytorch.reporting.quantities import UNKNOWN
from tinytorch.reporting.saved import (
    CALLS_WITHOUT,
    NO_GRADIENTS,
    PROCESS_ABOUT,
    process_sections,
    readme_text,
)
from tinytorch.tuning.fresh_process import ProcessMemory
from tinytorch.tuning.recipe import Recipe

USE = ProcessUse(10 << 20, 30 << 20, None, 40 << 20, 0.5)


def recipe(**changes):
    fields = {
        "name": "example\nof two lines",
        "framework": "core",
        "device": "cpu",
        "model": "MLP",
        "stack": ("int8-dynamic",),
        "plans": (plan(),),
        "weights_after": 0,
        "weights_sha256": "",
        "tensors": {},
        "versions": {"numpy": "2.4.6"},
    }
    return Recipe(**(fields | changes))


def lines_of(found, made=None, *, shapes=("1x784",), notes=()):
    return readme_text(found, made or recipe(), shapes, notes).splitlines()


def section_of(lines, title):
    start = lines.index(f"## {title}") + 1
    rest = lines[start:]
    ends = [at for at, line in enumerate(rest) if line.startswith("## ")]
    return [line for line in rest[: ends[0] if ends else None] if line]


BEST = attempt("int8-dynamic", time=0.5)


@pytest.mark.parametrize(
    ("target", "architecture", "call", "needs_function"),
    [
        ("", {}, "model = load(build)", True),
        ("mlp", {}, "model = load()", True),
        ("", {"zoo": "mlp"}, "model = load()", False),
    ],
)
def test_how_it_is_loaded_depends_on_what_is_known(target, architecture, call, needs_function):
    lines = lines_of(optimization(BEST, target=target), recipe(architecture=architecture))
    assert lines[0] == "# example of two lines: int8-dynamic"
    code = lines[lines.index("```python") + 1 : lines.index("```")]
    assert code[-1] == call
    assert any(line.startswith("`load(build)` takes") for line in lines) == needs_function


def test_what_was_measured_has_the_inputs_and_all_notes():
    lines = lines_of(optimization(BEST), notes=("a\nnote",))
    measured_lines = section_of(lines, "What was measured")
    assert "n=13" in measured_lines[0]
    assert any("1x784" in line for line in measured_lines)
    assert section_of(lines, "Before the first call, and for other inputs")[-1] == "- a note"
    unknown = section_of(lines_of(optimization(BEST), shapes=()), "What was measured")
    assert any("unknown" in line for line in unknown)


def test_without_a_comparison_nothing_is_claimed():
    assert len(section_of(lines_of(optimization()), "What was measured")) == 1
    assert len(section_of(lines_of(optimization(inconclusive("x"))), "What was measured")) == 1


def test_memory_and_accuracy_are_there_only_where_they_were_measured():
    title = "What was measured"
    bare, full = (
        section_of(lines_of(optimization(replace(BEST, comparison=each))), title)
        for each in (replace(measured(), resources=None, accuracy=None), measured())
    )
    assert len(full) > len(bare)
    assert any("800" in line for line in full)
    assert not any("800" in line for line in bare)


def test_each_part_of_the_setup_is_a_line():
    done = ((), (Preparation("compile", 12.0), Preparation("capture", 0.4)))
    found = replace(measured(), preparations=done)
    title = "Before the first call, and for other inputs"
    with_setup = section_of(lines_of(optimization(replace(BEST, comparison=found))), title)
    without = section_of(lines_of(optimization(BEST)), title)
    assert len(with_setup) == len(without) + 1
    assert ["compile" in with_setup[0], "capture" in with_setup[1]] == [True, True]


@pytest.mark.parametrize(
    ("framework", "transform", "said"),
    [
        ("core", "Quantize", []),
        ("pytorch", "Quantize", [CALLS_WITHOUT, NO_GRADIENTS]),
        ("pytorch", "LowRank", [CALLS_WITHOUT]),
    ],
)
def test_what_gradients_need_is_said_of_models_of_pytorch(framework, transform, said):
    settings = {"plans": (plan(transform),), "framework": framework}
    lines = lines_of(optimization(BEST), recipe(**settings))
    assert [each for each in (CALLS_WITHOUT, NO_GRADIENTS) if f"- {each}" in lines] == said


def test_the_machine_is_unknown_where_nothing_tells():
    known, unknown = (
        section_of(lines_of(optimization(BEST, environment=each)), "Where")
        for each in ({"cpu_model": "EPYC", "system": "Linux", "threads_in_force": 2}, {})
    )
    assert "EPYC" in known[0]
    assert "2 threads" in known[1]
    assert [line.count("unknown") for line in unknown] == [2, 1, 0]
    assert "numpy 2.4.6" in unknown[2]


# ---------------------------------------------------------------- memory of processes


@pytest.mark.parametrize(
    ("process", "rows", "reasons"),
    [
        (ProcessMemory(USE, USE), 5, 0),
        (ProcessMemory(USE, None, {"saved": "no\nroom"}), 5, 1),
        (ProcessMemory(None, None, {"baseline": "no", "saved": "no"}), 0, 2),
    ],
)
def test_memory_of_processes_is_a_table_where_it_is_known(process, rows, reasons):
    (found,) = process_sections(process)
    tables, bullets = blocks(found, Table), blocks(found, Bullets)
    assert (len(tables), len(bullets)) == (bool(rows), bool(reasons))
    assert sum(len(each.filled()[1]) for each in tables) == rows
    lines = section_of(lines_of(optimization(BEST, process=process)), "Memory of the process")
    assert lines[0] == PROCESS_ABOUT
    assert sum(line.startswith("| ") for line in lines) == rows + bool(rows)
    assert sum("not measured" in line for line in lines) == reasons


def test_what_the_system_does_not_tell_is_unknown():
    (found,) = process_sections(ProcessMemory(USE, None))
    (table,) = blocks(found, Table)
    assert [row[2] for row in table.rows] == [UNKNOWN] * 5
    assert [row[1] for row in table.rows].count(UNKNOWN) == 1


def test_without_a_measurement_there_is_no_section():
    assert list(process_sections(None)) == []
    assert "## Memory of the process" not in lines_of(optimization(BEST))
