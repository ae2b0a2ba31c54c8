"""History: which records may be compared, how a metric went over time, stored baselines."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tinytorch.codec import Coded
from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.comparison.comparison import Comparison
from tinytorch.errors import SettingError
from tinytorch.measure.environment import DECIDING_LIBRARIES
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples, student_t_quantile
from tinytorch.records.change_points import ChangePoint, drifts, find_change_points
from tinytorch.records.exchange import Refused, parsed_lines
from tinytorch.records.record import Record, SeriesKey, canonical_json, utc_text
from tinytorch.records.store import PAGE, RecordStore, SeriesSummary

# ---------------------------------------------------------------- how a metric went over time, and
# which records may be compared at all

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
class TrendPoint(Coded):
    """One record of a trend: its samples of the metric, and where it comes from."""

    created_at: str
    samples: Samples
    commit: str | None
    commit_has_changes: bool
    hash: str
    run: str
    notes: tuple[str, ...] = ()

    also_written = (
        *("created_at", "value", "interval.low", "interval.high", "interval.coverage"),
        "samples.count",
    )
    renames: ClassVar = {"interval.coverage": "confidence", "samples": None}

    @cached_property
    def value(self) -> float:
        return self.samples.median

    @cached_property
    def interval(self) -> Estimate | None:
        """Return the interval of the median, or None for a single value."""
        return self.samples.median_interval() if self.samples.count > 1 else None


@dataclass(frozen=True)
class Trend(Coded):
    """The values of one metric over the records of one series, oldest first."""

    key: SeriesKey
    metric: str
    unit: str
    settings: Mapping[str, Any]
    points: tuple[TrendPoint, ...]

    also_written = (
        *("key.kind", "key.name", "key.machine", "key.settings_key", "metric", "unit", "settings"),
        *("last_change", "points", "change_points", "notes"),
    )
    renames: ClassVar = {"key": None}

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(point.value for point in self.points)

    @property
    def last_change(self) -> float | None:
        """Return the relative change from the previous value to the last; None if undefined."""
        if len(self.points) < 2 or self.values[-2] == 0:
            return None
        return self.values[-1] / self.values[-2] - 1

    @cached_property
    def change_points(self) -> tuple[ChangePoint, ...]:
        """The changes of level at the usual significance, found when first asked for."""
        return find_change_points(self.values)

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why the trend is uncertain."""
        notes = []
        steps = [change.after - change.before for change in self.change_points]
        one_way = all(step > 0 for step in steps) or all(step < 0 for step in steps)
        if len(steps) > 1 and one_way and drifts(self.values, self.change_points):
            notes.append("the values also move within the levels: a slow drift rather than steps")
        limit = utc_text(datetime.now(UTC) + CLOCK_TOLERANCE)
        later = sum(point.created_at > limit for point in self.points)
        if later:
            notes.append(f"{later} of the dates are in the future: the order may be wrong")
        return tuple(notes)


def trends(records: Iterable[Record], metric: str | None = None) -> tuple[Trend, ...]:
    """Return one trend per series and metric, the one with the newest record first.

    Records of unlike machines, settings, kinds or units are never merged: each has its own trend.
    """
    groups: dict[tuple[SeriesKey, str, str], list[tuple[Record, Samples]]] = {}
    for record in sorted(records, key=lambda each: each.created_at):
        for name, samples in record.samples.items():
            if metric in (None, name):
                groups.setdefault((record.series, name, samples.unit), []).append((record, samples))
    found = [_trend(*key, pairs) for key, pairs in groups.items()]
    return tuple(sorted(found, key=lambda each: each.points[-1].created_at, reverse=True))


