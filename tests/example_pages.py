"""Small pages that show every part of a report once."""

from tinytorch.reporting.document import Banner, Cell, Column, Row
from tinytorch.reporting.html.markup import element, joined, table
from tinytorch.reporting.html.page import Page, Section, appendix
from tinytorch.reporting.html.plot import drawing, text

HOSTILE = "<script>alert(1)</script>"
COLUMNS = (
    Column("layer"),
    Column("time", "number", "Median of the calls"),
    Column("share", "bar"),
)


def layer_rows(name: str = "head") -> list[Row]:
    """Give a tree: a model of two blocks with two layers each, and a layer beside them."""
    rows = [Row(["model", Cell("9 ms", 9.0), Cell("100%", 1.0, bar=1.0)], path="")]
    for block, times in (("block.2", (1.0, 2.0)), ("block.10", (3.0, 1.5))):
        whole = sum(times)
        cells = [block, Cell(f"{whole:g} ms", whole), Cell("-")]
        rows.append(Row(cells, path=block, parent="", is_folded=block == "block.10"))
        for place, time in enumerate(times):
            cells = [f"layer {place}", Cell(f"{time:g} ms", time), Cell("", 0.1, bar=0.1)]
            rows.append(Row(cells, path=f"{block}.{place}", parent=block))
    return [*rows, Row([name, Cell("-"), Cell("?")], path="head", parent="")]


def example_page(name: str = "an example") -> Page:
    """Give a page whose title, cells, notes and raw values hold a name."""
    picture = drawing(
        700,
        90,
        element("rect", x=40, y=20, width=300, height=20, class_="series-1"),
        text(44, 34, name),
        label=f"How long {name} takes",
    )
    details = element("details", element("summary", "More"), element("p", name, id="more"))
    wide = table([Column(f"a rather long heading {k}") for k in range(9)], [[name] * 9])
    raw = {"name": name, "values": [1.0, float("nan"), float("inf")]}
    return Page(
        title=name,
        banner=Banner("2.00x faster", f"{name} is faster.", (("speedup", "2.00x"),), "good"),
        sections=(
            Section("layers", "Layers", table(COLUMNS, layer_rows(name), caption="By time")),
            Section("picture", "Picture", joined([picture, details]), f"About {name}."),
            Section("wide", name, wide),
            appendix({"cpu_model": name, "memory_bytes": 1 << 30}, [name], raw),
        ),
        raw=raw,
        subtitle="measured today",
    )
