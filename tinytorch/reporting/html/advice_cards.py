"""Suggestions as cards: the evidence, what should come of it, and beside it what did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tinytorch.reporting.advice import NO_ADVICE, NOTHING_HERE, RISKS, agreement_words
from tinytorch.reporting.comparison import speedup_text
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Section
from tinytorch.reporting.optimization_words import TONES
from tinytorch.reporting.quantities import percent_text
from tinytorch.reporting.transforms import gain_text
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.attempt import NOT_TRIED, Attempt

__all__ = ["advice_cards", "advice_section"]

ABOUT = (
    "What the profile suggests, the most promising first. Gains are predicted within what Amdahl's "
    "law and the roofline allow, before anything is tried."
)


def advice_section(
    advice: Sequence[Advice], outcomes: Mapping[str, Attempt] | None = None
) -> Section:
    """Give the section with a card for each suggestion."""
    return Section("advice", "Suggestions", advice_cards(advice, outcomes), ABOUT)


def advice_cards(advice: Sequence[Advice], outcomes: Mapping[str, Attempt] | None = None) -> Markup:
    """Draw a card for each suggestion.

    `outcomes` has what came of an entry of the catalog on its own, by its name, where it was tried;
    without it, nothing was tried yet.
    """
    if not advice:
        return element("p", NO_ADVICE, class_="muted")
    return element("div", *(_card(each, outcomes) for each in advice), class_="cards")


def _card(advice: Advice, outcomes: Mapping[str, Attempt] | None) -> Markup:
    attempt = outcomes.get(advice.entry) if outcomes and advice.entry else None
    was_tried = outcomes is not None and bool(advice.entry)
    tone = TONES[attempt.outcome] if attempt else "unknown" if was_tried else "neutral"
    return element(
        "article",
        element("h3", advice.title),
        _state(advice, attempt, tone, was_tried=was_tried),
        element("ul", *(element("li", each) for each in advice.evidence)),
        _facts(advice, attempt),
        *(element("p", line, class_="muted") for line in _lines(advice, attempt)),
        _basis(advice),
        class_=f"card {tone}",
    )


def _state(advice: Advice, attempt: Attempt | None, tone: str, *, was_tried: bool) -> Markup:
    """Say what does it, what came of it, and how much of the time it is about."""
    parts: list[str] = []
    if was_tried:
        words = attempt.outcome if attempt else "not tried"
        parts.append(element("span", words, class_=f"badge {tone}"))
    parts.append(element("code", advice.entry) if advice.entry else NOTHING_HERE)
    if advice.share is not None:
        parts.append(f"about {percent_text(advice.share)} of the time")
    return element("p", joined(parts, " · "), class_="muted")


def _facts(advice: Advice, attempt: Attempt | None) -> Markup:
    """Put what was measured beside what was predicted."""
    facts = []
    if advice.predicted is not None:
        facts.append(_fact("predicted speedup", gain_text(advice.predicted)))
    if attempt is not None and attempt.comparison is not None:
        agreement = agreement_words(advice, attempt)
        ending = f", {agreement}" if agreement else ""
        facts.append(_fact("measured speedup", f"{speedup_text(attempt.comparison)}{ending}"))
    return element("dl", *facts, class_="facts") if facts else Markup("")


def _fact(name: str, words: str) -> Markup:
    return element("div", element("dt", name), element("dd", words))


def _lines(advice: Advice, attempt: Attempt | None) -> Iterator[str]:
    """Say why there is no prediction, what is at stake, and why what was tried is no good."""
    if attempt is not None and attempt.comparison is None and attempt.reason:
        words = f"{attempt.outcome}: {attempt.reason}."
        is_tried = attempt.outcome != NOT_TRIED
        yield f"Tried: {words}" if is_tried else f"{words[0].upper()}{words[1:]}"
    if advice.predicted is None and advice.not_predicted:
        yield f"Not predicted: {advice.not_predicted}."
    if advice.risk:
        yield f"Risk: {RISKS.get(advice.risk, advice.risk)}."
    if advice.cost:
        yield f"Cost: {advice.cost}."


def _basis(advice: Advice) -> Markup:
    """Say what a prediction rests on, to those who ask."""
    if advice.predicted is None:
        return Markup("")
    summary = element("summary", "How it was predicted")
    return element("details", summary, element("p", f"{advice.predicted.basis}.", class_="muted"))
