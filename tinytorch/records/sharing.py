"""One history for a team: records copied to and from a database, a shared folder or MLflow."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tinytorch import reading
from tinytorch.core.files import cache_folder, write_atomically
from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.ceilings import Progress
from tinytorch.records.location import MLFLOW, Location, address_of, is_address, store_path
from tinytorch.records.record import Record, canonical_json, parse_record
from tinytorch.records.store import open_store

CHUNK = 500
"""Records that are copied at once. A copy that was cut off goes on after the last whole chunk."""
SUFFIX = ".jsonl"
DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db")

Report = Callable[[Record], str]
"""Makes the page of a record, for places that keep one beside it."""


class Place(Protocol):
    """Where records can be copied from and to: a :class:`RecordStore` is one."""

    @property
    def path(self) -> Location: ...

    def hashes(self) -> list[str]: ...

    def known(self, hashes: Iterable[str]) -> frozenset[str]: ...

    def get_all(self, hashes: Sequence[str]) -> list[Record]: ...

    def add_all(self, records: Iterable[Record]) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Copied:
    """How many records were copied, how many were there already, and how many are unreadable."""

    added: int
    known: int
    damaged: int = 0


def copy_records(source: Place, target: Place, *, progress: Progress | None = None) -> Copied:
    """Copy the records that the target does not have; once more, it copies nothing.

    What was copied stays when it is interrupted, and the next copy goes on from there.
    """
    added = known = damaged = 0
    rest = iter(dict.fromkeys(source.hashes()))
    while chunk := list(islice(rest, CHUNK)):
        there = target.known(chunk)
        missing = [hash for hash in chunk if hash not in there]
        records = source.get_all(missing)
        if records:
            target.add_all(records)
        added, known = added + len(records), known + len(there)
        damaged += len(missing) - len(records)
        if progress:
            progress.advance(len(chunk))
    return Copied(added, known, damaged)


@contextmanager
def opened_place(text: str | os.PathLike[str], *, report: Report | None = None) -> Iterator[Place]:
    """Open a place by its name: ``postgresql://...``, ``mlflow:URI``, a folder, or a store's file.

    What has the suffix of a database or is a file is a store, any other path a shared folder.
    """
    if isinstance(text, str) and is_address(text):
        if text.strip().lower().startswith(MLFLOW):
            from tinytorch.records.mlflow_runs import MlflowRuns

            yield MlflowRuns(address_of(text), report=report)
            return
    else:
        if "://" in os.fspath(text):
            scheme = os.fspath(text).partition("://")[0]
            raise SettingError(
                f"{scheme}:// is no place for records; give postgresql://..., mlflow:URI, "
                "a folder, or the file of a store"
            )
        path = store_path(text)
        if isinstance(path, Path) and not path.is_file() and path.suffix not in DATABASE_SUFFIXES:
            yield RecordFolder(path)
            return
    with open_store(text) as store:
        yield store


def copy_of_folder(folder: Path, *, progress: Progress | None = None) -> Path:
    """Bring the copy of a shared folder up to date that this user's cache has, and return it."""
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    path = cache_folder() / "shared" / f"{digest[:20]}.sqlite"
    with open_store(path) as store:
        copy_records(RecordFolder(folder), store, progress=progress)
    return path


# ---------------------------------------------------------------- a folder that several machines
# share


class _Line(NamedTuple):
    file: Path
    start: int


class RecordFolder:
    """Records as files of JSON lines in a folder, such as a network drive, for many writers.

    A file is written once, whole, under a name that follows from its records, and never changed;
    so writers need no locks, and a reader sees all of a file or nothing. A record that is in two
    files counts once. Each file can be read with ``tinytorch history --import``.
    """

    def __init__(self, path: Path) -> None:
        self.path: Location = path
        self._folder = path
        self._lines: dict[str, _Line] = {}
        self._read: set[Path] = set()
        self.refused: list[str] = []

    def hashes(self) -> list[str]:
        """Return the hashes of all records, file by file."""
        self._look()
        return list(self._lines)

    def known(self, hashes: Iterable[str]) -> frozenset[str]:
        """Return those hashes of which there are records."""
        self._look()
        return frozenset(hash for hash in hashes if hash in self._lines)

    def get_all(self, hashes: Sequence[str]) -> list[Record]:
        """Return the records of these hashes; what is damaged is left out."""
        self._look()
        found = []
        for hash in hashes:
            line = self._lines[hash]
            with line.file.open("rb") as opened:
                opened.seek(line.start)
                text = opened.readline().decode("utf-8", "replace")
            try:
                found.append(parse_record(text, expected_hash=hash))
            except RecordError as error:
                self.refused.append(f"{line.file.name}: {error}")
        return found

    def add_all(self, records: Iterable[Record]) -> tuple[str, ...]:
        """Write records as one file, and return their hashes."""
        rows = [record.to_dict() for record in records]
        hashes = tuple(row["hash"] for row in rows)
        digest = hashlib.sha256("\n".join(hashes).encode("ascii")).hexdigest()
        file = self._folder / f"records-{digest[:24]}{SUFFIX}"
        text = "".join(canonical_json(row) + "\n" for row in rows)
        try:
            with write_atomically(file) as partial:
                partial.write_text(text, "ascii")
        except OSError as error:
            raise RecordError(
                f"{self._folder} cannot be written ({error.strerror or error}); check it is there "
                "and its permissions"
            ) from error
        return hashes

    def _look(self) -> None:
        """Read the files that have come since the last look."""
        try:
            files = sorted(self._folder.glob(f"records-*{SUFFIX}"))
            for file in files:
                if file not in self._read:
                    self._index(file)
                    self._read.add(file)
        except OSError as error:
            raise RecordError(
                f"{self._folder} cannot be read ({error.strerror or error}); check its permissions"
            ) from error

    def _index(self, file: Path) -> None:
        start = 0
        with file.open("rb") as lines:
            for line in lines:
                hash = _hash_in(line)
                if hash:
                    self._lines.setdefault(hash, _Line(file, start))
                elif line.strip():
                    self.refused.append(f"{file.name}: a line that is no record")
                start += len(line)


def _hash_in(line: bytes) -> str:
    """Return the hash that a line gives itself; reading it checks that hash."""
    try:
        fields: Any = reading.parse_json(line)
        hash = fields["hash"]
    except (ValueError, KeyError, TypeError):
        return ""
    return hash if isinstance(hash, str) else ""
