"""A against A in the terminal: what the comparer shows where there is nothing to show."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.comparison.comparison import NOT_SHOWN, SAME
from tinytorch.comparison.self_check import SelfCheck
from tinytorch.reporting.forest_plot import ForestPlot, ForestRow, ratio_text
from tinytorch.reporting.quantities import seconds_text

__all__ = ["render_self_check"]

BAND = 0.01


def render_self_check(check: SelfCheck) -> RenderableType:
    """Lay out how often identical code was called different, and what to believe from now on."""
    trials, alarms = len(check.trials), check.false_alarms
    style = "green" if not alarms else "yellow"
    facts = {
        "trials": f"{trials} comparisons of {check.target} with itself",
        "false alarms": f"{alarms} of {trials}",
        "same": f"{trials - alarms - check.undecided} of {trials}",
        "not shown": f"{check.undecided} of {trials}",
        "largest difference": f"{_percent(check.largest_difference)}, of estimates",
        "noise": f"{_percent(check.reach)} from the estimate to the end of its interval",
        "floor": f"{_percent(check.floor)}; {_use(check)}",
        "time": f"{seconds_text(check.median_seconds)} for one comparison",
        "kept": check.kept or "no, since it has no name that others know",
    }
    width = max(map(len, facts))
    return Group(
        Text(_verdict(check), style=f"bold {style}"),
        Text(""),
        ForestPlot(
            [_row(check, number) for number in range(trials)], check.floor, max(BAND, check.floor)
        ),
        Text(""),
        *(Text(f"{name:<{width}}  {text}") for name, text in facts.items()),
    )


def _verdict(check: SelfCheck) -> str:
    if not check.false_alarms:
        open_ones = f", {check.undecided} of {len(check.trials)} not decided"
        return (
            f"no false alarm{open_ones if check.undecided else ''}: believe differences of "
            f"{_percent(check.floor)} and more here"
        )
    return (
        f"identical code was called different in {check.false_alarms} of {len(check.trials)}: "
        f"believe only differences of more than {_percent(check.floor)} here"
    )


def _use(check: SelfCheck) -> str:
    if check.is_kept:
        return "`tinytorch gate` takes no tolerance below it"
    return "it is not kept, so `tinytorch gate` does not know it"


def _row(check: SelfCheck, number: int) -> ForestRow:
    trial = check.trials[number]
    style = {SAME: "cyan", NOT_SHOWN: "yellow"}.get(trial.verdict, "red")
    # As a speedup: right of 1 is faster.
    value, low, high = 1 / trial.ratio, 1 / trial.high, 1 / trial.low
    text = f"{trial.verdict:<9}  {ratio_text(low)} to {ratio_text(high)}"
    return ForestRow(str(number + 1), value, low, high, text, style)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%"
