"""A history as a page: every series as a trend, where it has changed, and its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tinytorch.records.history import Trend, TrendPoint
from tinytorch.reporting.history import (
    UNLIKE,
    change_lines,
    change_share_text,
    commit_text,
    date_text,
    interval_text,
    machine_text,
    plotted,
    trend_head,
    value_text,
)
from tinytorch.reporting.html.markup import Cell, Column, Markup, element, joined, listed, table
from tinytorch.reporting.html.page import Banner, Page, Section, appendix
from tinytorch.reporting.html.plot import (
    Scale,
    across,
    figure,
    plot,
    polyline,
    upright_axis,
    upright_line,
    words,
)
from tinytorch.reporting.quantities import trend_range

__all__ = ["history_page", "small_trend", "trend_picture"]


# ---------------------------------------------------------------- values of a series in their
# order, with their intervals, and a line where a level begins

HEIGHT = 210
SMALL_WIDTH, SMALL_HEIGHT = 110, 24
LARGE, SMALL, MANY = 4.5, 2.5, 80
"""Radius of a point, and of one among many."""


def trend_picture(
    values: Sequence[float],
    *,
    bars: Sequence[tuple[float, float] | None] = (),
    steps: Sequence[int] = (),
    y_text: Callable[[float], str],
    ends: tuple[str, str],
    titles: Sequence[str] = (),
    has_levels: bool = True,
) -> Markup:
    """Draw values from left to right, as the terminal's trend plot does.

    `steps` are the indices of the first values of new levels; a level is drawn at its median. With
    `has_levels` False the values have none, as records have not. `ends` label the first and the
    last value, `titles` say what each point is.
    """
    low, high = trend_range(values, bars)
    x = Scale(-0.5, max(0.5, len(values) - 0.5), 0, 100)
    y = Scale(low, high, HEIGHT, 0)
    return plot(
        HEIGHT,
        *upright_axis(y, y_text),
        *(part for step in steps for part in _step(x(step - 0.5))),
        *(_levels(values, steps, x, y) if has_levels else ()),
        *_bars(bars, x, y),
        *_points(values, titles, steps, x, y),
        words(0, HEIGHT + 16, ends[0], class_="tick"),
        words(100, HEIGHT + 16, ends[1], class_="tick", anchor="end"),
        label=f"{len(values)} values" + (f", {len(steps)} changes of level" if has_levels else ""),
        left=76,
        top=22,
        class_="trend",
    )


def small_trend(values: Sequence[float], *, label: str) -> Markup:
    """Draw a line no higher than a row of a table, with a point at its end."""
    x = Scale(0, max(1, len(values) - 1), 3, SMALL_WIDTH - 4)
    y = Scale(min(values), max(values), SMALL_HEIGHT - 4, 4)
    places = [(x(index), y(value)) for index, value in enumerate(values)]
    return element(
        "svg",
        element("title", label),
        polyline(places, class_="line series-1"),
        element("circle", cx=places[-1][0], cy=places[-1][1], r=2.5, class_="mark series-1"),
        viewBox=f"0 0 {SMALL_WIDTH} {SMALL_HEIGHT}",
        role="img",
        class_="picture",
        style=f"--width:{SMALL_WIDTH}px;margin:0 0 -.35rem",
    )


def _step(place: float) -> list[Markup]:
    return [
        upright_line(place, 0, HEIGHT, class_="faint"),
        words(place, -6, "change", class_="tick", anchor="middle"),
    ]


def _levels(values: Sequence[float], steps: Sequence[int], x: Scale, y: Scale) -> list[Markup]:
    parts = []
    for start, end in pairwise([0, *steps, len(values)]):
        level = y(float(np.median(values[start:end])))
        ends = across(x(start - 0.4)), across(x(end - 0.6))
        parts.append(element("line", x1=ends[0], x2=ends[1], y1=level, y2=level, class_="axis"))
    return parts


def _bars(bars: Sequence[tuple[float, float] | None], x: Scale, y: Scale) -> list[Markup]:
    lines = [
        upright_line(x(index), y(bar[0]), y(bar[1]), class_="interval series-1")
        for index, bar in enumerate(bars)
        if bar
    ]
    return [element("g", *lines, opacity=0.5)] if lines else []


def _points(
    values: Sequence[float], titles: Sequence[str], steps: Sequence[int], x: Scale, y: Scale
) -> list[Markup]:
    radius = SMALL if len(values) > MANY else LARGE
    parts = []
    for index, value in enumerate(values):
        inside = [element("title", titles[index])] if titles else []
        look = "mark series-2" if index in steps else "mark series-1"
        at = across(x(index))
        parts.append(element("circle", *inside, cx=at, cy=y(value), r=radius, class_=look))
    return parts


# ---------------------------------------------------------------- a history as a page: every
# series as a trend, where it has changed, and its records

SHORT_HASH = 12
ENOUGH_RECORDS = 12
"""The fewest values in which a change of level can be shown."""
MOST_RECORDS = 200
"""So many of the newest records of a series are listed; the picture and the raw values have all."""


def history_page(trends: Sequence[Trend], *, name: str = "") -> Page:
    """Give the page of some trends, such as those of one `name` on several machines."""
    raw = {"trends": [each.to_dict() for each in trends]}
    names = list(dict.fromkeys(each.key.name for each in trends))
    overview = [_overview(trends)] if len(trends) > 1 else []
    series = [_series(each, f"trend-{place}") for place, each in enumerate(trends, 1)]
    return Page(
        f"History of {name or names[0]}" if name or len(names) == 1 else "History",
        _banner(trends),
        (*overview, *series, appendix(None, (), raw, file_name="tinytorch-history.json")),
        raw,
    )


def _banner(trends: Sequence[Trend]) -> Banner:
    changed = [each for each in trends if each.change_points]
    count = sum(len(each.change_points) for each in changed)
    if count:
        verdict = "1 change of level" if count == 1 else f"{count} changes of level"
    else:
        verdict = "No change of level is shown"
    where = [f"{each.key.name}, {each.metric}: {change_lines(each)[-1]}" for each in changed]
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
    columns = [
        Column("name"),
        Column("metric"),
        Column("kind"),
        Column("n", "number", "records"),
        Column("last", "number"),
        Column("change", "number", "the last value against the one before"),
        Column("trend"),
        Column("levels", "number", "changes of level that are shown"),
        Column("date"),
        Column("machine"),
    ]
    rows = [_overview_row(each, f"trend-{place}") for place, each in enumerate(trends, 1)]
    about = f"{len(trends)} series {UNLIKE}"
    return Section("overview", "Overview", table(columns, rows), about)


def _overview_row(trend: Trend, anchor: str) -> list[Cell | str]:
    last = trend.points[-1]
    name = element("a", trend.key.name, href=f"#{anchor}")
    small = small_trend(trend.values, label=f"{len(trend.points)} values")
    return [
        Cell(name, trend.key.name),
        trend.metric,
        trend.key.kind,
        Cell(str(len(trend.points)), len(trend.points)),
        Cell(value_text(last.value, trend.unit), last.value),
        Cell(change_share_text(trend.last_change), trend.last_change),
        Cell(small if len(trend.points) > 1 else "", trend.last_change),
        Cell(str(len(trend.change_points)), len(trend.change_points)),
        Cell(date_text(last.created_at)),
        Cell(machine_text(trend.key.machine), title=trend.key.machine),
    ]


def _series(trend: Trend, anchor: str) -> Section:
    parts: list[Markup] = []
    if len(trend.points) > 1:
        parts.append(figure(_picture(trend), title=f"{trend.metric}, oldest first."))
    parts += [element("p", line) for line in change_lines(trend)]
    parts.append(_records(trend))
    if trend.notes:
        parts.append(listed(trend.notes))
    return Section(anchor, trend.key.name, joined(parts), trend_head(trend))


def _picture(trend: Trend) -> Markup:
    titles = [_in_words(point, trend.unit) for point in trend.points]
    return trend_picture(trend.values, **plotted(trend), titles=titles)


def _in_words(point: TrendPoint, unit: str) -> str:
    commit = commit_text(point.commit, point.commit_has_changes)
    at = f" at {commit}" if commit else ""
    return f"{date_text(point.created_at)}{at}: {value_text(point.value, unit)}"


def _records(trend: Trend) -> Markup:
    starts = {trend.points[change.index].hash for change in trend.change_points}
    columns = [
        Column("date"),
        Column("median", "number"),
        Column("95% interval", "number"),
        Column("n", "number", "values"),
        Column("", about="where a new level begins"),
        Column("commit"),
        Column("record"),
        Column("notes"),
    ]
    shown = trend.points[::-1][:MOST_RECORDS]
    rest = len(trend.points) - len(shown)
    rows: list[list[Cell | str]] = [
        [
            Cell(date_text(point.created_at), point.created_at),
            Cell(value_text(point.value, trend.unit), point.value),
            Cell(interval_text(point, trend.unit), point.interval.low if point.interval else None),
            Cell(str(point.samples.count), point.samples.count),
            Cell("changed" if point.hash in starts else "", tone="unknown"),
            commit_text(point.commit, point.commit_has_changes),
            Cell(point.hash[:SHORT_HASH], title=point.hash),
            "; ".join(dict.fromkeys(point.notes)),
        ]
        for point in shown
    ]
    caption = f"the newest {len(shown)} of {len(trend.points)} records" if rest else "records"
    return element(
        "details",
        element("summary", f"{len(trend.points)} records"),
        table(columns, rows, caption=caption),
        open=len(trend.points) <= 20,
    )
