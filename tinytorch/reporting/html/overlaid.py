"""How the times of two sides are distributed: histograms over one axis, one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.plot import across_axis, plot, stretched_steps, upright_line, words
from tinytorch.reporting.html.run_order import Run, legend_of
from tinytorch.reporting.html.svg import Scale

__all__ = ["overlaid_distributions"]

HEIGHT = 190
BINS = 60
OUTER = 1.0
"""Percent of the values at the upper end that may lie beyond the picture."""


def overlaid_distributions(runs: Sequence[Run], write: Callable[[float], str]) -> Markup:
    """Draw how often which time was seen, each side's share of its own values, and its median.

    What is slower than the picture reaches is counted at its right edge.
    """
    every = np.concatenate([np.asarray(run.values, np.float64) for run in runs])
    low, high = float(every.min()), float(np.percentile(every, 100 - OUTER))
    if not high > low:
        low, high = float(every.min()), float(every.max())
    spare = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = max(0.0, low - spare), high + spare
    x = Scale(low, high, 0, 100)
    edges = np.linspace(low, high, BINS + 1)
    shares = [_shares(run.values, edges) for run in runs]
    y = Scale(0, max(float(each.max()) for each in shares), HEIGHT, 0)
    parts = [
        *across_axis(x, HEIGHT, write),
        *(_steps(each, edges, x, y, place) for place, each in enumerate(shares, 1)),
        *(_median(run, x, write, place) for place, run in enumerate(runs, 1)),
    ]
    beyond = int((every > high).sum())
    if beyond:
        parts.append(words(100, -8, f"{beyond} beyond →", class_="tick", anchor="end"))
    label = f"distribution of the times of {' and '.join(run.name for run in runs)}"
    picture = plot(HEIGHT, *parts, label=label, left=12, top=18, class_="distribution")
    return joined([legend_of(runs), picture])


def _shares(values: Sequence[float], edges: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)
    return counts / len(values)


def _steps(shares: np.ndarray, edges: np.ndarray, x: Scale, y: Scale, place: int) -> Markup:
    """Draw the outline of a histogram, filled so that the other shines through."""
    places = [x(float(left)) for left in edges[:-1]]
    upper = [y(float(share)) for share in shares]
    floor = [y(0)] * len(upper)
    return stretched_steps(places, floor, upper, HEIGHT, class_=f"area series-{place}")


def _median(run: Run, x: Scale, write: Callable[[float], str], place: int) -> Markup:
    middle = float(np.median(run.values))
    return element(
        "g",
        element("title", f"median of {run.name}: {write(middle)}"),
        upright_line(x(middle), 0, HEIGHT, class_=None),
        class_=f"line median series-{place}",
    )
