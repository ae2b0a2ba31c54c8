"""Small changes of the package's code, found by the definition that they stand in, not by file.

A `Point` names a definition (``Samples.percentile``), the source of a statement or expression in it
as `ast.unparse` writes it, which one of several equal ones is meant, and what stands there instead.
It survives when code moves to another file or is formatted anew; the module is only a hint.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tinytorch"
TELLING = 15
"""Letters from which on a source is looked for in all definitions, when its own one is gone."""
LONGEST = 160
"""Letters of a source that names a point; longer ones change too easily."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
}
SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
NO_NUMBERS = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple, ast.Dict)


@dataclass(frozen=True)
class Point:
    """One change: in a definition, the ordinal-th `original` becomes `replacement`."""

    definition: str
    module: str
    original: str
    ordinal: int
    replacement: str


@dataclass(frozen=True)
class Definition:
    """A function, a method, or a name that a module or class assigns, such as a table.

    It has several nodes where one name is defined twice, as a setter is.
    """

    module: str
    file: Path
    name: str
    nodes: tuple[ast.AST, ...]

    @property
    def is_table(self) -> bool:
        """Return whether this is a name that is assigned, not a function."""
        return all(isinstance(node, ast.Assign | ast.AnnAssign) for node in self.nodes)

    @property
    def last_name(self) -> str:
        """Return the name without those of classes and functions around it."""
        return self.name.rpartition(".")[2]

    def holds(self, point: Point) -> bool:
        """Return whether the source of a point stands here, often enough for its ordinal."""
        return len(self.matches(point.original)) > point.ordinal

    def matches(self, original: str) -> list[ast.AST]:
        """Return the statements and expressions of this source, in the order of the code."""
        return self._by_source.get(original, [])

    @cached_property
    def _by_source(self) -> dict[str, list[ast.AST]]:
        found: dict[str, list[ast.AST]] = {}
        for node in self.parts():
            found.setdefault(ast.unparse(node), []).append(node)
        return found

    def parts(self) -> Iterator[ast.AST]:
        """Yield the statements and expressions that belong to this definition and no inner one."""
        for node in self.nodes:
            for statement in getattr(node, "body", [node]):
                yield from _parts(statement)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, NESTED):
        return
    if isinstance(node, ast.stmt | ast.expr) and not isinstance(node, ast.Slice | ast.Starred):
        yield node  # a slice or a star alone is no source that could be read again
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _parts(child)


class Code:
    """The definitions of the package."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self.definitions: dict[str, list[Definition]] = {}
        for file in sorted(package.rglob("*.py")):
            parts = file.relative_to(package.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for name, nodes in _definitions(ast.parse(file.read_text("utf-8"))).items():
                made = Definition(module, file, name, tuple(nodes))
                self.definitions.setdefault(name, []).append(made)

    @cached_property
    def by_last_name(self) -> dict[str, list[Definition]]:
        """Return definitions by their own name, for what moved to another class."""
        found: dict[str, list[Definition]] = {}
        for each in self.definitions.values():
            found.setdefault(each[0].last_name, []).extend(each)
        return found

    def find(self, point: Point) -> list[Definition]:
        """Return where a point may stand: one place, none (gone), or several (ambiguous)."""
        candidates = self.definitions.get(point.definition, [])
        last = point.definition.rpartition(".")[2]
        if not candidates and not last.startswith("__"):  # of those every class has one
            candidates = self.by_last_name.get(last, [])
        found = [each for each in candidates if each.holds(point)]
        if not candidates and len(point.original) >= TELLING:  # has the definition a new name?
            everywhere = (each for some in self.definitions.values() for each in some)
            found = [each for each in everywhere if each.holds(point)]
        return _nearest(found, point.module)


def _nearest(found: list[Definition], module: str) -> list[Definition]:
    """Let the hint decide among several: the whole module, its last name, its package."""
    for key in (
        lambda name: name,
        lambda name: name.rpartition(".")[2],
        lambda name: name.split(".")[1:2],
    ):
        near = [each for each in found if key(each.module) == key(module)]
        if len(near) == 1:
            return near
    return found


def _definitions(
    tree: ast.AST, prefix: str = "", *, in_function: bool = False
) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in ast.iter_child_nodes(tree):
        inner, is_function = prefix, in_function
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if not in_function:
                    found.setdefault(f"{prefix}{name}", []).append(node)
                continue
            case ast.ClassDef(name=name):
                inner = f"{prefix}{name}."
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                inner, is_function = f"{prefix}{name}.", True
                found.setdefault(f"{prefix}{name}", []).append(node)
        for name, nodes in _definitions(node, inner, in_function=is_function).items():
            found.setdefault(name, []).extend(nodes)
    return found


def changed_module(definition: Definition, point: Point) -> ast.Module:
    """Return the syntax tree of the definition's module with the point's replacement in it."""
    tree = ast.parse(definition.file.read_text("utf-8"))
    anew = Definition(
        definition.module,
        definition.file,
        definition.name,
        tuple(_definitions(tree)[definition.name]),
    )
    old = anew.matches(point.original)[point.ordinal]
    statement = ast.parse(point.replacement).body[0]
    new: ast.AST = statement.value if isinstance(old, ast.expr) else statement  # type: ignore[attr-defined]
    for node in ast.walk(new):
        if "lineno" in node._attributes:
            ast.copy_location(node, old)
    _replace(tree, old, new)
    return ast.fix_missing_locations(tree)


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                value[:] = [new if each is old else each for each in value]


@dataclass(frozen=True)
class Change:
    """A change that can be made: where in the code, the operator's name, and the point."""

    operator: str
    point: Point
    file: Path
    lines: range


