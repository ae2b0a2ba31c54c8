"""The rules of the competition and its events, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.competition.events import Division, Event
from tinytorch.competition.rules import Rule

__all__ = ["render_divisions", "render_events", "render_rules"]

CHAPTERS = {
    "E": "The entry, before it runs",
    "A": "Its answers",
    "T": "How they came about",
    "R": "The record",
    "W": "Doubts, which keep nobody off the board",
}
"""What the first letter of a rule's name means."""

DIVISION_WORDS: Mapping[Division, str] = {
    "closed": "the same function: the reference's weights, quantized or not, and nothing pruned",
    "open": "anything, also other weights, architectures and frameworks",
    "learner": "any technique of TinyTorch, and no other framework",
}
"""What may be done in each division."""


def render_rules(rules: Sequence[Rule]) -> RenderableType:
    """List rules by chapter, each with what to do when it is broken."""
    parts: list[RenderableType] = []
    for letter, title in CHAPTERS.items():
        chapter = [each for each in rules if each.id.startswith(letter)]
        if not chapter:
            continue
        table = Table.grid(padding=(0, 2))
        for rule in chapter:
            told = Text.assemble(rule.title, "\n", (f"if not: {rule.fix}", "dim"))
            table.add_row(Text(rule.id, style="bold"), told)
        parts += [Text(title, style="bold"), Padding(table, (0, 0, 1, 3))]
    return Group(*parts)


def render_events(events: Mapping[str, Event]) -> RenderableType:
    """List the events with what is asked and what is measured."""
    parts: list[RenderableType] = []
    for event in events.values():
        table = Table.grid(padding=(0, 2))
        for measure in event.measures:
            mark = "" if measure.is_scored else ", not scored"
            table.add_row(measure.name, Text(f"{measure.about}{mark}", style="dim"))
        heading = Text.assemble((event.name, "bold"), f"  {event.title}: {event.about}")
        parts += [heading, Padding(table, (0, 0, 1, 3))]
    return Group(*parts)


def render_divisions(tiers: Sequence[float]) -> RenderableType:
    """List the divisions with what may be done in them, and the tiers."""
    table = Table.grid(padding=(0, 2))
    for division, about in DIVISION_WORDS.items():
        table.add_row(Text(division, style="bold"), Text(about, style="dim"))
    shares = " or ".join(f"{100 * each:g}%" for each in tiers)
    kept = Text(f"{shares} of the reference's accuracy has to be left", style="dim")
    table.add_row(Text("tier", style="bold"), kept)
    return Group(Text("Divisions and tiers", style="bold"), Padding(table, (0, 0, 1, 3)))
