"""Verification: are records, entries and folders of submissions as they were written?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from tinytorch.competition import signing
from tinytorch.competition.entry import (
    MANIFEST,
    RESULTS,
    Entry,
    EntryError,
    read_entry,
    visible_path,
)
from tinytorch.competition.events import KEPT, draw_questions, find_event, tier_margin, tier_verdict
from tinytorch.competition.judgement import FEWEST_HEATS, Judgement
from tinytorch.competition.judgement_record import claims_verified, judgement_in, score_fields
from tinytorch.competition.rounds import PRACTICE, Round, read_round
from tinytorch.competition.rules import Finding, doubt, finding
from tinytorch.competition.run_files import (
    NOT_CHECKED,
    ROUNDS,
    SEED_NOT_REVEALED,
    DamagedFile,
    KeptRun,
    Status,
    entry_folders,
    path_below,
    read_record_file,
    run_files,
)
from tinytorch.errors import RecordError, SettingError
from tinytorch.records.record import Record

# ---------------------------------------------------------------- do the numbers of a record follow
# from its raw values? (rule R3)

CLOSE = 1e-9
"""Logarithms of other machines may differ in the last digits."""
CLOCKS_DIFFER = timedelta(hours=1)
Check = Callable[[Record, Judgement], Iterator[str]]


def check_numbers(record: Record, judgement: Judgement) -> tuple[Finding, ...]:
    """Check that the numbers of a record follow from its raw values."""
    return tuple(finding("R3", seen) for check in CHECKS for seen in check(record, judgement))


def _score(record: Record, judgement: Judgement) -> Iterator[str]:
    stored, expected = record.details["score"], score_fields(judgement.score)
    if expected is None or not isinstance(stored, dict):
        if stored != expected:
            yield f"the score says {stored}, the heats give {expected}"
        return
    if stored.keys() != expected.keys():
        yield f"the score has {', '.join(stored)} instead of {', '.join(expected)}"
        return
    for name, value in expected.items():
        said = stored[name]
        is_number = isinstance(said, int | float) and not isinstance(said, bool)
        if not is_number or not math.isclose(said, value, rel_tol=CLOSE):
            yield f"the score says {name} {said}, the heats give {value:.6g}"


def _heats(record: Record, judgement: Judgement) -> Iterator[str]:
    is_clean = not any(each.is_fatal for each in judgement.findings)
    if is_clean and len(judgement.heats) < FEWEST_HEATS:
        yield f"{len(judgement.heats)} heats without a finding; a run has {FEWEST_HEATS} or more"
    if judgement.seconds_used < 0:
        yield f"it took {judgement.seconds_used} seconds"


def _moment(record: Record, judgement: Judgement) -> Iterator[str]:
    if datetime.fromisoformat(record.created_at) > datetime.now(UTC) + CLOCKS_DIFFER:
        yield f"it was made at {record.created_at}, which is still to come"


def _accuracy(record: Record, judgement: Judgement) -> Iterator[str]:
    """Check margin and verdict against the scores; a finding A2 may not be missing."""
    is_clean = not any(each.is_fatal for each in judgement.findings)
    if judgement.accuracy is None:
        if is_clean:
            yield "no answer was scored, and nothing was found against it"
        return
    # A copy, which takes what it has computed along; thousands of runs may be held at once.
    found = replace(judgement.accuracy)
    margin = tier_margin(judgement.event, judgement.entry.tier, found.baseline_mean)
    if not math.isclose(found.margin, margin, rel_tol=CLOSE, abs_tol=CLOSE):
        yield f"accuracy may drop by {found.margin:g} in it, but by {margin:g} in this tier"
    if is_clean and tier_verdict(found) != KEPT:
        yield "its scores do not show that the accuracy is kept, but there is no finding A2"


def _ablations(record: Record, judgement: Judgement) -> Iterator[str]:
    declared = [each.name for each in judgement.entry.techniques]
    removed = [each.technique for each in judgement.ablations]
    odd = [name for name in removed if name not in declared]
    if odd or len(set(removed)) < len(removed):
        yield f"the techniques {removed} were switched off, {declared} are declared"


CHECKS: tuple[Check, ...] = (_score, _heats, _moment, _accuracy, _ablations)


# ---------------------------------------------------------------- is a run verified? Only what can
# be checked here counts, never the record's word alone
#
# A run whose signature cannot be checked here, for want of the package, has a separate status.
# For the rest, a record that says so is believed when its commitment is that of a known round and
#
# - the round names a public key, and the record is signed with that key; or - the round names none,
# its seed is revealed, and the questions are those of the seed; or - the round names none, and its
# seed is not revealed yet. Then whoever keeps the folder is believed, and the status says that
# others cannot check it yet.
#
# After the seed is revealed, anyone could make a record that fits it. Only a key keeps such
# records out, which is why a round among strangers needs one.

Known = Iterable[Round]


def status_of(
    record: Record, judgement: Judgement, *, signature: signing.SignatureCheck, rounds: Known
) -> Status:
    """Return the verification status of a run."""
    if not signature.is_checked:
        return NOT_CHECKED
    found = find_round(judgement, rounds)
    if not claims_verified(record) or found is None or found.name == PRACTICE.name:
        return "unverified"
    wrong = check_round(record, judgement, signer=signature.signer, rounds=[found])
    if any(each.is_fatal for each in wrong):
        return "unverified"
    return "verified" if found.public_key or found.is_revealed else "verified, seed not revealed"


def find_round(judgement: Judgement, rounds: Known) -> Round | None:
    """Return the round of a run among the known ones, with its seed where it is revealed."""
    same = [
        each
        for each in (*rounds, PRACTICE)
        if (each.name, each.commitment) == (judgement.round_name, judgement.commitment)
    ]
    return next((each for each in same if each.is_revealed), same[0] if same else None)


def check_round(
    record: Record, judgement: Judgement, *, signer: str, rounds: Known
) -> tuple[Finding, ...]:
    """Check that a run belongs to its round (R2), and to the organiser if it claims so (R4).

    `signer` is the key that signed, or "".
    """
    found, is_claimed = find_round(judgement, rounds), claims_verified(record)
    if found is None:
        seen = f"the round {judgement.round_name!r} of this commitment is not known here"
        make = finding if is_claimed else doubt
        return (make("R2", seen, "give the file of the round"),)
    if is_claimed and found.name == PRACTICE.name:
        seen = "it says that it is verified, which no run of the practice round is"
        return (finding("R2", seen, "let the organiser judge it in a round"),)
    if found.created_at and record.created_at < found.created_at:
        return (finding("R2", f"it was made before the round {found.name!r} began"),)
    if is_claimed and found.public_key and not _is_same_key(signer, found.public_key):
        seen = f"it says that it is verified, but the key of the round {found.name!r} did not sign"
        return (finding("R4", seen, "let the organiser judge and sign it"),)
    return _check_questions(judgement, found)


def _check_questions(judgement: Judgement, found: Round) -> tuple[Finding, ...]:
    """Compare the hash of the questions with what the seed gives, where that is known.

    An interrupted run has no score, and its questions are not checked.
    """
    if not found.is_revealed or not judgement.is_valid:
        return ()
    try:
        expected = _questions_sha256(judgement.entry.event, found, len(judgement.heats))
    except SettingError as error:
        return (finding("R2", f"its questions cannot be drawn: {error}"),)
    if judgement.data_sha256 == expected:
        return ()
    return (finding("R2", f"its questions are not those of the seed of round {found.name!r}"),)


def _is_same_key(signer: str, expected: str) -> bool:
    try:
        return signer == signing.public_part(expected)
    except SettingError:
        return False


@lru_cache(maxsize=256)
def _questions_sha256(event: str, found: Round, heats: int) -> str:
    """Return the hash of the questions of a round; drawing images takes seconds."""
    return draw_questions(find_event(event), found, heats=heats).sha256


# ---------------------------------------------------------------- checking records, entries and
# whole folders


@dataclass(frozen=True)
class CheckedFile:
    """A file, what was found against it, and how far its run is believed.

    `judgement` and `sha256`, the hash of the record, are set where it could be read. `signer` is
    the public key whose signature holds.
    """

    path: Path
    shown: str
    findings: tuple[Finding, ...] = ()
    status: Status = "unverified"
    judgement: Judgement | None = None
    sha256: str = ""
    signer: str = ""


def findings_in(files: Sequence[CheckedFile]) -> tuple[Finding, ...]:
    """Return the findings of these files, prefixed with their names.

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
        found.append(doubt("R4", seen, signing.WHAT_TO_INSTALL))
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


