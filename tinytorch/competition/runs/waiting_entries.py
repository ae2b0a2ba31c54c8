"""Which entries of a folder wait for the organiser's run in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tinytorch.competition.entries.entry import Entry, EntryError
from tinytorch.competition.entries.entry_file import read_entry
from tinytorch.competition.rounds import Round
from tinytorch.competition.runs.kept_run import SEED_NOT_REVEALED
from tinytorch.competition.runs.run_files import entry_folders, path_below
from tinytorch.competition.runs.verification import CheckedFile

__all__ = ["SkippedEntry", "WaitingEntries", "find_waiting"]


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
