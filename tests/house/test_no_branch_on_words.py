"""No code decides anything by the words of a note, a reason or a message: these are for people."""

import ast
from pathlib import Path

import pytest

import tinytorch

PACKAGE = Path(tinytorch.__file__).parent
ONE = {"note", "reason", "message", "words", "why", "how", "said", "told", "doubt", "sentence"}
"""Names of a text for people; whether something is `in` one asks for a part of it."""
MERGES_NUMBERS = "transforms/sparse_layers.py"
"""Says alike doubts of many points once, with the range of their numbers; decides nothing."""
SEVERAL = {"notes", "reasons", "messages", "doubts", "sentences", "disturbances"}
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


def _loops(tree):
    """Yield every loop over a collection with the part of the code in which its variable is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            yield node.target, node.iter, node
        for each in getattr(node, "generators", ()):
            yield each.target, each.iter, node


def _texts(tree):
    """Return the places of variables that run over notes, whatever they are called."""
    found = set()
    for target, several, inside in _loops(tree):
        if isinstance(target, ast.Name) and _name(several) in SEVERAL:
            found |= {
                id(node)
                for node in ast.walk(inside)
                if isinstance(node, ast.Name) and node.id == target.id
            }
    return found


def branches_on_words(source):
    """Return the lines that ask what the words of a note say."""
    found, tree = set(), ast.parse(source)
    texts = _texts(tree)

    def is_one(node):
        return id(node) in texts or _name(node) in ONE | SEVERAL

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            (place, *_) = node.comparators
            is_part = _is_text(node.left) or id(place) in texts or _name(place) in ONE
            if is_part and is_one(place):
                found.add(node.lineno)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        is_asked = node.func.attr in ASKING and is_one(node.func.value)
        is_matched = node.func.attr in PATTERNS and any(map(is_one, node.args))
        if is_asked or is_matched:
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
        ('{how for how in seen if how.startswith("none:")}', [1]),
        ("[note for note in notes if any(word in note for word in BUSY)]", [1]),
        ('[SUBJECT.sub("it", each) for each in notes]', [1]),
        ("for each in result.notes:\n    if each.startswith(name): pass", [2]),
        ('NUMBER.sub("#", note)', [1]),
        ('name in notes\nnote.code == "late"\nwords.split()', []),
    ],
)
def test_the_check_sees_what_it_should(source, lines):
    assert branches_on_words(source) == lines


def test_nothing_branches_on_the_words_of_a_note():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / MERGES_NUMBERS
        for line in branches_on_words(path.read_text("utf-8"))
    ]
    assert found == []
