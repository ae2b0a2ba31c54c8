"""A profile as Markdown: what it costs and why it is slow open, where to look folded."""

from __future__ import annotations

from tinytorch.reporting.layer_table import layer_table
from tinytorch.reporting.markdown import code, escaped, fenced, folded, listed, table_rows
from tinytorch.reporting.profile_tables import amdahl_table, operation_table
from tinytorch.reporting.profile_words import caveat_lines, head_rows, reasons, setting_words
from tinytorch.workloads.profile import Profile
from tinytorch.workloads.profile_facts import find_facts

__all__ = ["profile_markdown"]

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
