"""How tables call a hotspot."""

from __future__ import annotations

from rich.text import Text

from tinytorch.workloads.profile_facts import BottleneckFacts

__all__ = ["hotspot_label"]


def hotspot_label(found: BottleneckFacts) -> Text:
    """Give name, number and kind of the layers of a hotspot: ``h.*.mlp (12x) Linear``."""
    many = f" ({len(found.layers)}x)" if len(found.layers) > 1 else ""
    name = "(the model itself)" if found.is_model else found.name
    kind = "" if found.kind == name.strip("<>") else f" {found.kind}"
    return Text.assemble(name, many, (kind, "dim"))
