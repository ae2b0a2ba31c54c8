"""How a metric went over time, and which records may be compared at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.environment import DECIDING_LIBRARIES
from tinytorch.measure.samples import Interval, Samples
from tinytorch.records.change_points import ChangePoint, drifts, find_change_points
from tinytorch.workloads.record import Record, SeriesKey, canonical_json, utc_text

__all__ = ["Trend", "TrendPoint", "comparable", "trend", "trends"]

CLOCK_TOLERANCE = timedelta(days=1)
SHOWN_DIFFERENCES = 4
# Parts of an environment that decide about speed -> how they are called.
DECIDING_PARTS = {
    "cpu_model": "CPU",
    "machine": "architecture",
    "instruction_sets": "instruction sets",
    "physical_cores": "physical cores",
    "logical_cores": "logical cores",
    "usable_cores": "usable cores",
    "cpu_quota": "CPU quota",
    "caches": "caches",
    "blas": "BLAS",
    "threads": "thread settings",
    "threads_in_force": "threads",
}
GIB = 1 << 30


@dataclass(frozen=True)
class TrendPoint:
    """One record of a trend: its samples of the metric, and where it comes from."""

    created_at: str
    samples: Samples
    commit: str | None
    commit_has_changes: bool
    hash: str
    run: str
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return self.samples.median

    @property
    def interval(self) -> Interval | None:
        """Give the interval of the median; a single value has none."""
        return self.samples.median_interval() if self.samples.count > 1 else None


@dataclass(frozen=True)
class Trend:
    """The values of one metric over the records of one series, oldest first."""

    key: SeriesKey
    metric: str
    unit: str
    settings: Mapping[str, Any]
    points: tuple[TrendPoint, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(point.value for point in self.points)

    @property
    def last_change(self) -> float | None:
        """Give the last value relative to the one before, minus 1; None where that says nothing."""
        if len(self.points) < 2 or self.values[-2] == 0:
            return None
        return self.values[-1] / self.values[-2] - 1

    @cached_property
    def change_points(self) -> tuple[ChangePoint, ...]:
        """The changes of level at the usual significance, found when first asked for."""
        return find_change_points(self.values)

    @property
    def notes(self) -> tuple[str, ...]:
        """Give what a reader should doubt."""
        notes = []
        steps = [change.after - change.before for change in self.change_points]
        one_way = all(step > 0 for step in steps) or all(step < 0 for step in steps)
        if len(steps) > 1 and one_way and drifts(self.values, self.change_points):
            notes.append("the values move inside of the levels too: rather a slow drift than steps")
        limit = utc_text(datetime.now(UTC) + CLOCK_TOLERANCE)
        later = sum(point.created_at > limit for point in self.points)
        if later:
            notes.append(f"{later} of the dates lie in the future: the order may be wrong")
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
        return {
            **self.key._asdict(),
            "metric": self.metric,
            "unit": self.unit,
            "settings": dict(self.settings),
            "last_change": self.last_change,
            "points": [_point_fields(point) for point in self.points],
            "change_points": [vars(change) for change in self.change_points],
            "notes": list(self.notes),
        }


def trends(records: Iterable[Record], metric: str | None = None) -> tuple[Trend, ...]:
    """Give a trend for each series and metric, the one with the newest record first.

    Records of unlike machines, settings, kinds or units are never merged: each has its own trend.
    """
    groups: dict[tuple[SeriesKey, str, str], list[tuple[Record, Samples]]] = {}
    for record in sorted(records, key=lambda each: each.created_at):
        for name, samples in record.samples.items():
            if metric in (None, name):
                groups.setdefault((record.series, name, samples.unit), []).append((record, samples))
    found = [_trend(*key, pairs) for key, pairs in groups.items()]
    return tuple(sorted(found, key=lambda each: each.points[-1].created_at, reverse=True))


def trend(records: Sequence[Record], metric: str) -> Trend:
    """Give the trend of records of one series; unlike ones are an error that says what differs."""
    found = trends(records, metric)
    if not found:
        known = sorted({name for record in records for name in record.samples})
        raise SettingError(
            f"no record has {metric!r}; there are: {', '.join(known) or 'no metrics at all'}"
        )
    if len(found) > 1:
        first = next(record for record in records if metric in record.samples)
        reasons = (comparable(first, record, metric) for record in records)
        reason = next((each for each in reasons if each), "they differ in their units")
        raise RecordError(
            f"records of {len(found)} series make no single trend ({reason}); use trends()"
        )
    return found[0]


def comparable(a: Record, b: Record, metric: str | None = None) -> str | None:
    """Give the reason why two records cannot be compared, or None when they can.

    The reason names what differs: kind, name, settings, machine, and with a `metric` its unit.
    """
    reasons = [
        f"{part}: {one} against {other}"
        for part, one, other in (("kind", a.kind, b.kind), ("name", a.name, b.name))
        if one != other
    ]
    if a.settings_key != b.settings_key:
        reasons.append(f"settings: {_differences(a.settings, b.settings)}")
    if a.machine != b.machine:
        reasons.append(f"machine: {_machine_differences(a, b)}")
    if metric is not None:
        reasons += _metric_differences(a, b, metric)
    elif a.samples and b.samples and not a.samples.keys() & b.samples.keys():
        reasons.append(f"metrics: {', '.join(a.samples)} against {', '.join(b.samples)}")
    return "; ".join(reasons) or None


def _trend(
    key: SeriesKey, metric: str, unit: str, pairs: Sequence[tuple[Record, Samples]]
) -> Trend:
    points = tuple(
        TrendPoint(
            created_at=record.created_at,
            samples=samples,
            commit=record.commit,
            commit_has_changes=record.commit_has_changes,
            hash=record.hash,
            run=record.run,
            notes=(*record.notes, *samples.notes),
        )
        for record, samples in pairs
    )
    return Trend(key, metric, unit, pairs[-1][0].settings, points)


def _point_fields(point: TrendPoint) -> dict[str, Any]:
    interval = point.interval
    return {
        "created_at": point.created_at,
        "value": point.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "confidence": interval.confidence if interval else None,
        "count": point.samples.count,
        "commit": point.commit,
        "commit_has_changes": point.commit_has_changes,
        "hash": point.hash,
        "run": point.run,
        "notes": list(point.notes),
    }


def _metric_differences(a: Record, b: Record, metric: str) -> list[str]:
    if metric not in a.samples or metric not in b.samples:
        return [f"metric: {metric} is not in both"]
    one, other = a.samples[metric].unit, b.samples[metric].unit
    return [f"unit: {one} against {other}"] if one != other else []


def _machine_differences(a: Record, b: Record) -> str:
    """Name what of two environments differs and decides about speed."""
    one, other = _deciding(a.environment), _deciding(b.environment)
    differing = _differences(one, other)
    return differing or f"{a.machine} against {b.machine}"


def _deciding(environment: Mapping[str, Any]) -> dict[str, Any]:
    parts = {words: environment.get(name) for name, words in DECIDING_PARTS.items()}
    libraries = environment.get("libraries")
    libraries = libraries if isinstance(libraries, Mapping) else {}
    memory = environment.get("memory_bytes")
    return {
        **{name: libraries.get(name) for name in DECIDING_LIBRARIES},
        "Python": str(environment.get("python")).rpartition(".")[0],
        **parts,
        # As in the fingerprint: a guest gets a few pages more or less at every boot.
        "memory (GiB)": round(memory / GIB) if isinstance(memory, int | float) else None,
    }


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Write what differs: ``batch 8 against 1, device cpu against cuda``."""
    names = [
        name
        for name in dict.fromkeys([*one, *other])
        if _as_text(one.get(name)) != _as_text(other.get(name)) or (name in one) != (name in other)
    ]
    shown = [
        f"{name} {_as_text(one.get(name))} against {_as_text(other.get(name))}"
        for name in names[:SHOWN_DIFFERENCES]
    ]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return canonical_json(value)
