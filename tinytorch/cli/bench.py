"""``tinytorch bench``: run a suite of benchmarks, each in a fresh process."""

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
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.benchmarking.suite_file import Entry
    from tinytorch.benchmarking.suite_run import EntryOutcome, RunPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the suite, what to run of it, and what to write."""
    parser.epilog = (
        "Exit code 1 when an entry failed. Finished entries are stored at once: what a killed run "
        "has finished, --resume does not repeat."
    )
    parser.add_argument(
        "suite", metavar="SUITE", help="suite.toml, file.py:suite or package.module:suite"
    )
    running = parser.add_argument_group("running")
    running.add_argument(
        "--list", action="store_true", help="check the suite and list its entries; run nothing"
    )
    running.add_argument(
        "--only",
        metavar="PATTERN",
        help="run entries whose name has this text, or fits a * pattern",
    )
    running.add_argument(
        "--resume",
        action="store_true",
        help="go on with the last run, if it is unfinished and machine and commit are the same",
    )
    running.add_argument(
        "--budget", type=float, metavar="S", help="seconds of timing per entry, for all of them"
    )
    running.add_argument(
        "--timeout", type=float, metavar="S", help="give an entry up after S seconds (default 300)"
    )
    running.add_argument(
        "--fail-fast", action="store_true", help="stop at the first entry that fails"
    )
    showing = parser.add_argument_group("showing")
    showing.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw bars and Pareto fronts as .svg or .png"
    )
    showing.add_argument(
        "--store",
        metavar="FILE",
        help="the file with the records (default: $TINYTORCH_RECORDS, or this project's)",
    )
    add_html_option(parser)
    add_markdown_option(showing)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Check everything, then run what is left to do; show what is finished in any case."""
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
        # What is finished is shown, also when somebody has enough.
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
    from tinytorch.records.store import store_path
    from tinytorch.reporting.document import document_of
    from tinytorch.reporting.terminal import render

    payload = {
        "suite": plan.suite.name,
        "run": plan.run,
        "store": store_path(plan.store),
        "planned": len(plan.entries),
        "is_complete": len(outcomes) == len(plan.entries),
        "notes": plan.notes,
        "entries": [outcome.to_dict() for outcome in outcomes],
    }
    name, planned = plan.suite.name, len(plan.entries)
    about = {"name": name, "planned": planned, "run": plan.run, "notes": plan.notes}
    shown = render(document_of(outcomes, **about))
    output.result(payload, shown_or_markdown(options.markdown, outcomes, shown, **about))
    if options.plot is not None:
        from tinytorch.benchmarking.suite_run import suite_fronts
        from tinytorch.reporting.suite import draw_suite, write_plot

        write_plot(options.plot, draw_suite(outcomes, suite_fronts(outcomes)))
        output.say(f"wrote {options.plot}")
    write_markdown(options.markdown, outcomes, output, **about)
    write_html(options.html, outcomes, output, is_opened=options.open, **about)


def _check(options: argparse.Namespace, output: Output) -> None:
    for name in ("budget", "timeout"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise SettingError(f"--{name} {value:g}; give seconds above 0")
    for name in ("html", "markdown"):
        if options.list and getattr(options, name) is not None:
            raise SettingError(
                f"--list runs nothing that --{name} could show; leave one of them out"
            )
    check_html_path(options.html, is_opened=options.open)
    check_markdown_path(options.markdown, output)
    if options.plot is not None:
        from tinytorch.reporting.suite import check_plot

        check_plot(options.plot)
