"""Options that several commands share: adding them, parsing values, writing the files."""

import argparse
import math
import os
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import Output
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.reporting.document import Document

TARGET_FORMS = "mlp, cnn, gpt, file.py:factory, package.module:factory or hf:PATH"

# ---------------------------------------------------------------- ``--json``, ``--quiet`` and
# ``--seed``: the options of every command, also inside of one


def add_common_options(parser: argparse.ArgumentParser, *, is_inner: bool = False) -> None:
    """Add the options that every command has.

    A nested parser (``tinytorch compete run``) sets only the options given to it, so that they may
    come before its name as well as after it.
    """

    def otherwise(default: object) -> object:
        return argparse.SUPPRESS if is_inner else default

    common = parser.add_argument_group("common options")
    common.add_argument(
        "--json",
        action="store_true",
        default=otherwise(False),
        help="print the result as JSON on stdout, messages on stderr",
    )
    common.add_argument(
        "--quiet",
        action="store_true",
        default=otherwise(False),
        help="suppress messages and progress",
    )
    common.add_argument(
        "--verbose",
        action="store_true",
        default=otherwise(False),
        help="print all of the result, not only the verdict and what it rests on",
    )
    common.add_argument(
        "--seed",
        type=_seed,
        default=otherwise(0),
        metavar="N",
        help="random seed (default 0)",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a non-negative integer")
    return int(text)


# ---------------------------------------------------------------- values of options


def number(text: str) -> float:
    """Parse a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def share(text: str) -> float:
    """Parse a fraction, such as 0.05 or 5%."""
    from tinytorch.records.settings import parse_share

    try:
        return parse_share(text)
    except SettingError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive_share(text: str) -> float:
    if not share(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0; pass a fraction such as 1%")
    return share(text)


def confidence(text: str) -> float:
    """Parse a confidence level, at least 50%."""
    if share(text) < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is below 50%; pass a level such as 95%")
    return share(text)


def margin(text: str) -> float:
    """Parse a margin: a percentage such as 1%, or a number in the unit of the scores."""
    if text.strip().endswith("%"):
        return share(text)
    if number(text) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative; pass a margin such as 0.01")
    return number(text)


def seconds(text: str) -> float:
    if text.strip().endswith("%") or not number(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0; pass seconds such as 2")
    return number(text)


def positive_count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def variable(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def whole_numbers(text: str | None, option: str = "--sizes") -> tuple[int, ...] | None:
    """Parse the value of an option such as --sizes 8,16,32; None stays None."""
    if text is None:
        return None
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise SettingError(f"{option} {text!r}; pass integers, such as 8,16,32")
    return tuple(int(word) for word in words)


# ---------------------------------------------------------------- files: checked before measuring,
# written atomically


def check_writable(path: Path) -> None:
    """Raise unless a file can be created at `path`."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder; pass the name of a file")
    if path.exists() and not path.is_file():  # a device or a pipe, which is written to
        if not os.access(path, os.W_OK):
            raise SettingError(f"{path} cannot be written: no permission")
        return
    path = Path(os.path.realpath(path))
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SettingError(f"{path} cannot be written: there is no folder {folder}")
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise SettingError(f"{path} cannot be written: {folder}: {reason}") from error


def write_file(path: Path, text: str, output: Output) -> None:
    """Write a file atomically, with a message on stderr."""
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}") from error
    output.say(f"wrote {path}")


# ---------------------------------------------------------------- ``--html FILE`` and ``--open``:
# a result as one HTML file, for the commands that have one


def add_html_option(
    parser: argparse.ArgumentParser, *, about: str = "a self-contained HTML report"
) -> None:
    report = parser.add_argument_group("report")
    report.add_argument("--html", type=Path, metavar="FILE", help=f"write {about}")
    report.add_argument("--open", action="store_true", help="open that report in a browser")


def check_html_path(path: Path | None, *, is_opened: bool = False) -> None:
    """Raise unless the report can be written, before anything is measured."""
    if path is not None:
        check_writable(path)
    elif is_opened:
        raise SettingError("--open shows the report that --html FILE writes; name that file")


