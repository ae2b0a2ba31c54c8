"""The machine and its ceilings in the terminal, with the roofline that they imply."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.measure.ceilings import Ceilings, Rate
from tinytorch.measure.environment import Environment
from tinytorch.measure.samples import Samples
from tinytorch.reporting.quantities import bytes_text, count_text, percent_text, rate_text
from tinytorch.reporting.roofline import INDENT, ridge_mark, roofline_picture

__all__ = ["render_machine"]


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
            Text(roofline_picture(_peaks(ceilings), ceilings.bandwidths, plain=plain)),
            _how_to_read(ceilings, plain=plain),
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


def _how_to_read(ceilings: Ceilings, *, plain: bool) -> RenderableType:
    fastest_first = sorted(ceilings.bandwidths, key=lambda each: -each.ceiling)
    slopes = ", ".join(f"{each.level} {rate_text(each.ceiling, 'B/s')}" for each in fastest_first)
    last = ceilings.bandwidths[-1].level
    lines = (
        f"slopes from left: {slopes}",
        f"{ridge_mark(plain=plain)} where the slope of {last} meets a roof",
    )
    return Padding(Text("\n".join(lines)), (0, 0, 0, INDENT))


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
