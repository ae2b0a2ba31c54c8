"""``--markdown FILE``: a result as Markdown, for a pull request or a wiki."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import Output
from tinytorch.cli.written_files import check_writable, write_file
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from rich.console import RenderableType

STDOUT = "-"


def add_markdown_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--markdown`` to a command, or to a group of its options."""
    parser.add_argument(
        "--markdown", metavar="FILE", help="write it as Markdown (- for stdout, in place of text)"
    )


def check_markdown_path(path: str | None, output: Output) -> None:
    """Refuse a file that could not be written, before anything is measured."""
    if path == STDOUT and output.as_json:
        raise SettingError("--json and --markdown - both want stdout; write one of them to a file")
    if path not in (None, STDOUT):
        check_writable(Path(path))


def shown_or_markdown(
    path: str | None, result: Any, shown: "RenderableType", **context: Any
) -> "RenderableType":
    """Give what a command prints: Markdown where stdout was asked for, else what people read.

    `context` is what :func:`tinytorch.reporting.result_markdown.report_markdown` takes.
    """
    return _markdown(result, **context).rstrip("\n") if path == STDOUT else shown


def write_markdown(path: str | None, result: Any, output: Output, **context: Any) -> None:
    """Write the Markdown of a result into a file, where one was asked for."""
    if path not in (None, STDOUT):
        write_file(Path(path), _markdown(result, **context), output)


def _markdown(result: Any, **context: Any) -> str:
    from tinytorch.reporting.result_markdown import report_markdown

    return report_markdown(result, **context)
