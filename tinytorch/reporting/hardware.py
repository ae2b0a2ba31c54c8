"""The estimate for another device in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.perf.profiling.hardware import HardwareEstimate
from tinytorch.reporting.quantities import count_text, factor_text, seconds_text

__all__ = ["render_estimate"]


def render_estimate(estimate: HardwareEstimate) -> RenderableType:
    """Lay out what a call would take, and cost, on another device."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in _rows(estimate).items():
        grid.add_row(name, text)
    return Group(
        Text(f"On {estimate.device.name}: an estimate, not a measurement", style="bold"),
        grid,
        *(Text(f"- {note}", style="yellow") for note in estimate.notes),
    )


def _rows(estimate: HardwareEstimate) -> dict[str, str]:
    rows = {
        "at best": f"{seconds_text(estimate.at_best_s)} for a call, by roofline from "
        f"{estimate.device.source}"
    }
    if estimate.expected_s is not None:
        rows["expected"] = (
            f"{seconds_text(estimate.expected_s)}, if it stays as far above its bound as here: "
            f"{factor_text(estimate.optimism)} "
            f"({seconds_text(estimate.here_measured_s)} measured, "
            f"{seconds_text(estimate.here_at_best_s)} at best)"
        )
    else:
        rows["expected"] = "not known: the ceilings of this machine were not measured"
    best, likely = estimate.cost_per_million(expected=False), estimate.cost_per_million()
    if best is not None:
        words = f"{count_text(best)} at best"
        words += f", {count_text(likely)} expected" if likely is not None else ""
        rows["price"] = f"{words}, for a million calls at {estimate.price_per_hour:g} an hour"
    return rows
