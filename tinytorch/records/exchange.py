"""Records as JSON lines, for moving them between stores, and results of pytest-benchmark."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import hexdigits
from typing import Any, NamedTuple, TextIO

from tinytorch import reading
from tinytorch.core.files import write_atomically
from tinytorch.errors import RecordError, SettingError, TinyTorchError
from tinytorch.measure.samples import Samples
from tinytorch.records.record import Record, canonical_json, parse_record
from tinytorch.records.store import Damaged, RecordStore

# ---------------------------------------------------------------- what pytest-benchmark has
# measured, as records

KIND = "test"
MACHINE_PREFIX = "pytest-benchmark-"
"""In front of every fingerprint from here. Ours are plain hexadecimal, so none is ever equal."""
# What decides about speed and does not change by itself; clock rates and host names do.
DECIDING = ("system", "machine", "processor", "python_implementation")
DECIDING_CPU = ("brand_raw", "brand", "arch", "bits", "count", "flags")


def is_pytest_benchmark(contents: Any) -> bool:
    """Return whether this is what ``pytest --benchmark-json`` writes."""
    return (
        isinstance(contents, Mapping)
        and isinstance(contents.get("benchmarks"), list)
        and isinstance(contents.get("machine_info"), Mapping)
    )


def records_of(contents: Mapping[str, Any]) -> tuple[list[Record], list[tuple[int, str]]]:
    """Return one record per entry, and number and reason of the entries without one."""
    environment = _environment(contents)
    records: list[Record] = []
    refused: list[tuple[int, str]] = []
    for number, entry in enumerate(contents["benchmarks"], start=1):
        reason = _reason_to_refuse(entry)
        if reason is not None:
            refused.append((number, reason))
            continue
        try:
            records.append(_record(entry, contents, environment))
        except (TinyTorchError, TypeError, ValueError, OverflowError) as error:
            refused.append((number, f"{_name(entry)}: {error}"))
    return records, refused


def _reason_to_refuse(entry: Any) -> str | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("stats"), Mapping):
        return "an entry without stats"
    if not _name(entry):
        return "an entry without a name"
    values = entry["stats"].get("data")
    if not isinstance(values, list) or not values:
        return (
            f"{_name(entry)} has no raw values (stats.data); write the file with --benchmark-json, "
            "or save with --benchmark-save-data"
        )
    return None


def _record(
    entry: Mapping[str, Any], contents: Mapping[str, Any], environment: Mapping[str, Any]
) -> Record:
    stats = entry["stats"]
    iterations = stats.get("iterations")
    loops = iterations if isinstance(iterations, int) and iterations > 0 else 1
    # Values are seconds of one iteration: pytest-benchmark divides by the iterations itself.
    latency = Samples("latency", tuple(stats["data"]), loops=loops)
    return Record(
        kind=KIND,
        name=_name(entry),
        samples={"latency": latency},
        environment=environment,
        settings={"measured by": "pytest-benchmark", "options": entry.get("options") or {}},
        details={name: value for name, value in entry.items() if name not in ("stats", "options")},
        created_at=contents.get("datetime", ""),
        notes=(f"imported from pytest-benchmark {contents.get('version', '')}".strip(),),
    )


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("fullname") or entry.get("name") or "")


def _environment(contents: Mapping[str, Any]) -> dict[str, Any]:
    machine = contents["machine_info"]
    cpu = machine.get("cpu") if isinstance(machine.get("cpu"), Mapping) else {}
    python = str(machine.get("python_version"))
    deciding = {
        "machine": {name: machine.get(name) for name in DECIDING},
        "cpu": {name: cpu.get(name) for name in DECIDING_CPU},
        "python": python.rpartition(".")[0],
    }
    digest = hashlib.sha256(canonical_json(deciding).encode("ascii")).hexdigest()
    return {
        "fingerprint": MACHINE_PREFIX + digest[:16],
        "cpu_model": cpu.get("brand_raw") or cpu.get("brand") or machine.get("processor"),
        "system": f"{machine.get('system', '')} {machine.get('release', '')}".strip(),
        "machine": machine.get("machine"),
        "python": python,
        "machine_info": machine,
        "commit": _commit(contents.get("commit_info")),
    }


def _commit(found: Any) -> dict[str, Any] | None:
    """Return the commit in our notation; outside of a repository the file has a placeholder."""
    hash = found.get("id") if isinstance(found, Mapping) else None
    if not isinstance(hash, str) or set(hash) - set(hexdigits):
        return None
    return {"hash": hash, "is_dirty": bool(found.get("dirty"))}


# ---------------------------------------------------------------- records as JSON lines, for
# moving them between stores, and results of pytest-benchmark

CHUNK = 500
"""Records per transaction."""


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
    added, known = _add_in_chunks(store, parsed_lines(path, refused))
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
    try:
        records, reasons = records_of(contents)
    except (TinyTorchError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path} says of its machine what none is: {error}") from error
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


def parsed_lines(path: str | os.PathLike[str], refused: list[Refused]) -> Iterator[Record]:
    """Yield the records of a file of JSON lines; what is none is added to `refused`."""
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
        return reading.read_json(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        if missing_ok:
            return None
        raise RecordError(f"{path} is not JSON: {error}") from error


def _unreadable(path: str | os.PathLike[str], error: OSError) -> SettingError:
    return SettingError(f"{path} cannot be read ({error.strerror or error}); check its name")
