"""Documents of suites: a table per scenario, fronts, what failed; and figures of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.benchmarking.suite_file import Entry
from tinytorch.benchmarking.suite_run import EntryOutcome, Front, suite_fronts
from tinytorch.core.files import write_atomically
from tinytorch.errors import MissingPartError, SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    count_text,
    factor_text,
    percent_text,
    seconds_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


TITLES = {
    "single-stream": "One query after the other.",
    "offline": "All queries at once, in batches.",
    "server": "Queries arrive at random, one worker.",
    "comparison": "The transformed model against the model as it is, in turns in one process.",
}
NO_COMPARISON = (
    "Entries were measured one after the other, each in a process of its own: ratios between them, "
    "or to an earlier run, are hints. `tinytorch compare` and `tinytorch gate` compare."
)


def entries_document(entries: Sequence[Entry]) -> doc.Document:
    """Return a list of entries that were not run."""
    columns = [doc.Column("entry"), doc.Column("budget", "number"), doc.Column("key", rank=1)]
    rows = [
        (each.name, doc.Cell(seconds_text(each.budget), each.budget), each.key) for each in entries
    ]
    count = "1 entry, it was not run" if len(entries) == 1 else f"{len(entries)} entries, none run"
    return doc.Document("", None, (doc.Table(columns, rows), doc.Paragraph(count, "faint")))


def suite_document(
    outcomes: Sequence[EntryOutcome],
    *,
    name: str = "suite",
    planned: int | None = None,
    run: str = "",
    notes: Sequence[str] = (),
) -> doc.Document:
    """Return what is finished of a suite; of `planned` entries some may be missing."""
    planned = len(outcomes) if planned is None else planned
    run = run or next((each.record.run for each in outcomes if each.record.run), "")
    raw = {
        "suite": name,
        "run": run,
        "planned": planned,
        "entries": [each.to_dict() for each in outcomes],
        "records": [each.record.to_dict() for each in outcomes],
    }
    return doc.Document(
        f"Suite {name}",
        _banner(outcomes, planned),
        list(_sections(outcomes)),
        [*notes, *shared_notes(outcomes)],
        outcomes[0].record.environment if outcomes else None,
        raw,
        "tinytorch-suite.json",
        _progress(len(outcomes), planned, run),
        brief=[replace(each, about="") for each in result_sections(outcomes)],
    )


def _progress(count: int, planned: int, run: str) -> str:
    """Say which run it is, and how much of it is finished."""
    finished = f"{count} of {planned}" if count < planned else str(planned)
    words = f"{finished} {'entry' if planned == 1 else 'entries'}"
    return f"run {run}, {words}" if run else words


def _banner(outcomes: Sequence[EntryOutcome], planned: int) -> doc.Banner:
    failed = sum(each.failure is not None for each in outcomes)
    measured, missing = len(outcomes) - failed, planned - len(outcomes)
    facts = (("entries", str(planned)), ("measured", str(measured)), ("failed", str(failed)))
    if failed:
        verdict = "1 entry failed" if failed == 1 else f"{failed} entries failed"
        return doc.Banner(verdict, NO_COMPARISON, facts, "bad")
    if missing:
        verdict = f"Not finished: {missing} of {planned} entries are missing"
        return doc.Banner(verdict, NO_COMPARISON, facts, "unknown")
    verdict = "1 entry measured" if planned == 1 else f"{planned} entries measured"
    return doc.Banner(verdict, NO_COMPARISON, facts)


def result_sections(outcomes: Sequence[EntryOutcome]) -> Iterator[doc.Section]:
    """Yield what failed, and a table per scenario."""
    failed = [each for each in outcomes if each.failure is not None]
    measured = [each for each in outcomes if each.failure is None]
    if failed:
        reasons = [(doc.Code(each.name), f": {each.failure}") for each in failed]
        yield doc.Section("failed", f"Failed: {len(failed)}", (doc.Bullets(reasons, tone="bad"),))
    for scenario, about in TITLES.items():
        rows = [each for each in measured if each.scenario == scenario]
        if rows:
            table = _table(rows, (*FIELDS[scenario], *RESOURCES))
            yield doc.Section(scenario, scenario.capitalize(), (table,), about)


def _sections(outcomes: Sequence[EntryOutcome]) -> Iterator[doc.Section]:
    yield from result_sections(outcomes)
    measured = [each for each in outcomes if each.failure is None]
    if fronts := [each for each in suite_fronts(outcomes) if len(each.points) > 1]:
        yield _fronts(fronts, outcomes)
    if orders := list(_orders(measured)):
        yield doc.Section("order", "Order of measuring", orders, "The values behind the numbers.")


# ---------------------------------------------------------------- the tables

Field = tuple[doc.Column, Callable[[EntryOutcome], doc.Cell]]
"""A column, and what its cell says about an entry."""


def _table(rows: Sequence[EntryOutcome], fields: Sequence[Field]) -> doc.Table:
    cells = [_with_bars(column, [cell(row) for row in rows]) for column, cell in fields]
    labels = [doc.Cell(row.label) for row in rows]
    columns = [doc.Column("entry", least=30), *(column for column, _ in fields)]
    return doc.Table(columns, list(zip(labels, *cells, strict=True)))


def _with_bars(column: doc.Column, cells: list[doc.Cell]) -> list[doc.Cell]:
    """Draw what a scenario is about as shares of the largest."""
    numbers = [each.sort for each in cells if isinstance(each.sort, int | float)]
    if column.kind != "bar" or not any(numbers):
        return cells
    most = max(numbers)
    return [
        replace(each, bar=each.sort / most) if isinstance(each.sort, int | float) else each
        for each in cells
    ]


def _percentile(q: float) -> Callable[[EntryOutcome], doc.Cell]:
    def cell(row: EntryOutcome) -> doc.Cell:
        value = None if row.latency is None else row.latency.percentile(q)
        return doc.Cell(seconds_text(value), value)

    return cell


def _percentile_range(q: float) -> Callable[[EntryOutcome], doc.Cell]:
    def cell(row: EntryOutcome) -> doc.Cell:
        if row.latency is None:
            return doc.Cell(UNKNOWN)
        found = row.latency.percentile_interval(q)
        ends = (found.low, found.high)
        text = " to ".join(seconds_text(x) if math.isfinite(x) else UNKNOWN for x in ends)
        return doc.Cell(text, row.latency.percentile(q))

    return cell


def _throughput(row: EntryOutcome) -> doc.Cell:
    if row.main is None:
        return doc.Cell(UNKNOWN)
    return doc.Cell(f"{count_text(row.main.median)} {row.main.unit}", row.main.median)


def _throughput_range(row: EntryOutcome) -> doc.Cell:
    if row.main is None:
        return doc.Cell(UNKNOWN)
    found = row.main.median_interval()
    return doc.Cell(f"{count_text(found.low)} to {count_text(found.high)}", row.main.median)


def _at_percentile(
    of: Callable[[float], Callable[[EntryOutcome], doc.Cell]],
) -> Callable[[EntryOutcome], doc.Cell]:
    """Return what writes the latency at the percentile that a server keeps to."""
    return lambda row: of(row.server["percentile"])(row) if row.server else doc.Cell(UNKNOWN)


def _certainty(row: EntryOutcome) -> doc.Cell:
    """Say how sure the rate is."""
    found = row.server or {}
    if found.get("rate") is None:
        return doc.Cell("none met")
    return doc.Cell("met twice" if found["is_confirmed"] else "met once")


def _bound(row: EntryOutcome) -> doc.Cell:
    found = row.server or {}
    if "bound_s" not in found:
        return doc.Cell(UNKNOWN)
    origin = "" if found["bound_is_given"] else " (own)"
    return doc.Cell(f"p{found['percentile']:g} <= {seconds_text(found['bound_s'])}{origin}")


def _server(name: str) -> Callable[[EntryOutcome], doc.Cell]:
    return lambda row: _count((row.server or {}).get(name))


def _count(count: float | None) -> doc.Cell:
    return doc.Cell(count_text(count), count)


def _whole(count: int | None) -> doc.Cell:
    return doc.Cell(UNKNOWN if count is None else str(count), count)


def _score(row: EntryOutcome) -> doc.Cell:
    found = row.accuracy
    if found is None:
        return doc.Cell(UNKNOWN)
    return doc.Cell(_score_text(found, found["mean"]), float(found["mean"]))


def _score_range(row: EntryOutcome) -> doc.Cell:
    found = row.accuracy
    if found is None or not found["confidence"]:
        return doc.Cell(UNKNOWN)
    text = " to ".join(_score_text(found, found[end]) for end in ("low", "high"))
    return doc.Cell(text, float(found["mean"]))


def _score_text(found: Mapping[str, Any], value: float) -> str:
    return percent_text(value) if found["metric"] == "accuracy" else f"{value:.4g}"


def _values(row: EntryOutcome) -> doc.Cell:
    return _whole(row.main.count if row.main else None)


def _ratio(row: EntryOutcome) -> doc.Cell:
    if row.comparison is None:
        return doc.Cell(UNKNOWN)
    found = row.comparison.ratio
    return doc.Cell(factor_text(found.value), found.value)


def _ratio_range(row: EntryOutcome) -> doc.Cell:
    if row.comparison is None:
        return doc.Cell(UNKNOWN)
    found = row.comparison.ratio
    return doc.Cell(f"{factor_text(found.low)} to {factor_text(found.high)}", found.value)


def _verdict(row: EntryOutcome) -> doc.Cell:
    return doc.Cell(UNKNOWN if row.comparison is None else row.comparison.verdict)


def _accuracy_verdict(row: EntryOutcome) -> doc.Cell:
    found = row.comparison.accuracy if row.comparison else None
    return doc.Cell(UNKNOWN if found is None else found.verdict)


def _range_column(rank: int) -> doc.Column:
    return doc.Column("95% interval", "number", rank=rank)


FIELDS: dict[str, Sequence[Field]] = {
    "single-stream": (
        (doc.Column("p50", "bar"), _percentile(50)),
        (_range_column(4), _percentile_range(50)),
        (doc.Column("p90", "number", rank=5), _percentile(90)),
        (doc.Column("p99", "number", rank=1), _percentile(99)),
        (_range_column(6), _percentile_range(99)),
        (doc.Column("n", "number", rank=8), _values),
    ),
    "offline": (
        (doc.Column("throughput", "bar"), _throughput),
        (_range_column(3), _throughput_range),
        (doc.Column("rounds", "number", rank=8), _values),
    ),
    "server": (
        (doc.Column("queries/s", "bar"), _server("rate")),
        (doc.Column("is", rank=1), _certainty),
        (doc.Column("not above", "number", rank=3), _server("too_high")),
        (doc.Column("bound", rank=2), _bound),
        (doc.Column("latency there", "number", rank=4), _at_percentile(_percentile)),
        (_range_column(6), _at_percentile(_percentile_range)),
        (
            doc.Column("queries", "number", rank=8),
            lambda row: _whole(row.latency.count if row.latency else None),
        ),
        (
            doc.Column("rates", "number", rank=9),
            lambda row: _whole(len((row.server or {}).get("trials", ()))),
        ),
    ),
    "comparison": (
        (doc.Column("time ratio", "bar"), _ratio),
        (_range_column(3), _ratio_range),
        (doc.Column("verdict", rank=1), _verdict),
        (doc.Column("accuracy is", rank=2), _accuracy_verdict),
        (doc.Column("latency", "number", rank=4), _percentile(50)),
        (doc.Column("rounds", "number", rank=8), _values),
    ),
}
"""Scenario -> what its table says about an entry."""
RESOURCES: Sequence[Field] = (
    (
        doc.Column("memory", "number", rank=2),
        lambda row: doc.Cell(bytes_text(row.peak_bytes), row.peak_bytes),
    ),
    (
        doc.Column("size", "number", rank=6),
        lambda row: doc.Cell(bytes_text(row.file_bytes), row.file_bytes),
    ),
    (doc.Column("score", "number", rank=3), _score),
    (_range_column(7), _score_range),
    (
        doc.Column("time vs last", "number", "the time over that of the last run", rank=5),
        lambda row: doc.Cell(factor_text(row.time_ratio), row.time_ratio),
    ),
)
"""What every table says beside that."""


# ---------------------------------------------------------------- pictures


def _fronts(fronts: Sequence[Front], outcomes: Sequence[EntryOutcome]) -> doc.Section:
    by_name = {each.name: each for each in outcomes}
    return doc.Section(
        "fronts",
        "Fronts",
        (doc.Beside([_front(each, by_name) for each in fronts]),),
        "Every point is an entry of one target, full ones are not beaten in both by any other. "
        "Entries were measured one after the other: small differences may be chance.",
    )


def _front(front: Front, by_name: Mapping[str, EntryOutcome]) -> doc.ParetoPlot:
    is_score = front.objective != "peak memory"
    points = [
        doc.ParetoPoint(
            by_name[name].label.removeprefix(f"{front.target}/"),
            _time_estimate(by_name[name], seconds),
            _score_estimate(by_name[name], value) if is_score else Estimate.counted(value),
            name in front.front,
            "series-1",
        )
        for name, (seconds, value) in front.points.items()
    ]
    return doc.ParetoPlot(
        points,
        ("time per example", front.objective),
        ("s", {"%": "fraction"}.get(front.unit, front.unit)),
        (True, not is_score),
        title=f"{front.target}: time against {front.objective}.",
    )


def _time_estimate(outcome: EntryOutcome, seconds: float) -> Estimate:
    found = outcome.seconds_per_example_interval
    return Estimate.counted(seconds) if found is None else Estimate(seconds, found.low, found.high)


def _score_estimate(outcome: EntryOutcome, score: float) -> Estimate:
    found = outcome.accuracy or {}
    if not found.get("confidence"):
        return Estimate.counted(score)
    return Estimate(score, float(found["low"]), float(found["high"]))


def _orders(outcomes: Sequence[EntryOutcome]) -> Iterator[doc.Block]:
    """Yield the values of each entry in their order, folded away."""
    for each in outcomes:
        samples = each.main
        if samples is None or samples.count < 3:
            continue
        title = f"{each.main_metric} in its order."
        runs = [doc.Run(each.main_metric, samples.values)]
        yield doc.Folded(
            each.name, (doc.RunOrder(runs, samples.unit, things="values", title=title),)
        )


# ---------------------------------------------------------------- what to doubt


def shared_notes(outcomes: Sequence[EntryOutcome]) -> list[str]:
    """Say what holds for several entries once, also where only its numbers differ."""
    notes = [(each.name, note) for each in outcomes for note in _notes_of(each)]
    return doc.notes_once(notes, total=len(outcomes), every="all entries")


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
