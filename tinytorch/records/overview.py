"""What a store holds, at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.records.store import RecordStore, SeriesSummary
from tinytorch.records.trends import Trend, trends
from tinytorch.workloads.record import Record

__all__ = ["SeriesOverview", "overview", "records_named", "usual_metric"]

PARTS = frozenset({"attempt"})
"""Kinds of records that belong to others."""
RECENT = 40
"""So many of the newest records of a series make its small picture."""
FIRST_CHOICE = ("latency", "time ratio", "throughput")


@dataclass(frozen=True)
class SeriesOverview:
    """One series: how many records it has, and the recent trend of each of its metrics."""

    summary: SeriesSummary
    recent: tuple[Trend, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give everything, ready for JSON."""
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
    """Give the series of a store with their recent trends, the newest first.

    Attempts of an optimization, which are parts of its record, are listed only when asked for.
    """
    found: list[SeriesOverview] = []
    for summary in store.series():
        if limit is not None and len(found) >= limit:
            break
        its_kind = summary.key.kind
        if its_kind in PARTS if kind is None else its_kind != kind:
            continue
        records = store.find(**summary.key._asdict(), limit=RECENT, newest_first=True)
        recent = trends(reversed(records), metric)
        if recent or metric is None:
            found.append(SeriesOverview(summary, recent))
    return found


def records_named(store: RecordStore, name: str, *, kind: str | None = None) -> list[Record]:
    """Give the records of a name; an unknown one is an error that names near ones."""
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
    """Give the metric to look at when nobody says which: of the newest record with any."""
    for record in sorted(records, key=lambda each: each.created_at, reverse=True):
        preferred = [name for name in FIRST_CHOICE if name in record.samples]
        if record.samples:
            return next(iter([*preferred, *record.samples]))
    raise SettingError("none of these records has a metric; look at one with --show HASH")
