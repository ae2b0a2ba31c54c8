"""``tinytorch report``: show a stored result in the terminal, as Markdown or as HTML."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_report_options,
    add_store_option,
    check_reports,
    show_result,
    write_reports,
)
from tinytorch.errors import RecordError

if TYPE_CHECKING:
    from tinytorch.reporting.kept_results import KeptResult

LAST, STDIN = "last", "-"
EPILOG = (
    "Shows optimizations, comparisons and suite runs. Profiles are not stored; write their report "
    "with `tinytorch profile TARGET --html FILE`."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "record",
        metavar="RECORD",
        help=f"a record's hash (prefix), {LAST!r} for the newest record, or a JSON file written by "
        f"optimize or compare ({STDIN} for stdin)",
    )
    add_store_option(parser)
    add_report_options(parser)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    check_reports(options, output)
    kept = _find(options)
    show_result(options, output, _payload(kept), kept.result, **kept.context)
    write_reports(options, output, kept.result, **kept.context)
    return ExitCode.FINE


def _find(options: argparse.Namespace) -> "KeptResult":
    from tinytorch.records.location import store_path
    from tinytorch.records.store import open_store
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
        raise RecordError(f"{options.record} is not a file, and there is no record store at {path}")
    with open_store(options.store) as store:
        if options.record == LAST:
            return last_result(store)
        return result_in_store(store, options.record)


def _is_file(text: str) -> bool:
    """Return whether this is a path: a hash has no dot and no slash."""
    return Path(text).suffix != "" or "/" in text or Path(text).is_file()


def _payload(kept: "KeptResult") -> dict[str, object]:
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.tuning.optimization import Optimization

    about = {"source": kept.source, "kind": kept.kind, "context": kept.context}
    if isinstance(kept.result, Optimization):
        return {**about, "optimization": kept.result.to_dict()}
    if isinstance(kept.result, Comparison):
        return {**about, "comparison": kept.result.to_dict()}
    return {**about, "entries": [each.to_dict() for each in kept.result]}
