import sys
from importlib import import_module
from types import ModuleType

import pytest

from tinytorch.errors import SettingError
from tinytorch.reporting import document
from tinytorch.reporting.document import Banner, Document, loaded
from tinytorch.reporting.html import page as report
from tinytorch.reporting.markdown import report_markdown


class Result:
    """Something that has a document."""


class Special(Result):
    """Something whose parent has one."""


class Part:
    """One of several that have a document together."""


HERE = "tinytorch.reporting"
MANY = f"{HERE}.many:many"


@pytest.fixture(autouse=True)
def builders(monkeypatch):
    """Offer two documents that show what they were given."""
    for name in ("one", "many"):
        module = ModuleType(f"{HERE}.{name}")
        setattr(module, name, lambda result, **context: built(f"{result!r} {context}"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(
        document,
        "BUILDERS",
        {f"{__name__}.Result": f"{HERE}.one:one", f"{__name__}.Part": MANY},
    )
    monkeypatch.setattr(document, "TOGETHER", (MANY,))


def built(words):
    return Document("title", Banner(words))


def test_a_result_finds_its_page_with_what_else_is_known():
    result = Result()
    assert report.page_of(result, name="x").banner.verdict == f"{result!r} {{'name': 'x'}}"
    assert report.report_html(result).startswith("<!doctype html>")
    assert "Result" in report_markdown(result)


def test_a_derived_result_has_the_page_of_its_parent():
    assert "Special" in report.page_of(Special()).banner.verdict


def test_parts_are_shown_together_and_one_of_them_is_a_sequence_too():
    part = Part()
    assert report.page_of([part, part]).banner.verdict == f"{[part, part]!r} {{}}"
    assert report.page_of(part).banner.verdict == f"{(part,)!r} {{}}"


def test_a_single_result_may_come_in_a_list_but_not_several():
    assert "Result" in report.page_of([Result()]).banner.verdict
    with pytest.raises(SettingError, match="one report shows one Result, not 2"):
        report.page_of([Result(), Result()])


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([], "nothing to report"),
        ("text", "a str has no report; there is one for: Part, Result"),
        ([3], "a int has no report"),
    ],
)
def test_what_has_no_document_is_refused_in_words(result, words):
    with pytest.raises(SettingError, match=words):
        report.report_html(result)


def test_the_table_names_types_and_builders_that_exist(monkeypatch):
    monkeypatch.undo()
    for path, builder in document.BUILDERS.items():
        module, _, name = path.rpartition(".")
        assert isinstance(getattr(import_module(module), name), type)
        assert callable(loaded(builder))
    assert set(document.TOGETHER) <= set(document.BUILDERS.values())
