"""Quantization in the terminal: how much each layer hurts, and what calibration has seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tinytorch.errors import SettingError
from tinytorch.formats.ranges import RangeStatistics
from tinytorch.perf.quantization.calibration_result import Calibration
from tinytorch.perf.quantization.sensitivity import LayerSensitivity, Sensitivity
from tinytorch.reporting.bars import share_bar
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.quantities import UNKNOWN, bytes_text, count_text, percent_text
from tinytorch.reporting.text_graphics import BARS

__all__ = [
    "render_calibration",
    "render_sensitivity",
]

MOST_ROWS = 40
BAR_WIDTH = 12
PICTURE_WIDTH = 20
OF_SENSITIVITY = (
    "Each layer quantized alone. Error: the change of the outputs over their size (both root mean "
    "squares). Top-1: the share of rows whose largest output is in another place."
)
OF_CALIBRATION = (
    "Range: what is chosen to quantize by. Clipped: the share of inputs outside of it, by the "
    "histogram. In pictures, heights are square roots of counts, and brackets enclose the range."
)


# ---------------------------------------------------------------- sensitivity


def render_sensitivity(sensitivity: Sensitivity, *, top: int = MOST_ROWS) -> RenderableType:
    """Lay out a row for each layer, the worst first, and at most `top` of them."""
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    if not sensitivity.layers:
        return Text("No layer is quantized, so no output changes.", style="yellow")
    worst = sensitivity.worst_first
    rows = worst[:top]
    return Group(
        _sensitivity_headline(sensitivity),
        Text(""),
        _sensitivity_table(sensitivity, rows),
        *_left_out(worst[len(rows) :]),
        Text(""),
        Text(OF_SENSITIVITY, style="dim"),
    )


def _sensitivity_headline(sensitivity: Sensitivity) -> Text:
    worst, together = sensitivity.worst_first[0], sensitivity.together
    about = f"  outputs of {_counted(sensitivity.batches, 'batch', 'batches')}"
    count = len(sensitivity.layers)
    if count == 1:
        does = f"Quantizing {_name(worst)} changes the outputs by {_error_text(worst)}"
    else:
        does = (
            f"Quantizing all {count} layers changes the outputs by {_error_text(together)}, the "
            f"worst one alone, {_name(worst)}, by {_error_text(worst)}"
        )
    size, word = abs(together.bytes_saved), "less" if together.bytes_saved >= 0 else "more"
    saved = f"the model then holds {bytes_text(size)} {word}"
    return Text.assemble(("Sensitivity", "bold"), (about, "dim"), f"\n{does}; {saved}.")


def _sensitivity_table(
    sensitivity: Sensitivity, layers: Sequence[LayerSensitivity]
) -> FittingTable:
    is_one = len(sensitivity.layers) == 1
    rows = [*layers, *([] if is_one else [sensitivity.together])]
    labels = [Text(_name(row)) for row in layers]
    changes = [row.top1_change for row in rows]
    are_known = any(change is not None for change in changes)
    return FittingTable(
        "layer",
        labels if is_one else [*labels, Text("all together")],
        [
            Column("", [share_bar(sensitivity.share(row), BAR_WIDTH) for row in rows], 1, "left"),
            Column("error", [_error_text(row) for row in rows]),
            Column("top-1", [percent_text(change) if are_known else "" for change in changes], 3),
            Column("saved", [bytes_text(row.bytes_saved) for row in rows], 2),
            Column("what", [row.what for row in layers] + [""] * (not is_one), 4, "left", least=20),
        ],
        styles=[""] * len(layers) + ["bold"] * (not is_one),
    )


def _left_out(layers: Sequence[LayerSensitivity]) -> list[Text]:
    if not layers:
        return []
    return [Text(f"{len(layers):,} more, with at most {_error_text(layers[0])} each", style="dim")]


def _name(row: LayerSensitivity) -> str:
    return row.layer or "(the model itself)"


def _error_text(row: LayerSensitivity) -> str:
    """Write an error with two decimals of a percent; what is there but tiny is not shown as 0."""
    if 0 < row.error < 0.00005:
        return "<0.01%"
    return f"{row.error:.2%}" if math.isfinite(row.error) else "inf"


# ---------------------------------------------------------------- calibration


def render_calibration(
    statistics: Mapping[str, RangeStatistics], *, ranges: str | None = None
) -> RenderableType:
    """Lay out what each layer was seen to get, and the range that is chosen by that.

    `ranges` is how it is chosen, by default as the calibration says.
    """
    found = (
        statistics
        if isinstance(statistics, Calibration)
        else Calibration(statistics, max((each.batches for each in statistics.values()), default=0))
    )
    method = found.ranges if ranges is None else ranges
    if not found:
        return Text("No layer was calibrated: none that can be was called.", style="yellow")
    chosen = {
        layer: found.range_of(layer, method) if seen.count else None
        for layer, seen in found.items()
    }
    layers, batches = _counted(len(found), "layer"), _counted(found.batches, "batch", "batches")
    about = f"inputs of {layers} in {batches}, ranges by {method}"
    return Group(
        Text.assemble(("Calibration", "bold"), (f"  {about}", "dim")),
        Text(""),
        _calibration_table(found, chosen),
        Text(""),
        Text(OF_CALIBRATION, style="dim"),
    )


def _calibration_table(
    found: Calibration, chosen: Mapping[str, tuple[float, float] | None]
) -> FittingTable:
    seen = list(found.values())
    extremes = [(each.low, each.high) if each.count else None for each in seen]
    return FittingTable(
        "layer",
        [Text(layer or "(the model itself)") for layer in found],
        [
            Column("inputs", [_picture(found, *each) for each in chosen.items()], 2, "left"),
            Column("seen", [_range_text(each) for each in extremes], 3),
            Column("range", [_range_text(each) for each in chosen.values()], 0),
            Column("clipped", [_clipped_text(found, *each) for each in chosen.items()], 1),
            Column("mean", [_number(each.mean) for each in seen], 5),
            Column("std", [_number(each.std) for each in seen], 5),
            Column("zeros", [_zeros_text(each) for each in seen], 6),
            Column("values", [count_text(each.count) for each in seen], 7),
        ],
    )


def _picture(found: Calibration, layer: str, limits: tuple[float, float] | None) -> str:
    """Draw the histogram of a layer, with brackets around the chosen range."""
    shares = found.shape_of(layer, PICTURE_WIDTH)
    if limits is None or not shares:
        return "nothing seen"
    letters = [_letter(share / max(shares)) for share in shares]
    first, last = _places(limits, min(found[layer].low, 0.0), max(found[layer].high, 0.0))
    parts = letters[:first], ["["], letters[first:last], ["]"], letters[last:]
    return "".join(letter for part in parts for letter in part)


def _places(limits: tuple[float, float], low: float, high: float) -> tuple[int, int]:
    """Give the first letter inside of a range, and the first one after it."""
    if low == high:
        return 0, PICTURE_WIDTH
    first, last = (round((end - low) / (high - low) * PICTURE_WIDTH) for end in limits)
    return first, last


def _letter(part: float) -> str:
    """Give a bar for a part of the largest count; where there is nothing there is no bar."""
    # The square root, so that what is rare, and may be clipped, is seen beside what is common.
    return BARS[round(math.sqrt(part) * (len(BARS) - 1))] if part > 0 else " "


def _range_text(limits: tuple[float, float] | None) -> str:
    return UNKNOWN if limits is None else f"{_number(limits[0])} to {_number(limits[1])}"


def _clipped_text(found: Calibration, layer: str, limits: tuple[float, float] | None) -> str:
    return UNKNOWN if limits is None else percent_text(found.clipped_share(layer, limits))


def _zeros_text(seen: RangeStatistics) -> str:
    return percent_text(seen.zeros / seen.count) if seen.count else UNKNOWN


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _number(number: float) -> str:
    return UNKNOWN if math.isnan(number) else f"{number:.3g}"
