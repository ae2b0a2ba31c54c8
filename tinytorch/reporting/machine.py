"""The machine and its ceilings in the terminal, with the roofline that they imply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.measure.ceilings import Bandwidth, Ceilings, Rate
from tinytorch.measure.environment import Environment
from tinytorch.measure.samples import Samples
from tinytorch.reporting.quantities import bytes_text, count_text, percent_text, rate_text
from tinytorch.reporting.text_graphics import braille_image

__all__ = ["render_machine", "roofline_picture"]

COLUMNS, ROWS = 50, 15
REFERENCE = "float32"
"""The dtype whose roof must be well inside the picture."""
MARGIN = 4.0
"""How far the picture reaches beyond the first and last ridge, as a factor."""
HEADROOM = 1.6
EMPTY_BRAILLE = "\u2800"
"""A space that some fonts draw as empty circles."""


def render_machine(
    environment: Environment, ceilings: Ceilings, *, plain: bool = False
) -> RenderableType:
    """Lay out the machine, its measured ceilings and its roofline; `plain` is ASCII only."""
    parts: list[RenderableType] = [
        _heading("Machine"),
        _machine(environment, ceilings),
        _heading("Matrix products"),
        _rates(ceilings),
        _heading("Memory"),
        _bandwidths(ceilings),
        Text("A ceiling is what the best tenth of the n values reached.", style="dim"),
    ]
    if ceilings.rates:
        parts += [
            _heading("Roofline"),
            Text(roofline_picture(ceilings, plain=plain)),
            _heading("Ridge points, in FLOP per byte"),
            _ridges(ceilings),
            Text(
                "Work with fewer FLOP per byte is limited by the memory that its data come from, "
                "work with more by computing.",
                style="dim",
            ),
        ]
    return Group(*parts, *_missing(ceilings), *_doubts(ceilings))


def _heading(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _machine(environment: Environment, ceilings: Ceilings) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in _machine_facts(environment, ceilings).items():
        if text:
            table.add_row(name, text)
    return table


def _machine_facts(environment: Environment, ceilings: Ceilings) -> dict[str, str]:
    cores = f"{environment.usable_cores} usable of {environment.logical_cores or 'unknown'}"
    if environment.cpu_quota is not None:
        cores += f", quota {environment.cpu_quota:g}"
    if environment.frequency_mhz:
        cores += f", {environment.frequency_mhz / 1000:.2f} GHz"
    if environment.governor:
        cores += f", governor {environment.governor}"
    libraries = [f"{name} {version}" for name, version in environment.libraries.items()]
    return {
        "device": f"{ceilings.device} {ceilings.device_name}" if ceilings.device != "cpu" else "",
        "processor": environment.cpu_model or "unknown",
        "instructions": " ".join(environment.instruction_sets),
        "cores": cores,
        "caches": ", ".join(
            f"{name} {_pieces(cache.one_bytes, cache.total_bytes)}"
            for name, cache in environment.caches.items()
        ),
        "memory": bytes_text(environment.memory_bytes) if environment.memory_bytes else "",
        "system": f"{environment.system}, Python {environment.python}",
        "libraries": ", ".join(libraries),
        "BLAS": environment.blas or "",
        "threads": ", ".join(f"{name}={value}" for name, value in environment.threads.items()),
        "busy": _busy(environment),
        "measured": ceilings.measured_at,
    }


def _pieces(one: int, total: int) -> str:
    count = round(total / one)
    return bytes_text(one) if count == 1 else f"{count} x {bytes_text(one)}"


def _busy(environment: Environment) -> str:
    said = []
    if environment.load_average is not None:
        said.append(f"load average {environment.load_average:.1f}")
    if environment.steal_share is not None:
        said.append(f"{percent_text(environment.steal_share)} stolen by other guests since boot")
    return ", ".join(said)


def _rates(ceilings: Ceilings) -> Table:
    table = _table(("dtype", "library"), ("ceiling", "median", "spread", "n"))
    for rate in ceilings.rates:
        is_best = rate.ceiling == ceilings.peak_flops(rate.dtype)
        table.add_row(
            rate.dtype,
            rate.library,
            Text(_rate_text(rate, rate.ceiling), style="bold" if is_best else ""),
            _rate_text(rate, rate.median),
            percent_text(rate.spread),
            str(rate.samples.count),
        )
    return table


def _rate_text(rate: Rate, number: float) -> str:
    return rate_text(number, "OP/s" if rate.dtype.startswith("int") else "FLOP/s")


def _bandwidths(ceilings: Ceilings) -> Table:
    table = _table(("level",), ("holds", "ceiling", "read", "spread", "copy", "spread", "n"))
    for each in ceilings.bandwidths:
        table.add_row(
            each.level,
            bytes_text(each.capacity_bytes) if each.capacity_bytes else "-",
            Text(rate_text(each.ceiling, "B/s"), style="bold"),
            *_use(each.read),
            *_use(each.copy),
            str(each.copy.count),
        )
    return table


def _use(samples: Samples | None) -> tuple[str, str]:
    if samples is None:
        return "-", "-"
    return rate_text(samples.median, "B/s"), percent_text(samples.stability.relative_spread)


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _ridges(ceilings: Ceilings) -> Table:
    table = _table(("dtype",), [f"from {each.level}" for each in ceilings.bandwidths])
    for dtype, peak in _peaks(ceilings).items():
        numbers = (count_text(peak / each.ceiling) for each in ceilings.bandwidths)
        table.add_row(dtype, *numbers)
    return table


def _peaks(ceilings: Ceilings) -> dict[str, float]:
    """Give the peak of each dtype, highest first."""
    peaks = {rate.dtype: ceilings.peak_flops(rate.dtype) or 0.0 for rate in ceilings.rates}
    return dict(sorted(peaks.items(), key=lambda item: -item[1]))


def _missing(ceilings: Ceilings) -> list[RenderableType]:
    if not ceilings.not_measured:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(style="dim", overflow="fold")
    for what, why in ceilings.not_measured.items():
        table.add_row(what, why)
    return [_heading("Not measured"), table]


def _doubts(ceilings: Ceilings) -> list[RenderableType]:
    lines = [Text(f"Note: {note}", style="dim") for note in ceilings.notes]
    lines += [Text(f"Doubt: {note}", style="yellow") for note in ceilings.disturbances]
    if ceilings.disturbances:
        advice = "The true ceilings are probably higher; measure again with --refresh when quiet."
        lines.append(Text(advice, style="yellow"))
    return [Text(""), *lines] if lines else []


@dataclass(frozen=True)
class _Frame:
    """Where numbers lie in the picture: powers of two across and up."""

    left: float
    right: float
    bottom: float
    top: float

    def column(self, intensity: float, width: int) -> int:
        """Give the column; one left or right of the picture is not between 0 and `width`."""
        share = (math.log2(intensity) - self.left) / (self.right - self.left)
        return math.floor(share * width)

    def row(self, flops: float, height: int) -> int:
        """Give the row, counted from the top."""
        share = (self.top - math.log2(flops)) / (self.top - self.bottom)
        return math.floor(share * height)

    def intensities(self, width: int) -> npt.NDArray[np.float64]:
        """Give the intensity in the middle of each column."""
        return np.exp2(self.left + (self.right - self.left) * (np.arange(width) + 0.5) / width)


def roofline_picture(ceilings: Ceilings, *, plain: bool = False) -> str:
    """Draw the roofline: FLOP/s over FLOP per byte, both logarithmic.

    Every level of the memory is a slope, every dtype a flat roof; a mark on the axis shows where
    the slope of the last level meets a roof. `plain` is ASCII only.
    """
    peaks = _peaks(ceilings)
    frame = _frame(peaks, ceilings.bandwidths)
    lines = _canvas(peaks, ceilings.bandwidths, frame, plain=plain)
    upright, marks = ("|", "+-^") if plain else ("│", "└─▲")
    roofs = _roof_labels(peaks, frame)
    ticks = _upright_labels(frame)
    picture = ["FLOP/s".rjust(7)]
    for row, line in enumerate(lines):
        picture.append(f"{ticks.get(row, ''):>6} {upright}{line} {roofs.get(row, '')}".rstrip())
    last = ceilings.bandwidths[-1]
    axis = [marks[1]] * COLUMNS
    for peak in peaks.values():
        column = frame.column(peak / last.ceiling, COLUMNS)
        if 0 <= column < COLUMNS:
            axis[column] = marks[2]
    picture.append(f"{'':6} {marks[0]}{''.join(axis)} FLOP per byte")
    picture.append(f"{'':8}{_axis_labels(frame)}")
    slopes = ", ".join(
        f"{each.level} {rate_text(each.ceiling, 'B/s')}" for each in ceilings.bandwidths
    )
    picture.append(f"{'':8}slopes from left: {slopes}")
    picture.append(f"{'':8}{marks[2]} where the slope of {last.level} meets a roof")
    return "\n".join(picture)


def _frame(peaks: dict[str, float], bandwidths: Sequence[Bandwidth]) -> _Frame:
    fastest, slowest = bandwidths[0].ceiling, bandwidths[-1].ceiling
    top = max(peaks.values())
    inside = peaks.get(REFERENCE, top)
    left = math.log2(inside / max(fastest, slowest) / MARGIN)
    right = math.log2(top / min(fastest, slowest) * MARGIN)
    bottom = math.log2(min(slowest, fastest)) + left
    return _Frame(left, right, bottom, math.log2(top * HEADROOM))


def _canvas(
    peaks: dict[str, float], bandwidths: Sequence[Bandwidth], frame: _Frame, *, plain: bool
) -> list[str]:
    """Draw slopes and roofs as lines of text."""
    across, down = (1, 1) if plain else (2, 4)  # the dots of a letter
    width, height = COLUMNS * across, ROWS * down
    slopes = np.zeros((height, width))
    roofs = np.zeros((height, width))
    top, fastest = max(peaks.values()), max(each.ceiling for each in bandwidths)
    for column, intensity in enumerate(frame.intensities(width)):
        for each in bandwidths:
            if each.ceiling * intensity <= top:
                _mark(slopes, frame.row(each.ceiling * intensity, height), column)
        for peak in peaks.values():
            if fastest * intensity >= peak:
                _mark(roofs, frame.row(peak, height), column)
    if plain:
        letters = np.where(roofs > 0, "-", np.where(slopes > 0, ".", " "))
        return ["".join(line) for line in letters]
    picture = braille_image(np.maximum(slopes, roofs), 0.5)
    return picture.replace(EMPTY_BRAILLE, " ").split("\n")


def _mark(image: npt.NDArray[np.float64], row: int, column: int) -> None:
    if 0 <= row < len(image):
        image[row, column] = 1


def _roof_labels(peaks: dict[str, float], frame: _Frame) -> dict[int, str]:
    """Give the text beside each row; roofs that are close together stand below each other."""
    labels: dict[int, str] = {}
    for dtype, peak in peaks.items():
        row = frame.row(peak, ROWS)
        while row in labels:
            row += 1
        if 0 <= row < ROWS:
            labels[row] = f"{dtype} {count_text(peak)}"
    return labels


def _powers_of_ten(low: float, high: float) -> list[float]:
    """Give the powers of ten between two logarithms of base two."""
    first, last = math.ceil(low * math.log10(2)), math.floor(high * math.log10(2))
    return [10.0**power for power in range(first, last + 1)]


def _upright_labels(frame: _Frame) -> dict[int, str]:
    """Give the text before each row that stands for a power of ten."""
    powers = _powers_of_ten(frame.bottom, frame.top)
    return {frame.row(power, ROWS): _short(count_text(power)) for power in powers}


def _short(text: str) -> str:
    """Write 100G instead of 100.0G."""
    digits = text.rstrip("kMGTPE")
    return f"{float(digits):g}{text[len(digits) :]}"


def _axis_labels(frame: _Frame) -> str:
    """Give the line of numbers below the axis."""
    line = [" "] * (COLUMNS + 4)
    for power in _powers_of_ten(frame.left, frame.right):
        text, start = f"{power:g}", frame.column(power, COLUMNS)
        line[start : start + len(text)] = text
    return "".join(line).rstrip()
