"""How fast a model generates, as a section of its profile."""

from __future__ import annotations

from collections.abc import Sequence

from tinytorch.profiling.generation_speed import GenerationSpeed
from tinytorch.reporting import document as doc
from tinytorch.reporting.quantities import seconds_text


def generation_section(speeds: Sequence[GenerationSpeed]) -> doc.Section:
    """Return the times of tokens at each batch size."""
    first = speeds[0]
    table = doc.table_of(
        speeds,
        doc.number("batch", lambda each: each.batch, str),
        doc.number("time to first token", lambda each: each.first_token_s, seconds_text),
        doc.number("time per output token", lambda each: each.per_token_s, seconds_text),
        doc.number("tokens per second", lambda each: each.tokens_per_s, "{:.1f}".format),
        doc.number("calls", lambda each: each.whole.count, str),
    )
    about = f"Prompts of {first.prompt_tokens} tokens, {first.new_tokens} new ones each. Medians."
    return doc.Section("generation", "Generation", (table,), about=about)
