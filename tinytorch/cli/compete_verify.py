"""``tinytorch compete verify``: find records that were changed; judge an entry again."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.compete_check import WHAT_TRUST_MEANS
from tinytorch.cli.compete_run import (
    add_judging_options,
    check_before_judging,
    exit_code_of,
    from_here,
    round_of,
    what_is_kept,
)
from tinytorch.cli.compete_submit import counted_runs
from tinytorch.cli.console import ExitCode, Output
from tinytorch.errors import SettingError, TinyTorchError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinytorch.competition.entry import Entry
    from tinytorch.competition.rules import Finding
    from tinytorch.competition.submissions import Rerun
    from tinytorch.competition.verification import CheckedFile, SkippedEntry, WaitingEntries

# ---------------------------------------------------------------- ``--rerun``: judge one entry
# again, or all that are pending

OF_RECORDS = ("R1", "R2", "R3", "R4")
GO_ON = "run the same command to continue"


def rerun_one(options: argparse.Namespace, output: Output) -> ExitCode:
    """Judge one entry again, store the run, and compare it with the team's."""
    from tinytorch.competition.entry import read_entry
    from tinytorch.competition.judgement_record import as_record
    from tinytorch.reporting.competition import judgement_document
    from tinytorch.reporting.terminal import render

    entry = read_entry(options.path)
    check_before_judging(entry, trust=options.trust, unconfined=options.unconfined)
    try:
        found = _rerun(entry, options, output, title="judging")
    except KeyboardInterrupt:
        output.say(what_is_kept(entry, unconfined=options.unconfined))
        raise
    kept = from_here(found.path)
    output.say(f"stored as {kept}")
    output.say(_in_words(found))
    code = exit_code_of(found.judgement)
    record = as_record(found.judgement, status="verified")
    payload = {"file": kept, "exit_code": int(code), "record": record.to_dict()}
    scores = {"score": found.judgement.score, "claimed": found.claimed, "agrees": found.agrees}
    output.result({**payload, **scores}, render(judgement_document(found.judgement)))
    return code


@dataclass
class _Outcome:
    """Results of a folder so far."""

    judged: "dict[str, Rerun]" = field(default_factory=dict)
    skipped: "list[SkippedEntry]" = field(default_factory=list)


def rerun_all(
    options: argparse.Namespace, output: Output, files: "Sequence[CheckedFile]"
) -> ExitCode:
    """Judge every entry of a folder that has no verified run in the round yet, one by one."""
    from tinytorch.competition.submissions import check_can_verify
    from tinytorch.competition.verification import find_waiting

    check_can_verify(round_of(options.round), options.key)
    waiting = find_waiting(options.path, round_of(options.round), files=files)
    if not (waiting.ready or waiting.changed or waiting.done):
        raise SettingError(f"there is no entry in {options.path}; pass a submissions folder")
    outcome = _Outcome(skipped=list(waiting.changed))
    ready = dict(_judgeable(waiting, outcome, options))
    output.say(f"{len(ready)} to judge, {len(waiting.done)} judged in this round before")
    for number, (shown, entry) in enumerate(ready.items(), 1):
        place = f"{number} of {len(ready)}"
        output.say(f"{place}: {shown}")
        try:
            outcome.judged[shown] = _rerun(entry, options, output, title=f"judging {place}")
        except KeyboardInterrupt:
            output.say(f"\nstopped: {len(outcome.judged)} of {len(ready)} are judged; {GO_ON}")
            raise
        except TinyTorchError as error:
            _skip(outcome, shown, str(error))
    output.result(_fields(outcome, waiting), _shown(outcome, waiting))
    if any(each.is_fatal and each.rule in OF_RECORDS for file in files for each in file.findings):
        output.say(f"something was changed; see: tinytorch compete verify {options.path}")
        return ExitCode.INVALID
    return ExitCode.FAILED if outcome.skipped else ExitCode.FINE


def _judgeable(
    waiting: "WaitingEntries", outcome: _Outcome, options: argparse.Namespace
) -> "Iterator[tuple[str, Entry]]":
    """Yield the entries that can be judged here; skip untrusted code and missing extras."""
    for shown, entry in waiting.ready.items():
        try:
            check_before_judging(entry, trust=options.trust, unconfined=options.unconfined)
        except TinyTorchError as error:
            _skip(outcome, shown, str(error))
            continue
        yield shown, entry


def _skip(outcome: _Outcome, shown: str, reason: str) -> None:
    from tinytorch.competition.verification import SkippedEntry

    outcome.skipped.append(SkippedEntry(shown, reason))


def _rerun(entry: "Entry", options: argparse.Namespace, output: Output, *, title: str) -> "Rerun":
    from tinytorch.competition.judge import steps_of
    from tinytorch.competition.sandbox.contender import Limits
    from tinytorch.competition.submissions import rerun

    ablations = not options.no_ablations
    steps = steps_of(entry, heats=options.heats, ablations=ablations)
    with output.progress(title, steps) as progress:
        return rerun(
            entry.folder,
            round_of(options.round),
            key=options.key,
            trust=options.trust,
            limits=Limits(unconfined=options.unconfined),
            heats=options.heats,
            ablations=ablations,
            seed=options.seed,
            progress=progress,
        )


