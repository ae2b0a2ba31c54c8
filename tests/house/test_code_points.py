"""The mutants of benchmarks/mutants.json find their code after it has moved."""

import ast
import importlib
import sys

import pytest
from project_files import ROOT

SOURCE = """
class Box:
    def grow(self, by):
        if by < 1 and by < 1:
            raise ValueError(by)
        return self.sizes[1:by] + max(by, 2)

TABLE = {"a": first(1), "b": second(2)}
"""


@pytest.fixture
def points(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("code_points")
    sys.modules.pop("code_points", None)


@pytest.fixture
def code(points, tmp_path):
    """Give ``code(**files)``: the definitions of a package with these modules."""

    def make(**files):
        package = tmp_path / "package"
        package.mkdir(exist_ok=True)
        for old in package.glob("*.py"):
            old.unlink()
        for name, text in files.items():
            (package / f"{name}.py").write_text(text, "utf-8")
        return points.Code(package)

    return make


def point(points, original="by < 1", ordinal=1, replacement="by <= 1"):
    return points.Point("Box.grow", "package.a", original, ordinal, replacement)


def changes_of(points, code, name):
    (definition,) = code.definitions[name]
    return {
        (each.point.original, each.point.replacement): each for each in points.changes(definition)
    }


def test_a_point_is_found_where_its_code_went(points, code):
    for files in (
        {"a": SOURCE},
        {"b": "X = 1\n\n" + SOURCE},
        {"b": SOURCE.replace("1:by", "1 : by")},
    ):
        (found,) = code(**files).find(point(points))
        assert found.module == f"package.{next(iter(files))}"


def test_a_point_is_found_where_its_class_has_another_name(points, code):
    (found,) = code(b=SOURCE.replace("Box", "Case")).find(point(points))
    assert found.name == "Case.grow"


def test_a_telling_source_is_found_where_its_definition_has_another_name(points, code):
    moved = point(points, "self.sizes[1:by]", 0, "self.sizes[2:by]")
    renamed = SOURCE.replace("grow", "enlarge")
    assert [each.name for each in code(b=renamed).find(moved)] == ["Box.enlarge"]
    assert len(code(b=renamed, c=renamed).find(moved)) == 2
    assert code(b=renamed).find(point(points)) == []


def test_the_module_decides_between_equal_definitions(points, code):
    assert [each.module for each in code(a=SOURCE, b=SOURCE).find(point(points))] == ["package.a"]
    assert len(code(b=SOURCE, c=SOURCE).find(point(points))) == 2


def test_code_that_changed_is_gone(points, code):
    assert code(a=SOURCE.replace(" and by < 1", "")).find(point(points)) == []
    assert code(a="X = 1").find(point(points)) == []


def test_only_the_meant_one_of_equal_expressions_changes(points, code):
    (found,) = code(a=SOURCE).find(point(points))
    changed = ast.unparse(points.changed_module(found, point(points)))
    assert "if by < 1 and by <= 1:" in changed
    assert changed.replace("<=", "<") == ast.unparse(ast.parse(SOURCE))


def test_every_operator_finds_its_place(points, code):
    made = changes_of(points, code(a=SOURCE), "Box.grow")
    assert {
        ("by < 1", "by <= 1"),
        ("by < 1", "by < 2"),
        ("by < 1 and by < 1", "by < 1 or by < 1"),
        ("raise ValueError(by)", "pass"),
        ("max(by, 2)", "min(by, 2)"),
        ("max(by, 2)", "max(by, 3)"),
        ("self.sizes[1:by]", "self.sizes[2:by]"),
        ("self.sizes[1:by]", "self.sizes[1:by + 1]"),
        ("self.sizes[1:by] + max(by, 2)", "self.sizes[1:by] - max(by, 2)"),
    } <= made.keys()
    assert ("first(1)", "second(2)") in changes_of(points, code(a=SOURCE), "TABLE")


def test_every_change_can_be_made_and_undone_by_its_own_source(points, code):
    found = code(a=SOURCE)
    for name in ("Box.grow", "TABLE"):
        for each in changes_of(points, found, name).values():
            (place,) = found.find(each.point)
            assert ast.unparse(points.changed_module(place, each.point)) != ast.unparse(
                ast.parse(SOURCE)
            )
