"""The page of an optimization: what helps and the proof, everything else below it."""

from __future__ import annotations

from collections.abc import Iterator

from tinytorch.errors import TinyTorchError
from tinytorch.reporting.comparison_words import measured_rows
from tinytorch.reporting.html.advice_cards import advice_section
from tinytorch.reporting.html.appendix import appendix
from tinytorch.reporting.html.attempts import attempts_section, forest_section
from tinytorch.reporting.html.flame import flame_section
from tinytorch.reporting.html.forest import forest_picture
from tinytorch.reporting.html.layers import layers_section
from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Banner, Page, Section, Tone
from tinytorch.reporting.html.roofline import roofline_section
from tinytorch.reporting.html.trade_offs import trade_offs_section
from tinytorch.reporting.optimization_words import (
    ablation_plot,
    beside_lines,
    confirmation_lines,
    contribution_words,
    every_note,
    headline,
    limit_line,
    limits_owner,
    verdict_word,
    why_slow,
)
from tinytorch.reporting.quality_lines import score_text
from tinytorch.reporting.quantities import seconds_text
from tinytorch.tuning.attempt import BETTER
from tinytorch.tuning.limits import BROKEN, KEPT
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.snippet import snippet

__all__ = ["optimization_page"]

LIMIT_TONES = {KEPT: "good", BROKEN: "bad"}
PROFILE_SECTIONS = (flame_section, layers_section, roofline_section)
"""What is shown of the profile of the model as it was."""


def optimization_page(optimization: Optimization) -> Page:
    """Make the page of an optimization."""
    found = [
        _limits(optimization),
        forest_section(optimization),
        _why(optimization),
        _advice(optimization),
        attempts_section(optimization),
        _ablation(optimization),
        trade_offs_section(optimization),
        _snippet(optimization),
        *_profile(optimization),
    ]
    raw = optimization.to_dict()
    file_name = "tinytorch-optimization.json"
    notes = every_note(optimization)
    last = appendix(optimization.environment, notes, raw, file_name=file_name)
    return Page(
        title=f"Optimization of {optimization.name}",
        banner=_banner(optimization),
        sections=(*(each for each in found if each is not None), last),
        raw=raw,
        subtitle=f"{optimization.framework} on {optimization.device}, "
        f"goal {optimization.settings.goal}",
    )


# ---------------------------------------------------------------- the verdict


def _banner(optimization: Optimization) -> Banner:
    said = (*beside_lines(optimization), *confirmation_lines(optimization))
    sentence = " ".join([headline(optimization), *said])
    if optimization.was_interrupted:
        sentence += " It was interrupted: this is what was finished before."
    return Banner(
        verdict_word(optimization),
        sentence,
        tuple(_facts(optimization)),
        _tone(optimization),
    )


def _tone(optimization: Optimization) -> Tone:
    if any(each.verdict == BROKEN for each in optimization.limit_checks):
        return "bad"
    best = optimization.recommended
    if best is None:
        open_ones = optimization.refuted or optimization.inconclusive or optimization.lacked_time
        return "neutral" if optimization.was_judged and not open_ones else "unknown"
    return "good" if best.outcome == BETTER else "neutral"


def _facts(optimization: Optimization) -> Iterator[tuple[str, str]]:
    """Give what the recommended model needs, before and after, and what finding it took."""
    best = optimization.recommended
    if best is not None and best.comparison is not None:
        for what, before, after, _ in measured_rows(best.comparison):
            yield what, after if before == after else f"{before} → {after}"
        accuracy = best.comparison.accuracy
        if accuracy is not None:
            write = score_text(accuracy)
            means = (accuracy.baseline_mean, accuracy.candidate_mean)
            yield accuracy.metric, " → ".join(dict.fromkeys(map(write, means)))
    count = len(optimization.attempts)
    if count:
        yield "better", f"{len(optimization.helped)} of {count} attempts"
    yield "took", seconds_text(optimization.seconds)


# ---------------------------------------------------------------- sections


def _why(optimization: Optimization) -> Section | None:
    sentences = why_slow(optimization)
    if not sentences:
        return None
    body = joined([element("p", each) for each in sentences])
    return Section("why", "Why it takes its time", body, "The model as it was, from its profile.")


def _advice(optimization: Optimization) -> Section | None:
    if not optimization.advice:
        return None
    found = {each.entry: optimization.outcome_of(each) for each in optimization.advice}
    outcomes = {name: attempt for name, attempt in found.items() if attempt is not None}
    return advice_section(optimization.advice, outcomes)


def _limits(optimization: Optimization) -> Section | None:
    if not optimization.limit_checks:
        return None
    lines = [
        element("li", limit_line(each), class_=LIMIT_TONES.get(each.verdict, "unknown"))
        for each in optimization.limit_checks
    ]
    about = f"What {limits_owner(optimization)} needs, against what was asked for."
    return Section("limits", "Limits", element("ul", *lines), about)


def _ablation(optimization: Optimization) -> Section | None:
    if not optimization.ablation:
        return None
    plot = ablation_plot(optimization)
    missing = [
        element("p", f"{each.part}: {contribution_words(each)}", class_="muted")
        for each in optimization.ablation
        if each.comparison is None
    ]
    body = joined([forest_picture(plot) if plot else Markup(""), *missing])
    about = "The whole stack against the stack without the part, timed in turns."
    return Section("parts", "What each part brings", body, about)


def _snippet(optimization: Optimization) -> Section | None:
    if optimization.recommended is None:
        return None
    try:
        body = element("pre", element("code", snippet(optimization)), tabindex=0)
    except TinyTorchError as error:  # plans that another version kept, for example
        body = element("p", f"There is no program for it: {error}", class_="muted")
    return Section("snippet", "Do it yourself", body, "A program that does it again.")


def _profile(optimization: Optimization) -> list[Section]:
    """Give where the time of the model as it was goes; what was read back has no profile."""
    if optimization.profile is None:
        return []
    return [make(optimization.profile) for make in PROFILE_SECTIONS]
