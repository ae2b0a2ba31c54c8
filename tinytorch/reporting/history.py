"""Documents of records: what there is, how it went over time, and one of them in full."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from tinytorch.measure.environment import Commit
from tinytorch.measure.samples import Samples
from tinytorch.records.change_points import ChangePoint
from tinytorch.records.history import SeriesOverview, Trend, TrendPoint
from tinytorch.records.record import Record
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import UNKNOWN, date_text, factor_text, range_text, value_text

SHORT_MACHINE, SHORT_HASH = 8, 12
ENOUGH_RECORDS = 12
"""The fewest values in which a change of level can be shown."""
MOST_RECORDS = 200
"""Records of a series that are listed, the newest; the chart and the raw values have all."""
BRIEF = 5
"""Records that are listed in brief."""
MOST_OPEN = 20
"""Records that a page lists without folding them away."""
UNLIKE = "of unlike machines or settings: never merged, never compared."


# ---------------------------------------------------------------- what there is

SERIES = (
    doc.Column("name", "code"),
    doc.Column("kind", rank=5),
    doc.Column("metric", rank=1),
    doc.Column("n", "number", "records", rank=4),
    doc.Column("last", "number"),
    doc.Column("change", "number", "the last value against the one before", rank=1),
    doc.Column("trend", rank=2),
    doc.Column("levels", "number", "changes of level that are shown", rank=7),
    doc.Column("date", rank=6),
    doc.Column("machine", "code", rank=3),
)


def overview_document(rows: Sequence[SeriesOverview], *, has_more: bool = False) -> doc.Document:
    """Return the series of a store, a row for each metric."""
    table = doc.Table(
        SERIES, [_series_row(row, each) for row in rows for each in row.recent or (None,)]
    )
    more = [doc.Paragraph("There are more; --limit N lists them.")] if has_more else []
    return doc.Document("", None, (table, *more))


def _series_row(row: SeriesOverview, trend: Trend | None) -> list[doc.Cell | str]:
    if trend is not None:
        # What is recent are the last records of the series only; their levels say nothing.
        return _trend_row(trend, row.summary.count, levels=doc.Cell(""))
    key = row.summary.key
    blank = (UNKNOWN, doc.Cell(str(row.summary.count), row.summary.count), UNKNOWN, "", "", "")
    return [key.name, key.kind, *blank, date_text(row.summary.last), machine_cell(key.machine)]


def _trend_row(
    trend: Trend, count: int, *, levels: doc.Cell, anchor: str = ""
) -> list[doc.Cell | str]:
    last, change = trend.points[-1], trend.last_change
    return [
        doc.Cell(trend.key.name, trend.key.name, anchor=anchor),
        trend.key.kind,
        trend.metric,
        doc.Cell(str(count), count),
        doc.Cell(value_text(last.value, trend.unit), last.value),
        doc.Cell("" if change is None else f"{change:+.1%}", change),
        doc.Cell("", change, trend=trend.values if len(trend.points) > 1 else ()),
        levels,
        date_text(last.created_at),
        machine_cell(trend.key.machine),
    ]


def machine_cell(fingerprint: str) -> doc.Cell:
    return doc.Cell(_machine_text(fingerprint), title=fingerprint)


def _machine_text(fingerprint: str) -> str:
    """Shorten a fingerprint, but not the name of the tool in front of a foreign one."""
    tool, dash, digits = fingerprint.rpartition("-")
    return f"{tool}{dash}{digits[:SHORT_MACHINE]}"


# ---------------------------------------------------------------- how it went over time


def history_document(
    trends: Sequence[Trend], *, name: str = "", limit: int = MOST_RECORDS, index: str = ""
) -> doc.Document:
    """Return some trends, such as those of one `name` on several machines.

    Of the records of each, the newest `limit` are listed. `index` is a page that lists all series.
    """
    names = list(dict.fromkeys(each.key.name for each in trends))
    series = [_series(each, f"trend-{place}", limit) for place, each in enumerate(trends, 1)]
    return doc.Document(
        f"History of {name or names[0]}" if name or len(names) == 1 else "History",
        _banner(trends),
        (*_way_back(index), *([_overview(trends), *series] if len(trends) > 1 else series)),
        raw={"trends": [each.to_dict() for each in trends]},
        file_name="tinytorch-history.json",
        brief=[_overview(trends).blocks[0], *_newest(trends, limit)],
    )


def _way_back(index: str) -> tuple[doc.Block, ...]:
    return (doc.Paragraph((doc.Link("All series", page=index),)),) if index else ()


def _newest(trends: Sequence[Trend], limit: int) -> Iterator[doc.Block]:
    """Yield the last records of a single series."""
    if len(trends) == 1:
        yield _records(trends[0], min(limit, BRIEF))


def _banner(trends: Sequence[Trend]) -> doc.Banner:
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
    return doc.Banner(verdict, where[0] if where else _why_none(trends), facts)


def _why_none(trends: Sequence[Trend]) -> str:
    if max(len(each.points) for each in trends) < ENOUGH_RECORDS:
        return f"It takes about {ENOUGH_RECORDS} records of one series to show a change."
    return "What moved did not move more than chance would."


def _overview(trends: Sequence[Trend]) -> doc.Section:
    rows = [
        _trend_row(
            each,
            len(each.points),
            levels=doc.Cell(str(len(each.change_points)), len(each.change_points)),
            anchor=f"trend-{place}",
        )
        for place, each in enumerate(trends, 1)
    ]
    return doc.Section(
        "overview", "Overview", (doc.Table(SERIES, rows),), f"{len(trends)} series {UNLIKE}"
    )


def _series(trend: Trend, anchor: str, limit: int) -> doc.Section:
    return doc.Section(anchor, trend.key.name, list(_series_blocks(trend, limit)), _about(trend))


def _series_blocks(trend: Trend, limit: int) -> Iterator[doc.Block]:
    count = len(trend.points)
    if count > 1:
        yield _chart(trend)
    yield from map(doc.Paragraph, _change_lines(trend))
    records = [_records(trend, limit)]
    yield doc.Folded(f"{count} records", records, count <= MOST_OPEN, ("terminal", "html"))
    yield doc.Bullets(trend.notes, tone="unknown")


def _about(trend: Trend) -> str:
    """Say what a trend is about beside its name."""
    key = trend.key
    parts = [trend.metric, key.kind, f"machine {_machine_text(key.machine)}"]
    for name, value in trend.settings.items():
        parts.append(f"{name} {value if isinstance(value, str) else json.dumps(value)}")
    return ", ".join(parts)


def _chart(trend: Trend) -> doc.TrendLine:
    intervals = [point.interval for point in trend.points]
    return doc.TrendLine(
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


def _records(trend: Trend, limit: int) -> doc.Table:
    starts = {trend.points[change.index].hash for change in trend.change_points}
    shown, unit = trend.points[::-1][:limit], trend.unit
    is_cut = len(shown) < len(trend.points)

    def interval(point: TrendPoint) -> doc.Cell:
        found = point.interval
        return doc.Cell(_interval_text(point, unit), found.low if found else None)

    def is_new(point: TrendPoint) -> doc.Cell:
        return doc.Cell("changed" if point.hash in starts else "", tone="unknown")

    def commit(point: TrendPoint) -> str:
        return _commit_text(point.commit, point.commit_has_changes)

    return doc.table_of(
        shown,
        doc.column("date", lambda each: doc.Cell(date_text(each.created_at), each.created_at)),
        doc.number("median", lambda each: each.value, lambda value: value_text(value, unit)),
        doc.column("95% interval", interval, "number", rank=2),
        doc.number("n", lambda each: each.samples.count, str, "values", rank=4),
        doc.column("", is_new, about="where a new level begins", rank=1),
        doc.column("commit", commit, "code", rank=3),
        doc.column("record", lambda x: doc.Cell(x.hash[:SHORT_HASH], title=x.hash), "code", rank=5),
        doc.column("notes", lambda each: "; ".join(dict.fromkeys(each.notes)), rank=6),
        caption=f"the newest {len(shown)} of {len(trend.points)} records" if is_cut else "",
    )


def _interval_text(point: TrendPoint, unit: str) -> str:
    """Write the interval of a median; one of less than 95% says so."""
    found = point.interval
    if found is None:
        return UNKNOWN
    short = f" ({found.coverage:.0%})" if found.coverage < 0.95 else ""
    return range_text(found, lambda end: value_text(end, unit)) + short


def _commit_text(hash: str | None, has_changes: bool) -> str:
    """Write a commit; nothing where there is none."""
    return str(Commit(hash, has_changes)) if hash else ""


# ---------------------------------------------------------------- one record in full


def record_document(record: Record) -> doc.Document:
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
    blocks: list[doc.Block] = [doc.Facts(facts)]
    if record.samples:
        blocks.append(_metrics(record.samples.items()))
    for name, samples in record.samples.items():
        unit = f" ({samples.unit})" if samples.unit else ""
        values = " ".join(f"{value!r}" for value in samples.values)
        blocks += [doc.Preformatted(values, f"Raw values of {name}{unit}")]
        blocks += [doc.Bullets(samples.notes, tone="unknown")]
    blocks += [
        doc.Preformatted(json.dumps(each, indent=2), title) for title, each in fields if each
    ]
    return doc.Document(f"{record.name}, {record.kind}", None, blocks, notes=record.notes)


def _metrics(metrics: Iterable[tuple[str, Samples]]) -> doc.Table:
    def value(title: str, read: Callable[[Samples], float], rank: int) -> doc.Field:
        def show(metric: tuple[str, Samples]) -> doc.Cell:
            found = read(metric[1])
            return doc.Cell(value_text(found, metric[1].unit), found)

        return doc.column(title, show, "number", rank=rank)

    return doc.table_of(
        metrics,
        doc.column("metric", lambda each: each[0]),
        value("median", lambda each: each.median, 0),
        value("least", lambda each: each.minimum, 1),
        value("most", lambda each: each.maximum, 1),
        doc.number("n", lambda each: each[1].count, str, rank=2),
        doc.number("loops", lambda each: each[1].loops, str, rank=3),
    )
