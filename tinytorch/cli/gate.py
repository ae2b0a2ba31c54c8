"""``tinytorch gate``: fail when something became slower or less accurate."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import STDOUT, add_store_option, number, share
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.records.alarms import Confirmations
    from tinytorch.records.gate_result import GateResult
    from tinytorch.records.settings import GateSettings

EPILOG = (
    "Exit codes, the worst of all targets first: 1 a regression or a failure, 5 accuracy lost, "
    "4 measurement invalid, 3 inconclusive, 0 passed or new; 2 wrong usage. "
    "[tool.tinytorch.gate] in pyproject.toml holds the defaults."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="such as bench.py:make or package.bench:make (default: targets in pyproject.toml)",
    )
    parser.add_argument(
        "--against",
        metavar="REF|RECORD|FILE",
        help="baseline: a git revision, a record's hash (prefix), or a file of exported records",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="look for slowdowns in the history, and measure both commits of each again",
    )
    parser.add_argument(
        "--candidate", metavar="REF", help="measure this revision instead of the working tree"
    )
    parser.add_argument(
        "--tolerance", type=share, metavar="SHARE", help="allowed slowdown (default 5%%)"
    )
    parser.add_argument(
        "--margin",
        type=number,
        metavar="SCORE",
        help="allowed accuracy drop, in the unit of the scores (default 0.01)",
    )
    parser.add_argument(
        "--budget",
        type=number,
        metavar="SECONDS",
        help="time budget per target in seconds (default 20)",
    )
    parser.add_argument(
        "--timeout",
        type=number,
        metavar="SECONDS",
        help="limit for a single call in seconds (default 120)",
    )
    _add_sides(parser)
    _add_files(parser)


def _add_sides(parser: argparse.ArgumentParser) -> None:
    sides = parser.add_argument_group("environments")
    sides.add_argument(
        "--setup",
        metavar="COMMAND",
        help="command to run first in the folder of each side, such as a build",
    )
    sides.add_argument(
        "--python",
        metavar="FILE",
        help="interpreter of both sides (default: .venv/bin/python of each folder, if present)",
    )
    sides.add_argument("--baseline-python", metavar="FILE", help="interpreter of the baseline")


def _add_files(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("output")
    files.add_argument(
        "--markdown", metavar="FILE", help="write a summary for a pull request (- for stdout)"
    )
    files.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    add_store_option(files)
    files.add_argument("--no-save", action="store_true", help="do not store the results as records")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.records.alarms import confirm_suspicions
    from tinytorch.records.gate import run_gate
    from tinytorch.reporting.gate import gate_line

    _check_usage(options)
    settings = _settings(options)
    _check_writable(options.markdown, options.junit)
    with output.progress("gate", len(settings.targets) or None) as progress:
        common: dict[str, Any] = {
            "store": options.store,
            "save": not options.no_save,
            "seed": options.seed,
            "progress": progress,
            "on_result": lambda row: output.say(gate_line(row)),
        }
        result: GateResult | Confirmations
        if options.confirm:
            result = confirm_suspicions(settings, **common)
        else:
            result = run_gate(
                options.against,
                settings,
                candidate=options.candidate,
                baseline_python=options.baseline_python or "",
                **common,
            )
    _write_files(options, output, result)
    return _exit_code(result.verdict)


def _check_usage(options: argparse.Namespace) -> None:
    if options.json and options.markdown == STDOUT:
        raise SettingError("--json and --markdown - both write to stdout; pass a file to one")
    if options.confirm:
        others = [
            name for name in ("against", "candidate", "baseline_python") if vars(options)[name]
        ]
        if others:
            option = others[0].replace("_", "-")
            raise SettingError(
                f"--confirm takes both commits from the history; leave out --{option}"
            )
    elif not options.against:
        raise SettingError("name the baseline: --against main; or use --confirm with a history")


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


def _write_files(
    options: argparse.Namespace, output: Output, result: "GateResult | Confirmations"
) -> None:
    from tinytorch.records.gate_result import GateResult
    from tinytorch.reporting import markdown as renderer
    from tinytorch.reporting.document import document_of
    from tinytorch.reporting.gate import gate_annotations, gate_junit

    document = document_of(result)
    as_gate = result if isinstance(result, GateResult) else result.as_gate
    markdown = renderer.write(document)
    if options.markdown == STDOUT:
        output.result(result.to_dict(), markdown.rstrip("\n"))
    else:
        output.show(result.to_dict(), document)
    if options.markdown not in (None, STDOUT):
        _write(options.markdown, markdown)
    if options.junit:
        _write(options.junit, f'<?xml version="1.0" encoding="utf-8"?>\n{gate_junit(as_gate)}')
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            _write(summary, markdown, append=True)
        except SettingError as error:  # the verdict is on stdout already
            output.say(f"the summary of this step was not written: {error}")
    if os.environ.get("GITHUB_ACTIONS"):
        # The runner reads both streams, and stdout may be JSON.
        sys.stderr.writelines(f"{line}\n" for line in gate_annotations(as_gate))


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
    """Raise unless the files can be written, before anything is measured."""
    for file in files:
        if file not in (None, STDOUT):
            _write(str(file), "", append=True)


def _write(file: str, text: str, *, append: bool = False) -> None:
    try:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except OSError as error:
        raise SettingError(
            f"{file} cannot be written ({error.strerror or error}); pass another file"
        ) from error
