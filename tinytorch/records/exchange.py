"""Records as JSON lines, for moving them between stores, and results of pytest-benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tinytorch.core.files import write_atomically
from tinytorch.errors import RecordError, SettingError
from tinytorch.records.pytest_benchmark import is_pytest_benchmark, records_of
from tinytorch.records.store import Damaged, RecordStore
from tinytorch.workloads.record import Record, canonical_json, parse_record

__all__ = [
    "Exported",
    "Imported",
    "Refused",
    "export_jsonl",
    "import_file",
    "import_jsonl",
    "read_pytest_benchmark",
]

CHUNK = 500
"""So many records are added in one transaction."""


@dataclass(frozen=True)
class Exported:
    """How many records were written, and those that could not be read."""

    count: int
    damaged: tuple[Damaged, ...] = ()


class Refused(NamedTuple):
    """A line, or an entry, that gave no record. Both are counted from 1."""

    line: int
    reason: str


@dataclass(frozen=True)
class Imported:
    """How many records were new, how many the store had already, and what was refused."""

    added: int
    known: int
    refused: tuple[Refused, ...] = ()


def export_jsonl(
    store: RecordStore,
    target: str | os.PathLike[str] | TextIO,
    *,
    kind: str | None = None,
    name: str | None = None,
) -> Exported:
    """Write records as JSON lines, oldest first; also what is readable of a damaged store.

    A file is replaced only once all of it is written.
    """
    chosen = [
        record
        for record in store.readable()
        if kind in (None, record.kind) and name in (None, record.name)
    ]
    if not isinstance(target, str | os.PathLike):
        _write_lines(target, chosen)
        return Exported(len(chosen), store.damaged)
    try:
        with (
            write_atomically(Path(target)) as partial,
            partial.open("w", encoding="ascii", newline="\n") as lines,
        ):
            _write_lines(lines, chosen)
    except OSError as error:
        raise SettingError(
            f"{target} cannot be written ({error.strerror or error}); name another file"
        ) from error
    return Exported(len(chosen), store.damaged)


def import_jsonl(store: RecordStore, path: str | os.PathLike[str]) -> Imported:
    """Add the records of a file of JSON lines. A bad line is refused; the others are added.

    Importing a file once more adds nothing, so an import that was cut off can be repeated.
    """
    refused: list[Refused] = []
    added, known = _add_in_chunks(store, _parsed_lines(path, refused))
    return Imported(added, known, tuple(refused))


def read_pytest_benchmark(
    path: str | os.PathLike[str], *, refused: list[Refused] | None = None
) -> list[Record]:
    """Read a file that ``pytest --benchmark-json`` has written.

    An entry without its raw values (``stats.data``) gives no record, since its samples would be
    invented. Such entries are added to `refused`; without that list they are an error.
    """
    contents = _whole_json(path)
    if not is_pytest_benchmark(contents):
        raise RecordError(
            f"{path} is no file of pytest-benchmark; write one with `pytest --benchmark-json FILE`"
        )
    records, reasons = records_of(contents)
    if refused is not None:
        refused.extend(Refused(number, reason) for number, reason in reasons)
    elif reasons:
        number, reason = reasons[0]
        raise RecordError(f"{path}, entry {number}: {reason} ({len(reasons)} refused in all)")
    return records


def import_file(store: RecordStore, path: str | os.PathLike[str]) -> Imported:
    """Add the records of a file, be it JSON lines or the JSON of pytest-benchmark."""
    if not is_pytest_benchmark(_whole_json(path, missing_ok=True)):
        return import_jsonl(store, path)
    refused: list[Refused] = []
    added, known = _add_in_chunks(store, read_pytest_benchmark(path, refused=refused))
    return Imported(added, known, tuple(refused))


def _write_lines(stream: TextIO, records: Iterable[Record]) -> None:
    for record in records:
        stream.write(canonical_json(record.to_dict()) + "\n")


def _parsed_lines(path: str | os.PathLike[str], refused: list[Refused]) -> Iterator[Record]:
    try:
        # As bytes: a line that is no text must not take the others with it.
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield parse_record(line.decode("utf-8-sig"))
                except UnicodeDecodeError as error:
                    refused.append(Refused(number, f"not text: {error.reason}"))
                except RecordError as error:
                    refused.append(Refused(number, str(error)))
    except OSError as error:
        raise _unreadable(path, error) from error


def _add_in_chunks(store: RecordStore, records: Iterable[Record]) -> tuple[int, int]:
    added, known, rest = 0, 0, iter(records)
    while chunk := list(islice(rest, CHUNK)):
        hashes = {record.hash for record in chunk}
        fresh = sum(hash not in store for hash in hashes)
        store.add_all(chunk)
        added, known = added + fresh, known + len(chunk) - fresh
    return added, known


def _whole_json(path: str | os.PathLike[str], *, missing_ok: bool = False) -> Any:
    """Read a file that is one JSON value; anything else is None with `missing_ok`."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        if missing_ok:
            return None
        raise RecordError(f"{path} is not JSON: {error}") from error


def _unreadable(path: str | os.PathLike[str], error: OSError) -> SettingError:
    return SettingError(f"{path} cannot be read ({error.strerror or error}); check its name")
