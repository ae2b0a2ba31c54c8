import sys
from importlib import import_module
from types import ModuleType

import pytest

from tinytorch.errors import SettingError
from tinytorch.reporting.document import loaded
from tinytorch.reporting.html import page as report
from tinytorch.reporting.html.markup import element
from tinytorch.reporting.html.page import Banner, Page, Section


class Result:
    """Something that has a page."""


class Special(Result):
    """Something whose parent has one."""


class Part:
    """One of several that have a page together."""


HERE = "tinytorch.reporting.html"
MANY = f"{HERE}.many_page:many_page"


@pytest.fixture(autouse=True)
def pages(monkeypatch):
    """Offer two pages that show what they were given."""
    for name in ("one_page", "many_page"):
        module = ModuleType(f"{HERE}.{name}")
        setattr(module, name, lambda result, **context: shown(f"{result!r} {context}"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(
        report,
        "PAGES",
        {f"{__name__}.Result": f"{HERE}.one_page:one_page", f"{__name__}.Part": MANY},
    )
    monkeypatch.setattr(report, "TOGETHER", (MANY,))


def shown(words):
    return Page("title", Banner(words, ""), (Section("a", "A", element("p", "a")),))


def test_a_result_finds_its_page_with_what_else_is_known():
    result = Result()
    assert report.page_of(result, name="x").banner.verdict == f"{result!r} {{'name': 'x'}}"
    assert report.report_html(result).startswith("<!doctype html>")


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
        ("text", "a str has no HTML report; there is one for: Part, Result"),
        ([3], "a int has no HTML report"),
    ],
)
def test_what_has_no_page_is_refused_in_words(result, words):
    with pytest.raises(SettingError, match=words):
        report.report_html(result)


def test_the_table_names_types_and_pages_that_exist(monkeypatch):
    monkeypatch.undo()
    for path, page in report.PAGES.items():
        module, _, name = path.rpartition(".")
        assert isinstance(getattr(import_module(module), name), type)
        assert callable(loaded(page))
    assert set(report.TOGETHER) <= set(report.PAGES.values())
