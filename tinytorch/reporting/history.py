"""Records in the terminal: what there is, how it went over time, and one of them in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tinytorch.measure.environment import Commit
from tinytorch.measure.samples import Samples
from tinytorch.records.change_points import ChangePoint
from tinytorch.records.history import SeriesOverview, Trend, TrendPoint
from tinytorch.records.record import Record
from tinytorch.reporting.quantities import (
    UNKNOWN,
    Column,
    FittingTable,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    rate_text,
    seconds_text,
    sparkline,
    trend_plot,
)

__all__ = [
    "UNLIKE",
    "change_lines",
    "change_share_text",
    "commit_text",
    "date_text",
    "interval_text",
    "machine_text",
    "plotted",
    "render_overview",
    "render_record",
    "render_trends",
    "trend_head",
    "trend_text",
    "value_text",
]

WIDEST = 100
SPARKLINE = 16
SHORT_MACHINE, SHORT_HASH = 8, 12
UNLIKE = "of unlike machines or settings: never merged, never compared."


def value_text(value: float | None, unit: str) -> str:
    """Write a number in its unit: seconds, bytes, shares and rates as they are usually read.

    >>> value_text(0.0025, "s"), value_text(2048, "B"), value_text(0.93, "fraction")
    ('2.50 ms', '2 KiB', '93.0%')
    """
    if unit == "s":
        return seconds_text(value)
    if unit in ("B", "bytes"):
        return bytes_text(value)
    if unit in ("fraction", "share"):
        return percent_text(value)
    if value is None:
        return UNKNOWN
    if unit in ("FLOP/s", "B/s"):
        return rate_text(value, unit)
    digits = f"{value:.4g}" if abs(value) < 1e3 else count_text(value)
    return f"{digits} {unit}".rstrip()


def render_overview(rows: Sequence[SeriesOverview], *, has_more: bool = False) -> RenderableType:
    """Lay out the series of a store, a line for each metric."""
    lines = [(row, trend) for row in rows for trend in row.recent or (None,)]
    table = FittingTable(
        "name",
        [Text(row.summary.key.name) for row, _ in lines],
        [
            Column("kind", [row.summary.key.kind for row, _ in lines], 5, "left"),
            Column("metric", [each.metric if each else UNKNOWN for _, each in lines], 1, "left"),
            Column("n", [str(row.summary.count) for row, _ in lines], 4),
            Column(
                "last", [value_text(_last(each), each.unit if each else "") for _, each in lines]
            ),
            Column(
                "change",
                [change_share_text(each.last_change if each else None) for _, each in lines],
                1,
            ),
            Column("trend", [_spark(each) for _, each in lines], 2, "left"),
            Column("date", [date_text(row.summary.last) for row, _ in lines], 6, "left"),
            Column(
                "machine", [machine_text(row.summary.key.machine) for row, _ in lines], 3, "left"
            ),
        ],
    )
    return Group(table, Text("There are more; --limit N lists them.")) if has_more else table


def render_trends(found: Sequence[Trend], *, limit: int) -> RenderableType:
    """Lay out trends, each with its picture, its changes and its last records."""
    parts: list[RenderableType] = []
    for each in found:
        parts += [*_trend(each, limit), Text("")]
    if len(found) > 1:
        parts.append(Text(f"{len(found)} series {UNLIKE}", style="yellow"))
    return Group(*parts)


def render_record(record: Record) -> RenderableType:
    """Lay out one record in full, with every raw value."""
    facts = {
        "hash": record.hash,
        "made": record.created_at,
        "commit": commit_text(record.commit, record.commit_has_changes) or UNKNOWN,
        "machine": record.machine,
        "run": record.run or UNKNOWN,
    }
    metrics = list(record.samples.items())
    table: list[RenderableType] = [Text(""), _metrics_table(metrics)] if metrics else []
    return Group(
        Text.assemble((record.name, "bold"), "  ", (record.kind, "dim")),
        *(Text(f"{name:<8} {value}") for name, value in facts.items()),
        *(Text(f"- {note}", style="yellow") for note in record.notes),
        *table,
        *(part for name, samples in metrics for part in _raw_values(name, samples)),
        *_as_json("Settings", record.settings),
        *_as_json("Environment", record.environment),
        *_as_json("Details", record.details),
    )


def _trend(trend: Trend, limit: int) -> list[RenderableType]:
    head = Text.assemble((trend.key.name, "bold"), "  ", (trend_head(trend), "dim"))
    parts: list[RenderableType] = [head]
    if len(trend.points) > 1:
        parts += [Text(""), _Picture(trend)]
    parts += [Text(""), *_changes(trend), _last_records(trend, limit)]
    return [*parts, *(Text(f"- {note}", style="yellow") for note in trend.notes)]


@dataclass(frozen=True)
class _Picture:
    """The trend, as wide as the terminal allows."""

    trend: Trend

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        picture = trend_text(self.trend, width=min(WIDEST, options.max_width))
        yield Text(picture, no_wrap=True, overflow="crop")


def trend_text(trend: Trend, *, width: int = 80) -> str:
    """Draw a trend with letters."""
    return trend_plot(trend.values, **plotted(trend), width=width)


def plotted(trend: Trend) -> dict[str, Any]:
    """Give what pictures of a trend show beside its values: intervals, changes, labels."""
    intervals = [point.interval for point in trend.points]
    first, last = trend.points[0], trend.points[-1]
    return {
        "bars": [(each.low, each.high) if each else None for each in intervals],
        "steps": [change.index for change in trend.change_points],
        "y_text": lambda value: value_text(value, trend.unit),
        "ends": (date_text(first.created_at), date_text(last.created_at)),
    }


def _changes(trend: Trend) -> list[RenderableType]:
    style = "" if trend.change_points else "dim"
    lines = change_lines(trend)
    return [*(Text(line, style=style) for line in lines), Text("")] if lines else []


def trend_head(trend: Trend) -> str:
    """Say what a trend is about beside its name."""
    key = trend.key
    return f"{trend.metric}, {key.kind}, machine {machine_text(key.machine)}{_settings(trend)}"


def change_lines(trend: Trend) -> list[str]:
    """Say where the level has changed, a line for each; a single value has no level."""
    if not trend.change_points:
        return ["No change of level is shown."] if len(trend.points) > 1 else []
    return [_change(trend, change) for change in trend.change_points]


def _change(trend: Trend, change: ChangePoint) -> str:
    point, unit = trend.points[change.index], trend.unit
    values = f"{value_text(change.before, unit)} to {value_text(change.after, unit)}"
    commit = commit_text(point.commit, point.commit_has_changes)
    where = f"{date_text(point.created_at)}{f' at {commit}' if commit else ''}"
    factor = f" ({factor_text(change.ratio)})" if change.ratio is not None else ""
    return f"Change on {where}: {values}{factor}, p = {change.p_value:.2g}"


def _last_records(trend: Trend, limit: int) -> FittingTable:
    first = max(0, len(trend.points) - limit)
    points = trend.points[first:][::-1]
    starts = {trend.points[change.index].hash for change in trend.change_points}
    return FittingTable(
        "date",
        [Text(date_text(point.created_at)) for point in points],
        [
            Column("median", [value_text(point.value, trend.unit) for point in points]),
            Column("95% interval", [interval_text(point, trend.unit) for point in points], 2),
            Column("n", [str(point.samples.count) for point in points], 4),
            Column("", ["changed" if point.hash in starts else "" for point in points], 1, "left"),
            Column(
                "commit",
                [commit_text(point.commit, point.commit_has_changes) for point in points],
                3,
                "left",
            ),
            Column("record", [point.hash[:SHORT_HASH] for point in points], 5, "left"),
        ],
        label_least=16,
    )


def _metrics_table(metrics: Sequence[tuple[str, Samples]]) -> FittingTable:
    return FittingTable(
        "metric",
        [Text(name) for name, _ in metrics],
        [
            Column("median", [value_text(each.median, each.unit) for _, each in metrics]),
            Column("least", [value_text(each.minimum, each.unit) for _, each in metrics], 1),
            Column("most", [value_text(each.maximum, each.unit) for _, each in metrics], 1),
            Column("n", [str(each.count) for _, each in metrics], 2),
            Column("loops", [str(each.loops) for _, each in metrics], 3),
        ],
    )


def _raw_values(name: str, samples: Samples) -> list[Text]:
    values = " ".join(f"{value!r}" for value in samples.values)
    unit = f" ({samples.unit})" if samples.unit else ""
    notes = [Text(f"- {note}", style="yellow") for note in samples.notes]
    return [Text(""), Text(f"Raw values of {name}{unit}", style="bold"), Text(values), *notes]


def _as_json(title: str, fields: object) -> list[Text]:
    if not fields:
        return []
    return [Text(""), Text(title, style="bold"), Text(json.dumps(fields, indent=2))]


def _settings(trend: Trend) -> str:
    parts = [f"{name} {_plain(value)}" for name, value in trend.settings.items()]
    return f", {', '.join(parts)}" if parts else ""


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def interval_text(point: TrendPoint, unit: str) -> str:
    """Write the interval of a median; one of less than 95% says so."""
    found = point.interval
    if found is None:
        return UNKNOWN
    short = f" ({found.coverage:.0%})" if found.coverage < 0.95 else ""
    return f"{value_text(found.low, unit)} to {value_text(found.high, unit)}{short}"


def commit_text(hash: str | None, has_changes: bool) -> str:
    """Write a commit; nothing where there is none."""
    return str(Commit(hash, has_changes)) if hash else ""


def _last(trend: Trend | None) -> float | None:
    return trend.values[-1] if trend else None


def _spark(trend: Trend | None) -> str:
    return sparkline(trend.values, SPARKLINE) if trend and len(trend.points) > 1 else ""


def change_share_text(share: float | None) -> str:
    """Write by how much something has changed."""
    return "" if share is None else f"{share:+.1%}"


def date_text(moment: str) -> str:
    """Write a moment without its seconds; it is UTC."""
    return moment[:16].replace("T", " ")


def machine_text(fingerprint: str) -> str:
    """Shorten a fingerprint, but not the name of the tool in front of a foreign one."""
    tool, dash, digits = fingerprint.rpartition("-")
    return f"{tool}{dash}{digits[:SHORT_MACHINE]}"
