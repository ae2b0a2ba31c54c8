"""``tinytorch monitor report``: what a running service does, from its monitor's snapshot."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_common_options,
    add_html_option,
    add_markdown_option,
    check_html_path,
    check_markdown_path,
    check_writable,
    show_result,
    write_file,
    write_reports,
)
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.monitoring.snapshot import Snapshot

REGRESSIONS = ("layer", "model", "memory")
"""Kinds of changes that are the model's own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    report = actions.add_parser(
        "report",
        help="show what a service does, and advice",
        description="Show what a monitored service does: latency by input size, layers, changes.",
        allow_abbrev=False,
    )
    add_common_options(report, is_inner=True)
    report.add_argument(
        "source",
        metavar="FILE|URL",
        help="a snapshot, a folder with those of several workers, or the URL of a service",
    )
    report.add_argument(
        "--workload",
        type=Path,
        metavar="FILE",
        help="write a workload file with the observed mix of input sizes; needs --target",
    )
    report.add_argument(
        "--target", metavar="TARGET", help="the model of that workload, such as yours.py:make"
    )
    report.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if a layer, the model or its memory changed, with 3 while it is learning",
    )
    add_markdown_option(report)
    add_html_option(report)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    _check(options, output)
    from tinytorch.monitoring.production import advise_service, workload_text
    from tinytorch.monitoring.snapshot import read_snapshot

    snapshot = read_snapshot(options.source)
    text = None
    if options.workload is not None:
        text = workload_text(snapshot, options.target, options.workload)
    advice = advise_service(snapshot)
    payload = {"snapshot": snapshot.to_dict(), "advice": [each.to_dict() for each in advice]}
    show_result(options, output, payload, snapshot, advice=advice)
    write_reports(options, output, snapshot, advice=advice)
    if text is not None:
        write_file(options.workload, text, output)
    return _verdict(snapshot) if options.check else ExitCode.FINE


def _verdict(snapshot: "Snapshot") -> ExitCode:
    if any(each.kind in REGRESSIONS for each in snapshot.active):
        return ExitCode.FAILED
    return ExitCode.FINE if snapshot.reference is not None else ExitCode.INCONCLUSIVE


def _check(options: argparse.Namespace, output: Output) -> None:
    """Raise for invalid options before anything is read."""
    if (options.workload is None) != (options.target is None):
        raise SettingError(
            "--workload FILE and --target TARGET go together: the snapshot knows the sizes, the "
            "target has the model"
        )
    if options.workload is not None:
        if options.workload.suffix != ".py":
            raise SettingError(f"--workload {options.workload} is no name of a Python file")
        check_writable(options.workload)
    check_html_path(options.html, is_opened=options.open)
    check_markdown_path(options.markdown, output)