def _in_words(found: "Rerun") -> str:
    if found.claimed is None:
        return "no valid run of the team to compare with"
    claimed = f"{found.claimed.value:.2f}x ({found.claimed.low:.2f}x to {found.claimed.high:.2f}x)"
    if found.agrees is None:
        return f"the team measured {claimed}; this run has no score"
    fits = "and the intervals overlap" if found.agrees else "and the intervals do not overlap"
    return f"the team measured {claimed}, {fits}"


def _fields(outcome: _Outcome, waiting: "WaitingEntries") -> dict[str, object]:
    judged = [
        {
            "path": shown,
            "file": from_here(each.path),
            "exit_code": int(exit_code_of(each.judgement)),
            "score": each.judgement.score,
            "claimed": each.claimed,
            "agrees": each.agrees,
        }
        for shown, each in outcome.judged.items()
    ]
    skipped = [{"path": each.shown, "reason": each.reason} for each in outcome.skipped]
    return {"judged": judged, "skipped": skipped, "judged_before": list(waiting.done)}


def _shown(outcome: _Outcome, waiting: "WaitingEntries") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from tinytorch.reporting.competition import headline, plain
    from tinytorch.reporting.terminal import STYLES

    parts = []
    for shown, each in outcome.judged.items():
        words, tone = headline(each.judgement)
        style = f"bold {STYLES[tone]}"
        parts += [Text(shown), Text(f"  {words}", style=style), Text(f"  {_in_words(each)}", "dim")]
    if outcome.skipped:
        parts.append(Text(f"not judged: {len(outcome.skipped)}", style="bold red"))
    for skipped in outcome.skipped:
        parts += [Text(skipped.shown), Text(f"  {plain(skipped.reason)}", style="red")]
    counts = f"{len(outcome.judged)} judged, {len(waiting.done)} before"
    return Group(*parts, Text(f"{counts}, {len(outcome.skipped)} not judged"))


# ---------------------------------------------------------------- ``tinytorch compete verify``:
# find records that were changed; judge an entry again

CODES_OF_RECORDS = "R"
"""The first letter of the rules about records."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a record, the folder of an entry, or a submissions folder",
    )
    parser.add_argument(
        "--rerun",
        action="store_true",
        help="judge again in the round of --round, and store the verified record; in a submissions "
        "folder, every entry that has none in this round yet",
    )
    parser.add_argument("--trust", action="store_true", help=WHAT_TRUST_MEANS)
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="the organiser's key, which signs the record"
    )
    add_judging_options(parser)


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    if options.rerun and options.round is None:
        raise SettingError("--rerun needs --round, the secret file of a round")
    from tinytorch.competition.verification import check_files, findings_in

    rounds = [round_of(options.round)] if options.round else []
    files = check_files(options.path, rounds=rounds)
    if options.rerun and not _is_one(options.path):
        return rerun_all(options, output, files)
    findings = findings_in(files)
    code = _exit_code(files, findings)
    if not options.rerun:
        if not files:
            raise SettingError(f"there is no run to verify in {options.path}")
        _show(options, output, files, findings)
        return code
    if code not in (ExitCode.FINE, ExitCode.INCONCLUSIVE):
        _show(options, output, files, findings)
        output.say("not judged again: a record was changed")
        return code
    return rerun_one(options, output)


def _is_one(path: Path) -> bool:
    """Return whether this is one entry or record, and not a submissions folder."""
    from tinytorch.competition.entry import MANIFEST

    return not path.is_dir() or (path / MANIFEST).exists()


def _show(
    options: argparse.Namespace,
    output: Output,
    files: "Sequence[CheckedFile]",
    findings: "Sequence[Finding]",
) -> None:
    from tinytorch.reporting.competition import findings_document
    from tinytorch.reporting.terminal import render

    counted = Counter(each.status for each in files if each.judgement is not None)
    runs = ", ".join(f"{count} {status}" for status, count in sorted(counted.items()))
    told = f"{options.path}: {counted_runs(counted.total())}{f' ({runs})' if runs else ''}"
    rows = [
        {"path": each.shown, "status": each.status, "sha256": each.sha256}
        | {"findings": each.findings}
        for each in files
    ]
    payload = {"path": options.path, "runs": dict(counted), "files": rows}
    output.result(payload, render(findings_document(findings, about=told)))


def _exit_code(files: "Sequence[CheckedFile]", findings: "Sequence[Finding]") -> ExitCode:
    """Return the exit code: changed records first, then broken rules, then unchecked signatures."""
    broken = {each.rule for each in findings if each.is_fatal}
    if any(rule.startswith(CODES_OF_RECORDS) for rule in broken):
        return ExitCode.INVALID
    if broken:
        return ExitCode.FAILED
    is_open = any(each.status == "signature not checked" for each in files)
    return ExitCode.INCONCLUSIVE if is_open else ExitCode.FINE
