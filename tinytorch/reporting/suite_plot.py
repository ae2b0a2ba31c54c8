"""A suite as a figure: bars per scenario, and the Pareto fronts of its targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.core.files import write_atomically
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.samples import Samples
from tinytorch.records.suite_fronts import Front
from tinytorch.records.suite_outcome import EntryOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "check_plot", "draw_suite", "write_plot"]

FORMATS = (".svg", ".png")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours that colour-blind people can tell apart."""
WIDTH, BAR_INCHES, HEAD_INCHES, FRONT_INCHES = 10.0, 0.28, 1.1, 4.0
# Metric -> the scale and the title of its axis.
AXES = {
    "latency": (1e3, "median latency (ms)"),
    "throughput": (1.0, "throughput"),
    "rate": (1.0, "queries per second within the bound"),
}


def check_plot(path: Path) -> None:
    """Raise unless a figure can be written there, before minutes are spent on measuring."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path} is no picture; give a name that ends with .svg or .png")
    if not path.absolute().parent.is_dir():
        raise SettingError(f"{path} cannot be written: there is no folder {path.parent}")
    _figure_class()


def draw_suite(outcomes: Sequence[EntryOutcome], fronts: Sequence[Front]) -> Figure:
    """Draw bars with intervals for each scenario, and below them the fronts."""
    measured = [each for each in outcomes if each.main is not None]
    scenarios = list(dict.fromkeys(each.scenario for each in measured))
    bars = [[each for each in measured if each.scenario == scenario] for scenario in scenarios]
    heights = [HEAD_INCHES + BAR_INCHES * len(rows) for rows in bars]
    objectives = list(dict.fromkeys(front.objective for front in fronts))
    rows = [*heights, *([FRONT_INCHES] if objectives else [])] or [HEAD_INCHES]
    figure = _figure_class()(figsize=(WIDTH, sum(rows)), layout="constrained")
    grid = figure.add_gridspec(len(rows), 1, height_ratios=rows)
    for position, (scenario, shown) in enumerate(zip(scenarios, bars, strict=True)):
        _draw_bars(figure.add_subplot(grid[position]), scenario, shown)
    if objectives:
        panels = grid[len(rows) - 1].subgridspec(1, len(objectives))
        for position, objective in enumerate(objectives):
            chosen = [front for front in fronts if front.objective == objective]
            _draw_fronts(figure.add_subplot(panels[position]), objective, chosen)
    if not measured:
        figure.text(0.5, 0.5, "nothing was measured", ha="center")
    return figure


def write_plot(path: Path, figure: Figure) -> None:
    """Write a figure; a reader sees the old file or the new one."""
    try:
        with write_atomically(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:].lower())
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}") from error


def _draw_bars(axes: Axes, scenario: str, rows: Sequence[EntryOutcome]) -> None:
    factor, title = AXES[rows[0].main_metric]
    for position, row in enumerate(rows):
        samples = row.main
        assert samples is not None
        value = samples.median * factor
        axes.barh(position, value, color=COLOURS[0], height=0.6)
        reach = _reach(samples, factor)
        if reach is not None:
            axes.errorbar(value, position, xerr=reach, color="black", capsize=3)
    axes.set_yticks(range(len(rows)), [_plain(row.label) for row in rows], fontsize="small")
    axes.invert_yaxis()
    units = dict.fromkeys(row.main.unit for row in rows if row.main is not None)
    axes.set_xlabel(f"{title} ({', '.join(units)})" if title == "throughput" else title)
    axes.set_title(scenario, loc="left")


def _reach(samples: Samples, factor: float) -> list[list[float]] | None:
    if samples.count < 2:
        return None
    interval = samples.median_interval()
    # Where a median lies at the end of its interval, rounding may put it beyond.
    low, high = samples.median - interval.low, interval.high - samples.median
    return [[max(0.0, low) * factor], [max(0.0, high) * factor]]


def _draw_fronts(axes: Axes, objective: str, fronts: Sequence[Front]) -> None:
    factor = {"B": 2**-20, "%": 100.0}
    for colour, front in zip(COLOURS * len(fronts), fronts, strict=False):
        scale = factor.get(front.unit, 1.0)
        points = {name: (s * 1e3, value * scale) for name, (s, value) in front.points.items()}
        beaten = [point for name, point in points.items() if name not in front.front]
        if beaten:
            axes.scatter(*zip(*beaten, strict=True), color=colour, marker="x")
        best = [points[name] for name in front.front]
        label = _plain(front.target)
        axes.plot(*zip(*best, strict=True), color=colour, marker="o", label=label)
    unit = {"B": " (MiB)", "%": " (%)"}.get(fronts[0].unit, "")
    axes.set_xlabel("ms per example")
    axes.set_ylabel(f"{_plain(objective)}{unit}")
    axes.set_title("Pareto front of each target", fontsize="small")
    axes.set_xscale("log")
    axes.margins(0.15)
    axes.legend(fontsize="small")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPartError('figures need matplotlib: pip install ".[plot]"') from error
    return Figure


def _plain(text: str) -> str:
    """Keep matplotlib from reading formulas into a name."""
    return text.replace("$", r"\$")
