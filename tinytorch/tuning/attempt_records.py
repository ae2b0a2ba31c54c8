"""Attempts and optimizations as records, so that nothing that was finished is tried again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tinytorch.errors as errors_module
from tinytorch import __version__
from tinytorch.adapters.adapter import adapter_for
from tinytorch.errors import RecordError, TinyTorchError
from tinytorch.measure.device_state import DeviceWatch
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.records.comparison_record import comparison_samples
from tinytorch.records.store import RecordStore
from tinytorch.tuning.attempt import (
    ACCURACY_INCONCLUSIVE,
    BETTER,
    BROKEN,
    INACCURATE,
    NO_GAIN,
    NOT_TRIED,
    NOTHING_TO_DO,
    WORSE,
    Attempt,
)
from tinytorch.tuning.catalog import CATALOG, Entry
from tinytorch.tuning.fingerprint import workload_fingerprint
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.settings import Settings
from tinytorch.workloads.record import Record, SeriesKey
from tinytorch.workloads.workload import Workload

__all__ = [
    "ATTEMPT_KIND",
    "OPTIMIZATION_KIND",
    "Origin",
    "add_record",
    "attempt_record",
    "find_finished",
    "is_from_before",
    "optimization_record",
    "origin_of",
    "workload_fingerprint",
]

ATTEMPT_KIND, OPTIMIZATION_KIND = "attempt", "optimization"
JOIN = " + "
NOT_AGAIN = ", not again"
"""How the note of an attempt ends that an earlier run made."""
RECENT = 5
"""So many attempts at one thing are looked at for the last that was really made."""
FINISHED = frozenset(
    {BETTER, NO_GAIN, WORSE, ACCURACY_INCONCLUSIVE, INACCURATE, BROKEN, NOTHING_TO_DO}
)
"""Outcomes that stay: what failed or was not shown may turn out otherwise the next time.

