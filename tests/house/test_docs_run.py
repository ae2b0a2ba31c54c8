"""The documentation does not lie: its Python runs, its commands exist, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from project_files import ROOT

from tinytorch.cli.main import build_parser

PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/learn/*.md"),
    ]
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BY_NAME = {"argvalues": PAGES, "ids": NAMES}
SLOW = (
    "docs/acceleration.md",
    "docs/compression.md",
    "docs/optimizing.md",
    "docs/pytorch.md",
    "docs/quantization.md",
)
"""Pages that measure and train for more than a few seconds."""
RUNS = [
    pytest.param(page, marks=pytest.mark.slow if name in SLOW else (), id=name)
    for name, page in zip(NAMES, PAGES, strict=True)
    if not page.with_suffix(".ipynb").exists()  # labs: tests/learning runs them, solved
]

FENCE = re.compile(r"(?P<indent> *)(?P<marks>```+|~~~+) *(?P<language>[\w-]*)")
NOT_RUN = re.compile(r"<!-- *not run:(?P<reason>.*?)-->")
LINK = re.compile(r"\[[^\]]*\]\(<?(?P<target>[^)>\s]+)>?[^)]*\)")
ENVIRONMENT_SETTING = re.compile(r"\w+=")

RUN_PAGE = "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'))"


class Block(NamedTuple):
    """A fenced block: its language, where its first line stands (from 0), its lines."""

    language: str
    start: int
    lines: list[str]
    line_before: str


def blocks_of(text: str) -> list[Block]:
    """Give the fenced blocks of a page."""
    lines, blocks, number = text.splitlines(), [], 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        number += 1
        if fence is None:
            continue
        start = number
        while number < len(lines) and not lines[number].strip().startswith(fence["marks"]):
            number += 1
        inside = [line.removeprefix(fence["indent"]) for line in lines[start:number]]
        before = lines[start - 2] if start > 1 else ""
        blocks.append(Block(fence["language"], start, inside, before))
        number += 1
    return blocks


def reason_not_to_run(block: Block) -> str | None:
    """Give the reason in the comment above a block, or None when it is to be run."""
    comment = NOT_RUN.search(block.line_before)
    return comment["reason"].strip() if comment else None


def python_of(text: str) -> str:
    """Give the Python of a page, each line at its own line number."""
    lines = [""] * len(text.splitlines())
    for block in blocks_of(text):
        if block.language == "python" and reason_not_to_run(block) is None:
            lines[block.start : block.start + len(block.lines)] = block.lines
    return "\n".join(lines)


def commands_of(text: str) -> list[list[str]]:
    """Give the words after ``tinytorch`` for each such command in the shell blocks of a page."""
    commands = []
    for block in blocks_of(text):
        lines = "\n".join(block.lines).replace("\\\n", " ").splitlines()
        if block.language == "console":  # Lines without a prompt are output.
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        elif block.language not in ("bash", "sh", "shell"):
            continue
        commands += [words for line in lines for words in tinytorch_commands(line)]
    return commands


def tinytorch_commands(line: str) -> list[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("();<>|&"):
            parts.append([])
        else:
            parts[-1].append(word)
    found = []
    for words in parts:
        while words and ENVIRONMENT_SETTING.match(words[0]):
            words.pop(0)
        if words[:1] and Path(words[0]).name == "tinytorch":
            found.append(words[1:])
        elif words[1:3] == ["-m", "tinytorch"]:
            found.append(words[3:])
    return found


def is_command(words: list[str]) -> bool:
    """Say whether the command line understands these words."""
    requested = next((word for word in words if not word.startswith("-")), None)
    try:
        build_parser(requested).parse_args(words)
    except SystemExit as leaving:
        return leaving.code == 0
    return True


def links_of(text: str) -> list[str]:
    """Give the targets of the links of a page that stay inside the project."""
    lines = text.splitlines()
    for block in blocks_of(text):
        lines[block.start : block.start + len(block.lines)] = [""] * len(block.lines)
    targets = [link["target"] for link in LINK.finditer("\n".join(lines))]
    return [each for each in targets if not re.match(r"\w+:|#", each)]


@pytest.mark.parametrize("page", RUNS)
def test_the_python_of_a_page_runs(page, tmp_path):
    source = python_of(page.read_text("utf-8"))
    ran = subprocess.run(
        [sys.executable, "-c", RUN_PAGE, str(page)],
        input=source,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", **BY_NAME)
def test_a_block_that_does_not_run_says_why(page):
    reasons = [reason_not_to_run(block) for block in blocks_of(page.read_text("utf-8"))]
    assert "" not in reasons


@pytest.mark.parametrize("page", **BY_NAME)
def test_the_commands_of_a_page_exist(page):
    commands = commands_of(page.read_text("utf-8"))
    assert [shlex.join(words) for words in commands if not is_command(words)] == []


@pytest.mark.parametrize("page", **BY_NAME)
def test_the_links_of_a_page_lead_somewhere(page):
    targets = links_of(page.read_text("utf-8"))
    paths = {target: page.parent / target.partition("#")[0] for target in targets}
    assert [target for target, path in paths.items() if not path.exists()] == []


def headings_of(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as forges make them."""
    lines = text.splitlines()
    for block in blocks_of(text):
        lines[block.start : block.start + len(block.lines)] = [""] * len(block.lines)
    titles = [line.lstrip("# ").lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", **BY_NAME)
def test_the_links_of_a_page_name_headings_that_exist(page):
    missing = []
    for link in re.findall(r"\]\(([^)\s:]*#[^)\s]+)\)", page.read_text("utf-8")):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if target.suffix == ".md" and heading not in headings_of(target.read_text("utf-8")):
            missing.append(link)
    assert missing == []


PAGE = """\
# Title with a [link](docs/x.md#part) and [another](https://example.org)

```python
x = 1
```

<!-- not run: needs a GPU -->
```python
raise SystemExit(1)
```

<!-- not run: -->
```python
```

1. In a list:

   ```python
   assert x == 1
   ```

```console
$ FOO=1 .venv/bin/tinytorch tour --json | head
tinytorch is not a command here
$ python -m tinytorch --version && \\
  tinytorch nonsense
```
"""


def test_python_keeps_its_line_numbers():
    lines = python_of(PAGE).split("\n")
    assert {number: line for number, line in enumerate(lines, 1) if line} == {
        4: "x = 1",
        19: "assert x == 1",
    }


def test_the_reason_above_a_block_is_read():
    reasons = [reason_not_to_run(block) for block in blocks_of(PAGE)]
    assert reasons == [None, "needs a GPU", "", None, None]


def test_commands_are_found_between_the_operators_of_the_shell():
    assert commands_of(PAGE) == [["tour", "--json"], ["--version"], ["nonsense"]]


def test_a_command_that_does_not_exist_is_noticed(capsys):
    assert [is_command(words) for words in commands_of(PAGE)] == [True, True, False]


def test_only_links_into_the_project_are_followed():
    assert links_of(PAGE) == ["docs/x.md#part"]
