"""``tinytorch sweep``: the trials of a suite, on this machine or on a Ray cluster."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import ExitCode, Output, Progress
from tinytorch.cli.options import (
    add_html_option,
    add_markdown_option,
    add_only_option,
    add_store_option,
    add_suite_argument,
    check_html_path,
    check_markdown_path,
    positive_count,
    seconds,
    show_result,
    write_reports,
)
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.benchmarking.sweep import Sweep, SweepPlan, TrialDone
    from tinytorch.measure.executor import Executor, TrialCall

SHOWN_SLOTS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code 1 when a trial failed. Every result is stored at once: after an interruption "
        "the same command goes on, here or on another machine with the same store."
    )
    add_suite_argument(parser)
    where = parser.add_argument_group("where")
    where.add_argument(
        "--on", choices=sorted(EXECUTORS), default="local", help="what runs trials (default local)"
    )
    where.add_argument(
        "--address", default="", metavar="HOST:PORT", help="the Ray cluster (default: found here)"
    )
    where.add_argument(
        "--slots",
        type=positive_count,
        metavar="N",
        help="with --on local: N trials at once, each on its own cores (default 1, on all)",
    )
    where.add_argument(
        "--cores", type=positive_count, metavar="N", help="with --on ray: cores of a slot"
    )
    where.add_argument(
        "--gpus", type=positive_count, metavar="N", help="with --on ray: GPUs of a slot"
    )
    where.add_argument(
        "--machines",
        choices=("each", "any"),
        default="each",
        help="run a trial once on each kind of machine (default), or once on any",
    )
    where.add_argument(
        "--checks",
        default="20",
        metavar="N",
        help="A/A comparisons of a slot on arrival (default 20; 0 for none)",
    )
    running = parser.add_argument_group("running")
    running.add_argument("--list", action="store_true", help="list the trials; run nothing")
    add_only_option(running, "trials")
    running.add_argument(
        "--again", action="store_true", help="begin anew where an unfinished sweep would go on"
    )
    running.add_argument(
        "--budget", type=seconds, metavar="S", help="time budget per trial in seconds"
    )
    running.add_argument(
        "--timeout", type=seconds, metavar="S", help="time limit per trial in seconds"
    )
    showing = parser.add_argument_group("output")
    add_store_option(showing)
    add_html_option(parser)
    add_markdown_option(showing)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    _check(options, output)
    from tinytorch.benchmarking.suite_file import load_suite
    from tinytorch.benchmarking.suite_run import select_entries
    from tinytorch.benchmarking.sweep import Sweep, arrival_call, plan_sweep, sweep_result

    suite = load_suite(options.suite)
    if options.budget is not None:
        suite = suite.with_budget(options.budget)
    if options.list:
        entries = select_entries(suite.entries(seed=options.seed), options.only)
        rows = [{"name": x.name, "key": x.key, "settings": x.settings} for x in entries]
        text = "\n".join(x.name for x in entries)
        output.result({"suite": suite.name, "trials": rows}, text)
        return ExitCode.FINE
    # The executor first: a sweep that cannot begin leaves no mark in the store.
    executor = EXECUTORS[options.on](options, arrival_call(int(options.checks)))
    try:
        plan = plan_sweep(
            suite,
            seed=options.seed,
            only=options.only,
            store=options.store,
            machines=options.machines,
            again=options.again,
        )
        for note in plan.notes:
            output.say(note)
        sweep = Sweep(plan, executor, timeout_s=options.timeout)
        try:
            _follow(sweep, output)
        finally:
            slots = executor.slots
            executor.close()
            # What is finished is shown, also after Ctrl-C.
            result = sweep_result(plan, slots)
            if result.outcomes:
                _show(options, output, plan, result)
    finally:
        executor.close()
    return ExitCode.FAILED if result.failed else ExitCode.FINE


def _follow(sweep: "Sweep", output: Output) -> None:
    """Run a sweep, and show the progress of all slots in one line."""
    with output.progress(sweep.plan.suite.name, total=None) as progress:
        for done in sweep.run():
            progress.advance()
            _tell(sweep, done, progress, output)


def _tell(sweep: "Sweep", done: "TrialDone", progress: Progress, output: Output) -> None:
    running = list(sweep.executor.running.items())
    shown = "; ".join(f"{slot}: {name}" for slot, name in running[:SHOWN_SLOTS])
    more = f"; {len(running) - SHOWN_SLOTS} more" if len(running) > SHOWN_SLOTS else ""
    count = f"{sweep.finished} of {sweep.planned}"
    progress.describe(f"{count} on {len(running)} slots: {shown}{more}")
    if sys.stderr.isatty():  # where a bar is drawn
        return
    how = f"failed: {done.failure}" if done.failure else f"{done.child_s:.1f} s"
    doubt = ", disturbed" if done.is_disturbed else ""
    output.say(f"{count}: {done.name} on {done.slot}: {how}{doubt}")


def _show(options: argparse.Namespace, output: Output, plan: "SweepPlan", result: Any) -> None:
    from tinytorch.records.location import store_path
    from tinytorch.reporting.sweep import sweep_fields

    payload = {**sweep_fields(result), "store": store_path(plan.store)}
    show_result(options, output, payload, result)
    write_reports(options, output, result)


def _local(options: argparse.Namespace, arrival: "TrialCall") -> "Executor":
    from tinytorch.measure.executor import LocalExecutor, core_groups, usable_core_numbers

    groups = core_groups(usable_core_numbers(), options.slots) if options.slots else ()
    return LocalExecutor(groups, arrival=arrival)


def _on_ray(options: argparse.Namespace, arrival: "TrialCall") -> "Executor":
    from tinytorch.scale.ray import RayExecutor

    return RayExecutor(
        options.address, arrival=arrival, cores=options.cores or 0, gpus=options.gpus or 0
    )


EXECUTORS: dict[str, Callable[[argparse.Namespace, "TrialCall"], "Executor"]] = {
    "local": _local,
    "ray": _on_ray,
}
OPTIONS_OF = {"local": ("slots",), "ray": ("address", "cores", "gpus")}
"""What runs trials -> its own options."""


def _check(options: argparse.Namespace, output: Output) -> None:
    for executor, names in OPTIONS_OF.items():
        for name in names:
            if executor != options.on and getattr(options, name):
                raise SettingError(f"--{name} is for --on {executor}, not --on {options.on}")
    if not options.checks.isdecimal():
        raise SettingError(f"--checks {options.checks}: give a whole number, 0 for none")
    for name in ("html", "markdown"):
        if options.list and getattr(options, name) is not None:
            raise SettingError(f"--list cannot be combined with --{name}")
    check_html_path(options.html, is_opened=options.open)
    check_markdown_path(options.markdown, output)
