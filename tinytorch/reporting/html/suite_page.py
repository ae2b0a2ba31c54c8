"""A run of a suite as a page: its entries, the fronts of its targets, and what failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tinytorch.benchmarking.suite_run import EntryOutcome, Front, suite_fronts
from tinytorch.measure.estimate import Estimate
from tinytorch.reporting.document import Run, RunOrder
from tinytorch.reporting.html.markup import Cell, Column, Markup, element, joined, table
from tinytorch.reporting.html.page import Banner, Page, Section, appendix
from tinytorch.reporting.html.pareto import ParetoPoint, pareto_plot
from tinytorch.reporting.html.plot import beside, figure
from tinytorch.reporting.html.runs import run_order
from tinytorch.reporting.quantities import (
    UNKNOWN,
    FittingTable,
    bytes_text,
    percent_text,
    seconds_text,
    value_text,
)
from tinytorch.reporting.suite import (
    NO_COMPARISON,
    TITLES,
    scenario_tables,
    shared_notes,
    suite_head,
)

__all__ = ["suite_page"]

WRITERS = {"B": bytes_text, "%": percent_text}


def _latency(q: float) -> Callable[[EntryOutcome], float | None]:
    return lambda row: None if row.latency is None else row.latency.percentile(q)


def _server(field: str) -> Callable[[EntryOutcome], float | None]:
    return lambda row: (row.server or {}).get(field)


def _server_latency(row: EntryOutcome) -> float | None:
    return _latency(row.server["percentile"])(row) if row.server else None


def _count(row: EntryOutcome) -> float | None:
    return row.main.count if row.main else None


# Column of the terminal's table -> the number behind its text.
NUMBERS: Mapping[str, Callable[[EntryOutcome], float | None]] = {
    "p50": _latency(50),
    "p90": _latency(90),
    "p99": _latency(99),
    "n": _count,
    "throughput": lambda row: row.main.median if row.main else None,
    "rounds": _count,
    "queries/s": _server("rate"),
    "not above": _server("too_high"),
    "latency there": _server_latency,
    "queries": lambda row: row.latency.count if row.latency else None,
    "rates": lambda row: len((row.server or {}).get("trials", ())),
    "memory": lambda row: row.peak_bytes,
    "size": lambda row: row.file_bytes,
    "score": lambda row: float(row.accuracy["mean"]) if row.accuracy else None,
    "time vs last": lambda row: row.time_ratio,
}
MAIN = ("p50", "throughput", "queries/s")
"""Columns with bars: what a scenario is about."""


def suite_page(
    outcomes: Sequence[EntryOutcome],
    *,
    name: str = "suite",
    planned: int | None = None,
    run: str = "",
    notes: Sequence[str] = (),
) -> Page:
    """Give the page of what is finished of a suite; of `planned` entries some may be missing."""
    planned = len(outcomes) if planned is None else planned
    run = run or next((each.record.run for each in outcomes if each.record.run), "")
    raw = {
        "suite": name,
        "run": run,
        "planned": planned,
        "entries": [each.to_dict() for each in outcomes],
        "records": [each.record.to_dict() for each in outcomes],
    }
    said = [*notes, *shared_notes(outcomes)]
    environment = outcomes[0].record.environment if outcomes else None
    sections = [
        _failures(outcomes),
        *(_scenario(*each) for each in scenario_tables(outcomes).items()),
        _fronts(outcomes),
        _order(outcomes),
        appendix(environment, said, raw, file_name="tinytorch-suite.json"),
    ]
    return Page(
        f"Suite {name}",
        _banner(outcomes, planned, run),
        tuple(each for each in sections if each is not None),
        raw,
        suite_head(outcomes, planned=planned, run=run),
    )


def _banner(outcomes: Sequence[EntryOutcome], planned: int, run: str) -> Banner:
    failed = sum(each.failure is not None for each in outcomes)
    measured, missing = len(outcomes) - failed, planned - len(outcomes)
    facts = (("entries", str(planned)), ("measured", str(measured)), ("failed", str(failed)))
    if failed:
        verdict = "1 entry failed" if failed == 1 else f"{failed} entries failed"
        return Banner(verdict, NO_COMPARISON, facts, "bad")
    if missing:
        verdict = f"Not finished: {missing} of {planned} entries are missing"
        return Banner(verdict, NO_COMPARISON, facts, "unknown")
    verdict = "1 entry measured" if planned == 1 else f"{planned} entries measured"
    return Banner(verdict, NO_COMPARISON, facts)


def _failures(outcomes: Sequence[EntryOutcome]) -> Section | None:
    failed = [each for each in outcomes if each.failure is not None]
    if not failed:
        return None
    columns = [Column("entry"), Column("reason")]
    rows = [(each.name, str(each.failure)) for each in failed]
    return Section("failed", "Failed", table(columns, rows, sortable=False))


# ---------------------------------------------------------------- the tables


def _scenario(scenario: str, found: tuple[list[EntryOutcome], FittingTable]) -> Section:
    rows, terminal = found
    return Section(
        scenario, scenario.capitalize(), _entries(rows, terminal), TITLES[scenario].capitalize()
    )


def _entries(rows: Sequence[EntryOutcome], terminal: FittingTable) -> Markup:
    """Give the terminal's table with all of its columns, and with what to sort them by."""
    columns, cells = [Column(terminal.title)], [[Cell(row.label) for row in rows]]
    numbers: list[float | None] = [None] * len(rows)
    for column in terminal.columns:
        if all(text.strip() in ("", UNKNOWN) for text in column.cells):
            continue
        find = NUMBERS.get(column.title)
        if find is not None:
            numbers = [find(row) for row in rows]
        is_number = column.justify == "right"
        is_main = column.title in MAIN
        most = max((number for number in numbers if number is not None), default=0.0)
        columns.append(
            Column(column.title, "bar" if is_main else "number" if is_number else "text")
        )
        cells.append(
            [
                Cell(
                    text,
                    number if is_number else None,
                    bar=number / most if is_main and number is not None and most else None,
                )
                for text, number in zip(column.cells, numbers, strict=True)
            ]
        )
    return table(columns, [list(row) for row in zip(*cells, strict=True)])


