import ast

import pytest
from project_files import TESTS


def claims(source):
    """Give every test function of a file."""
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def checks_something(function):
    return any(is_check(node) for node in ast.walk(function))


def is_check(node):
    match node:
        case ast.Assert():
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in ("raises", "warns") or name.startswith(("assert_", "check_"))
    return False


def test_every_test_checks_something():
    idle = [
        f"{path.relative_to(TESTS)}::{claim.name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for claim in claims(path.read_text("utf-8"))
        if not checks_something(claim)
    ]
    assert idle == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert x", True),
        ("with pytest.raises(ValueError): f()", True),
        ("with pytest.warns(UserWarning): f()", True),
        ("np.testing.assert_allclose(a, b)", True),
        ("check_gradient(f)", True),
        ("for x in y:\n        assert x", True),
        ("f()", False),
        ("print('assert')", False),
    ],
)
def test_the_check_for_checks_sees(body, expected):
    (claim,) = claims(f"def test_x():\n    {body}")
    assert checks_something(claim) is expected
