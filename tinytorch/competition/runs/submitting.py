"""Submit an entry: a copy of it and of all its runs goes into the folder of submissions."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from tinytorch.competition.entries.entry import MANIFEST, RESULTS, Entry
from tinytorch.competition.entries.entry_file import entry_files, read_entry
from tinytorch.competition.judgement import Judgement
from tinytorch.competition.runs.judgement_record import claims_verified, judgement_in
from tinytorch.competition.runs.record_files import read_record_file
from tinytorch.competition.runs.run_files import HASH_LENGTH, run_files
from tinytorch.competition.runs.signing import SigningKey, read_key, sign_record, signature_path
from tinytorch.errors import RecordError, SettingError

__all__ = ["Submitted", "folder_name", "submit"]

LONGEST_NAME = 40


@dataclass(frozen=True)
class Submitted:
    """Where an entry went, how many of its runs are new there, and how many there are in all.

    `older` of the runs are of former versions of the entry; they go along as history.
    """

    folder: Path
    entry: Entry
    added: int
    runs: int
    older: int

    def __str__(self) -> str:
        runs = f"{self.runs} run{'s' * (self.runs != 1)}, {self.added} new"
        older = f", {self.older} of former versions" if self.older else ""
        return f"{self.folder}: {runs}{older}"


def submit(
    entry_folder: str | Path,
    to: str | Path,
    *,
    key: str | Path | SigningKey | None = None,
    even_invalid: bool = False,
) -> Submitted:
    """Copy an entry and all of its runs into a folder of submissions, signed if there is a key.

    Once more is fine: only what is new is added. Without a run, or when the last run broke a rule,
    there is nothing to show; `even_invalid` submits the latter all the same.
    """
    entry = read_entry(entry_folder)
    signing = read_key(key) if isinstance(key, str | Path) else key
    runs = _runs_of(entry)
    own = [path for path, judgement in runs.items() if judgement.entry.sha256 == entry.sha256]
    _check_runs(runs, own, even_invalid=even_invalid)
    target = Path(to) / entry.event / folder_name(entry.team) / entry.sha256[:HASH_LENGTH]
    try:
        _copy_entry(entry, target)
        copies = [_copy_run(path, target / RESULTS) for path in runs]
    except OSError as error:
        raise SettingError(
            f"{error.filename or target} cannot be written ({error.strerror or error})"
        ) from error
    if signing is not None:
        for path, _ in copies:
            sign_record(path, signing)
    added = sum(is_new for _, is_new in copies)
    return Submitted(target, entry, added, len(runs), len(runs) - len(own))


def folder_name(team: str) -> str:
    """Give a name for a team's folder that is harmless on every system.

    >>> folder_name("Équipe № 1 / ../x")
    'equipe-no-1-x'
    """
    plain = unicodedata.normalize("NFKD", team).encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].strip("-") or "team"


def _runs_of(entry: Entry) -> dict[Path, Judgement]:
    """Read all runs of an entry, oldest first; a damaged one is an error, not left out."""
    found = {}
    for path in run_files(entry.folder):
        try:
            record = read_record_file(path)
            found[path] = judgement_in(record)
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from error
        if claims_verified(record):
            raise SettingError(
                f"{path} says that it is verified, which only the organiser's own run can be; "
                "submit your runs, and ask for verification"
            )
    return dict(sorted(found.items(), key=lambda item: item[1].created_at))


def _check_runs(runs: dict[Path, Judgement], own: list[Path], *, even_invalid: bool) -> None:
    if not own:
        seen = "its runs are of former versions" if runs else "it has no run"
        raise SettingError(f"{seen}; run the entry first: `tinytorch compete run`")
    fatal = [each for each in runs[own[-1]].findings if each.is_fatal]
    if fatal and not even_invalid:
        raise SettingError(
            f"the last run broke rule {fatal[0].rule}: {fatal[0].seen}; {fatal[0].fix}; then run "
            "again"
        )


def _copy_entry(entry: Entry, target: Path) -> None:
    """Copy manifest and files, all or nothing, and check the copy by its hash."""
    if target.is_symlink():
        raise SettingError(f"{target} is a link; remove it")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=".", suffix=".partial"))
        try:
            for name in (MANIFEST, *entry_files(entry)):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(entry.folder / name, partial / name)
            partial.chmod(0o755)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    if read_entry(target).sha256 != entry.sha256:
        raise RecordError(f"{target} holds other files than the entry; move it away")


def _copy_run(path: Path, results: Path) -> tuple[Path, bool]:
    """Copy a run and its signature; say whether it was new."""
    if results.is_symlink():
        raise SettingError(f"{results} is a link; remove it")
    results.mkdir(exist_ok=True)
    copy = results / path.name
    is_new = not os.path.lexists(copy)
    for source, goal in ((path, copy), (signature_path(path), signature_path(copy))):
        if source.is_file() and not os.path.lexists(goal):
            shutil.copyfile(source, goal)
    if not is_new and read_record_file(copy) != read_record_file(path):
        raise RecordError(f"{copy} is there already and holds another run; move it away")
    return copy, is_new