def comparable(a: Record, b: Record, metric: str | None = None) -> str | None:
    """Return the reason why two records are not comparable, or None if they are.

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


def _metric_differences(a: Record, b: Record, metric: str) -> list[str]:
    if metric not in a.samples or metric not in b.samples:
        return [f"metric: {metric} is not in both"]
    one, other = a.samples[metric].unit, b.samples[metric].unit
    return [f"unit: {one} against {other}"] if one != other else []


def _machine_differences(a: Record, b: Record) -> str:
    """Return the performance-relevant differences of two environments."""
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


# ---------------------------------------------------------------- what a store holds, at a glance

PARTS = frozenset({"attempt"})
"""Kinds of records that belong to others."""
RECENT = 40
"""Number of recent records in the sparkline of a series."""
FIRST_CHOICE = ("latency", "time ratio", "throughput")


@dataclass(frozen=True)
class SeriesOverview:
    """One series: how many records it has, and the recent trend of each of its metrics."""

    summary: SeriesSummary
    recent: tuple[Trend, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        return {
            **self.summary.key._asdict(),
            "count": self.summary.count,
            "first": self.summary.first,
            "last": self.summary.last,
            "metrics": [
                {
                    "metric": trend.metric,
                    "unit": trend.unit,
                    "last": trend.values[-1],
                    "last_change": trend.last_change,
                    "recent": list(trend.values),
                }
                for trend in self.recent
            ],
        }


def overview(
    store: RecordStore,
    *,
    kind: str | None = None,
    metric: str | None = None,
    limit: int | None = None,
) -> list[SeriesOverview]:
    """Return the series of a store with their recent trends, newest first.

    Attempts of an optimization, which are parts of its record, are listed only when asked for.
    """
    found: list[SeriesOverview] = []
    for summary in _newest_first(store, kind):
        if limit is not None and len(found) >= limit:
            break
        if kind is None and summary.key.kind in PARTS:
            continue
        records = store.find(**summary.key._asdict(), limit=RECENT, newest_first=True)
        recent = trends(reversed(records), metric)
        if recent or metric is None:
            found.append(SeriesOverview(summary, recent))
    return found


def _newest_first(store: RecordStore, kind: str | None) -> Iterator[SeriesSummary]:
    """Yield the series of a store as far as they are asked for."""
    done = 0
    while page := store.series(kind=kind, limit=PAGE, skipped=done):
        yield from page
        done += len(page)


def records_named(store: RecordStore, name: str, *, kind: str | None = None) -> list[Record]:
    """Return the records of a name; raise SettingError with a suggestion if it is unknown."""
    records = store.find(name=name, kind=kind)
    if records:
        return records
    known = {summary.key.name: summary.key.kind for summary in store.series()}
    if name in known:
        raise SettingError(
            f"{name!r} has no readable record of kind {kind!r}; see `tinytorch history`"
        )
    near = get_close_matches(name, known, n=1) or [each for each in known if name in each][:1]
    advice = f"did you mean {near[0]!r}?" if near else "`tinytorch history` lists what there is"
    raise SettingError(f"nothing was measured under the name {name!r}; {advice}")


def usual_metric(records: Sequence[Record]) -> str:
    """Return the default metric: the first one of the newest record that has any."""
    for record in sorted(records, key=lambda each: each.created_at, reverse=True):
        preferred = [name for name in FIRST_CHOICE if name in record.samples]
        if record.samples:
            return next(iter([*preferred, *record.samples]))
    raise SettingError("none of these records has a metric; show one with --show HASH")


# ---------------------------------------------------------------- stored records as a baseline:
# what one old number, or a series of them, can show
#
# Runs differ from one another by more than the values inside of a run do: another day, another
# placement in memory, another neighbour on the machine. One old number is therefore weak evidence.

KIND, LATENCY, TIME_RATIO = "gate", "latency", "time ratio"
PROTOCOL = "fresh processes, in turns"
ENOUGH_RECORDS = 5
"""Fewest earlier records from which the run-to-run variance is estimated."""
ONE_RECORD_REACH = 0.1001
"""With fewer, a difference must be larger than this share to count: a little more than the default
tolerance, so that a single record never suffices."""
CONFIDENCE = 0.95


def settings_of(python: str = "", file: str = "") -> dict[str, Any]:
    """Return the settings of a gate's record, which must be equal for a later comparison.

    `file` is that of the target: ``bench.py:make`` is another thing in another folder.
    """
    own = {"python": python, "target_file": file}
    return {"protocol": PROTOCOL} | {name: value for name, value in own.items() if value}


@dataclass(frozen=True)
class Baseline:
    """A stored record to compare with, and the earlier ones of its series, oldest first."""

    record: Record
    earlier: tuple[Record, ...] = ()


@dataclass(frozen=True)
class StoredBaselines:
    """Records to compare with, and where they come from. The newest one of a name counts."""

    origin: str
    records: tuple[Record, ...]
    chosen: Record | None = None
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(record.name for record in self.records))

    def of(self, like: Record) -> tuple[Baseline | None, str]:
        """Return the baseline for a new record, or None and the reason.

        Among records of the same name the newest that can be compared is taken.
        """
        named = [self.chosen] if self.chosen else [r for r in self.records if r.name == like.name]
        if not named:
            known = ", ".join(self.names[:5]) or "none at all"
            return None, f"{self.origin} has no record of {like.name}; it has: {known}"
        newest_first = sorted(named, key=lambda record: record.created_at, reverse=True)
        fitting = [record for record in newest_first if _obstacle(record, like) is None]
        if not fitting:
            reason = _obstacle(newest_first[0], like)
            return None, f"{self.origin} cannot be compared with this run: {reason}"
        record = fitting[0]
        earlier = [
            each
            for each in self.records
            if each.series == record.series
            and each.hash != record.hash
            and each.created_at <= record.created_at
            and LATENCY in each.samples
        ]
        return Baseline(record, tuple(sorted(earlier, key=lambda each: each.created_at))), ""


def baselines_in_store(store: RecordStore, hash_prefix: str) -> StoredBaselines:
    """Return one record of a store, with the others of its series."""
    record = store.get(hash_prefix)
    series = store.find(**record.series._asdict())
    return StoredBaselines(f"record {record.hash[:12]}", tuple(series), record)


def baselines_in_file(path: str | os.PathLike[str], *, origin: str = "") -> StoredBaselines:
    """Read the records of a JSON Lines file, as ``tinytorch history --export`` writes it.

    `origin` is how reports call it; without, by its path.
    """
    refused: list[Refused] = []
    records = list(parsed_lines(path, refused))
    reasons = [f"line {each.line}: {each.reason}" for each in refused]
    if not records:
        reason = f"the first line: {reasons[0]}" if reasons else "it is empty"
        raise SettingError(
            f"{path} holds no record to compare with ({reason}); "
            "`tinytorch history --export FILE` writes one"
        )
    notes = [f"{len(reasons)} lines of {path} were refused; {reasons[0]}"] if reasons else []
    return StoredBaselines(origin or str(path), tuple(records), notes=tuple(notes))


def compare_with_record(today: Samples, baseline: Baseline) -> tuple[Estimate, tuple[str, ...]]:
    """Return the time ratio to a record, with an interval that includes run-to-run variance.

    With enough earlier records, their spread since the last change of level is that of a run; the
    difference of two runs has it twice. `today` has one value per process.
    """
    old = baseline.record.samples[LATENCY]
    centre = math.log(today.median / old.median)
    own = max(_reach_within(today), _reach_within(old))
    level = _latest_level([*baseline.earlier, baseline.record])
    if len(baseline.earlier) < ENOUGH_RECORDS or len(level) < ENOUGH_RECORDS:
        reach = max(math.log1p(ONE_RECORD_REACH), own)
        found = f"{len(baseline.earlier)} earlier records"
        if len(baseline.earlier) >= ENOUGH_RECORDS:
            found = f"{len(level)} records since the last change of level"
        note = (
            f"{found} of this series are too few for the spread between runs (needs "
            f"{ENOUGH_RECORDS}); minimum effect {ONE_RECORD_REACH:.0%}"
        )
    else:
        spread = float(np.std(level, ddof=1))
        quantile = student_t_quantile((1 + CONFIDENCE) / 2, len(level) - 1)
        reach = max(quantile * spread * math.sqrt(2), own)
        note = (
            f"interval from the spread between runs: standard deviation "
            f"{math.expm1(spread):.1%} of {len(level)} records"
        )
    ratio = Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))
    return ratio, (note,)


def stored_scores(record: Record) -> tuple[tuple[float, ...], str] | None:
    """Return the candidate's score per example in a record, and the name of the metric."""
    comparison = record.details.get("comparison")
    if not isinstance(comparison, dict) or not comparison.get("accuracy"):
        return None
    accuracy = Comparison.from_dict(comparison).accuracy
    return None if accuracy is None else (accuracy.candidate_scores, accuracy.metric)


def accuracy_against(
    record: Record, today: AccuracyComparison, margin: float
) -> AccuracyComparison | None:
    """Compare today's scores with the stored ones; None when there are none."""
    stored = stored_scores(record)
    if stored is None:
        return None
    scores, metric = stored
    return compare_accuracy(scores, today.candidate_scores, margin=margin, metric=metric)


def _obstacle(record: Record, like: Record) -> str | None:
    reason = comparable(record, like)
    if reason is None and LATENCY not in record.samples:
        return f"it has no {LATENCY}"
    return reason


def _reach_within(samples: Samples) -> float:
    """Return the half-width of the interval of a median, as a logarithm."""
    if samples.count < 2 or samples.minimum <= 0:
        return 0.0
    interval = samples.median_interval(CONFIDENCE)
    return max(math.log(interval.high / samples.median), math.log(samples.median / interval.low))


def _latest_level(records: Sequence[Record]) -> list[float]:
    """Return the logarithms of the medians since the last change point."""
    values = [math.log(record.samples[LATENCY].median) for record in records]
    changes = find_change_points([math.exp(value) for value in values])
    return values[changes[-1].index :] if changes else values