# ---------------------------------------------------------------- pictures


def _fronts(outcomes: Sequence[EntryOutcome]) -> Section | None:
    found = [each for each in suite_fronts(outcomes) if len(each.points) > 1]
    if not found:
        return None
    by_name = {each.name: each for each in outcomes}
    pictures = [
        figure(_front(each, by_name), title=f"{each.target}: time against {each.objective}.")
        for each in found
    ]
    return Section(
        "fronts",
        "Fronts",
        beside(*pictures),
        "Every point is an entry of one target, full ones are not beaten in both by any other. "
        "Entries were measured one after the other: small differences may be chance.",
    )


def _front(front: Front, by_name: Mapping[str, EntryOutcome]) -> Markup:
    is_score = front.objective != "peak memory"
    points = [
        ParetoPoint(
            by_name[name].label.removeprefix(f"{front.target}/"),
            _time_value(by_name[name], seconds),
            _score_value(by_name[name], value) if is_score else Estimate.counted(value),
            name in front.front,
            "series-1",
        )
        for name, (seconds, value) in front.points.items()
    ]
    write = WRITERS.get(front.unit, lambda value: value_text(value, ""))
    return pareto_plot(
        points,
        x_title="time per example",
        y_title=front.objective,
        x_text=seconds_text,
        y_text=write,
        lower_is_better=(True, not is_score),
    )


def _time_value(outcome: EntryOutcome, seconds: float) -> Estimate:
    found = outcome.seconds_per_example_interval
    return Estimate.counted(seconds) if found is None else Estimate(seconds, found.low, found.high)


def _score_value(outcome: EntryOutcome, score: float) -> Estimate:
    found = outcome.accuracy or {}
    if not found.get("confidence"):
        return Estimate.counted(score)
    return Estimate(score, float(found["low"]), float(found["high"]))


def _order(outcomes: Sequence[EntryOutcome]) -> Section | None:
    """Show the values of each entry in their order, folded away."""
    folded = []
    for each in outcomes:
        samples = each.main
        if each.failure is not None or samples is None or samples.count < 3:
            continue
        run = Run(each.main_metric, samples.values)
        picture = run_order(RunOrder([run], samples.unit, things="values"))
        shown = figure(picture, title=f"{each.main_metric} in its order.")
        folded.append(element("details", element("summary", each.name), shown))
    if not folded:
        return None
    about = "The values behind the numbers, in the order in which they were measured."
    return Section("order", "Order of measuring", joined(folded), about)