def add_suite_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suite", metavar="SUITE", help="suite.toml, file.py:suite or package.module:suite"
    )


def add_only_option(parser: argparse._ActionsContainer, what: str) -> None:
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help=f"run {what} whose name contains this text, or matches a * pattern",
    )


def add_store_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--store",
        metavar="FILE|URL",
        help="the record store (default: $TINYTORCH_RECORDS, or this project's)",
    )


def write_html(
    path: Path | None, result: Any, output: Output, *, is_opened: bool = False, **context: Any
) -> None:
    """Write the HTML report of a result if `path` is given, and open it if requested.

    `context` goes to :func:`tinytorch.reporting.html.page.report_html`.
    """
    if path is None:
        return
    from tinytorch.reporting.html.page import report_html

    write_file(path, report_html(result, **context), output)
    open_page(path, output, is_wanted=is_opened)


def open_page(path: Path, output: Output, *, is_wanted: bool) -> None:
    """Open a page in a browser, if that was requested."""
    if not is_wanted:
        return
    try:
        has_opened = webbrowser.open(path.absolute().as_uri())
    except webbrowser.Error:
        has_opened = False
    if not has_opened:
        output.say(f"no browser could be started; open {path} manually")


# ---------------------------------------------------------------- ``--markdown FILE``: a result as
# Markdown, for a pull request or a wiki

STDOUT = "-"


def add_markdown_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the result as Markdown (- for stdout)"
    )


def check_markdown_path(path: str | None, output: Output) -> None:
    """Raise unless the file can be written, before anything is measured."""
    if path == STDOUT and output.as_json:
        raise SettingError("--json and --markdown - both write to stdout; pass a file to one")
    if path not in (None, STDOUT):
        check_writable(Path(path))


def write_markdown(path: str | None, result: Any, output: Output, **context: Any) -> None:
    """Write a result as Markdown if `path` names a file."""
    if path not in (None, STDOUT):
        write_file(Path(path), _markdown(result, **context), output)


def _markdown(result: Any, **context: Any) -> str:
    from tinytorch.reporting.markdown import report_markdown

    return report_markdown(result, **context)


def add_report_options(
    parser: argparse.ArgumentParser,
    group: argparse._ActionsContainer | None = None,
    *,
    about: str = "a self-contained HTML report",
) -> None:
    """Add ``--html``, ``--open`` and, in its group, ``--markdown``."""
    add_html_option(parser, about=about)
    add_markdown_option(group or parser)


def check_reports(options: argparse.Namespace, output: Output) -> None:
    """Raise unless the reports can be written, before anything is measured."""
    check_html_path(options.html, is_opened=options.open)
    check_markdown_path(options.markdown, output)


# ---------------------------------------------------------------- a result: printed, then written
# to the files that were asked for

AGAIN = "tinytorch report last --verbose, or --html page.html for the page"
"""How to see more of a result that is in the store."""


def show_result(
    options: argparse.Namespace,
    output: Output,
    payload: Mapping[str, object],
    result: Any,
    *,
    document: "Document | None" = None,
    is_stored: bool = False,
    **context: Any,
) -> None:
    """Print a result: its document, or Markdown for ``--markdown -``.

    `context` goes to its builder; `document` is one already built.
    """
    if options.markdown == STDOUT:
        output.result(payload, _markdown(result, **context).rstrip("\n"))
        return
    from tinytorch.reporting.document import document_of

    more = f"--verbose; the page is {options.html}"
    if options.html is None:
        more = AGAIN if is_stored else "--verbose, or --html FILE for a page"
    output.show(payload, document or document_of(result, **context), more=more)


def write_reports(options: argparse.Namespace, output: Output, result: Any, **context: Any) -> None:
    """Write the files of ``--markdown FILE`` and ``--html FILE``."""
    write_markdown(options.markdown, result, output, **context)
    write_html(options.html, result, output, is_opened=options.open, **context)
