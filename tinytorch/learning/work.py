"""What a learner wrote: the functions, classes and constants of a file or notebook."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from tinytorch import reading
from tinytorch.errors import SettingError, first_line


class Missed(Exception):
    """A check that did not hold: a code for programs, and what to look at next."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def expect(is_met: object, code: str, words: str) -> None:
    """Raise Missed unless a condition is met."""
    if not is_met:
        raise Missed(code, words)


class Work:
    """The names that a learner defined; an attribute of this object is one of them.

    Of a file only imports, functions, classes and constants are run. Measurements stand outside of
    functions, and are not repeated by every check.
    """

    def __init__(self, path: str, names: dict[str, Any], skipped: frozenset[str]) -> None:
        self.path, self.names, self.skipped = path, names, skipped

    def __getattr__(self, name: str) -> Any:
        try:
            return self.names[name]
        except KeyError:
            raise self._missing(name) from None

    def _missing(self, name: str) -> Missed:
        if name not in self.skipped:
            return Missed("not-found", f"there is no `{name}` in your file; the hand-out had one")
        return Missed(
            "needs-measurement",
            f"`{name}` was not made: its definition needs what a measurement of your file computes "
            "(is it the default of an argument?), and checks run no measurements",
        )


def load_work(path: Path) -> Work:
    """Run the definitions of a Python file or notebook."""
    names: dict[str, Any] = {"__name__": "learner", "__file__": str(path)}
    skipped: set[str] = set()
    imported: set[str] = set()  # a call such as np.sort(x) does not change np
    for place, source in _sources(path):
        try:
            tree = ast.parse(source, filename=place)
        except SyntaxError as error:
            words = f"{place}, line {error.lineno}: Python cannot read it ({error.msg})"
            raise Missed("syntax", words) from error
        kept: list[ast.stmt] = []
        for node in tree.body:
            imported.update(_imported(node))
            if _is_definition(node) and not skipped & _read_at_once(node):
                kept.append(node)
                skipped.difference_update(_defined(node))
            else:
                skipped.update(_defined(node), set(_changed(node)) - imported)
        _run(compile(ast.Module(kept, []), place, "exec"), names)
    return Work(str(path), names, frozenset(skipped))


def _run(code: CodeType, names: dict[str, Any]) -> None:
    exec(code, names)  # the learner's own code, in a process of its own


def _sources(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each part that is run, and its text."""
    try:
        text = reading.read_text(path)
        if path.suffix != ".ipynb":
            yield path.name, text
            return
        cells = reading.parse_json(text)["cells"]
        code = ["".join(each["source"]) for each in cells if each["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{path} cannot be read: {first_line(error)}") from error
    for number, cell in enumerate(code, 1):
        lines = cell.splitlines()
        # Magics and shell commands of a notebook are no Python.
        kept = ("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
        yield f"code cell {number}", "\n".join(kept)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_definition(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return not _calls(value)
        case ast.If():
            return not _calls(node.test) and _are_definitions([*node.body, *node.orelse])
        case ast.Try():
            inside = [each for handler in node.handlers for each in handler.body]
            return _are_definitions([*node.body, *inside, *node.orelse, *node.finalbody])
    return isinstance(node, ast.Pass)


def _are_definitions(body: Sequence[ast.stmt]) -> bool:
    return all(map(_is_definition, body))


def _calls(value: ast.AST) -> bool:
    """Return whether an expression calls something; what a lambda would call does not count."""
    if isinstance(value, ast.Lambda):
        return False
    return isinstance(value, ast.Call) or any(map(_calls, ast.iter_child_nodes(value)))


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, context):
            yield each.id


def _defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a file gives a value."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name
    else:
        yield from _imported(node)
        yield from _names(node, ast.Store)


def _imported(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for each in node.names:
            yield (each.asname or each.name).partition(".")[0]


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names of what a statement may change in place: `a.append(1)`, `a[0] = 1`."""
    for each in ast.walk(node):
        match each:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
                yield name
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                yield name


def _read_at_once(node: ast.AST) -> set[str]:
    """Return the names from outside that a statement reads as it runs; functions run later."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    inside = list(ast.iter_child_nodes(node))
    if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
        body = node.body if isinstance(node.body, list) else [node.body]
        inside = [each for each in inside if each not in body]
    found = set().union(*map(_read_at_once, inside))
    if isinstance(node, ast.ClassDef):
        return found.difference(*map(_defined, node.body))
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return found.difference(*(_names(each.target, ast.Store) for each in node.generators))
    return found
