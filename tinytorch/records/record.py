"""A result that is kept: what was measured, where, how, and every raw value.

The JSON form is a public format with a version (`SCHEMA`). It is strict JSON: there is no NaN and
no infinity in it. Samples hold none anyway; in `environment` and `details` they become null, as in
the output of the commands; in `settings`, which decide what may be compared, they are refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any, NamedTuple, Self

import numpy as np

from tinytorch import reading
from tinytorch.codec import Coded
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.environment import describe_environment
from tinytorch.measure.samples import Samples
from tinytorch.measure.timing import WARM

SCHEMA = 1
"""The version of the format that :meth:`Record.to_dict` writes."""

KEY_LENGTH = 16


class SeriesKey(NamedTuple):
    """What two records must have in common to be points of one trend."""

    kind: str
    name: str
    machine: str
    settings_key: str


def _now() -> str:
    return utc_text(datetime.now(UTC))


@dataclass(frozen=True)
class Record(Coded):
    """One result, with all that is needed to judge it later.

    `kind` says what sort of result it is ("comparison", "measurement", "suite entry", "test") and
    `name` what was measured. `samples` has the raw values of each metric ("latency", "throughput",
    "peak memory", "time ratio", "accuracy"). `settings` holds everything that must be equal for
    two records to be comparable, `details` the rest. `run` is shared by all records of one run.

    Everything is turned into what JSON knows when the record is made: tuples become lists, keys
    text, NumPy's numbers Python's. So what is read back is equal to what was written.
    """

    kind: str
    name: str
    samples: Mapping[str, Samples]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = field(default_factory=_now)
    run: str = ""
    notes: tuple[str, ...] = ()

    schema = SCHEMA
    strict = True

    def __post_init__(self) -> None:
        _check_text(self.kind, self.name, self.run)
        _check_samples(self.samples, self.name)
        ready: dict[str, Any] = {
            "samples": dict(self.samples),
            "environment": _ready_for_json(self.environment, f"record {self.name!r}: environment"),
            "settings": _ready_for_json(
                self.settings, f"record {self.name!r}: settings", strict=True
            ),
            "details": _ready_for_json(self.details, f"record {self.name!r}: details"),
            "created_at": utc_text(self.created_at),
            "notes": tuple(map(str, self.notes)),
        }
        for name, value in ready.items():
            object.__setattr__(self, name, value)
        fingerprint = self.environment.get("fingerprint")
        if not isinstance(fingerprint, str) or not fingerprint:
            raise SettingError(
                f"record {self.name!r} has an environment without a fingerprint; "
                "give describe_environment().to_dict()"
            )
        _check_text(fingerprint)

    def __hash__(self) -> int:
        return hash(self.hash)

    @property
    def machine(self) -> str:
        """The fingerprint of hardware and software that decide about speed."""
        return str(self.environment["fingerprint"])

    @property
    def commit(self) -> str | None:
        """The full hash of the commit that was measured, or None."""
        found = self.environment.get("commit")
        found = found.get("hash") if isinstance(found, Mapping) else found
        return found if isinstance(found, str) and found else None

    @property
    def commit_has_changes(self) -> bool:
        """Whether files had been changed since that commit."""
        found = self.environment.get("commit")
        return isinstance(found, Mapping) and bool(found.get("is_dirty"))

    @property
    def settings_key(self) -> str:
        """A short hash of the settings; 8 and 8.0 are the same setting."""
        return _digest(_whole_numbers(self.settings))[:KEY_LENGTH]

    @property
    def series(self) -> SeriesKey:
        return SeriesKey(self.kind, self.name, self.machine, self.settings_key)

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal: the identity of this record."""
        return _digest(super().to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data, with the version of the format and the hash."""
        content = super().to_dict()
        return {**content, "hash": _digest(content)}

    @classmethod
    def from_dict(cls, fields: Any) -> Self:
        """Return what :meth:`to_dict` wrote; raise RecordError for anything else.

        The hash is checked where there is one. `details`, `run` and `notes` may be missing.
        """
        if isinstance(fields, Mapping) and "hash" in fields:
            content = {name: value for name, value in fields.items() if name != "hash"}
            _check_hash(content, fields["hash"])
            fields = content
        try:
            return super().from_dict(fields)
        except (SettingError, OverflowError) as error:
            raise RecordError(f"a record that does not fit: {error}") from error

    @classmethod
    def upgraded(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return older fields as this version has them; the time of reading is not that of old."""
        fields = super().upgraded(fields)
        if "created_at" not in fields:
            raise RecordError("Record.created_at is missing")
        return fields


def parse_record(text: str, *, expected_hash: str | None = None) -> Record:
    """Read a record from one text of JSON; raise RecordError for what is none.

    With an `expected_hash` it must be exactly that record.
    """
    try:
        fields = reading.parse_json(text, parse_constant=_refuse_constant)
    except (ValueError, TypeError) as error:
        raise RecordError(f"not JSON: {error}") from error
    record = Record.from_dict(fields)
    if expected_hash is not None and fields.get("hash") != expected_hash:
        raise RecordError(f"the hash does not fit: this is not {expected_hash[:12]}")
    return record


def canonical_json(value: Any) -> str:
    """Write JSON of which there is one form only: sorted, without spaces, in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def utc_text(moment: str | date) -> str:
    """Write a moment as ISO 8601 in UTC with microseconds, so that texts sort as times do.

    Without a time zone it is taken as UTC, without a time as midnight.

    >>> utc_text("2026-05-01T14:00:00+02:00")
    '2026-05-01T12:00:00.000000+00:00'
    """
    try:
        text = moment if isinstance(moment, str) else moment.isoformat()
        parsed = datetime.fromisoformat(text)
        zoned = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
        return zoned.astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, AttributeError) as error:
        raise SettingError(
            f"{moment!r} is no date; give ISO 8601, such as 2026-05-01T12:00:00Z"
        ) from error


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def _check_text(*texts: object) -> None:
    """Raise for text that a database column or a terminal cannot hold."""
    for text in texts:
        if not isinstance(text, str):
            raise SettingError(f"a record is named by text, not by {text!r}")
        if "\0" in text or not _is_unicode(text):
            raise SettingError(f"{text!r} holds letters that cannot be stored; use plain text")


def _check_samples(samples: Mapping[Any, Any], name: str) -> None:
    for metric, values in samples.items():
        if not isinstance(metric, str) or not isinstance(values, Samples):
            raise SettingError(
                f"record {name!r} has {type(values).__name__} as its {metric!r}; "
                "give Samples by the name of the metric"
            )


def _is_unicode(text: str) -> bool:
    """Return whether text can be encoded as UTF-8; lone surrogates cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _ready_for_json(value: Any, where: str, *, strict: bool = False) -> Any:
    """Copy a value so that JSON gives it back unchanged; `strict` refuses NaN and infinity."""
    try:
        return _json_copy(value, where, strict)
    except RecursionError as error:
        raise SettingError(f"{where} is nested too deeply, or holds itself") from error


def _json_copy(value: Any, where: str, strict: bool) -> Any:
    if isinstance(value, Enum):
        return _json_copy(value.value, where, strict)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        if strict:
            raise SettingError(f"{where} holds {value}; give a finite number or None")
        return None
    if isinstance(value, np.generic | np.ndarray):
        return _json_copy(value.tolist(), where, strict)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        copied = {str(key): _json_copy(item, where, strict) for key, item in value.items()}
        if len(copied) < len(value):
            raise SettingError(f"{where} has two keys that read the same; make them differ as text")
        return copied
    if isinstance(value, list | tuple):
        return [_json_copy(item, where, strict) for item in value]
    raise SettingError(
        f"{where} holds {type(value).__name__}, which has no form in JSON; "
        "give numbers, text, lists or mappings"
    )


def _whole_numbers(value: Any) -> Any:
    """Write 8.0 as 8 everywhere."""
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_hash(content: Mapping[str, Any], expected: object) -> None:
    try:
        found = _digest(content)
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"a record that is not strict JSON ({error})") from error
    if found != expected:
        raise RecordError(
            f"the hash does not fit: it says {str(expected)[:12]}, the content has {found[:12]}; "
            "the record was changed or damaged"
        )


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not strict JSON")


