"""The summary at the end of a run, in the form that users of pytest-benchmark know."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console, RenderableType

from tinytorch.measure.samples import Samples
from tinytorch.pytest_plugin.session import Against, Compared, Measured
from tinytorch.reporting.comparison import comparisons_document
from tinytorch.reporting.document import Column, Document, Table
from tinytorch.reporting.quantities import ratio_text, seconds_text
from tinytorch.reporting.terminal import render

if TYPE_CHECKING:
    from tinytorch.pytest_plugin.session import PerfSession


# Below the first number of seconds, times are in units of the second.
TIME_UNITS = ((1e-6, 1e-9, "ns"), (1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"))
RATE_UNITS = ((1e9, "Gops/s"), (1e6, "Mops/s"), (1e3, "Kops/s"))
NAMES_SHOWN = 3
LEGEND = (
    "Outliers: values beyond one standard deviation of the mean; beyond 1.5 IQR of the quartiles.",
    "OPS: calls per second, 1 / Mean. Rounds x Iterations calls were timed.",
    "Rows were measured one after the other; to tell which is faster, use perf.compare(a, b).",
)
WEAK = "Weak evidence: between two runs anything may have changed. perf.compare is strong evidence."

# Name of a column -> the number to show and to sort by.
STATISTICS: dict[str, Callable[[Samples], float]] = {
    "Min": lambda samples: samples.minimum,
    "Max": lambda samples: samples.maximum,
    "Mean": lambda samples: samples.mean,
    "StdDev": lambda samples: samples.std,
    "Median": lambda samples: samples.median,
    "IQR": lambda samples: samples.percentile(75) - samples.percentile(25),
}
# Narrow terminals lose the highest ranks first.
RANKS = {"Median": 0, "Min": 1, "Max": 2, "Mean": 3, "StdDev": 4, "IQR": 7}


def write_summary(session: PerfSession, terminal: pytest.TerminalReporter) -> None:
    """Write everything that was measured, with notes."""
    for title, tests in groups_of(tuple(session.measured.values()), session.settings.group_by):
        count = f"{len(tests)} test" if len(tests) == 1 else f"{len(tests)} tests"
        terminal.write_sep("-", f"perf{f' {title!r}' if title else ''}: {count}")
        _show(terminal, measured_table(tests, session.settings.sort))
    if session.measured:
        for line in LEGEND:
            terminal.write_line(line, light=True)
    if session.compared:
        terminal.write_sep("-", f"perf: {len(session.compared)} compared")
        _show(terminal, _comparisons(tuple(session.compared.values())))
    if session.against:
        terminal.write_sep("-", "perf: against a stored run")
        for each in session.against:
            terminal.write_line(_against_text(each))
        terminal.write_line(WEAK, light=True)
    _write_doubts(session, terminal)


def groups_of(tests: Sequence[Measured], group_by: str) -> list[tuple[str, list[Measured]]]:
    """Return the tables and their titles, in the order in which their first tests ran."""
    groups: dict[str, list[Measured]] = {}
    for test in tests:
        title = "" if group_by == "none" else str(getattr(test, group_by))
        groups.setdefault(title, []).append(test)
    return list(groups.items())


def measured_table(tests: Sequence[Measured], sort: str) -> RenderableType:
    """Lay out tests as pytest-benchmark does, sorted by one of the columns."""
    rows = sorted(tests, key=lambda test: _sort_key(test, sort))
    unit, name = _time_unit(min(test.samples.minimum for test in rows))
    rates = [1 / test.samples.mean if test.samples.mean > 0 else math.inf for test in rows]
    rate_unit, rate_name = _rate_unit(max(rates))
    labels = _short([test.name for test in rows])
    columns = [
        Column(f"Name (time in {name})"),
        *(Column(title, "number", rank=RANKS[title]) for title in STATISTICS),
        Column("Outliers", "number", rank=8),
        Column(f"OPS ({rate_name})", "number", rank=6),
        Column("Rounds", "number", rank=5),
        Column("Iterations", "number", rank=9),
    ]
    lines = [
        [
            label,
            *(f"{statistic(test.samples) / unit:,.4f}" for statistic in STATISTICS.values()),
            _outliers(test.samples),
            f"{rate / rate_unit:,.4f}",
            str(test.samples.count),
            str(test.samples.loops),
        ]
        for label, test, rate in zip(labels, rows, rates, strict=True)
    ]
    return render(Document("", None, (Table(columns, lines),)))


def _sort_key(test: Measured, sort: str) -> tuple[float, str]:
    if sort == "name":
        return 0.0, test.name
    statistic = next((find for title, find in STATISTICS.items() if title.lower() == sort), None)
    # More calls per second are better, so they come first, as the shortest time does.
    return (statistic or STATISTICS["Mean"])(test.samples), test.name


def _time_unit(seconds: float) -> tuple[float, str]:
    """Choose the unit of a table by its shortest time."""
    for limit, unit, name in TIME_UNITS:
        if seconds < limit:
            return unit, name
    return 1.0, "s"


def _rate_unit(rate: float) -> tuple[float, str]:
    """Choose the unit of a table by its highest rate."""
    for unit, name in RATE_UNITS:
        if unit <= rate < math.inf:
            return unit, name
    return 1.0, "ops/s"


def _outliers(samples: Samples) -> str:
    beyond = np.abs(np.array(samples.values) - samples.mean) > samples.std
    return f"{int(beyond.sum())};{samples.outliers.total}"


def _comparisons(compared: Sequence[Compared]) -> RenderableType:
    labels = _short([each.name for each in compared])
    named = [
        each.comparison.named("baseline", label)
        for each, label in zip(compared, labels, strict=True)
    ]
    return render(comparisons_document(named))


def _against_text(found: Against) -> str:
    if found.ratio is None:
        return f"{found.name}: {found.reason}"
    commit = f", commit {found.commit[:12]}" if found.commit else ""
    when = f"{found.created_at[:16].replace('T', ' ')}, record {found.hash[:12]}{commit}"
    return (
        f"{found.name}: {ratio_text(found.ratio)} the time of {seconds_text(found.stored)} ({when})"
    )


def _write_doubts(session: PerfSession, terminal: pytest.TerminalReporter) -> None:
    open_questions = [each for each in session.compared.values() if each.open]
    failed = [each.name for each in session.compared.values() if not each.has_passed]
    notes = _notes(session)
    if open_questions or failed or notes or session.left_out:
        terminal.write_sep("-", "perf: what to know")
    for each in open_questions:
        terminal.write_line(f"{each.name}: {each.open}", yellow=True)
    if session.left_out:
        terminal.write_line(
            f"left out, since the test did not pass: {_listed(session.left_out)}", yellow=True
        )
    if failed:
        unkept = " and not kept" if session.settings.save else ""
        terminal.write_line(
            f"compared in a test that did not pass{unkept}: {_listed(failed)}", yellow=True
        )
    for note, names in notes.items():
        terminal.write_line(f"- {note} ({_listed(names)})", yellow=True)
    for message in session.messages:
        terminal.write_line(f"perf: {message}")
    for problem in session.problems:
        terminal.write_line(f"perf: error: {problem}", red=True)


def _notes(session: PerfSession) -> dict[str, list[str]]:
    """Return each note once, with the tests that it is about."""
    found: dict[str, list[str]] = {}
    for measured in session.measured.values():
        for note in measured.samples.notes:
            found.setdefault(note, []).append(measured.name)
    for compared in session.compared.values():
        for note in compared.comparison.notes:
            found.setdefault(note, []).append(compared.name)
    return found


def _short(names: Sequence[str]) -> list[str]:
    """Leave files and classes out, unless two tests would then read the same."""
    short = [name.rpartition("::")[2] for name in names]
    return short if len(set(short)) == len(short) else list(names)


def _listed(names: Sequence[str]) -> str:
    short = _short(names)
    more = f" and {len(short) - NAMES_SHOWN} more" if len(short) > NAMES_SHOWN else ""
    return ", ".join(short[:NAMES_SHOWN]) + more


def _show(terminal: pytest.TerminalReporter, renderable: RenderableType) -> None:
    console = Console(
        file=io.StringIO(),
        width=terminal._tw.fullwidth,
        force_terminal=terminal.hasmarkup,
        color_system="standard" if terminal.hasmarkup else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(renderable)
    for line in captured.get().splitlines():
        terminal.write_line(line)