def changes(definition: Definition) -> Iterator[Change]:
    """Yield every change of a definition that the operators know, once each."""
    seen: dict[str, int] = {}
    quiet: set[ast.AST] = set()  # words of messages
    conditions: set[ast.AST] = set()
    rows: dict[ast.AST, ast.AST] = {}  # a value of a table -> that of the next row
    for node in definition.parts():
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            quiet.update(each for each in ast.walk(node) if each is not node)
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            conditions.add(node.test)
        if isinstance(node, ast.Dict):
            rows.update(zip(node.values, node.values[1:], strict=False))
        source = ast.unparse(node)
        ordinal = seen.get(source, 0)
        seen[source] = ordinal + 1
        if node in quiet or len(source) > LONGEST or isinstance(node, ast.JoinedStr):
            continue
        where = range(node.lineno, (node.end_lineno or node.lineno) + 1)  # type: ignore[attr-defined]
        made = list(_replacements(node))
        if node in conditions and isinstance(node, ast.Name | ast.Attribute | ast.Call):
            made.append(("condition", ast.UnaryOp(ast.Not(), node)))
        if node in rows and definition.is_table:
            made.append(("table", rows[node]))
        for operator, new in made:
            point = Point(definition.name, definition.module, source, ordinal, ast.unparse(new))
            if point.replacement != source:
                yield Change(operator, point, definition.file, where)


def _replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[only]) if type(only) in COMPARISONS:
            yield "comparison", _with(node, ops=[COMPARISONS[type(only)]()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in ARITHMETIC and _has_numbers(
            node
        ):
            yield "arithmetic", _with(node, op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield "boolean", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield "not removed", node.operand
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield "min and max", _with(node, func=ast.Name(SWAPPED[name], ast.Load()))
        case ast.Call(func=ast.Attribute(attr=name)) if name in SWAPPED:
            yield "min and max", _with(node, func=_with(node.func, attr=SWAPPED[name]))
        case ast.Expr(value=ast.Call()):
            yield "statement removed", ast.Pass()
        case ast.Raise():
            yield "raise removed", ast.Pass()
        case ast.Return(value=ast.expr() as value):
            yield from _returns(node, value)
    yield from _constants(node)


def _has_numbers(node: ast.BinOp | ast.AugAssign) -> bool:
    """Return whether an operation may be one on numbers: texts and lists are joined with a plus."""
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return not any(
        isinstance(each, NO_NUMBERS)
        or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in sides
    )


def _returns(node: ast.Return, value: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(value, ast.Compare | ast.BoolOp) or (
        isinstance(value, ast.Constant) and isinstance(value.value, bool)
    ):
        yield "return negated", ast.Return(ast.UnaryOp(ast.Not(), value))
    elif isinstance(value, ast.BinOp) and type(value.op) in ARITHMETIC and _has_numbers(value):
        yield "return negated", ast.Return(ast.UnaryOp(ast.USub(), value))
    elif not (isinstance(value, ast.Constant) and value.value is None):
        yield "return None", ast.Return(ast.Constant(None))


def _constants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield changes of constants and ends of slices that stand directly in a node."""
    holders = (ast.BinOp, ast.Compare, ast.Call, ast.Subscript, ast.UnaryOp, ast.IfExp)
    if not isinstance(node, (*holders, ast.Assign, ast.AugAssign, ast.Return)):
        return
    for holder, name, position in _places(node):
        old = getattr(holder, name) if position is None else getattr(holder, name)[position]
        if isinstance(old, ast.Constant):
            operator, new = "constant", _next_constant(old)
        elif isinstance(holder, ast.Slice):
            operator, new = "slice", ast.BinOp(old, ast.Add(), ast.Constant(1))
        else:
            continue
        if new is not None:
            yield operator, _changed(node, (holder, name, position), new)


Place = tuple[ast.AST, str, int | None]


def _places(node: ast.AST) -> Iterator[Place]:
    """Yield where expressions stand right below a node, or in its slice or a keyword."""
    for name, value in ast.iter_fields(node):
        for position, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.keyword | ast.Slice):
                yield from _places(child)
            elif isinstance(child, ast.expr):
                yield node, name, position


def _changed(node: ast.AST, place: Place, new: ast.AST) -> ast.AST:
    """Return a copy of a node with something else at a place in it."""
    holder, name, position = place
    memo: dict[int, object] = {}
    copied = copy.deepcopy(node, memo)
    there = memo[id(holder)]
    if position is None:
        setattr(there, name, new)
    else:
        getattr(there, name)[position] = new
    return copied


def _next_constant(old: ast.Constant) -> ast.Constant | None:
    if isinstance(old.value, bool):
        return ast.Constant(not old.value)
    return ast.Constant(old.value + 1) if isinstance(old.value, int | float) else None


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a node with other fields; its children are shared, it is only read."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})
