"""Documents of records: what there is, how it went over time, and one of them in full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from tinytorch.measure.environment import Commit
from tinytorch.measure.samples import Samples
from tinytorch.records.change_points import ChangePoint
from tinytorch.records.history import SeriesOverview, Trend, TrendPoint
from tinytorch.records.record import Record
from tinytorch.reporting.document import (
    Banner,
    Block,
    Bullets,
    Cell,
    Column,
    Document,
    Facts,
    Folded,
    Paragraph,
    Preformatted,
    Section,
    Table,
    TrendLine,
)
from tinytorch.reporting.quantities import UNKNOWN, date_text, factor_text, value_text

__all__ = ["history_document", "overview_document", "record_document"]

SHORT_MACHINE, SHORT_HASH = 8, 12
ENOUGH_RECORDS = 12
"""The fewest values in which a change of level can be shown."""
MOST_RECORDS = 200
"""Records of a series that are listed, the newest; the chart and the raw values have all."""
MOST_OPEN = 20
"""Records that a page lists without folding them away."""
UNLIKE = "of unlike machines or settings: never merged, never compared."


# ---------------------------------------------------------------- what there is

SERIES = (
    Column("name", "code"),
    Column("kind", rank=5),
    Column("metric", rank=1),
    Column("n", "number", "records", rank=4),
    Column("last", "number"),
    Column("change", "number", "the last value against the one before", rank=1),
    Column("trend", rank=2),
    Column("levels", "number", "changes of level that are shown", rank=7),
    Column("date", rank=6),
    Column("machine", "code", rank=3),
)


def overview_document(rows: Sequence[SeriesOverview], *, has_more: bool = False) -> Document:
    """Return the series of a store, a row for each metric."""
    table = Table(
        SERIES, [_series_row(row, each) for row in rows for each in row.recent or (None,)]
    )
    more = [Paragraph("There are more; --limit N lists them.")] if has_more else []
    return Document("", None, (table, *more))


def _series_row(row: SeriesOverview, trend: Trend | None) -> list[Cell | str]:
    if trend is not None:
        # What is recent are the last records of the series only; their levels say nothing.
        return _trend_row(trend, row.summary.count, levels=Cell(""))
    key = row.summary.key
    blank = (UNKNOWN, Cell(str(row.summary.count), row.summary.count), UNKNOWN, "", "", "")
    return [key.name, key.kind, *blank, date_text(row.summary.last), _machine(key.machine)]


def _trend_row(trend: Trend, count: int, *, levels: Cell, anchor: str = "") -> list[Cell | str]:
    last, change = trend.points[-1], trend.last_change
    return [
        Cell(trend.key.name, trend.key.name, anchor=anchor),
        trend.key.kind,
        trend.metric,
        Cell(str(count), count),
        Cell(value_text(last.value, trend.unit), last.value),
        Cell("" if change is None else f"{change:+.1%}", change),
        Cell("", change, trend=trend.values if len(trend.points) > 1 else ()),
        levels,
        date_text(last.created_at),
        _machine(trend.key.machine),
    ]


def _machine(fingerprint: str) -> Cell:
    return Cell(_machine_text(fingerprint), title=fingerprint)


def _machine_text(fingerprint: str) -> str:
    """Shorten a fingerprint, but not the name of the tool in front of a foreign one."""
    tool, dash, digits = fingerprint.rpartition("-")
    return f"{tool}{dash}{digits[:SHORT_MACHINE]}"


# ---------------------------------------------------------------- how it went over time


def history_document(
    trends: Sequence[Trend], *, name: str = "", limit: int = MOST_RECORDS
) -> Document:
    """Return some trends, such as those of one `name` on several machines.

    Of the records of each, the newest `limit` are listed.
    """
    names = list(dict.fromkeys(each.key.name for each in trends))
    series = [_series(each, f"trend-{place}", limit) for place, each in enumerate(trends, 1)]
    return Document(
        f"History of {name or names[0]}" if name or len(names) == 1 else "History",
        _banner(trends),
        ([_overview(trends), *series] if len(trends) > 1 else series),
        raw={"trends": [each.to_dict() for each in trends]},
        file_name="tinytorch-history.json",
    )


def _banner(trends: Sequence[Trend]) -> Banner:
    changed = [each for each in trends if each.change_points]
    count = sum(len(each.change_points) for each in changed)
    if count:
        verdict = "1 change of level" if count == 1 else f"{count} changes of level"
    else:
        verdict = "No change of level is shown"
    where = [f"{each.key.name}, {each.metric}: {_change_lines(each)[-1]}" for each in changed]
    moments = [point.created_at for each in trends for point in each.points]
    facts = (
        ("series", str(len(trends))),
        ("records", str(len(moments))),
        ("first", date_text(min(moments))),
        ("last", date_text(max(moments))),
    )
    return Banner(verdict, where[0] if where else _why_none(trends), facts)


def _why_none(trends: Sequence[Trend]) -> str:
    if max(len(each.points) for each in trends) < ENOUGH_RECORDS:
        return f"It takes about {ENOUGH_RECORDS} records of one series to show a change."
    return "What moved did not move more than chance would."


def _overview(trends: Sequence[Trend]) -> Section:
    rows = [
        _trend_row(
            each,
            len(each.points),
            levels=Cell(str(len(each.change_points)), len(each.change_points)),
            anchor=f"trend-{place}",
        )
        for place, each in enumerate(trends, 1)
    ]
    return Section("overview", "Overview", (Table(SERIES, rows),), f"{len(trends)} series {UNLIKE}")


def _series(trend: Trend, anchor: str, limit: int) -> Section:
    return Section(anchor, trend.key.name, list(_series_blocks(trend, limit)), _about(trend))


def _series_blocks(trend: Trend, limit: int) -> Iterator[Block]:
    count = len(trend.points)
    if count > 1:
        yield _chart(trend)
    yield from map(Paragraph, _change_lines(trend))
    records = [_records(trend, limit)]
    yield Folded(f"{count} records", records, count <= MOST_OPEN, ("terminal", "html"))
    yield Bullets(trend.notes, tone="unknown")


def _about(trend: Trend) -> str:
    """Say what a trend is about beside its name."""
    key = trend.key
    parts = [trend.metric, key.kind, f"machine {_machine_text(key.machine)}"]
    for name, value in trend.settings.items():
        parts.append(f"{name} {value if isinstance(value, str) else json.dumps(value)}")
    return ", ".join(parts)


def _chart(trend: Trend) -> TrendLine:
    intervals = [point.interval for point in trend.points]
    return TrendLine(
        trend.values,
        trend.unit,
        [(each.low, each.high) if each else None for each in intervals],
        [change.index for change in trend.change_points],
        (date_text(trend.points[0].created_at), date_text(trend.points[-1].created_at)),
        [f"{_where(point)}: {value_text(point.value, trend.unit)}" for point in trend.points],
        title=f"{trend.metric}, oldest first.",
    )


def _change_lines(trend: Trend) -> list[str]:
    """Say where the level has changed, a line for each; a single value has no level."""
    if not trend.change_points:
        return ["No change of level is shown."] if len(trend.points) > 1 else []
    return [_change(trend, change) for change in trend.change_points]


def _change(trend: Trend, change: ChangePoint) -> str:
    unit = trend.unit
    values = f"{value_text(change.before, unit)} to {value_text(change.after, unit)}"
    factor = f" ({factor_text(change.ratio)})" if change.ratio is not None else ""
    where = _where(trend.points[change.index])
    return f"Change on {where}: {values}{factor}, p = {change.p_value:.2g}"


def _where(point: TrendPoint) -> str:
    commit = _commit_text(point.commit, point.commit_has_changes)
    return f"{date_text(point.created_at)}{f' at {commit}' if commit else ''}"


def _records(trend: Trend, limit: int) -> Table:
    columns = [
        Column("date"),
        Column("median", "number"),
        Column("95% interval", "number", rank=2),
        Column("n", "number", "values", rank=4),
        Column("", about="where a new level begins", rank=1),
        Column("commit", "code", rank=3),
        Column("record", "code", rank=5),
        Column("notes", rank=6),
    ]
    starts = {trend.points[change.index].hash for change in trend.change_points}
    shown = trend.points[::-1][:limit]
    rows = [_record_row(point, trend.unit, is_new=point.hash in starts) for point in shown]
    is_cut = len(shown) < len(trend.points)
    caption = f"the newest {len(shown)} of {len(trend.points)} records" if is_cut else ""
    return Table(columns, rows, caption)


def _record_row(point: TrendPoint, unit: str, *, is_new: bool) -> list[Cell | str]:
    return [
        Cell(date_text(point.created_at), point.created_at),
        Cell(value_text(point.value, unit), point.value),
        Cell(_interval_text(point, unit), point.interval.low if point.interval else None),
        Cell(str(point.samples.count), point.samples.count),
        Cell("changed" if is_new else "", tone="unknown"),
        _commit_text(point.commit, point.commit_has_changes),
        Cell(point.hash[:SHORT_HASH], title=point.hash),
        "; ".join(dict.fromkeys(point.notes)),
    ]


def _interval_text(point: TrendPoint, unit: str) -> str:
    """Write the interval of a median; one of less than 95% says so."""
    found = point.interval
    if found is None:
        return UNKNOWN
    short = f" ({found.coverage:.0%})" if found.coverage < 0.95 else ""
    return f"{value_text(found.low, unit)} to {value_text(found.high, unit)}{short}"


def _commit_text(hash: str | None, has_changes: bool) -> str:
    """Write a commit; nothing where there is none."""
    return str(Commit(hash, has_changes)) if hash else ""


# ---------------------------------------------------------------- one record in full


def record_document(record: Record) -> Document:
    """Return one record with every raw value."""
    facts = (
        ("hash", record.hash),
        ("made", record.created_at),
        ("commit", _commit_text(record.commit, record.commit_has_changes) or UNKNOWN),
        ("machine", record.machine),
        ("run", record.run or UNKNOWN),
    )
    fields = (
        ("Settings", record.settings),
        ("Environment", record.environment),
        ("Details", record.details),
    )
    blocks: list[Block] = [Facts(facts)]
    if record.samples:
        blocks.append(_metrics(record.samples.items()))
    for name, samples in record.samples.items():
        unit = f" ({samples.unit})" if samples.unit else ""
        values = " ".join(f"{value!r}" for value in samples.values)
        blocks += [Preformatted(values, f"Raw values of {name}{unit}")]
        blocks += [Bullets(samples.notes, tone="unknown")]
    blocks += [Preformatted(json.dumps(each, indent=2), title) for title, each in fields if each]
    return Document(f"{record.name}, {record.kind}", None, blocks, notes=record.notes)


def _metrics(metrics: Iterable[tuple[str, Samples]]) -> Table:
    columns = [
        Column("metric"),
        Column("median", "number"),
        Column("least", "number", rank=1),
        Column("most", "number", rank=1),
        Column("n", "number", rank=2),
        Column("loops", "number", rank=3),
    ]
    return Table(columns, [_metric_row(name, each) for name, each in metrics])


def _metric_row(name: str, samples: Samples) -> list[Cell | str]:
    values = (samples.median, samples.minimum, samples.maximum)
    return [
        name,
        *(Cell(value_text(value, samples.unit), value) for value in values),
        Cell(str(samples.count), samples.count),
        Cell(str(samples.loops), samples.loops),
    ]
