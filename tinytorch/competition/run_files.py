"""Runs that are kept, in files beside the entry."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tinytorch import reading
from tinytorch.competition.entry import MANIFEST, RESULTS, Entry, visible_path
from tinytorch.competition.files import read_text, write_new
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.judgement_record import Claim, as_record
from tinytorch.errors import RecordError, SettingError
from tinytorch.records.record import Record, canonical_json, parse_record

# ---------------------------------------------------------------- a run that was kept: a judgement
# with where it lies, and how far it is believed

Status = Literal["verified", "verified, seed not revealed", "signature not checked", "unverified"]
"""Whether the organiser ran it on a round's questions, and whether others can check that by now.

What is signed is neither verified nor unverified while the signature cannot be checked here.
"""
SEED_NOT_REVEALED: Final = "verified, seed not revealed"
NOT_CHECKED: Final = "signature not checked"


@dataclass(frozen=True)
class KeptRun:
    """A judgement that was read from a record.

    `sha256` is the hash that the record states of itself, `signer` the public key whose signature
    holds ("" for none), `path` where it lies below the folder of submissions.
    """

    judgement: Judgement
    sha256: str
    status: Status = "unverified"
    signer: str = ""
    path: str = ""

    @property
    def is_verified(self) -> bool:
        return self.status in ("verified", SEED_NOT_REVEALED)


@dataclass(frozen=True)
class DamagedFile:
    """A file that lies where a record belongs, and why it is none that counts."""

    path: str
    reason: str


LARGEST_RECORD_BYTES = 8 << 20
"""A record of 50,000 images has 120 kB."""


def record_text(record: Record) -> str:
    """Return the canonical text of a record."""
    return canonical_json(record.to_dict()) + "\n"


def read_record_file(path: str | Path) -> Record:
    """Read a record; raise RecordError unless the file is byte for byte what was written."""
    text = read_text(Path(path), most=LARGEST_RECORD_BYTES)
    record = parse_record(text)
    fields = reading.parse_json(text)
    if "hash" not in fields:
        raise RecordError("a record without its hash; take the original file")
    if text != canonical_json(fields) + "\n":
        raise RecordError(
            "the file says the same in other letters (spaces, order, or a key twice); "
            "take the original file"
        )
    return record


# ---------------------------------------------------------------- the files of runs: one beside
# the entry for each, written once, and found again

ROUNDS = "rounds"
"""The folder in a folder of submissions that has no runs, but rounds."""
DEEPEST = 8
HASH_LENGTH = 12


def keep_run(
    judgement: Judgement, entry: Entry | Path | str, *, status: Claim = "unverified"
) -> Path:
    """Write a run beside the manifest of its entry, and give the file."""
    folder = entry.folder if isinstance(entry, Entry) else Path(entry)
    record = as_record(judgement, status=status)
    path = folder / RESULTS / run_name(record)
    if path.parent.is_symlink():
        raise SettingError(f"{path.parent} is a link; runs are kept in a folder of the entry")
    try:
        write_new(path, record_text(record))
    except FileExistsError as error:
        if read_record_file(path) != record:
            raise RecordError(f"{path} is there already and holds another run") from error
    except OSError as error:
        reason = error.strerror or error
        raise RecordError(f"the run cannot be written to {path.parent} ({reason})") from error
    return path


def run_name(record: Record) -> str:
    """Return the file name of a record: its timestamp in seconds, and its hash."""
    moment = record.created_at.partition(".")[0].replace("-", "").replace(":", "")
    return f"{moment}Z-{record.hash[:HASH_LENGTH]}.json"


def run_files(folder: Path, damaged: list[DamagedFile] | None = None) -> Iterator[Path]:
    """Yield every file in a place for runs, sorted by name.

    Links, and what else lies in a folder of results, are added to `damaged`.
    """
    refused = [] if damaged is None else damaged
    for place, folders, files in os.walk(folder, onerror=_listed(folder, refused)):
        here = Path(place)
        depth = len(here.relative_to(folder).parts)
        folders.sort()
        for name in sorted([*folders, *files]):
            if (here / name).is_symlink():
                refused.append(DamagedFile(path_below(folder, here / name), "a link, not followed"))
        folders[:] = [name for name in folders if not _is_left_out(here / name, depth)]
        if here.name != RESULTS:
            continue
        for name in sorted(files):
            path = here / name
            if name.startswith(".") or name.endswith(".json.sig") or path.is_symlink():
                continue
            if name.endswith(".json"):
                yield path
                continue
            refused.append(DamagedFile(path_below(folder, path), "no record: its name shows it"))


def entry_folders(folder: Path) -> Iterator[Path]:
    """Yield every folder of an entry, sorted by name; folders inside of one belong to it."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        depth = len(here.relative_to(folder).parts)
        is_entry = MANIFEST in files
        left = (
            [] if is_entry else [each for each in folders if not _is_left_out(here / each, depth)]
        )
        folders[:] = sorted(left)
        if is_entry:
            yield here


def _is_left_out(path: Path, depth: int) -> bool:
    is_rounds = depth == 0 and path.name == ROUNDS
    return path.is_symlink() or depth >= DEEPEST or is_rounds or path.name.startswith(".")


def _listed(folder: Path, damaged: list[DamagedFile]) -> Callable[[OSError], None]:
    def note(error: OSError) -> None:
        path = path_below(folder, Path(error.filename or folder))
        damaged.append(DamagedFile(path, f"it cannot be read ({error.strerror or error})"))

    return note


def path_below(folder: Path, path: Path) -> str:
    """Write a path below the folder in plain letters, with / on every system."""
    return visible_path(path.relative_to(folder).as_posix())
