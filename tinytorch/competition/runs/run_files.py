"""The files of runs: one beside the entry for each, written once, and found again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tinytorch.competition.entries.entry import MANIFEST, RESULTS, Entry
from tinytorch.competition.entries.plain_text import visible_path
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.runs.judgement_record import Claim, as_record
from tinytorch.competition.runs.kept_run import DamagedFile
from tinytorch.competition.runs.record_files import read_record_file, record_text, write_new
from tinytorch.errors import RecordError, SettingError
from tinytorch.workloads.record import Record

__all__ = [
    "HASH_LENGTH",
    "ROUNDS",
    "entry_folders",
    "keep_run",
    "path_below",
    "run_files",
    "run_name",
]

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
    """Give the name of a record's file: the second it was made in, and its hash."""
    moment = record.created_at.partition(".")[0].replace("-", "").replace(":", "")
    return f"{moment}Z-{record.hash[:HASH_LENGTH]}.json"


def run_files(folder: Path, damaged: list[DamagedFile] | None = None) -> Iterator[Path]:
    """Give every file that lies where a run belongs, in the order of names.

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
    """Give every folder of an entry, in the order of names; what lies in one is part of it."""
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
