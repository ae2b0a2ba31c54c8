"""The tables, figures and reports of the classic benchmarking tools.

A megabyte (MB) is 2**20 bytes here, as everywhere in these tools. Figures are matplotlib's, made
without its global state: nothing opens a window, and the caller owns what is returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tinytorch.errors import MissingPartError
from tinytorch.measure.environment import Environment
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.document import Bullets, Cell, Column, Document, Table
from tinytorch.reporting.markdown import escaped, listed, table_rows
from tinytorch.reporting.profiling_classics import mb_text, show
from tinytorch.reporting.quantities import UNKNOWN, factor_text, percent_text, seconds_text
from tinytorch.reporting.terminal import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tinytorch.benchmarking.benchmark import BenchmarkResult
    from tinytorch.benchmarking.performance import Performance, PerformanceTable, Speedup


BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6B6B6B"
"""Colours that colour-blind people can tell apart."""
PANEL_INCHES = (4.2, 3.6)
MOST_LETTERS = 80
"""Longer errors are cut in figures, where there is no room for them."""

# ---------------------------------------------------------------- tables


def show_performances(table: PerformanceTable) -> None:
    """Print a table of models on stdout."""
    show(render(performances_document(table)))


def performances_document(table: PerformanceTable) -> Document:
    """Return a row per model: time, memory, accuracy, and how much faster than the first."""
    rows = table.values()
    metrics = dict.fromkeys(row.metric for row in rows if row.metric and row.accuracy is None)
    columns = [
        Column("Model"),
        Column("Time", "number"),
        Column("95% interval", "number", rank=6),
        Column("Memory", "number", rank=1),
        Column("Accuracy", "number", rank=2),
        *(Column(metric, "number", rank=4) for metric in metrics),
        Column("Speedup", "number", rank=3),
        Column("95% interval", "number", rank=5),
    ]
    failed = [f"{name} failed: {error}" for name, error in table.failed.items()]
    blocks = (
        Table(columns, [_performance_row(table, name, list(metrics)) for name in table]),
        Bullets(failed, tone="bad"),
    )
    return Document("", None, blocks, _notes_of(table))


def _performance_row(
    table: PerformanceTable, name: str, metrics: Sequence[str]
) -> list[Cell | str]:
    row, speedup = table[name], table.speedup(name)
    scores = [row.score if row.metric == metric else None for metric in metrics]
    seconds = None if row.time is None else row.time / 1e3
    is_scored = bool(row.metric) or row.is_failed
    return [
        name,
        Cell("failed" if row.is_failed else seconds_text(seconds), seconds),
        _time_range(row),
        Cell(mb_text(row.memory), row.memory),
        Cell(percent_text(row.accuracy) if is_scored else "not scored", row.accuracy),
        *(Cell(_number(score), score) for score in scores),
        Cell(factor_text(speedup.value if speedup else None), speedup.value if speedup else None),
        _speedup_range(speedup),
    ]


def _notes_of(table: PerformanceTable) -> list[str]:
    """Return what holds for all models once, and what holds for some with their names."""
    measured = {name: each for name, each in table.items() if not each.is_failed}
    notes = list(dict.fromkeys(note for each in measured.values() for note in each.notes))
    said = []
    for note in notes:
        names = [name for name, each in measured.items() if note in each.notes]
        is_shared = len(names) == len(measured)
        said.append(note if is_shared else f"{', '.join(names)}: {note}")
    return said


def _time_range(row: Performance) -> str:
    interval = row.time_interval
    if interval is None:
        return ""
    return f"{seconds_text(interval.low / 1e3)} to {seconds_text(interval.high / 1e3)}"


def _speedup_range(speedup: Speedup | None) -> str:
    """Return both ends of the interval; the baseline against itself has none."""
    interval = speedup.interval if speedup else None
    if interval is None or interval.low == interval.high == 1:
        return ""
    return f"{factor_text(interval.low)} to {factor_text(interval.high)}"


# ---------------------------------------------------------------- figures


def draw_performances(table: PerformanceTable) -> Figure:
    """Draw time, memory and scores of models as bars, with their intervals."""
    measured = [each for each in table.values() if not each.is_failed]
    times = [(each.name, each.time, each.time_interval) for each in _named(table)]
    sizes = [(each.name, each.memory, None) for each in _named(table)]
    panels: list[tuple[str, list[Any]]] = [("time per call (ms)", times), ("memory (MB)", sizes)]
    for metric in dict.fromkeys(each.metric for each in measured if each.metric):
        scored = [each for each in _named(table) if each.metric == metric]
        panels.append((metric, [(each.name, each.score, each.score_interval) for each in scored]))
    return _draw_panels(panels, table.failed)


def _named(table: PerformanceTable) -> list[Performance]:
    """Return the models that were measured, under the names that the table has for them."""
    return [replace(each, name=name) for name, each in table.items() if not each.is_failed]


def draw_results(results: Mapping[str, Mapping[str, BenchmarkResult]]) -> Figure:
    """Draw every metric of every model as bars, with their intervals."""
    panels, failed = [], {}
    for metric, by_name in results.items():
        bars = []
        for name, result in by_name.items():
            if result.error is not None:
                failed[f"{name} ({metric})"] = result.error
                continue
            interval = result.interval if result.ci_confidence else None
            bars.append((name, result.typical, interval))
        panels.append((_axis_title(metric, by_name), bars))
    return _draw_panels(panels, failed)


def draw_pareto(
    points: Mapping[str, tuple[float, float]],
    front: Sequence[str],
    results: Mapping[str, Mapping[str, BenchmarkResult]],
    x_metric: str,
    y_metric: str,
) -> Figure:
    """Draw models by two metrics, and a line through those on the front."""
    figure = _new_figure(1)
    axes = figure.add_subplot()
    beaten = [point for name, point in points.items() if name not in front]
    best = [points[name] for name in front]
    if beaten:
        axes.scatter(*zip(*beaten, strict=True), color=GREY, marker="x", label="beaten by another")
    if best:
        axes.plot(*zip(*best, strict=True), color=ORANGE, marker="o", label="Pareto front")
        axes.legend()
    for name, point in points.items():
        axes.annotate(
            _plain(name), point, textcoords="offset points", xytext=(6, 4), fontsize="small"
        )
    axes.margins(0.2)  # room for the names
    axes.set_xlabel(_axis_title(x_metric, results[x_metric]))
    axes.set_ylabel(_axis_title(y_metric, results[y_metric]))
    axes.set_title("Models that no other beats")
    failed = {
        name: result.error
        for metric in (x_metric, y_metric)
        for name, result in results[metric].items()
        if result.error is not None
    }
    _name_failed(figure, failed)
    return figure


def _draw_panels(panels: Sequence[tuple[str, Sequence[Any]]], failed: Mapping[str, str]) -> Figure:
    figure = _new_figure(len(panels))
    for position, (title, bars) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), position)
        axes.set_title(_plain(title))
        _draw_bars(axes, bars)
    _name_failed(figure, failed)
    return figure


def _draw_bars(axes: Axes, bars: Sequence[tuple[str, float | None, Estimate | None]]) -> None:
    """Draw a bar for each value that is known, with a line from one end of its interval on."""
    known = [(name, value, interval) for name, value, interval in bars if value is not None]
    if not known:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
        return
    heights = [value for _, value, _ in known]
    positions = list(range(len(known)))
    axes.bar(positions, heights, color=BLUE)
    for position, (_, value, interval) in enumerate(known):
        if interval is not None:
            # Where a median lies at the end of its interval, rounding may put it beyond.
            reach = [[max(0.0, value - interval.low)], [max(0.0, interval.high - value)]]
            axes.errorbar(position, value, yerr=reach, color="black", capsize=4)
    axes.set_xticks(positions, [_plain(name) for name, _, _ in known], rotation=20, ha="right")


def _name_failed(figure: Figure, failed: Mapping[str, str]) -> None:
    if failed:
        lines = [f"{name} failed: {error}"[:MOST_LETTERS] for name, error in failed.items()]
        figure.supxlabel(_plain("\n".join(lines)), fontsize="small", color=ORANGE)


def _axis_title(metric: str, by_name: Mapping[str, BenchmarkResult]) -> str:
    measured = [result for result in by_name.values() if result.error is None]
    if not measured:
        return metric
    name, unit = measured[0].metric_name, measured[0].unit
    return f"{name} ({unit})" if unit else name


def _new_figure(panels: int) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPartError('figures need matplotlib: pip install ".[plot]"') from error
    return Figure(figsize=(PANEL_INCHES[0] * panels, PANEL_INCHES[1]), layout="constrained")


def _plain(text: str) -> str:
    """Keep matplotlib from reading formulas into a name."""
    return text.replace("$", r"\$")


# ---------------------------------------------------------------- the report


def markdown_report(
    results: Mapping[str, Mapping[str, BenchmarkResult]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    front: Sequence[str],
    runs: int,
    environment: Environment,
) -> str:
    """Write what was measured as Markdown: a table per metric, what failed, and how."""
    lines = ["# Benchmark report", ""]
    for metric, table in rows.items():
        title = _axis_title(metric, results[metric])
        lines += [f"## {escaped(title[:1].upper() + title[1:])}", ""]
        lines += [*_markdown_table(metric, table), ""]
    if front:
        names = ", ".join(map(escaped, front))
        lines += ["## Pareto front", "", f"No other model is faster and more accurate: {names}", ""]
    failed = [
        f"{name}, {metric}: {result.error}"
        for metric, by_name in results.items()
        for name, result in by_name.items()
        if result.error is not None
    ]
    if failed:
        lines += ["## Failed", "", *listed(failed), ""]
    method = listed(_method_lines(results, runs, environment))
    lines += ["## How it was measured", "", *method, ""]
    return "\n".join(lines)


def _markdown_table(metric: str, table: Sequence[Mapping[str, Any]]) -> list[str]:
    is_latency = metric == "latency"
    quoted = "mean" if metric == "accuracy" else "median"
    titles = ["Model", quoted, "95% interval", "n", *(["speedup"] if is_latency else [])]
    rows = []
    for row in table:
        found = [_number(row[quoted]), _interval_cell(row), str(row["count"])]
        cells = [escaped(row["model"]), *(["failed", UNKNOWN, "0"] if row["error"] else found)]
        if is_latency:
            cells.append(_speedup_cell(row, is_first=row is table[0]))
        rows.append(cells)
    return table_rows(titles, rows)


def _speedup_cell(row: Mapping[str, Any], *, is_first: bool) -> str:
    if row["speedup"] is None:
        return UNKNOWN
    if is_first:
        return "baseline"
    low, high = factor_text(row["speedup_low"]), factor_text(row["speedup_high"])
    return f"{factor_text(row['speedup'])} ({low} to {high})"


def _interval_cell(row: Mapping[str, Any]) -> str:
    if not row["ci_confidence"]:
        return UNKNOWN
    text = f"{_number(row['ci_lower'])} to {_number(row['ci_upper'])}"
    confidence = row["ci_confidence"]
    return text if confidence >= 0.95 else f"{text} ({confidence:.0%} only)"


def _method_lines(
    results: Mapping[str, Mapping[str, BenchmarkResult]], runs: int, environment: Environment
) -> list[str]:
    lines = []
    if "latency" in results:
        lines.append(
            f"Latency: {runs} rounds, each model called once a round, in random order. A speedup "
            "is the first model's time over this one's, the median over the rounds."
        )
    if "memory" in results:
        lines.append("Memory: the most bytes of live buffers during one call; MB is 2**20 bytes.")
    if "accuracy" in results:
        lines.append("Accuracy: one score per example, in evaluation mode.")
    lines.append(f"Machine: {environment.cpu_model or environment.machine}, {environment.system}")
    libraries = ", ".join(f"{name} {version}" for name, version in environment.libraries.items())
    lines.append(f"Software: Python {environment.python}, {libraries}")
    for metric, by_name in results.items():
        for name, result in by_name.items():
            notes = (result.metadata or {}).get("notes", ())
            lines += [f"Note on {name}, {metric}: {note}" for note in notes]
    return lines


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"
