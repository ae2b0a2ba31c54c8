"""A profile in the terminal: what it costs, why it is slow, and where to look."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tinytorch.errors import SettingError
from tinytorch.profiling.profile import Profile, ProfileFacts, find_facts
from tinytorch.reporting.markdown import code, escaped, fenced, folded, listed, table_rows
from tinytorch.reporting.profile_tables import (
    amdahl_table,
    cache_view,
    caveats,
    counter_table,
    layer_table,
    memory_view,
    operation_table,
)
from tinytorch.reporting.profile_words import (
    caveat_lines,
    head_rows,
    interval_text,
    reasons,
    setting_words,
)
from tinytorch.reporting.quantities import (
    Column,
    FittingTable,
    bytes_text,
    count_text,
    percent_text,
    seconds_text,
)
from tinytorch.reporting.roofline import roofline_view

__all__ = ["profile_markdown", "render_profile", "render_profiles"]


def render_profile(
    profile: Profile, *, depth: int | None = None, top: int = 8, expand: bool = False
) -> RenderableType:
    """Lay a profile out, top to bottom.

    `depth` limits the levels of the layer tree, `top` the rows of the tables of operations and
    hotspots; `expand` shows repeated blocks one by one.
    """
    if top < 1:
        raise SettingError(f"top={top}; at least one row is needed to show anything")
    facts = find_facts(profile)
    roofline = roofline_view(profile, top)
    sections = [
        _title(profile, facts),
        _headline(profile, facts),
        _section("Why", Text(" ".join(reasons(profile, facts)))),
        _section("Layers", layer_table(profile, depth=depth, expand=expand)),
        _section("What a faster part would bring (Amdahl's law)", amdahl_table(profile, top)),
        *([] if roofline is None else [_section("Roofline", roofline)]),
        _section("Operations, in the recorded call", operation_table(profile, top)),
        _section("Memory, in the recorded call", memory_view(profile, facts)),
    ]
    if profile.ceilings is not None:
        sections.append(_section("Caches and memory of this machine", cache_view(profile, top)))
    if profile.counters is not None:
        sections.append(_section("Hardware counters", counter_table(profile.counters)))
    sections.append(_section("What to keep in mind", caveats(profile, facts)))
    return Group(*sections)


def render_profiles(profiles: Sequence[Profile]) -> RenderableType:
    """Lay several profiles out side by side, one row each."""
    if not profiles:
        raise SettingError("no profiles to show; give at least one")
    found = [(profile, find_facts(profile)) for profile in profiles]
    settings = sorted({f"{each.mode} on {each.device}" for each in profiles})
    legend = (
        f"Medians of {' and '.join(settings)}. MACs are multiply-accumulates of contractions; "
        "FLOP/B is all floating-point work over the bytes moved; the bottleneck is what takes "
        "most of the time itself, the bound is that of the whole model."
    )
    notes = [f"- {each.name}: {note}" for each in profiles for note in each.notes]
    return Group(
        FittingTable(
            "model",
            [Text(profile.name, style="bold") for profile in profiles],
            [
                Column("latency", [seconds_text(p.latency.median) for p, _ in found]),
                Column(
                    "95% interval",
                    [interval_text(p.latency.median_interval()) for p, _ in found],
                    7,
                ),
                Column("examples/s", [count_text(p.throughput) for p, _ in found], 5),
                Column("params", [count_text(p.parameter_count) for p, _ in found], 2),
                Column("MACs", [count_text(p.macs) for p, _ in found], 1),
                Column("FLOP/B", [count_text(facts.intensity) for _, facts in found], 6),
                Column("peak mem", [bytes_text(facts.peak_bytes) for _, facts in found], 1),
                Column(
                    "bottleneck", [_bottleneck_words(facts) for _, facts in found], 2, "left", 20
                ),
                Column("bound", [facts.bound or "" for _, facts in found], 4, "left"),
            ],
        ),
        Text(""),
        Text(legend, style="dim"),
        *(Text(note, style="yellow") for note in notes),
    )


# ---------------------------------------------------------------- the head


def _title(profile: Profile, facts: ProfileFacts) -> Text:
    return Text.assemble((profile.name, "bold"), "  ", (setting_words(profile, facts), "dim"))


def _headline(profile: Profile, facts: ProfileFacts) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text, doubt in head_rows(profile, facts):
        grid.add_row(name, Text.assemble((text, "bold"), f"  {doubt}") if doubt else text)
    return grid


def _bottleneck_words(facts: ProfileFacts) -> str:
    found = facts.bottleneck
    if found is None:
        return ""
    return f"{percent_text(found.share)} {found.name or 'the model itself'}"


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, style="bold"), body)


# ---------------------------------------------------------------- a profile as Markdown: what it
# costs and why it is slow open, where to look folded

WIDTH = 110
"""Letters in a line of the tables, which keep the tree of layers."""


def profile_markdown(profile: Profile, *, top: int = 8, depth: int | None = None) -> str:
    """Write a profile; `top` limits the rows of tables, `depth` the levels of the layer tree."""
    facts = find_facts(profile)
    rows = [[escaped(cell) for cell in row] for row in head_rows(profile, facts)]
    lines = [
        f"### Profile of {code(profile.name)}",
        "",
        escaped(setting_words(profile, facts)),
        "",
        *table_rows(["", "", ""], rows),
        "",
        "**Why**: " + escaped(" ".join(reasons(profile, facts))),
        "",
    ]
    tables = {
        "Layers": layer_table(profile, depth=depth),
        "What a faster part would bring (Amdahl's law)": amdahl_table(profile, top),
        "Operations, in the recorded call": operation_table(profile, top),
    }
    for title, table in tables.items():
        lines += folded(title, [fenced(table, width=WIDTH)])
    lines += folded("What to keep in mind", listed(caveat_lines(profile, facts)))
    return "\n".join(lines).rstrip("\n") + "\n"
