"""Where runs are kept: beside the entry they are of, and in the folder of all submissions.

::

    results/20270503T120000Z-0123456789ab.json     beside entry.json: one file per run
    results/20270503T120000Z-0123456789ab.json.sig its signature, where there is one

    submissions/rounds/spring-2027.json            the rounds
    submissions/EVENT/TEAM/0123456789ab/           a copy of an entry, named by its hash, and runs

No run is ever overwritten or left out. A folder of submissions comes from others: nothing in it is
executed, links are not followed, and what is no record is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinytorch.competition.entries.plain_text import visible_path
from tinytorch.competition.rounds import Round, read_round
from tinytorch.competition.runs.judgement_record import claims_verified, judgement_in
from tinytorch.competition.runs.kept_run import DamagedFile, KeptRun
from tinytorch.competition.runs.record_checks import check_numbers
from tinytorch.competition.runs.record_files import read_record_file
from tinytorch.competition.runs.record_status import check_round, status_of
from tinytorch.competition.runs.run_files import ROUNDS, keep_run, path_below, run_files
from tinytorch.competition.runs.signing import check_signature
from tinytorch.competition.runs.submitting import Submitted, submit
from tinytorch.errors import RecordError, SettingError

__all__ = ["Folder", "Submitted", "keep_run", "read_folder", "read_rounds", "submit"]


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
        shown = path_below(folder, path)
        try:
            run = _read_run(path, shown, rounds)
        except (RecordError, SettingError) as error:
            damaged.append(DamagedFile(shown, visible_path(str(error))))
            continue
        if run.sha256 in runs:
            first = runs[run.sha256].path
            damaged.append(DamagedFile(shown, f"a copy of {first}, which counts once"))
            continue
        runs[run.sha256] = run
    ordered = sorted(runs.values(), key=lambda run: (run.judgement.created_at, run.sha256))
    return Folder(tuple(ordered), tuple(damaged), rounds)


def _read_run(path: Path, shown: str, rounds: tuple[Round, ...]) -> KeptRun:
    record = read_record_file(path)
    judgement = judgement_in(record)
    signature = check_signature(path, record.hash)
    wrong = [*check_numbers(record, judgement), *signature.findings]
    if claims_verified(record):  # For others this is a matter of `verify`; drawing takes seconds.
        wrong += check_round(record, judgement, signer=signature.signer, rounds=rounds)
    for each in wrong:
        if each.is_fatal:
            raise RecordError(f"{each.rule}: {each.seen}")
    status = status_of(record, judgement, signature=signature, rounds=rounds)
    signer = signature.signer if signature.is_checked else ""
    return KeptRun(judgement, record.hash, status, signer, shown)


def read_rounds(folder: Path, damaged: list[DamagedFile]) -> Iterator[Round]:
    """Give the rounds of a folder of submissions; what is none is added to `damaged`."""
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
