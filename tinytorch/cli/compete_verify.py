"""``tinytorch compete verify``: find records that were changed; judge an entry again."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.compete_check import WHAT_TRUST_MEANS
from tinytorch.cli.compete_rerun import rerun_all, rerun_one
from tinytorch.cli.compete_run import (
    add_judging_options,
    round_of,
)
from tinytorch.cli.compete_submit import counted_runs
from tinytorch.cli.console import Output
from tinytorch.cli.exit_codes import ExitCode
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.competition.rules import Finding
    from tinytorch.competition.runs.verification import CheckedFile

OF_RECORDS = "R"
"""The first letter of the rules about records."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is verified, and whether it is judged again."""
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a record, the folder of an entry, or a folder of submissions",
    )
    parser.add_argument(
        "--rerun",
        action="store_true",
        help="judge again in the round of --round, and keep the verified record; in a folder of "
        "submissions, every entry that has none in this round yet",
    )
    parser.add_argument("--trust", action="store_true", help=WHAT_TRUST_MEANS)
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="the organiser's key, which signs the record"
    )
    add_judging_options(parser)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Check everything; then, where that is asked for and nothing was changed, judge again."""
    if options.rerun and options.round is None:
        raise SettingError("--rerun asks the questions of a round; give its secret file: --round")
    from tinytorch.competition.runs.verification import check_files, findings_in

    rounds = [round_of(options.round)] if options.round else []
    files = check_files(options.path, rounds=rounds)
    if options.rerun and not _is_one(options.path):
        return rerun_all(options, output, files)
    findings = findings_in(files)
    code = _exit_code(files, findings)
    if not options.rerun:
        if not files:
            raise SettingError(f"there is no run in {options.path}, and nothing to verify")
        _show(options, output, files, findings)
        return code
    if code not in (ExitCode.FINE, ExitCode.NOT_SHOWN):
        _show(options, output, files, findings)
        output.say("not judged again: what is there was changed")
        return code
    return rerun_one(options, output)


def _is_one(path: Path) -> bool:
    """Tell an entry, or a record, from a folder of many entries."""
    from tinytorch.competition.entries.entry import MANIFEST

    return not path.is_dir() or (path / MANIFEST).exists()


def _show(
    options: argparse.Namespace,
    output: Output,
    files: "Sequence[CheckedFile]",
    findings: "Sequence[Finding]",
) -> None:
    from rich.console import Group

    from tinytorch.reporting.competition import show_findings

    counted = Counter(each.status for each in files if each.judgement is not None)
    runs = ", ".join(f"{count} {status}" for status, count in sorted(counted.items()))
    told = f"{options.path}: {counted_runs(counted.total())}{f' ({runs})' if runs else ''}"
    rows = [
        {"path": each.shown, "status": each.status, "sha256": each.sha256}
        | {"findings": each.findings}
        for each in files
    ]
    payload = {"path": options.path, "runs": dict(counted), "files": rows}
    output.result(payload, Group(told, show_findings(findings)))


def _exit_code(files: "Sequence[CheckedFile]", findings: "Sequence[Finding]") -> ExitCode:
    """Tell records that were changed from entries that break a rule, and from open questions."""
    broken = {each.rule for each in findings if each.is_fatal}
    if any(rule.startswith(OF_RECORDS) for rule in broken):
        return ExitCode.INVALID
    if broken:
        return ExitCode.FAILED
    is_open = any(each.status == "signature not checked" for each in files)
    return ExitCode.NOT_SHOWN if is_open else ExitCode.FINE
