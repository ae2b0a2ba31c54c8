"""``tinytorch bench``: run a suite of benchmarks, each in a fresh process."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_only_option,
    add_report_options,
    add_store_option,
    add_suite_argument,
    check_reports,
    show_result,
    write_reports,
)
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.benchmarking.suite_file import Entry
    from tinytorch.benchmarking.suite_run import EntryOutcome, RunPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code 1 when an entry failed. Finished entries are stored at once: --resume does not "
        "repeat them after an interruption."
    )
    add_suite_argument(parser)
    running = parser.add_argument_group("running")
    running.add_argument(
        "--list", action="store_true", help="check the suite and list its entries; run nothing"
    )
    add_only_option(running, "entries")
    running.add_argument(
        "--resume",
        action="store_true",
        help="resume the last run, if it is unfinished and on the same machine and commit",
    )
    running.add_argument(
        "--budget",
        type=float,
        metavar="S",
        help="time budget per entry in seconds, overriding the suite's",
    )
    running.add_argument(
        "--timeout", type=float, metavar="S", help="time limit per entry in seconds (default 300)"
    )
    running.add_argument(
        "--fail-fast", action="store_true", help="stop at the first entry that fails"
    )
    showing = parser.add_argument_group("output")
    showing.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="write bar charts and Pareto fronts as .svg or .png",
    )
    add_store_option(showing)
    add_report_options(parser, showing)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    _check(options, output)
    from tinytorch.benchmarking.suite_file import load_suite
    from tinytorch.benchmarking.suite_run import plan_run, run_suite, select_entries

    suite = load_suite(options.suite)
    if options.budget is not None:
        suite = suite.with_budget(options.budget)
    if options.list:
        entries = select_entries(suite.entries(seed=options.seed), options.only)
        return _list(output, suite.name, entries)
    plan = plan_run(
        suite,
        seed=options.seed,
        only=options.only,
        store=options.store,
        resume=options.resume,
    )
    for note in plan.notes:
        output.say(note)
    outcomes: list[EntryOutcome] = []
    try:
        with output.progress(suite.name, total=len(plan.entries)) as progress:

            def starting(entry: "Entry") -> None:
                if not sys.stderr.isatty():  # where no bar is drawn
                    output.say(f"{len(outcomes) + 1} of {len(plan.entries)}: {entry.name} ...")
                progress.describe(entry.name)

            for outcome in run_suite(
                plan, timeout_s=options.timeout, fail_fast=options.fail_fast, starting=starting
            ):
                outcomes.append(outcome)
                progress.advance()
    finally:
        # Finished entries are shown, also after Ctrl-C.
        if outcomes:
            _show(options, output, plan, outcomes)
    has_failed = any(outcome.failure is not None for outcome in outcomes)
    return ExitCode.FAILED if has_failed else ExitCode.FINE


def _list(output: Output, name: str, entries: "tuple[Entry, ...]") -> ExitCode:
    from tinytorch.reporting.suite import entries_document
    from tinytorch.reporting.terminal import render

    rows = [{"name": entry.name, "key": entry.key, "settings": entry.settings} for entry in entries]
    output.result({"suite": name, "entries": rows}, render(entries_document(entries)))
    return ExitCode.FINE


def _show(
    options: argparse.Namespace, output: Output, plan: "RunPlan", outcomes: "list[EntryOutcome]"
) -> None:
    from tinytorch.records.location import store_path

    planned, name = len(plan.entries), plan.suite.name
    common: dict[str, Any] = {"planned": planned, "run": plan.run, "notes": plan.notes}
    payload = common | {
        "suite": name,
        "store": store_path(plan.store),
        "is_complete": len(outcomes) == planned,
        "entries": [outcome.to_dict() for outcome in outcomes],
    }
    about = common | {"name": name}
    show_result(options, output, payload, outcomes, is_stored=True, **about)
    if options.plot is not None:
        from tinytorch.benchmarking.suite_run import suite_fronts
        from tinytorch.reporting.suite import draw_suite, write_plot

        write_plot(options.plot, draw_suite(outcomes, suite_fronts(outcomes)))
        output.say(f"wrote {options.plot}")
    write_reports(options, output, outcomes, **about)


def _check(options: argparse.Namespace, output: Output) -> None:
    for name in ("budget", "timeout"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(f"--{name} {value:g} is not above 0")
    for name in ("html", "markdown"):
        if options.list and getattr(options, name) is not None:
            raise SettingError(f"--list cannot be combined with --{name}")
    check_reports(options, output)
    if options.plot is not None:
        from tinytorch.reporting.suite import check_plot

        check_plot(options.plot)
