"""``tinytorch compete check``: check an entry against the rules, without timing it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output

if TYPE_CHECKING:
    from tinytorch.competition.rules import Finding

WHAT_TRUST_MEANS = "run the Python code of the entry; review it first"
WHAT_UNCONFINED_MEANS = (
    "run the code without a sandbox, where it can do whatever you can; record and board show it"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the entry")
    parser.add_argument("--trust", action="store_true", help=WHAT_TRUST_MEANS)
    parser.add_argument("--unconfined", action="store_true", help=WHAT_UNCONFINED_MEANS)
    parser.add_argument("--no-run", action="store_true", help="do not build and run the model")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.reporting.competition import findings_document
    from tinytorch.reporting.terminal import render

    sha256, findings = _check(options)
    is_fatal = any(each.is_fatal for each in findings)
    payload = {"folder": options.folder, "entry_sha256": sha256, "findings": findings}
    output.result({**payload, "passed": not is_fatal}, render(findings_document(findings)))
    if not is_fatal:
        given = [f" --{name}" for name in ("trust", "unconfined") if getattr(options, name)]
        output.say(f"next: tinytorch compete run {options.folder}{''.join(given)}")
    return ExitCode.FAILED if is_fatal else ExitCode.FINE


def _check(options: argparse.Namespace) -> "tuple[str, tuple[Finding, ...]]":
    """Return the entry's hash and the findings; an unreadable entry is a finding, too."""
    from tinytorch.competition.entry import EntryError, read_entry
    from tinytorch.competition.entry_checks import check_entry
    from tinytorch.competition.sandbox.contender import Limits

    try:
        entry = read_entry(options.folder)
    except EntryError as error:
        return "", (error.finding,)
    limits = Limits(unconfined=options.unconfined)
    run = not options.no_run
    return entry.sha256, check_entry(entry, trust=options.trust, run=run, limits=limits)
