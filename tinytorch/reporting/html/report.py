"""Any result as one HTML file: find its page, and write that."""

from __future__ import annotations

from typing import Any

from tinytorch.errors import SettingError
from tinytorch.reporting.html.page import Page, render_page
from tinytorch.reporting.result_types import are_many, loaded, row_for

__all__ = ["page_of", "report_html"]

PAGES = {
    "tinytorch.workloads.profile.Profile": "tinytorch.reporting.html.profile_page:profile_page",
    "tinytorch.comparison.comparison.Comparison": (
        "tinytorch.reporting.html.comparison_page:comparison_page"
    ),
    "tinytorch.tuning.optimization.Optimization": (
        "tinytorch.reporting.html.optimization_page:optimization_page"
    ),
    "tinytorch.tuning.tour.Tour": "tinytorch.reporting.html.tour_page:tour_page",
    "tinytorch.records.suite_outcome.EntryOutcome": (
        "tinytorch.reporting.html.suite_page:suite_page"
    ),
    "tinytorch.records.trends.Trend": "tinytorch.reporting.html.history_page:history_page",
    "tinytorch.competition.boards.board.Board": "tinytorch.reporting.html.board_page:board_page",
    "tinytorch.competition.judgement.Judgement": (
        "tinytorch.reporting.html.judgement_page:judgement_page"
    ),
}
"""Type of a result -> the module and the function that makes its page.

By name, so that nobody waits for the pages of other results. Results that come in numbers, the
outcomes of a suite and the trends of a history, are handed over together.
"""
TOGETHER = (
    "tinytorch.reporting.html.suite_page:suite_page",
    "tinytorch.reporting.html.history_page:history_page",
)
"""Pages of a sequence of results."""


def report_html(result: Any, **context: Any) -> str:
    """Give the HTML file of a profile, comparison, optimization, suite run, history or board.

    A suite run is the sequence of its outcomes, a history one of trends. What a page can show
    beside the result goes into `context`, such as the `name` of a suite.
    """
    return render_page(page_of(result, **context))


def page_of(result: Any, **context: Any) -> Page:
    """Give the page of a result; :func:`report_html` writes it."""
    name, many = row_for(result, PAGES, face="HTML report"), are_many(result)
    if many and name not in TOGETHER:
        if len(result) > 1:
            raise SettingError(
                f"one report shows one {type(result[0]).__name__}, not {len(result)}"
            )
        result = result[0]
    if name in TOGETHER and not many:
        result = (result,)
    page: Page = loaded(name)(result, **context)
    return page
