"""A suite in the terminal: a table per scenario, what failed, and what to doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.benchmarking.suite_file import Entry
from tinytorch.benchmarking.suite_run import EntryOutcome, Front
from tinytorch.core.files import write_atomically
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples
from tinytorch.reporting.quantities import (
    UNKNOWN,
    Column,
    FittingTable,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    seconds_text,
    without_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "FORMATS",
    "NO_COMPARISON",
    "TITLES",
    "check_plot",
    "draw_suite",
    "render_entries",
    "render_suite",
    "scenario_tables",
    "shared_notes",
    "suite_head",
    "write_plot",
]


TITLES = {
    "single-stream": "one query after the other",
    "offline": "all queries at once, in batches",
    "server": "queries arrive at random, one worker",
}
NO_COMPARISON = (
    "Entries were measured one after the other, each in a process of its own: ratios between them, "
    "or to an earlier run, are hints. `tinytorch compare` and `tinytorch gate` compare."
)


def render_entries(entries: Sequence[Entry]) -> RenderableType:
    """List entries that were not run."""
    table = FittingTable(
        "entry",
        [Text(entry.name) for entry in entries],
        [
            Column("budget", [seconds_text(entry.budget) for entry in entries]),
            Column("key", [entry.key for entry in entries], 1, "left"),
        ],
    )
    count = "1 entry, it was not run" if len(entries) == 1 else f"{len(entries)} entries, none run"
    return Group(table, Text(count, style="dim"))


def render_suite(
    name: str,
    outcomes: Sequence[EntryOutcome],
    *,
    planned: int,
    run: str = "",
    notes: Sequence[str] = (),
) -> RenderableType:
    """Lay out what is finished of a suite."""
    failed = [each for each in outcomes if each.failure is not None]
    head = suite_head(outcomes, planned=planned, run=run)
    parts: list[RenderableType] = [Text.assemble((name, "bold"), "  ", (head, "dim"))]
    for scenario, (_, table) in scenario_tables(outcomes).items():
        title = Text.assemble((scenario, "bold"), f"  {TITLES[scenario]}")
        parts += [Text(""), title, table]
    if failed:
        parts += [Text(""), Text(f"Failed: {len(failed)}", style="bold red")]
        parts += [Text(f"{each.name}: {each.failure}", style="red") for each in failed]
    parts.append(Text(""))
    said = [*notes, *shared_notes(outcomes)]
    parts += [Text(f"- {note}", style="yellow") for note in said]
    return Group(*parts, Text(NO_COMPARISON, style="dim"))


def suite_head(outcomes: Sequence[EntryOutcome], *, planned: int, run: str = "") -> str:
    """Say which run it is, and how much of it is finished."""
    count = f"{len(outcomes)} of {planned}" if len(outcomes) < planned else str(planned)
    words = f"{count} {'entry' if planned == 1 else 'entries'}"
    return f"run {run}, {words}" if run else words


def scenario_tables(
    outcomes: Sequence[EntryOutcome],
) -> dict[str, tuple[list[EntryOutcome], FittingTable]]:
    """Give what was measured: for each scenario its entries, and a table with a row for each."""
    measured = [each for each in outcomes if each.failure is None]
    found = {}
    for scenario, table in TABLES.items():
        rows = [each for each in measured if each.scenario == scenario]
        if rows:
            found[scenario] = (rows, table(rows))
    return found


def _single_stream(rows: Sequence[EntryOutcome]) -> FittingTable:
    return _table(
        rows,
        [
            Column("p50", [_percentile(row, 50) for row in rows]),
            Column("95% interval", [_percentile_range(row, 50) for row in rows], 4),
            Column("p90", [_percentile(row, 90) for row in rows], 5),
            Column("p99", [_percentile(row, 99) for row in rows], 1),
            Column("95% interval", [_percentile_range(row, 99) for row in rows], 6),
            Column("n", [_count(row) for row in rows], 8),
        ],
    )


def _offline(rows: Sequence[EntryOutcome]) -> FittingTable:
    return _table(
        rows,
        [
            Column("throughput", [_throughput(row) for row in rows]),
            Column("95% interval", [_throughput_range(row) for row in rows], 3),
            Column("rounds", [_count(row) for row in rows], 8),
        ],
    )


def _server(rows: Sequence[EntryOutcome]) -> FittingTable:
    found = [row.server or {} for row in rows]
    return _table(
        rows,
        [
            Column("queries/s", [count_text(each.get("rate")) for each in found]),
            Column("is", [_certainty(each) for each in found], 1, "left"),
            Column("not above", [count_text(each.get("too_high")) for each in found], 3),
            Column("bound", [_bound(each) for each in found], 2, "left"),
            Column("latency there", [_server_latency(row) for row in rows], 4),
            Column("95% interval", [_server_range(row) for row in rows], 6),
            Column("queries", [_queries(row) for row in rows], 8),
            Column("rates", [str(len(each.get("trials", ()))) for each in found], 9),
        ],
    )


TABLES = {"single-stream": _single_stream, "offline": _offline, "server": _server}


def _table(rows: Sequence[EntryOutcome], columns: Sequence[Column]) -> FittingTable:
    resources = [
        Column("memory", [bytes_text(row.peak_bytes) for row in rows], 2),
        Column("size", [bytes_text(row.file_bytes) for row in rows], 6),
        Column("score", [_score(row) for row in rows], 3),
        Column("95% interval", [_score_range(row) for row in rows], 7),
        Column("time vs last", [factor_text(row.time_ratio) for row in rows], 5),
    ]
    labels = [Text(row.label) for row in rows]
    return FittingTable("entry", labels, [*columns, *resources], label_least=30)


def _percentile(row: EntryOutcome, q: float) -> str:
    return seconds_text(None if row.latency is None else row.latency.percentile(q))


def _percentile_range(row: EntryOutcome, q: float) -> str:
    return UNKNOWN if row.latency is None else _seconds_range(row.latency.percentile_interval(q))


def _seconds_range(interval: Estimate) -> str:
    """Write an interval; an end that nobody knows is a dash."""
    ends = (seconds_text(end) if math.isfinite(end) else UNKNOWN for end in _ends(interval))
    return " to ".join(ends)


def _ends(interval: Estimate) -> tuple[float, float]:
    return interval.low, interval.high


def _count(row: EntryOutcome) -> str:
    return UNKNOWN if row.main is None else str(row.main.count)


def _throughput(row: EntryOutcome) -> str:
    return UNKNOWN if row.main is None else f"{count_text(row.main.median)} {row.main.unit}"


def _throughput_range(row: EntryOutcome) -> str:
    if row.main is None:
        return UNKNOWN
    return " to ".join(map(count_text, _ends(row.main.median_interval())))


def _certainty(found: Mapping[str, Any]) -> str:
    """Say how sure the rate is."""
    if found.get("rate") is None:
        return "none shown"
    return "shown twice" if found["is_confirmed"] else "shown once"


def _bound(found: Mapping[str, Any]) -> str:
    if "bound_s" not in found:
        return UNKNOWN
    origin = "" if found["bound_is_given"] else " (own)"
    return f"p{found['percentile']:g} <= {seconds_text(found['bound_s'])}{origin}"


def _server_latency(row: EntryOutcome) -> str:
    return UNKNOWN if row.server is None else _percentile(row, row.server["percentile"])


def _server_range(row: EntryOutcome) -> str:
    return UNKNOWN if row.server is None else _percentile_range(row, row.server["percentile"])


def _queries(row: EntryOutcome) -> str:
    return UNKNOWN if row.latency is None else str(row.latency.count)


def _score(row: EntryOutcome) -> str:
    return UNKNOWN if row.accuracy is None else _score_text(row.accuracy, row.accuracy["mean"])


def _score_range(row: EntryOutcome) -> str:
    found = row.accuracy
    if found is None or not found["confidence"]:
        return UNKNOWN
    return " to ".join(_score_text(found, found[end]) for end in ("low", "high"))


def _score_text(found: Mapping[str, Any], value: float) -> str:
    return percent_text(value) if found["metric"] == "accuracy" else f"{value:.4g}"


def shared_notes(outcomes: Sequence[EntryOutcome]) -> list[str]:
    """Say what holds for several entries once, also where only its numbers differ."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for each in outcomes:
        for note in _notes_of(each):
            alike.setdefault(without_numbers(note), []).append((each.name, note))
    return [_said_once(pairs, len(outcomes)) for pairs in alike.values()]


def _said_once(pairs: Sequence[tuple[str, str]], total: int) -> str:
    (name, note), others = pairs[0], pairs[1:]
    if not others:
        return f"{name}: {note}"
    if all(text == note for _, text in others):
        whose = "all entries" if len(pairs) == total else f"{name} and {len(others)} more"
        return f"{whose}: {note}"
    return f"{name}: {note}; the like of {len(others)} more (--json has all)"


def _notes_of(outcome: EntryOutcome) -> list[str]:
    notes = list(outcome.record.notes)
    metric = (outcome.accuracy or {}).get("metric", "accuracy")
    if metric != "accuracy":
        notes.append(f"the score is {metric}")
    resources = outcome.record.details.get("resources", {})
    missing = resources.get("not_measured", {})
    for name, shown in (("peak_bytes", "memory"), ("file_bytes", "size")):
        if name in missing:
            notes.append(f"no {shown}: {missing[name]}")
    if outcome.not_compared:
        notes.append(f"not compared with the last run: {outcome.not_compared}")
    return [*notes, *([outcome.kept_note] if outcome.kept_note else [])]


# ---------------------------------------------------------------- a suite as a figure: bars per
# scenario, and the Pareto fronts of its targets

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
