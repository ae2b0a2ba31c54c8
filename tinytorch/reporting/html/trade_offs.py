"""Time against accuracy, memory and size: every acceptable attempt a point."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tinytorch.reporting.attempt_words import TONES, accuracy_change, share_text
from tinytorch.reporting.html.figures import beside, figure
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.html.pareto import ParetoPoint, pareto_plot
from tinytorch.reporting.html.tables import Cell, Column, table
from tinytorch.reporting.optimization_words import AS_IT_IS, front_name, metric_of, score_title
from tinytorch.reporting.quality_lines import difference_text
from tinytorch.reporting.quantities import UNKNOWN, percent_text
from tinytorch.tuning.objectives import BASELINE, Value
from tinytorch.tuning.optimization import Optimization

__all__ = ["trade_offs_section"]

ABOUT = (
    "Time, memory and size as shares of the model as it is, accuracy as its change. A full point "
    "is on the front over all four: no other attempt is shown to be as good in everything and "
    "better in something."
)


def trade_offs_section(optimization: Optimization) -> Section | None:
    """Give the pictures and the table of the front; None where nothing was timed."""
    if not any(each.comparison for each in optimization.attempts):
        return None
    body = joined(
        [
            beside(*_pictures(optimization)),
            element("h3", "The front"),
            _front_table(optimization),
        ]
    )
    return Section("trade-offs", "Trade-offs", body, ABOUT)


def _pictures(optimization: Optimization) -> Iterator[Markup]:
    titles = {
        "accuracy": f"change of the {metric_of(optimization)}",
        "memory": "peak memory",
        "size": "size of the file",
    }
    for objective, title in titles.items():
        points = list(_points(optimization, objective))
        if len(points) < 2:
            words = f"No picture of the {title}: it is not known of any attempt."
            yield element("p", words, class_="muted")
            continue
        picture = pareto_plot(
            points,
            x_title="time",
            y_title=title,
            x_text=percent_text,
            y_text=_writer(optimization, objective),
            lower_is_better=(True, objective != "accuracy"),
        )
        yield figure(picture, title=f"{title.capitalize()} against time")


def _points(optimization: Optimization, objective: str) -> Iterator[ParetoPoint]:
    """Give the model as it is and every acceptable attempt that has both numbers."""
    candidates = [(AS_IT_IS, "", BASELINE, "neutral")]
    candidates += [
        (each.name, each.name, each.measured, TONES[each.outcome])
        for each in optimization.ranked
        if each.is_acceptable
    ]
    for shown, name, measured, tone in candidates:
        x, y = measured.time, getattr(measured, objective)
        if x is not None and y is not None:
            yield ParetoPoint(shown, x, y, name in optimization.front, tone)


def _writer(optimization: Optimization, objective: str) -> Callable[[float], str]:
    """Give what writes the values of an axis; changes of scores in the unit of the scores."""
    if objective != "accuracy":
        return percent_text
    compared = [each.comparison for each in optimization.attempts if each.comparison]
    scores = next(each.accuracy for each in compared if each.accuracy)
    return lambda change: difference_text(scores, change)


def _front_table(optimization: Optimization) -> Markup:
    known = {each.name: each for each in optimization.attempts}
    rows = []
    for name in optimization.front:
        measured = known[name].measured if name else BASELINE
        change = accuracy_change(known[name]) if name else UNKNOWN
        shares = [_share(each) for each in (measured.time, measured.memory, measured.size)]
        gained = measured.accuracy
        rows.append(
            [Cell(front_name(name)), *shares, Cell(change, gained.value if gained else None)]
        )
    columns = [Column("attempt")]
    titles = ("time", "memory", "size", score_title(optimization))
    columns += [Column(title, "number") for title in titles]
    return table(columns, rows)


def _share(share: Value | None) -> Cell:
    return Cell(share_text(share), share.value if share else None)
