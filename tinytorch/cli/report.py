"""``tinytorch report``: a kept result shown again, in the terminal, as Markdown or as a page."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_html_option,
    add_markdown_option,
    check_html_path,
    check_markdown_path,
    shown_or_markdown,
    write_html,
    write_markdown,
)
from tinytorch.errors import RecordError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinytorch.reporting.kept_results import KeptResult

LAST, STDIN = "last", "-"
EPILOG = (
    "Optimizations, comparisons and runs of suites can be shown; profiles are written as a page "
    "when they are taken (`tinytorch profile TARGET --html FILE`)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to show, where it is, and what to write."""
    parser.epilog = EPILOG
    parser.add_argument(
        "record",
        metavar="RECORD",
        help=f"the start of a record's hash, {LAST!r} for the newest one, or a file that optimize "
        f"or compare wrote with --json ({STDIN} reads it from stdin)",
    )
    parser.add_argument(
        "--store",
        metavar="FILE",
        help="the file with the records (default: $TINYTORCH_RECORDS, or this project's)",
    )
    add_markdown_option(parser)
    add_html_option(parser)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Find the result, show it, and write what was asked for."""
    check_html_path(options.html, is_opened=options.open)
    check_markdown_path(options.markdown, output)
    kept = _find(options)
    shown = shown_or_markdown(options.markdown, kept.result, _rendered(kept), **kept.context)
    output.result(_payload(kept), shown)
    write_markdown(options.markdown, kept.result, output, **kept.context)
    write_html(options.html, kept.result, output, is_opened=options.open, **kept.context)
    return ExitCode.FINE


def _find(options: argparse.Namespace) -> "KeptResult":
    from tinytorch.records.store import open_store, store_path
    from tinytorch.reporting.kept_results import (
        last_result,
        result_in_file,
        result_in_store,
        result_in_text,
    )

    if options.record == STDIN:
        return result_in_text(sys.stdin.read(), "stdin")
    if _is_file(options.record):
        return result_in_file(Path(options.record))
    path = store_path(options.store)
    if not path.exists():
        raise RecordError(
            f"{options.record} is no file, and there are no records: {path} does not exist yet"
        )
    with open_store(options.store) as store:
        if options.record == LAST:
            return last_result(store)
        return result_in_store(store, options.record)


def _is_file(text: str) -> bool:
    """Tell files from hashes: a hash has no dot and no folder in it."""
    return Path(text).suffix != "" or "/" in text or Path(text).is_file()


def _rendered(kept: "KeptResult") -> "RenderableType":
    from tinytorch.reporting.document import document_of
    from tinytorch.reporting.terminal import render

    return render(document_of(kept.result, **kept.context))


def _payload(kept: "KeptResult") -> dict[str, object]:
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.tuning.optimization import Optimization

    about = {"source": kept.source, "kind": kept.kind, "context": kept.context}
    if isinstance(kept.result, Optimization):
        return {**about, "optimization": kept.result.to_dict()}
    if isinstance(kept.result, Comparison):
        return {**about, "comparison": kept.result.to_dict()}
    return {**about, "entries": [each.to_dict() for each in kept.result]}
