"""What pytest-benchmark has measured, as records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from string import hexdigits
from typing import Any

from tinytorch.errors import TinyTorchError
from tinytorch.measure.samples import Samples
from tinytorch.workloads.record import Record, canonical_json

__all__ = ["MACHINE_PREFIX", "is_pytest_benchmark", "records_of"]

KIND = "test"
MACHINE_PREFIX = "pytest-benchmark-"
"""In front of every fingerprint from here. Ours are plain hexadecimal, so none is ever equal."""
# What decides about speed and does not change by itself; clock rates and host names do.
DECIDING = ("system", "machine", "processor", "python_implementation")
DECIDING_CPU = ("brand_raw", "brand", "arch", "bits", "count", "flags")


def is_pytest_benchmark(contents: Any) -> bool:
    """Say whether this is what ``pytest --benchmark-json`` writes."""
    return (
        isinstance(contents, Mapping)
        and isinstance(contents.get("benchmarks"), list)
        and isinstance(contents.get("machine_info"), Mapping)
    )


def records_of(contents: Mapping[str, Any]) -> tuple[list[Record], list[tuple[int, str]]]:
    """Give a record for each entry, and number and reason of those that give none."""
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
    """Give the commit as ours are written; outside of a repository the file has a word for it."""
    hash = found.get("id") if isinstance(found, Mapping) else None
    if not isinstance(hash, str) or set(hash) - set(hexdigits):
        return None
    return {"hash": hash, "is_dirty": bool(found.get("dirty"))}
