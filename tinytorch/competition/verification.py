"""Check records, entries and whole folders of submissions: is everything as it was written?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tinytorch.competition.entry import MANIFEST, RESULTS, Entry, EntryError, visible_path
from tinytorch.competition.entry_file import read_entry
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.judgement_record import judgement_in
from tinytorch.competition.record_checks import check_numbers, check_round, status_of
from tinytorch.competition.rounds import Round
from tinytorch.competition.rules import Finding, doubt, finding
from tinytorch.competition.run_files import (
    NOT_CHECKED,
    SEED_NOT_REVEALED,
    DamagedFile,
    Status,
    entry_folders,
    path_below,
    read_record_file,
    run_files,
)
from tinytorch.competition.signing import WHAT_TO_INSTALL, check_signature
from tinytorch.competition.submissions import Rerun, read_rounds, rerun
from tinytorch.errors import RecordError, SettingError

__all__ = [
    "CheckedFile",
    "Rerun",
    "SkippedEntry",
    "WaitingEntries",
    "check_files",
    "find_waiting",
    "findings_in",
    "rerun",
    "verify",
]


@dataclass(frozen=True)
class CheckedFile:
    """A file, what was found against it, and how far its run is believed.

    `judgement` and `sha256`, the hash of the record, are there where it could be read.
    """

    path: Path
    shown: str
    findings: tuple[Finding, ...] = ()
    status: Status = "unverified"
    judgement: Judgement | None = None
    sha256: str = ""


def verify(path: str | Path, *, rounds: Sequence[Round] = ()) -> tuple[Finding, ...]:
    """Give everything that is found against a record, an entry's folder, or a whole folder.

    In a folder, what was seen begins with the name of the file.
    """
    files = check_files(path, rounds=rounds)
    if Path(path).is_file() and Path(path).name != MANIFEST:
        files = tuple(replace(each, shown="") for each in files)
    return findings_in(files)


def findings_in(files: Sequence[CheckedFile]) -> tuple[Finding, ...]:
    """Give what was found in these files, with their names where they have one.

    That a package is missing is said once, however many signatures could not be checked.
    """
    found = [
        replace(each, seen=f"{file.shown}: {each.seen}" if file.shown else each.seen)
        for file in files
        for each in file.findings
    ]
    not_checked = sum(file.status == NOT_CHECKED for file in files)
    if not_checked:
        count = "1 record" if not_checked == 1 else f"{not_checked} records"
        seen = f"the signature of {count} was not checked: the package cryptography is missing"
        found.append(doubt("R4", seen, WHAT_TO_INSTALL))
    return tuple(found)


def check_files(path: str | Path, *, rounds: Sequence[Round] = ()) -> tuple[CheckedFile, ...]:
    """Check a record, or every record and entry below a folder, file by file.

    The rounds that lie in the folder are known besides those that are given.
    """
    path = Path(path)
    folder = path.parent if path.name == MANIFEST else path
    if path.is_file() and path.name != MANIFEST:
        run = _check_run(path, visible_path(path.name), rounds)
        return run, *_check_entries(path.parent, [run])
    if not folder.is_dir():
        raise SettingError(f"there is no file or folder {path}; check its name")
    damaged: list[DamagedFile] = []
    known = (*rounds, *read_rounds(folder, damaged))
    runs = [
        _check_run(each, path_below(folder, each), known) for each in run_files(folder, damaged)
    ]
    runs = list(_without_copies(runs))
    refused = [
        CheckedFile(folder / each.path, each.path, (finding("R1", each.reason),))
        for each in damaged
    ]
    return *runs, *refused, *_check_entries(folder, runs)


def _check_run(path: Path, shown: str, rounds: Sequence[Round]) -> CheckedFile:
    """Check one record by itself (R1, R3), its signature (R4) and its round (R2)."""
    try:
        record = read_record_file(path)
        judgement = judgement_in(record)
    except RecordError as error:
        return CheckedFile(path, shown, (finding("R1", str(error)),))
    signature = check_signature(path, record.hash)
    findings = (
        *check_numbers(record, judgement),
        *signature.findings,
        *check_round(record, judgement, signer=signature.signer, rounds=rounds),
    )
    status = status_of(record, judgement, signature=signature, rounds=rounds)
    return CheckedFile(path, shown, findings, status, judgement, record.hash)


def _without_copies(runs: Iterable[CheckedFile]) -> Iterator[CheckedFile]:
    """Note every run that is there twice; it counts once."""
    first: dict[str, str] = {}
    for run in runs:
        known = first.setdefault(run.sha256, run.shown) if run.sha256 else run.shown
        if known == run.shown:
            yield run
            continue
        copied = doubt("R1", f"a copy of {known}, which counts once", "remove one of them")
        yield replace(run, findings=(*run.findings, copied))


def _check_entries(folder: Path, runs: Sequence[CheckedFile]) -> Iterator[CheckedFile]:
    """Hold the files of each entry against the hashes in its runs.

    Runs of former versions of an entry are history. Where no run fits, the files were changed.
    """
    places = dict.fromkeys(
        run.path.parent.parent for run in runs if run.path.parent.name == RESULTS
    )
    for place in places:
        manifest = place / MANIFEST
        if not manifest.is_file():
            continue
        shown = path_below(folder, manifest) if manifest.is_relative_to(folder) else MANIFEST
        of_runs = [
            run.judgement.entry.sha256
            for run in runs
            if run.path.parent.parent == place and run.judgement is not None
        ]
        yield CheckedFile(manifest, shown, tuple(_check_entry(manifest, of_runs)))


def _check_entry(manifest: Path, of_runs: Sequence[str]) -> Iterator[Finding]:
    try:
        found = read_entry(manifest).sha256
    except EntryError as error:
        yield error.finding
        return
    others = sum(each != found for each in of_runs)
    if not others:
        return
    if others < len(of_runs):
        seen = f"{others} of {len(of_runs)} runs are of former versions of the entry"
        yield doubt("R1", seen, "they stay as history")
        return
    yield finding("R1", "the files of the entry are not those that ran", "run the entry again")


# ---------------------------------------------------------------- which entries of a folder wait
# for the organiser's run in a round


@dataclass(frozen=True)
class SkippedEntry:
    """An entry that is not judged, by its place in the folder, and why."""

    shown: str
    reason: str


@dataclass(frozen=True)
class WaitingEntries:
    """The entries of a folder: `done` have a verified run in the round, `ready` wait for one.

    `changed` are not judged: something was found against their files. Names are paths below the
    folder.
    """

    ready: dict[str, Entry]
    changed: tuple[SkippedEntry, ...] = ()
    done: tuple[str, ...] = ()


def find_waiting(
    folder: str | Path, asked: Round, *, files: Sequence[CheckedFile]
) -> WaitingEntries:
    """Sort the entries below a folder; `files` is what `check_files` gave for it.

    Whoever was interrupted goes on with those that are still `ready`.
    """
    folder = Path(folder)
    ready: dict[str, Entry] = {}
    changed, done = [], []
    for place in entry_folders(folder):
        shown = path_below(folder, place)
        reason = _reason_against(place, files)
        try:
            entry = read_entry(place)
        except EntryError as error:
            changed.append(SkippedEntry(shown, reason or f"{error.finding.rule}: {error}"))
            continue
        if reason:
            changed.append(SkippedEntry(shown, reason))
        elif any(_is_verified_run(each, place, entry, asked) for each in files):
            done.append(shown)
        else:
            ready[shown] = entry
    return WaitingEntries(ready, tuple(changed), tuple(done))


def _reason_against(place: Path, files: Sequence[CheckedFile]) -> str:
    """Give the first thing that was found against a file of an entry, or ""."""
    found = (
        f"{each.rule}: {each.seen}"
        for file in files
        if file.path.is_relative_to(place)
        for each in file.findings
        if each.is_fatal
    )
    return next(found, "")


def _is_verified_run(file: CheckedFile, place: Path, entry: Entry, asked: Round) -> bool:
    found = file.judgement
    return (
        found is not None
        and file.status in ("verified", SEED_NOT_REVEALED)
        and file.path.is_relative_to(place)
        and (found.round_name, found.commitment) == (asked.name, asked.commitment)
        and found.entry.sha256 == entry.sha256
    )
