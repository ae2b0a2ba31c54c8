"""Stored records as a baseline: what one old number, or a series of them, can show.

Runs differ from one another by more than the values inside of a run do: another day, another
placement in memory, another neighbour on the machine. One old number is therefore weak evidence.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.comparison.accuracy import AccuracyComparison, compare_accuracy
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.sequential import TimeRatio
from tinytorch.errors import RecordError, SettingError
from tinytorch.measure.samples import Samples
from tinytorch.measure.scaling import student_t_quantile
from tinytorch.records.change_points import find_change_points
from tinytorch.records.store import RecordStore
from tinytorch.records.trends import comparable
from tinytorch.workloads.record import Record, parse_record

__all__ = [
    "KIND",
    "LATENCY",
    "Baseline",
    "StoredBaselines",
    "baselines_in_file",
    "baselines_in_store",
    "compare_with_record",
    "settings_of",
]

KIND, LATENCY, TIME_RATIO = "gate", "latency", "time ratio"
PROTOCOL = "fresh processes, in turns"
ENOUGH_RECORDS = 5
"""From so many earlier records on, their spread says how far runs differ."""
ONE_RECORD_REACH = 0.10
"""With fewer, a difference must be larger than this share to count."""
CONFIDENCE = 0.95


def settings_of(python: str = "", file: str = "") -> dict[str, Any]:
    """Give the settings of a gate's record: what must be equal to compare with it later.

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
        """Give the baseline for a record of today, or None and the reason in words.

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
    """Give one record of a store, with the others of its series."""
    record = store.get(hash_prefix)
    series = store.find(**record.series._asdict())
    return StoredBaselines(f"record {record.hash[:12]}", tuple(series), record)


def baselines_in_file(path: str | os.PathLike[str], *, origin: str = "") -> StoredBaselines:
    """Give the records of a file of JSON lines, as ``tinytorch history --export`` writes it.

    `origin` is how reports call it; without, by its path.
    """
    records, refused = [], []
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror or error}); name another file of records"
        ) from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                records.append(parse_record(line.decode("utf-8-sig")))
            except (UnicodeDecodeError, RecordError) as error:
                refused.append(f"line {number}: {error}")
    if not records:
        reason = f"the first line: {refused[0]}" if refused else "it is empty"
        raise SettingError(
            f"{path} holds no record to compare with ({reason}); "
            "`tinytorch history --export FILE` writes one"
        )
    notes = [f"{len(refused)} lines of {path} were refused; {refused[0]}"] if refused else []
    return StoredBaselines(origin or str(path), tuple(records), notes=tuple(notes))


def compare_with_record(today: Samples, baseline: Baseline) -> tuple[TimeRatio, tuple[str, ...]]:
    """Give today's time over the record's, with an interval that allows for runs to differ.

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
            f"{found} of this series do not tell how far runs differ ({ENOUGH_RECORDS} would); "
            f"only a difference beyond {ONE_RECORD_REACH:.0%} counts"
        )
    else:
        spread = float(np.std(level, ddof=1))
        quantile = student_t_quantile((1 + CONFIDENCE) / 2, len(level) - 1)
        reach = max(quantile * spread * math.sqrt(2), own)
        note = (
            f"runs of this series differ by {math.expm1(spread):.1%} (standard deviation of "
            f"{len(level)} records), which makes the interval"
        )
    ratio = TimeRatio(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))
    return ratio, (note,)


def stored_scores(record: Record) -> tuple[tuple[float, ...], str] | None:
    """Give the candidate's score of each example in a record, and the metric's name."""
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
    """Give how far the interval of a median reaches, as a logarithm."""
    if samples.count < 2 or samples.minimum <= 0:
        return 0.0
    interval = samples.median_interval(CONFIDENCE)
    return max(math.log(interval.high / samples.median), math.log(samples.median / interval.low))


def _latest_level(records: Sequence[Record]) -> list[float]:
    """Give the logarithms of the medians since the last change of level."""
    values = [math.log(record.samples[LATENCY].median) for record in records]
    changes = find_change_points([math.exp(value) for value in values])
    return values[changes[-1].index :] if changes else values
