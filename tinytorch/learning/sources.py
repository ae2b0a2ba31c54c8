"""The sources of the labs, and what is made of them: files to hand out, notebooks, pages.

A lab is one file in percent format, which Jupytext and editors know. ``# %%`` begins a cell of
code, ``# %% [markdown]`` one of text; attributes follow, such as ``step="timer"``. What learners
write stands between ``### BEGIN SOLUTION`` and ``### END SOLUTION``, as in nbgrader. In the
hand-out it is replaced by the lines that begin with ``#:`` there or, without such lines, by a
NotImplementedError. A cell with ``answer="NAME"`` is a model answer; the hand-out has none of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from tinytorch.errors import SettingError, did_you_mean

LABS = ("profiling", "acceleration", "quantization", "compression", "caching", "benchmarking")
"""All labs, in the order in which they are taught; those without a source are not listed."""
REFLECTION = "reflection"

MARKER = re.compile(r"# %%(?P<rest>.*)")
ATTRIBUTE = re.compile(r'(?P<key>\w+)="(?P<value>[^"]*)"')
REGION = re.compile(
    r"^(?P<indent> *)### BEGIN SOLUTION\n(?P<inside>.*?)^ *### END SOLUTION\n", re.M | re.S
)
STUB_LINE = re.compile(r"^(?P<indent> *)#: ?(?P<line>.*)\n", re.M)
HEADING = re.compile(r"^#+ (?:Step \d+: )?(?P<title>.+)$", re.M)


@dataclass(frozen=True)
class Cell:
    """A cell of text or code, with its attributes."""

    is_text: bool
    source: str
    attributes: Mapping[str, str]

    @property
    def step(self) -> str:
        """The step that the cell belongs to, or nothing."""
        return self.attributes.get("step", "")

    @property
    def answer(self) -> str:
        """What the cell is the model answer to, or nothing."""
        return self.attributes.get("answer", "")


@dataclass(frozen=True)
class Step:
    """A step of a lab; learners know it by its name."""

    name: str
    title: str


@dataclass(frozen=True)
class Lab:
    """A lab, as its source has it."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def title(self) -> str:
        """The first heading, such as ``Profiling: why does this GPT take 2 ms?``."""
        return _heading(self.cells[0].source)

    @property
    def hours(self) -> str:
        """How long it takes a learner."""
        return self.cells[0].attributes["hours"]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that have checks, in their order."""
        named = [each for each in self.cells if each.step and each.is_text]
        return tuple(Step(each.step, _heading(each.source)) for each in named)

    def handed_out(self) -> Lab:
        """Return the lab without solutions and answers."""
        kept = (each for each in self.cells if not each.answer)
        return replace(self, cells=tuple(_with_stubs(each) for each in kept))

    def solved(self) -> Lab:
        """Return the lab with the solutions and answers, without what marks them."""
        return replace(self, cells=tuple(_with_solution(each) for each in self.cells))

    def solution(self, step: str) -> str:
        """Return the model solution of a step, or the answer of that name."""
        found = [
            each.source
            for each in self.solved().cells
            if each.answer == step or (each.step == step and not each.is_text)
        ]
        return "\n\n".join(found)


def existing_labs() -> tuple[str, ...]:
    """Return the names of the labs that there are."""
    folder = resources.files(__package__) / "labs"
    return tuple(each for each in LABS if (folder / f"{each}.py").is_file())


@cache
def load_lab(name: str) -> Lab:
    """Return a lab by its name."""
    known = existing_labs()
    if name not in known:
        raise SettingError(f"there is no lab {name!r}; {did_you_mean(name, known)}")
    source = resources.files(__package__) / "labs" / f"{name}.py"
    return Lab(name, tuple(read_cells(source.read_text("utf-8"))))


def lab_of_step(step: str) -> str:
    """Return the name of the lab that a step belongs to; a step's name occurs once."""
    known = {each.name: name for name in existing_labs() for each in load_lab(name).steps}
    if step not in known:
        raise SettingError(f"there is no step {step!r}; {did_you_mean(step, known)}")
    return known[step]


# ---------------------------------------------------------------- reading


def read_cells(text: str) -> Iterable[Cell]:
    """Yield the cells of a file in percent format; what stands before the first is left out."""
    head: re.Match[str] | None = None
    lines: list[str] = []
    for line in [*text.splitlines(), "# %%"]:
        marker = MARKER.fullmatch(line)
        if marker is None:
            lines.append(line)
            continue
        if head is not None:
            yield _cell(head["rest"], "\n".join(lines).strip("\n"))
        head, lines = marker, []


def _cell(rest: str, source: str) -> Cell:
    attributes = {each["key"]: each["value"] for each in ATTRIBUTE.finditer(rest)}
    is_text = "[markdown]" in rest
    if is_text:
        source = re.sub(r"^# ?", "", source, flags=re.M)
    return Cell(is_text, source, attributes)


def _heading(text: str) -> str:
    found = HEADING.search(text)
    return found["title"] if found else ""


def _with_stubs(cell: Cell) -> Cell:
    def stub(region: re.Match[str]) -> str:
        lines = [
            f"{each['indent']}{each['line']}".rstrip() + "\n"
            for each in STUB_LINE.finditer(region["inside"])
        ]
        message = f'raise NotImplementedError("{cell.step}: your code goes here")'
        return "".join(lines) or f"{region['indent']}{message}\n"

    return replace(cell, source=REGION.sub(stub, f"{cell.source}\n").rstrip("\n"))


def _with_solution(cell: Cell) -> Cell:
    def solution(region: re.Match[str]) -> str:
        return STUB_LINE.sub("", region["inside"])

    return replace(cell, source=REGION.sub(solution, f"{cell.source}\n").rstrip("\n"))


# ---------------------------------------------------------------- writing


def to_percent(lab: Lab) -> str:
    """Write a lab as a Python file in percent format."""
    return "\n\n".join(_percent_cell(each) for each in lab.cells) + "\n"


def _percent_cell(cell: Cell) -> str:
    kind = " [markdown]" if cell.is_text else ""
    step = f' step="{cell.step}"' if cell.step else ""
    source = re.sub(r"^(?=.)", "# ", cell.source, flags=re.M) if cell.is_text else cell.source
    source = re.sub(r"^$", "#", source, flags=re.M) if cell.is_text else source
    return f"# %%{kind}{step}\n{source}"


def to_notebook(lab: Lab) -> str:
    """Write a lab as a notebook (nbformat 4.5), without outputs."""
    cells = [_notebook_cell(f"{lab.name}-{n}", each) for n, each in enumerate(lab.cells, 1)]
    content = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _notebook_cell(number: str, cell: Cell) -> dict[str, Any]:
    shared = {
        "id": number,
        "metadata": {"step": cell.step} if cell.step else {},
        "source": cell.source.splitlines(keepends=True),
    }
    if cell.is_text:
        return {"cell_type": "markdown", **shared}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **shared}


def to_markdown(lab: Lab) -> str:
    """Write a lab as a page."""
    note = f"<!-- made from tinytorch/learning/labs/{lab.name}.py by docs/learn/make.py -->"
    parts = [
        each.source if each.is_text else f"```python\n{each.source}\n```" for each in lab.cells
    ]
    return "\n\n".join([note, *parts]) + "\n"
