"""The catalog of what can be tried, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tinytorch.tuning.catalog import GOALS, Entry

__all__ = ["render_catalog"]

NOTHING_FITS = "Nothing in the catalog fits."
TITLES = ("entry", "risk", "role", "for", "models")
LEGEND = (
    "exact: nothing but the order of sums changes; rounding: numbers have fewer bits; "
    "approximate: another function, tried only where there is an evaluate. "
    "Of one role a model gets one at a time."
)
NAMES = {"core": "TinyTorch", "pytorch": "PyTorch"}


def render_catalog(entries: Sequence[Entry]) -> RenderableType:
    """List entries: their risk, role, what they are good for and where, and below what they do."""
    if not entries:
        return Text(NOTHING_FITS)
    rows = [(each.name, each.risk, each.role, _goals(each), _models(each)) for each in entries]
    widths = [max(map(len, column)) for column in zip(TITLES, *rows, strict=True)]
    parts: list[RenderableType] = [Text(_line(TITLES, widths), style="bold")]
    for entry, row in zip(entries, rows, strict=True):
        parts += [Text(_line(row, widths)), Padding(Text(entry.about, style="dim"), (0, 0, 0, 2))]
    return Group(*parts, Text(""), Text(LEGEND, style="dim"))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()


def _goals(entry: Entry) -> str:
    if set(GOALS) <= entry.serves:
        return "all"
    times, sizes = {"latency", "throughput"}, {"memory", "size"}
    words = {"time": times, "bytes": sizes}
    return ", ".join(word for word, goals in words.items() if goals <= entry.serves) or ", ".join(
        sorted(entry.serves)
    )


def _models(entry: Entry) -> str:
    frameworks = ", ".join(NAMES.get(each, each) for each in entry.frameworks)
    is_everywhere = {"cpu", "cuda"} <= set(entry.devices)
    return frameworks if is_everywhere else f"{frameworks} on {', '.join(entry.devices)}"
