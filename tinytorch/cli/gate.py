"""``tinytorch gate``: fail when something became slower or less accurate."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import number, share
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.records.gate_result import GateResult
    from tinytorch.records.settings import GateSettings

EPILOG = (
    "Exit codes, the worst of all targets first: 1 a regression or a failure, 5 accuracy lost, "
    "4 measurement invalid, 3 inconclusive, 0 passed or new; 2 wrong usage. "
    "[tool.tinytorch.gate] in pyproject.toml holds the defaults."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to compare with, what to measure, and where results go."""
    parser.epilog = EPILOG
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="such as bench.py:make or package.bench:make (default: those in pyproject.toml)",
    )
    parser.add_argument(
        "--against",
        required=True,
        metavar="REF|RECORD|FILE",
        help="a revision of git, the start of a record's hash, or a file of exported records",
    )
    parser.add_argument(
        "--candidate", metavar="REF", help="measure this revision instead of the working tree"
    )
    parser.add_argument(
        "--tolerance", type=share, metavar="SHARE", help="how much slower is fine (default 5%%)"
    )
    parser.add_argument(
        "--margin",
        type=number,
        metavar="SCORE",
        help="how much less accurate is fine, in the unit of the scores (default 0.01)",
    )
    parser.add_argument(
        "--budget",
        type=number,
        metavar="SECONDS",
        help="seconds of timing per target at most (default 20)",
    )
    parser.add_argument(
        "--timeout",
        type=number,
        metavar="SECONDS",
        help="give up a call that takes longer (default 120)",
    )
    _add_sides(parser)
    _add_files(parser)


def _add_sides(parser: argparse.ArgumentParser) -> None:
    sides = parser.add_argument_group("the two sides")
    sides.add_argument(
        "--setup",
        metavar="COMMAND",
        help="run this in the folder of each side before, e.g. a build",
    )
    sides.add_argument(
        "--python",
        metavar="FILE",
        help="interpreter of both sides; .venv/bin/python is looked for in each folder",
    )
    sides.add_argument(
        "--baseline-python", metavar="FILE", help="interpreter of the baseline alone"
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("results")
    files.add_argument(
        "--markdown", metavar="FILE", help="write a summary for a pull request (- for stdout)"
    )
    files.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    files.add_argument(
        "--store",
        metavar="FILE",
        help="the file with the records (default: $TINYTORCH_RECORDS, or this project's)",
    )
    files.add_argument("--no-save", action="store_true", help="do not keep the results as records")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Run the gate, write what was asked for, and give the worst verdict as an exit code."""
    from tinytorch.records.gate import run_gate
    from tinytorch.reporting.gate import gate_line

    if options.json and options.markdown == "-":
        raise SettingError("--json and --markdown - both want stdout; write one of them to a file")
    settings = _settings(options)
    _check_writable(options.markdown, options.junit)
    with output.progress("gate", len(settings.targets) or None) as progress:
        result = run_gate(
            options.against,
            settings,
            candidate=options.candidate,
            baseline_python=options.baseline_python or "",
            store=options.store,
            save=not options.no_save,
            seed=options.seed,
            progress=progress,
            on_result=lambda row: output.say(gate_line(row)),
        )
    _write_files(options, output, result)
    return _exit_code(result.verdict)


def _settings(options: argparse.Namespace) -> "GateSettings":
    from tinytorch.records.settings import read_gate_settings
    from tinytorch.records.worktrees import find_repository

    try:
        top = find_repository(Path.cwd()).top
    except SettingError:
        top = None
    return read_gate_settings(Path.cwd(), top=top).changed(
        targets=tuple(options.targets) or None,
        tolerance=options.tolerance,
        margin=options.margin,
        budget_s=options.budget,
        timeout_s=options.timeout,
        setup=options.setup,
        python=options.python,
    )


def _write_files(options: argparse.Namespace, output: Output, result: "GateResult") -> None:
    from tinytorch.reporting.gate import gate_annotations, gate_junit, gate_markdown, render_gate

    markdown = gate_markdown(result)
    if options.markdown == "-":
        output.result(result.to_dict(), markdown.rstrip("\n"))
    else:
        output.result(result.to_dict(), render_gate(result))
    if options.markdown not in (None, "-"):
        _write(options.markdown, markdown)
    if options.junit:
        _write(options.junit, f'<?xml version="1.0" encoding="utf-8"?>\n{gate_junit(result)}')
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            _write(summary, markdown, append=True)
        except SettingError as error:  # the verdict is there, and stands on stdout
            output.say(f"the summary of this step was not written: {error}")
    if os.environ.get("GITHUB_ACTIONS"):
        # The runner reads both streams, and stdout may be JSON.
        sys.stderr.writelines(f"{line}\n" for line in gate_annotations(result))


def _exit_code(verdict: str) -> ExitCode:
    from tinytorch.measure.estimate import INCONCLUSIVE
    from tinytorch.records import gate_result

    codes = {
        gate_result.FAILED: ExitCode.FAILED,
        gate_result.REGRESSION: ExitCode.FAILED,
        gate_result.ACCURACY: ExitCode.ACCURACY,
        gate_result.INVALID: ExitCode.INVALID,
        INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        gate_result.PASSED: ExitCode.FINE,
        gate_result.NEW: ExitCode.FINE,
    }
    return codes[verdict]


def _check_writable(*files: str | None) -> None:
    """Refuse a file that cannot be written before anything is measured for it."""
    for file in files:
        if file not in (None, "-"):
            _write(str(file), "", append=True)


def _write(file: str, text: str, *, append: bool = False) -> None:
    try:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except OSError as error:
        raise SettingError(
            f"{file} cannot be written ({error.strerror or error}); name another file"
        ) from error