def _check_run(
    path: Path, shown: str, rounds: Sequence[Round], *, only_claimed: bool = False
) -> CheckedFile:
    """Check one record by itself (R1, R3), its signature (R4) and its round (R2).

    With `only_claimed`, the round is checked only of a record that claims to be verified: drawing
    the questions of a round takes seconds.
    """
    try:
        record = read_record_file(path)
        judgement = judgement_in(record)
    except RecordError as error:
        return CheckedFile(path, shown, (finding("R1", str(error)),))
    signature = signing.check_signature(path, record.hash)
    findings = (*check_numbers(record, judgement), *signature.findings)
    if claims_verified(record) or not only_claimed:
        findings += check_round(record, judgement, signer=signature.signer, rounds=rounds)
    status = status_of(record, judgement, signature=signature, rounds=rounds)
    signer = signature.signer if signature.is_checked else ""
    return CheckedFile(path, shown, findings, status, judgement, record.hash, signer)


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
    """Check the files of each entry against the hashes in its runs.

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


# ---------------------------------------------------------------- where runs are kept: beside the
# entry they are of, and in the folder of all submissions
#
# ::
#
#     results/20270503T120000Z-0123456789ab.json     beside entry.json: one file per run
#     results/20270503T120000Z-0123456789ab.json.sig its signature, where there is one
#
#     submissions/rounds/spring-2027.json            the rounds
#     submissions/EVENT/TEAM/0123456789ab/           a copy of an entry, named by its hash, and runs
#
# No run is ever overwritten or left out. A folder of submissions comes from others: nothing in it
# is executed, links are not followed, and what is no record is listed with the reason.


@dataclass(frozen=True)
class Folder:
    """What a folder of submissions holds: runs oldest first, damaged files, and rounds."""

    records: tuple[KeptRun, ...] = ()
    damaged: tuple[DamagedFile, ...] = ()
    rounds: tuple[Round, ...] = ()


def read_folder(folder: str | Path) -> Folder:
    """Read every run below a folder; what cannot be read is listed, and nothing is raised for it.

    A copy of a run counts once. What breaks a rule about records, such as a run that says it is
    verified and is not, does not count at all.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}; make one with `tinytorch compete submit`")
    damaged: list[DamagedFile] = []
    rounds = tuple(read_rounds(folder, damaged))
    runs: dict[str, KeptRun] = {}
    for path in run_files(folder, damaged):
        file = _check_run(path, path_below(folder, path), rounds, only_claimed=True)
        reason = next((f"{x.rule}: {x.seen}" for x in file.findings if x.is_fatal), "")
        if file.sha256 in runs and not reason:
            reason = f"a copy of {runs[file.sha256].path}, which counts once"
        if reason or file.judgement is None:
            damaged.append(DamagedFile(file.shown, visible_path(reason)))
            continue
        runs[file.sha256] = KeptRun(
            file.judgement, file.sha256, file.status, file.signer, file.shown
        )
    ordered = sorted(runs.values(), key=lambda run: (run.judgement.created_at, run.sha256))
    return Folder(tuple(ordered), tuple(damaged), rounds)


def read_rounds(folder: Path, damaged: list[DamagedFile]) -> Iterator[Round]:
    """Yield the rounds of a folder of submissions; unreadable files are added to `damaged`."""
    place = folder / ROUNDS
    if place.is_symlink() or not place.is_dir():
        return
    for path in sorted(place.glob("*.json")):
        try:
            if path.is_symlink() or not path.is_file():
                raise RecordError("no ordinary file")
            yield read_round(path)
        except RecordError as error:
            damaged.append(DamagedFile(path_below(folder, path), visible_path(str(error))))


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
    """Return the first fatal finding about a file of an entry, or ""."""
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
        and not any(each.rule == "T7" for each in found.findings)
    )
