"""Options that several commands share, what they hold, and the files that they name."""

import argparse
import math
import os
import webbrowser
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import Output
from tinytorch.core.files import write_atomically
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "add_common_options",
    "confidence",
    "margin",
    "number",
    "positive_count",
    "positive_share",
    "seconds",
    "share",
    "variable",
    "whole_numbers",
]


# ---------------------------------------------------------------- ``--json``, ``--quiet`` and
# ``--seed``: the options of every command, also inside of one


def add_common_options(parser: argparse.ArgumentParser, *, is_inner: bool = False) -> None:
    """Add the options that every command has.

    An inner parser (``tinytorch compete run``) sets only what is given to it, so that the options
    may stand before its name as well as after it.
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
        help="print the result and nothing else",
    )
    common.add_argument(
        "--seed",
        type=_seed,
        default=otherwise(0),
        metavar="N",
        help="seed of everything random (default 0)",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 on, not {text!r}")
    return int(text)


# ---------------------------------------------------------------- what options of commands hold:
# shares, seconds, counts, sizes, and what is no such thing


def number(text: str) -> float:
    """Read a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return value


def share(text: str) -> float:
    """Read a share of 1, such as 0.05 or 5%."""
    from tinytorch.records.settings import parse_share

    try:
        return parse_share(text)
    except SettingError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive_share(text: str) -> float:
    """Read a share that is more than nothing."""
    if not share(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} leaves nothing; give a share such as 1%")
    return share(text)


def confidence(text: str) -> float:
    """Read a confidence from 50% on."""
    if share(text) < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no confidence; give one such as 95%")
    return share(text)


def margin(text: str) -> float:
    """Read a margin: a share such as 1%, or a number in the unit of the scores."""
    if text.strip().endswith("%"):
        return share(text)
    if number(text) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}; a margin is zero or more")
    return number(text)


def seconds(text: str) -> float:
    """Read a time that is more than nothing."""
    if text.strip().endswith("%") or not number(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds such as 2")
    return number(text)


def positive_count(text: str) -> int:
    """Read a whole number from 1 on."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"give a whole number from 1 on, not {text!r}")
    return int(text)


def variable(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} sets nothing; write NAME=VALUE")
    return name, value


def whole_numbers(text: str | None) -> tuple[int, ...] | None:
    """Read what was given as --sizes, such as 8,16,32; None where nothing was."""
    if text is None:
        return None
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise SettingError(f"--sizes {text!r}; give whole numbers, such as 8,16,32")
    return tuple(int(word) for word in words)


# ---------------------------------------------------------------- files that a command writes
# beside its result: refused before measuring, written whole or not


def check_writable(path: Path) -> None:
    """Try whether a file can be made where `path` will be; minutes of measuring depend on it."""
    if path.is_dir():
        raise SettingError(f"{path} is a folder; give the name of a file")
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
    """Write a file and say so. A reader sees the old one or the new one, never half."""
    try:
        with write_atomically(path) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}") from error
    output.say(f"wrote {path}")


# ---------------------------------------------------------------- ``--html FILE`` and ``--open``:
# a result as one HTML file, for the commands that have one


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

    `context` is what :func:`tinytorch.reporting.html.page.report_html` hands to the page.
    """
    if path is None:
        return
    from tinytorch.reporting.html.page import report_html

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


# ---------------------------------------------------------------- ``--markdown FILE``: a result as
# Markdown, for a pull request or a wiki

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

    `context` is what :func:`tinytorch.reporting.markdown.report_markdown` takes.
    """
    return _markdown(result, **context).rstrip("\n") if path == STDOUT else shown


def write_markdown(path: str | None, result: Any, output: Output, **context: Any) -> None:
    """Write the Markdown of a result into a file, where one was asked for."""
    if path not in (None, STDOUT):
        write_file(Path(path), _markdown(result, **context), output)


def _markdown(result: Any, **context: Any) -> str:
    from tinytorch.reporting.markdown import report_markdown

    return report_markdown(result, **context)
