"""``tinytorch compete run``: time an entry against the reference, and store the run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.compete_check import WHAT_TRUST_MEANS, WHAT_UNCONFINED_MEANS
from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_html_option,
    check_html_path,
    check_writable,
    positive_count,
    write_html,
)
from tinytorch.errors import MissingPartError, SettingError

if TYPE_CHECKING:
    from tinytorch.competition.entry import Entry
    from tinytorch.competition.judgement import Judgement
    from tinytorch.competition.rounds import Round

HEATS = 10
NOT_JUDGED = "not judged, and nothing was stored: fix the entry, then run again"
NOTHING_KEPT = "\nstopped: the run is incomplete, and nothing was stored"
STILL_COUNTS = "\nstopped: the run is incomplete; of unconfined code it counts as one that died"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the entry")
    parser.add_argument("--trust", action="store_true", help=WHAT_TRUST_MEANS)
    add_judging_options(parser)
    add_html_option(parser)


def add_judging_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `verify --rerun` has as well."""
    judging = parser.add_argument_group("judging")
    judging.add_argument("--unconfined", action="store_true", help=WHAT_UNCONFINED_MEANS)
    judging.add_argument(
        "--round",
        type=Path,
        metavar="FILE",
        help="file of a round with its seed (default: the practice round)",
    )
    judging.add_argument(
        "--heats",
        type=positive_count,
        default=HEATS,
        metavar="N",
        help=f"number of heats, each in fresh processes; a score needs 6 (default {HEATS})",
    )
    judging.add_argument(
        "--no-ablations",
        action="store_true",
        help="skip the ablations (each technique switched off in turn); no innovation score",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    check_html_path(options.html, is_opened=options.open)
    from tinytorch.competition import judge as judging
    from tinytorch.competition.entry import read_entry
    from tinytorch.competition.entry_checks import check_entry
    from tinytorch.competition.judgement_record import as_record
    from tinytorch.competition.sandbox.contender import Limits
    from tinytorch.competition.submissions import judge_and_keep
    from tinytorch.reporting.competition import findings_document, judgement_document
    from tinytorch.reporting.terminal import render

    entry, asked = read_entry(options.folder), round_of(options.round)
    check_before_judging(entry, trust=options.trust, unconfined=options.unconfined)
    findings = check_entry(entry, trust=options.trust, run=False)
    if any(each.is_fatal for each in findings):
        shown = render(findings_document(findings))
        output.result({"findings": findings, "exit_code": 1}, shown)
        output.say(NOT_JUDGED)
        return ExitCode.FAILED
    ablations = not options.no_ablations
    steps = judging.steps_of(entry, heats=options.heats, ablations=ablations)
    try:
        with output.progress("judging", steps) as progress:
            judgement, path = judge_and_keep(
                entry,
                asked,
                heats=options.heats,
                ablations=ablations,
                trust=options.trust,
                limits=Limits(unconfined=options.unconfined),
                seed=options.seed,
                progress=progress,
            )
    except KeyboardInterrupt:
        output.say(what_is_kept(entry, unconfined=options.unconfined))
        raise
    kept = from_here(path)
    output.say(f"stored as {kept}")
    code = exit_code_of(judgement)
    record = as_record(judgement, status="unverified")
    payload = {"file": kept, "exit_code": int(code), "record": record.to_dict()}
    shown = render(judgement_document(judgement))
    output.result({**payload, "score": judgement.score}, shown)
    write_html(options.html, judgement, output, is_opened=options.open)
    return code


def what_is_kept(entry: "Entry", *, unconfined: bool) -> str:
    """Return what a run that was stopped by hand leaves."""
    return STILL_COUNTS if unconfined and entry.code is not None else NOTHING_KEPT


def check_before_judging(entry: "Entry", *, trust: bool, unconfined: bool) -> None:
    """Raise for code without trust or a sandbox, a missing extra, and a folder that is read-only.

    None of these is a run: stored as one, a forgotten --trust would count against the team.
    """
    from tinytorch.competition.entry import RESULTS
    from tinytorch.competition.sandbox.bubblewrap import check_sandbox

    if entry.code is not None and not trust:
        raise SettingError(
            f"E6: the entry is Python code, {entry.code}; review it, then pass --trust to run it"
        )
    check_sandbox(entry.code, unconfined=unconfined)
    _check_parts(entry)
    results = entry.folder / RESULTS
    check_writable((results if results.is_dir() else entry.folder) / "run.json")


def _check_parts(entry: "Entry") -> None:
    from tinytorch.competition.entry import EntryError
    from tinytorch.competition.techniques import missing_parts

    for technique in entry.techniques if entry.code is None else ():
        try:
            missing = missing_parts(technique)
        except EntryError:  # it is no technique, which the judge says and which is the entry's own
            continue
        if missing:
            raise MissingPartError(
                f"E8: {technique.name} needs a part that is not installed here; install the extra: "
                f"pip install '.[{missing[0]}]'"
            )


def round_of(path: Path | None) -> "Round":
    """Read the round of a file, by default the practice round."""
    from tinytorch.competition.rounds import PRACTICE, read_round

    return PRACTICE if path is None else read_round(path)


def from_here(path: Path) -> Path:
    """Return a path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def exit_code_of(judgement: "Judgement") -> ExitCode:
    """Return the exit code: rules first, then accuracy, then speed."""
    from tinytorch.competition.events import tier_verdict
    from tinytorch.measure.estimate import INCONCLUSIVE

    broken = {each.rule for each in judgement.findings if each.is_fatal}
    if broken - {"A2"}:
        return ExitCode.FAILED
    if broken:
        found = judgement.accuracy
        is_open = found is not None and tier_verdict(found) == INCONCLUSIVE
        return ExitCode.INCONCLUSIVE if is_open else ExitCode.ACCURACY
    if judgement.score is None:
        return ExitCode.INVALID
    return ExitCode.FINE if judgement.score.verdict == "faster" else ExitCode.INCONCLUSIVE