# ---------------------------------------------------------------- a comparison as a record: its
# ratio and times as series, everything else as details

PER_ROUND = "each value is the median of a round; details have every turn"


def comparison_record(
    comparison: Comparison,
    *,
    name: str,
    settings: Mapping[str, Any],
    kind: str = "comparison",
    run: str = "",
    folder: str | os.PathLike[str] | None = None,
) -> Record:
    """Make a record of a comparison.

    `settings` say what was compared with what; how long that took is no setting, since more time
    makes the interval narrower and nothing else. With a `folder`, the record names its commit.
    """
    environment = dict(comparison.environment) or describe_environment().to_dict()
    if folder is not None:
        environment["commit"] = describe_environment(folder).to_dict()["commit"]
    return Record(
        kind=kind,
        name=name,
        samples=comparison_samples(comparison),
        environment=environment,
        settings={**settings, "clock": comparison.clock, **_measured_how(comparison)},
        details={"comparison": comparison.to_dict()},
        run=run,
        notes=comparison.notes,
    )


def _measured_how(comparison: Comparison) -> dict[str, Any]:
    """Return what else determines the times: emptied caches, and the kind of device.

    On a processor with warm caches it is nothing, as in records from before there was a choice.
    """
    devices = comparison.environment.get("devices", {})
    named = {place: seen.get("name") for place, seen in devices.items()}
    cold = {} if comparison.cache == WARM else {"cache": comparison.cache}
    return cold | ({"devices": named} if named else {})


def comparison_samples(comparison: Comparison) -> dict[str, Samples]:
    """Return the samples of a comparison: the ratio per round, and the candidate's resources."""
    rounds, loops = comparison.rounds, comparison.pace.loops
    ratios = tuple(math.exp(each.log_ratio) for each in rounds)
    found = {
        "time ratio": Samples("time ratio", ratios, ""),
        "latency": _latency("latency", [each.candidate for each in rounds], loops[1]),
        "baseline latency": _latency(
            "baseline latency", [each.baseline for each in rounds], loops[0]
        ),
    }
    single: dict[str, tuple[float | None, str]] = {}
    if comparison.throughputs is not None:
        single["throughput"] = (comparison.throughputs[1], "1/s")
    if comparison.resources is not None:
        single["peak memory"] = (comparison.resources[1].peak_bytes, "B")
        single["file size"] = (comparison.resources[1].file_bytes, "B")
        single["peak device memory"] = (comparison.resources[1].device_peak_bytes, "B")
    if comparison.accuracy is not None:
        single[comparison.accuracy.metric] = (comparison.accuracy.candidate_mean, "")
    for metric, (value, unit) in single.items():
        if value is not None and math.isfinite(value):
            found[metric] = Samples(metric, (value,), unit)
    if comparison.energy is not None:
        found["energy"] = comparison.energy[1]
    return found


def _latency(name: str, rounds: Sequence[Sequence[float]], loops: int) -> Samples:
    medians = tuple(float(np.median(each)) for each in rounds)
    return Samples(name, medians, loops=loops, notes=(PER_ROUND,))