An inconclusive accuracy stays: other examples, or another margin, are other settings.
"""
DECIDING_FOLDERS = (
    "adapters",
    "comparison",
    "core",
    "formats",
    "measure",
    "perf",
    "tuning",
    "workloads",
)


@dataclass(frozen=True)
class Origin:
    """Where attempts come from: what was asked of which model, and on which machine.

    An attempt can stand in for another where `settings` and the machine's fingerprint are equal,
    and so are the entries of the catalog that it is made of. `run` is shared by all records of
    one run.
    """

    workload: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    run: str = ""
    catalog: tuple[Entry, ...] = CATALOG


def origin_of(
    workload: Workload,
    settings: Settings,
    *,
    run: str = "",
    catalog: tuple[Entry, ...] = CATALOG,
    scores: npt.ArrayLike | None = None,
) -> Origin:
    """Describe where attempts on a workload come from. Make it once, before the first attempt.

    What a workload is, is read from the values of its parameters, which takes about a second for
    each gigabyte. `scores` are those of the model as it is: they tell other examples behind the
    same `evaluate`. Limits and the budget are not part of it: neither changes what an attempt
    gives; the goal is, since it decides about the outcome and which stacks are compared.
    """
    adapter = adapter_for(workload.model, workload.arguments)
    device = adapter.device(workload.model, workload.arguments)
    environment = describe_environment(Path.cwd()).to_dict()
    asked = {
        "workload": workload_fingerprint(workload),
        "scores": _digest(scores),
        "framework": adapter.name,
        "device": _device_name(device),
        "goal": settings.goal,
        "max_accuracy_drop": settings.max_accuracy_drop,
        "max_output_error": settings.max_output_error,
        "seed": settings.seed,
        "libraries": environment["libraries"],
        "tinytorch": _own_version(),
    }
    return Origin(workload.name, asked, environment, run, catalog)


def attempt_record(attempt: Attempt, origin: Origin) -> Record:
    """Make a record of one attempt, whatever came of it."""
    samples: dict[str, Samples] = {}
    if attempt.comparison is not None:
        samples = comparison_samples(attempt.comparison)
    return Record(
        kind=ATTEMPT_KIND,
        name=_name(origin, attempt.stack),
        samples=samples,
        environment=origin.environment,
        settings=_settings(origin, attempt.stack),
        details=attempt.to_dict(),
        run=origin.run,
        notes=attempt.notes,
    )


def optimization_record(optimization: Optimization, origin: Origin) -> Record:
    """Make a record of everything that was tried; its numbers are those of what is recommended."""
    best = optimization.recommended
    samples: dict[str, Samples] = {}
    if best is not None and best.comparison is not None:
        samples = comparison_samples(best.comparison)
    return Record(
        kind=OPTIMIZATION_KIND,
        name=origin.workload,
        samples=samples,
        environment=origin.environment,
        settings={**origin.settings, "limits": dict(optimization.settings.limits)},
        details=optimization.to_dict(),
        run=origin.run,
        notes=optimization.notes,
    )


def find_finished(store: RecordStore, origin: Origin) -> dict[tuple[str, ...], Attempt]:
    """Give the attempts that need not be repeated, the newest of each stack.

    They were made on this machine, of the same model, with the same inputs, settings, libraries
    and tinytorch; a note says when. What failed, or showed nothing, is not among them.
    """
    prefix, machine = _name(origin, ()), origin.environment["fingerprint"]
    found: dict[tuple[str, ...], Attempt] = {}
    for key in (each.key for each in store.series()):
        if key.kind != ATTEMPT_KIND or key.machine != machine or not key.name.startswith(prefix):
            continue
        stack = tuple(key.name.removeprefix(prefix).split(JOIN))
        attempt = _newest(store, key) if key.settings_key == _settings_key(origin, stack) else None
        if attempt is not None and attempt.stack == stack and attempt.outcome in FINISHED:
            found[stack] = attempt
    return found


def is_from_before(attempt: Attempt) -> bool:
    """Tell whether an attempt comes from an earlier run, by :func:`find_finished`."""
    return attempt.notes[-1:] != () and attempt.notes[-1].endswith(NOT_AGAIN)


def add_record(store: RecordStore, record: Record) -> str:
    """Add a record to a store; where that fails, give the reason instead of raising.

    A full disk must not take the results of minutes with it.
    """
    try:
        store.add(record)
    except RecordError as error:
        return f"not kept as a record: {error}"
    return ""


# ---------------------------------------------------------------- names and settings


def _name(origin: Origin, stack: tuple[str, ...]) -> str:
    return f"{origin.workload}: {JOIN.join(stack)}"


def _settings(origin: Origin, stack: tuple[str, ...]) -> dict[str, Any]:
    entries = {each.name: each.to_dict() for each in origin.catalog}
    parts = [entries.get(name, {"name": name}) for name in stack]
    return {**origin.settings, "stack": list(stack), "entries": parts}


def _settings_key(origin: Origin, stack: tuple[str, ...]) -> str:
    settings = _settings(origin, stack)
    return Record(ATTEMPT_KIND, origin.workload, {}, origin.environment, settings).settings_key


def _digest(scores: npt.ArrayLike | None) -> str:
    """Give a hash of scores, without the last places, which the order of sums may move."""
    if scores is None:
        return ""
    values = np.asarray(scores, dtype=np.float64)
    rounded = np.array([float(f"{each:.5g}") for each in values.reshape(-1)])
    return hashlib.blake2b(rounded.tobytes(), digest_size=8).hexdigest()


def _device_name(device: str) -> str:
    return DeviceWatch(device).name or device if device.startswith("cuda") else device


@cache
def _own_version() -> str:
    """Give the version, and a hash of the files that decide what an attempt gives."""
    package = Path(errors_module.__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for folder in DECIDING_FOLDERS:
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return f"{__version__} {digest.hexdigest()}"


# ---------------------------------------------------------------- reading back


def _newest(store: RecordStore, key: SeriesKey) -> Attempt | None:
    """Give the last attempt of a series at which something was really tried."""
    records = store.find(**key._asdict(), newest_first=True, limit=RECENT)
    attempts = (_attempt_of(each) for each in records)
    return next((each for each in attempts if each and each.outcome != NOT_TRIED), None)


def _attempt_of(record: Record) -> Attempt | None:
    """Give the attempt in a record, with a note that says when; None where there is none."""
    try:
        attempt = Attempt.from_dict(record.details)
    except (TinyTorchError, KeyError, TypeError, ValueError, AttributeError):
        return None
    made = f"measured at {record.created_at[:16].replace('T', ' ')} UTC{NOT_AGAIN}"
    return replace(attempt, notes=(*attempt.notes, made))
