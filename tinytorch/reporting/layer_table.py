"""The tree of layers as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from tinytorch.reporting.bars import share_bar
from tinytorch.reporting.fitting_table import Column, FittingTable
from tinytorch.reporting.quantities import bytes_text, count_text, percent_text, seconds_text
from tinytorch.workloads.layer_tree import LayerRow, layer_rows
from tinytorch.workloads.profile import Profile

__all__ = ["layer_table"]

BAR_WIDTH = 6
OF_TIME = ("share", "time", "self")


def layer_table(
    profile: Profile, *, depth: int | None = None, expand: bool = False
) -> FittingTable:
    """Lay out the layers of a profile; the own times (`self`) add up to the call."""
    rows = layer_rows(profile, depth=depth, expand=expand)
    total = seconds_text(profile.total_s)
    sums = {"share": _share_text(1.0), "time": total, "self": total}
    hottest = set(profile.bottleneck.layers) if profile.bottleneck else set()
    return FittingTable(
        "layer",
        [*(_label(row) for row in rows), Text("total")],
        [
            Column(title, [*cells, sums.get(title, "")], rank)
            for title, rank, cells in _columns(profile, rows)
        ],
        [*(_style(row, hottest) for row in rows), "bold"],
    )


def _columns(profile: Profile, rows: Sequence[LayerRow]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield title, rank and cells; what a narrow terminal can do without has a high rank."""
    bounds = [profile.bound(row.layer) for row in rows]

    def each(text: Callable[[LayerRow], str], *, costs: bool = True) -> list[str]:
        # What happens outside of the model has a time, and no costs of its own.
        return ["" if costs and row.role == "unattributed" else text(row) for row in rows]

    yield "share", 0, each(lambda row: _share_text(profile.share(row.layer)), costs=False)
    yield "time", 1, each(lambda row: seconds_text(row.layer.time_s), costs=False)
    yield "self", 2, each(_self_text, costs=False)
    if profile.mode == "training":
        yield "backward", 3, each(_backward_text)
    yield "calls", 12, each(lambda row: count_text(row.layer.calls))
    yield "MACs", 5, each(lambda row: count_text(row.layer.macs))
    yield "FLOP/s", 6, each(lambda row: count_text(row.layer.flops_per_s))
    yield "bytes", 10, each(lambda row: bytes_text(row.layer.bytes_moved))
    yield "FLOP/B", 11, each(lambda row: count_text(row.layer.intensity))
    if profile.ceilings is not None:
        yield "bound", 4, [bound.bound if bound else "" for bound in bounds]
        yield "of peak", 7, [percent_text(b.efficiency) if b else "" for b in bounds]
    yield "params", 8, each(lambda row: count_text(row.layer.parameters))
    yield "activ.", 9, each(lambda row: bytes_text(row.layer.activation_bytes))
    yield "peak mem", 13, each(lambda row: percent_text(profile.peak_share(row.layer)))


def _share_text(share: float) -> str:
    return f"{share_bar(share, BAR_WIDTH)} {percent_text(share):>6}"


def _self_text(row: LayerRow) -> str:
    """Write the time that is in no other row; a container that stands open has none."""
    return seconds_text(row.own_s) if row.own_s else ""


def _backward_text(row: LayerRow) -> str:
    return seconds_text(row.layer.backward_s) if row.layer.backward_s else ""


def _label(row: LayerRow) -> Text:
    label = Text("  " * row.level + row.label)
    if row.hidden:
        label.append(f" +{row.hidden}", style="dim")
    if row.role == "layer" and row.layer.kind != row.label.strip("<>"):
        label.append(f" {row.layer.kind}", style="dim")
    return label


def _style(row: LayerRow, hottest: set[str]) -> str:
    if row.own_s and row.paths and set(row.paths) <= hottest:
        return "yellow"
    return "dim" if row.role != "layer" else ""
