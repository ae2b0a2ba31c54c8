"""Suggestions in the terminal: the evidence, what should come of it, and what did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tinytorch.reporting.attempt_words import STYLES, TONES
from tinytorch.reporting.comparison_words import speedup_text
from tinytorch.reporting.plan import gain_text
from tinytorch.reporting.quantities import factor_text, percent_text
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import Attempt

__all__ = [
    "NOTHING_HERE",
    "NO_ADVICE",
    "RISKS",
    "agreement_words",
    "outcome_words",
    "predicted_words",
    "render_advice",
]

NO_ADVICE = "Nothing in the profile suggests a change."
NOTHING_HERE = "nothing here does it: it is up to you"
RISKS = {
    "exact": "the same function; sums may be rounded in another order",
    "rounding": "numbers with fewer bits: outputs change a little",
    "approximate": "another function: accuracy has to be looked at",
}
"""Risk of an entry -> what it means; other risks are sentences already."""
INDENT = 3


def render_advice(
    advice: Sequence[Advice], outcomes: Mapping[str, Attempt] | None = None
) -> RenderableType:
    """Lay suggestions out as cards, the most promising first.

    `outcomes` has what came of an entry of the catalog on its own, by its name, where it was tried;
    without it, nothing was tried yet.
    """
    if not advice:
        return Text(NO_ADVICE, style="dim")
    cards = [_card(place, each, outcomes) for place, each in enumerate(advice, 1)]
    spaced = [part for card in cards for part in (Text(""), card)]
    return Group(*spaced[1:])


def predicted_words(advice: Advice) -> str:
    """Say how much faster it should become, or why nobody can tell."""
    if advice.predicted is None:
        return f"not predicted: {advice.not_predicted}" if advice.not_predicted else "not predicted"
    return f"{gain_text(advice.predicted)}: {advice.predicted.basis}"


def outcome_words(advice: Advice, attempt: Attempt | None) -> str:
    """Say what came of a suggestion beside what was predicted.

    ``predicted 1.80x, measured 1.60x (1.50x to 1.70x): better, as predicted``
    """
    if attempt is None:
        return "not tried"
    if attempt.comparison is None or attempt.measured.time is None:
        return f"{attempt.outcome}: {attempt.reason}" if attempt.reason else attempt.outcome
    measured = f"measured {speedup_text(attempt.comparison)}"
    if advice.predicted is None:
        return f"{measured}: {attempt.outcome}"
    predicted = f"predicted {factor_text(advice.predicted.value)}"
    return f"{predicted}, {measured}: {attempt.outcome}, {agreement_words(advice, attempt)}"


def agreement_words(advice: Advice, attempt: Attempt) -> str:
    """Say whether what was measured is as predicted; "" where one of them is missing."""
    time = attempt.measured.time
    return "" if time is None else advice.agreement(time.gain)


def _card(place: int, advice: Advice, outcomes: Mapping[str, Attempt] | None) -> RenderableType:
    share = "" if advice.share is None else f"  about {percent_text(advice.share)} of the time"
    title = Text.assemble(f"{place}. ", (advice.title, "bold"), (share, "dim"))
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    for name, text in _rows(advice, outcomes):
        lines.add_row(name, text)
    return Group(title, Padding(lines, (0, 0, 0, INDENT)))


def _rows(advice: Advice, outcomes: Mapping[str, Attempt] | None) -> Iterator[tuple[str, Text]]:
    for place, sentence in enumerate(advice.evidence):
        yield "" if place else "evidence", Text(sentence)
    yield "predicted", Text(predicted_words(advice))
    yield "done by", Text(advice.entry or NOTHING_HERE)
    if advice.risk:
        yield "risk", Text(RISKS.get(advice.risk, advice.risk))
    if advice.cost:
        yield "cost", Text(advice.cost)
    if outcomes is not None and advice.entry:
        attempt = outcomes.get(advice.entry)
        style = STYLES[TONES[attempt.outcome]] if attempt else "dim"
        yield "tried", Text(outcome_words(advice, attempt), style=style)
