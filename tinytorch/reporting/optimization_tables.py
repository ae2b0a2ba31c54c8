"""The tables of an optimization: everything that was tried, suggestions, and the front."""

from __future__ import annotations

from rich.text import Text

from tinytorch.reporting.advice import agreement_words
from tinytorch.reporting.attempt_words import (
    STYLES,
    TONES,
    accuracy_change,
    accuracy_text,
    interval_text,
    share_text,
    speed_text,
)
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.optimization_words import front_name, score_title
from tinytorch.reporting.plan import gain_text
from tinytorch.reporting.quantities import UNKNOWN, factor_text, seconds_text
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import NOT_TRIED, Attempt
from tinytorch.tuning.objectives import BASELINE
from tinytorch.tuning.optimization import Optimization

__all__ = ["attempt_table", "front_table", "suggestion_table"]

LEAST_NAME = 32


def attempt_table(optimization: Optimization) -> FittingTable:
    """Give a row for each attempt, the best at the goal first."""
    rows, best = optimization.ranked, optimization.chosen
    found = [each.measured for each in rows]
    return FittingTable(
        "attempt",
        [Text(each.name, style="bold" if each is best else "") for each in rows],
        [
            Column("outcome", [each.outcome for each in rows], 0, "left"),
            Column("predicted", [_predicted(optimization, each) for each in rows], 4),
            Column("speedup", [speed_text(each) for each in rows]),
            Column("95% interval", [interval_text(each) for each in rows], 7),
            Column("memory", [share_text(each.memory) for each in found], 2),
            Column("size", [share_text(each.size) for each in found], 2),
            Column(score_title(optimization), [accuracy_text(each) for each in rows], 1),
            Column("once", [_once(each) for each in rows], 5),
            Column("took", [seconds_text(each.seconds) for each in rows], 6),
        ],
        styles=[STYLES[TONES[each.outcome]] if each.comparison else "dim" for each in rows],
        label_least=LEAST_NAME,
    )


def _once(attempt: Attempt) -> str:
    """Write what it needs once; where nothing does, the column is blank and left out."""
    return seconds_text(attempt.once_s) if attempt.once_s else ""


def _predicted(optimization: Optimization, attempt: Attempt) -> str:
    gain = optimization.predicted(attempt)
    return UNKNOWN if gain is None else factor_text(gain.value)


def front_table(optimization: Optimization) -> FittingTable:
    """Give a row for everything on the front, as shares of the model as it is."""
    names = optimization.front
    known = {each.name: each for each in optimization.attempts}
    found = [known[name].measured if name else BASELINE for name in names]
    changes = [accuracy_change(known[name]) if name else UNKNOWN for name in names]
    return FittingTable(
        "attempt",
        [Text(front_name(name)) for name in names],
        [
            Column("time", [share_text(each.time) for each in found]),
            Column("memory", [share_text(each.memory) for each in found], 1),
            Column("size", [share_text(each.size) for each in found], 1),
            Column(score_title(optimization), changes),
        ],
        label_least=LEAST_NAME,
    )


def suggestion_table(optimization: Optimization) -> FittingTable:
    """Give a row for each suggestion that something here carries out: predicted and measured."""
    rows = [each for each in optimization.advice if each.entry]
    tried = [optimization.outcome_of(each) for each in rows]
    pairs = list(zip(rows, tried, strict=True))
    return FittingTable(
        "suggestion",
        [Text(each.title) for each in rows],
        [
            Column("done by", [each.entry for each in rows], 0, "left"),
            Column("predicted", [_gain(each) for each in rows], 1),
            Column("measured", [speed_text(each) if each else UNKNOWN for each in tried], 1),
            Column("outcome", [each.outcome if each else NOT_TRIED for each in tried], 0, "left"),
            Column("", [agreement_words(a, x) if x else "" for a, x in pairs], 2, "left"),
        ],
        styles=[STYLES[TONES[each.outcome]] if each else "dim" for each in tried],
        label_least=LEAST_NAME,
    )


def _gain(advice: Advice) -> str:
    return UNKNOWN if advice.predicted is None else gain_text(advice.predicted)
