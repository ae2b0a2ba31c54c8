"""The one lazy door from results to how they are shown.

A result derives from :class:`Shown` and is then shown by `print`, a terminal and a notebook.
Nothing of `reporting` is imported before a result is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


class Shown:
    """A result that shows itself: in brief by `print`, whole by rich, in a notebook as HTML."""

    __slots__ = ()

    def __str__(self) -> str:
        from tinytorch.reporting import document, terminal

        return terminal.plain(document.document_of(self))

    def __rich__(self) -> RenderableType:
        from tinytorch.reporting import document, terminal

        return terminal.render(document.document_of(self))

    def _repr_html_(self) -> str:
        from tinytorch.reporting.markdown import notebook_html

        return notebook_html(self.__rich__())


def page_of(result: Any) -> str:
    """Return the report of a result as a page: HTML, in one file."""
    from tinytorch.reporting.html.page import report_html

    return report_html(result)


def profiling_reports() -> Any:
    """Return the module with the reports of the classic profiling tools."""
    from tinytorch.reporting import profiling_classics

    return profiling_classics


def benchmarking_reports() -> Any:
    """Return the module with the tables, figures and reports of the classic benchmarking tools."""
    from tinytorch.reporting import benchmarking_classics

    return benchmarking_classics


def saved_texts() -> Any:
    """Return the module that writes what was measured of a saved model."""
    from tinytorch.reporting import saved

    return saved


def competition_boards() -> Any:
    """Return the module that shows boards of the competition."""
    from tinytorch.reporting import competition as competition_board

    return competition_board
