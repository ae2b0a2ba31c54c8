"""No code decides anything by the words of a note, a reason or a message: these are for people."""

import ast
from pathlib import Path

import pytest

import tinytorch

PACKAGE = Path(tinytorch.__file__).parent
WORDS = {"note", "notes", "reason", "reasons", "message", "words", "why", "doubt", "doubts"}
ASKING = {"startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "partition"}
PATTERNS = {"match", "search", "fullmatch", "sub", "subn", "findall", "finditer", "split"}


def _name(node):
    """Return the name of a variable, an attribute, or what is indexed."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return _name(node.args[0]) if node.args else ""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_text(node):
    """Return whether something is compared with a text, not looked up in a collection."""
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def branches_on_words(source):
    """Return the lines that ask what the words of a note say."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        is_contained = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
        if is_contained and _is_text(node.left) and _name(node.comparators[0]) in WORDS:
            found.add(node.lineno)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        is_asked = node.func.attr in ASKING and _name(node.func.value) in WORDS
        is_matched = _name(node.func.value) == "re" and node.func.attr in PATTERNS
        if is_asked or (is_matched and any(_name(each) in WORDS for each in node.args)):
            found.add(node.lineno)
    return sorted(found)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('if note.startswith("none"): pass', [1]),
        ('"view" in trial.reason', [1]),
        ('str(error.message).removeprefix("x")', [1]),
        ('re.sub("a", "b", words)', [1]),
        ('notes[-1].endswith("again")', [1]),
        ('name in notes\nnote.code == "late"\nwords.split()', []),
    ],
)
def test_the_check_sees_what_it_should(source, lines):
    assert branches_on_words(source) == lines


def test_nothing_branches_on_the_words_of_a_note():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in branches_on_words(path.read_text("utf-8"))
    ]
    assert found == []
