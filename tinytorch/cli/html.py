"""``--html FILE`` and ``--open``: a result as one HTML file, for the commands that have one."""

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from tinytorch.cli.console import Output
from tinytorch.cli.written_files import check_writable, write_file
from tinytorch.errors import SettingError


def add_html_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--html`` and ``--open``."""
    report = parser.add_argument_group("report")
    report.add_argument(
        "--html", type=Path, metavar="FILE", help="write a report that works offline, in one file"
    )
    report.add_argument("--open", action="store_true", help="show that report in a browser")


def check_html_path(path: Path | None, *, is_opened: bool = False) -> None:
    """Refuse a report that could not be written, before anything is measured."""
    if path is not None:
        check_writable(path)
    elif is_opened:
        raise SettingError("--open shows the report that --html FILE writes; name that file")


def write_html(
    path: Path | None, result: Any, output: Output, *, is_opened: bool = False, **context: Any
) -> None:
    """Write the report of a result where one was asked for, and open it where that was.

    `context` is what :func:`tinytorch.reporting.html.report.report_html` hands to the page.
    """
    if path is None:
        return
    from tinytorch.reporting.html.report import report_html

    write_file(path, report_html(result, **context), output)
    if is_opened:
        _open(path, output)


def _open(path: Path, output: Output) -> None:
    try:
        has_opened = webbrowser.open(path.absolute().as_uri())
    except webbrowser.Error:
        has_opened = False
    if not has_opened:
        output.say(f"no browser could be started; open {path} yourself")
