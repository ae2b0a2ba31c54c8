"""The ledger of ARCHITECTURE.md: how many files and lines of code each package has."""

import ast
import re

import pytest
from project_files import PACKAGE, ROOT

ROW = re.compile(r"^\| (?P<packages>`[^|]+) \|[^|]*\| (?P<files>\d+) \| (?P<lines>\d+) \|$", re.M)
TOLERANCE = 0.1


def code_lines(text):
    """Count lines without blanks, comments and docstrings."""
    docs = set()
    for node in ast.walk(ast.parse(text)):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
                docs.update(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(x.strip()) and not x.strip().startswith("#") and n not in docs for n, x in lines
    )


def ledger():
    """Give the rows of the page: packages -> files and lines."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    return {
        each["packages"]: (int(each["files"]), int(each["lines"])) for each in ROW.finditer(text)
    }


def sources(packages):
    if packages.startswith("`errors`"):
        return sorted(PACKAGE.glob("*.py"))
    names = re.findall(r"`(\w+)/`", packages)
    return [path for name in names for path in sorted((PACKAGE / name).rglob("*.py"))]


@pytest.mark.parametrize("packages", ledger())
def test_the_ledger_is_true_within_a_tenth(packages):
    files = sources(packages)
    lines = sum(code_lines(path.read_text("utf-8")) for path in files)
    for found, written in zip((len(files), lines), ledger()[packages], strict=True):
        assert abs(found - written) <= max(1, TOLERANCE * written), (found, written)


def test_every_package_stands_in_the_ledger():
    counted = {path for packages in ledger() for path in sources(packages)}
    assert counted == set(PACKAGE.rglob("*.py"))


def test_docstrings_comments_and_blanks_are_no_code():
    assert (
        code_lines('"""About."""\n\n# why\nx = 1\ndef f():\n    """What."""\n    return x\n') == 3
    )
