"""The page of the tour: what came of each model, then everything about one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tinytorch.reporting.html.markup import Markup, element, joined
from tinytorch.reporting.html.page import Banner, Page, Section, appendix, page_from
from tinytorch.reporting.html.plot import drawing, text
from tinytorch.reporting.optimization import optimization_document
from tinytorch.reporting.optimization_words import every_note, verdict_word
from tinytorch.reporting.tour import FAST, INK, NEXT_COMMANDS, short_line, where_words
from tinytorch.tuning.tour import Introduction, SampleDigit, Tour, Visit

__all__ = ["tour_page"]

TITLE = "A tour of TinyTorch"
APPENDIX = "appendix"
PIXEL, GAP, WORDS = 4, 36, 26
"""How large a pixel of a digit is drawn, what is between digits, and what stands below them."""


def tour_page(tour: Tour) -> Page:
    """Make the page of the tour: one file for all of its models."""
    raw = tour.to_dict()
    notes = [
        f"{visit.stop.target}: {note}"
        for visit in tour.visits
        for note in every_note(visit.optimization)
    ]
    environment = tour.visits[0].optimization.environment if tour.visits else None
    return Page(
        title=TITLE,
        banner=_banner(tour),
        sections=(
            _introduction(tour.introduction),
            *_once(section for visit in tour.visits for section in _about(visit)),
            _next(tour),
            appendix(environment, notes, raw, file_name="tinytorch-tour.json"),
        ),
        raw=raw,
        subtitle=where_words(tour),
    )


def _banner(tour: Tour) -> Banner:
    helped = [each for each in tour.visits if each.optimization.recommended]
    words = [f"{x.stop.target} {verdict_word(x.optimization)}" for x in helped]
    sentence = (
        "Trained models were profiled; what could make them better was tried on copies, checked "
        "for accuracy, and timed in turns with the models as they were."
    )
    if tour.was_interrupted:
        sentence += " It was interrupted: this is what was finished before."
    facts = [(each.stop.target, short_line(each.optimization)) for each in tour.visits]
    if not helped:
        return Banner("Nothing that was tried helps", sentence, tuple(facts), "neutral")
    return Banner(", ".join(words), sentence, tuple(facts), "good")


# ---------------------------------------------------------------- one model


def _about(visit: Visit) -> Iterator[Section]:
    """Give the sections of one model, named after it; the appendix is for all models."""
    page = page_from(optimization_document(visit.optimization))
    name = visit.stop.target
    yield Section(
        name, f"{name}: {page.banner.verdict}", _verdict(page.banner), f"It {visit.stop.about}."
    )
    for each in page.sections:
        if each.anchor != APPENDIX:
            yield replace(each, anchor=f"{name}-{each.anchor}", title=f"{name}: {each.title}")


def _verdict(banner: Banner) -> Markup:
    facts = [element("div", element("dt", k), element("dd", v)) for k, v in banner.facts]
    return joined([element("p", banner.sentence), element("dl", *facts, class_="facts")])


def _once(sections: Iterator[Section]) -> Iterator[Section]:
    """Leave out what needs a script that an earlier section has: it works on one picture."""
    seen: set[str] = set()
    for each in sections:
        if not seen.intersection(each.scripts):
            yield each
        seen.update(each.scripts)


# ---------------------------------------------------------------- before and after


def _introduction(introduction: Introduction) -> Section:
    body = joined(
        [
            element("p", "Digits that nobody trained on, and what cnn sees in them:"),
            _digits(introduction.digits),
            element("p", "What gpt writes, one character at a time, after the words in grey:"),
            element(
                "p",
                element("span", introduction.prompt, class_="muted"),
                f"{introduction.text.rstrip()}…",
            ),
        ]
    )
    return Section("models", "Are the models real?", body)


def _digits(digits: tuple[SampleDigit, ...]) -> Markup:
    side = max((max(each.image.shape) for each in digits), default=0) * PIXEL
    parts = [
        part
        for place, each in enumerate(digits)
        for part in _digit(each, place * (side + GAP), side)
    ]
    label = "; ".join(_answer(each) for each in digits)
    return drawing(max(1, len(digits)) * (side + GAP) - GAP, side + WORDS, *parts, label=label)


def _digit(digit: SampleDigit, left: float, side: float) -> list[Markup]:
    is_right = digit.predicted == digit.label
    return [
        element("path", d=_runs(digit, left), fill="var(--ink)"),
        text(
            left + side / 2,
            side + 18,
            _answer(digit),
            class_="label" if is_right else "label bad",
            anchor="middle",
        ),
    ]


def _runs(digit: SampleDigit, left: float) -> str:
    """Give the bright pixels of each row as boxes."""
    bright = np.pad(digit.image > INK, ((0, 0), (1, 1))).astype(np.int8)
    rows, columns = np.nonzero(np.diff(bright, axis=1))
    begins, ends = columns[::2], columns[1::2]
    return "".join(
        f"M{left + PIXEL * begin} {PIXEL * row}h{PIXEL * (end - begin)}v{PIXEL}"
        f"h{PIXEL * (begin - end)}z"
        for row, begin, end in zip(rows[::2], begins, ends, strict=True)
    )


def _answer(digit: SampleDigit) -> str:
    words = f"a {digit.predicted} ({digit.probability:.0%})"
    return words if digit.predicted == digit.label else f"{words}, is a {digit.label}"


def _next(tour: Tour) -> Section:
    shown = "\n".join(f"{command}  # {about}" for command, about in NEXT_COMMANDS)
    parts = [element("pre", element("code", shown), tabindex=0)]
    if not tour.has_compiled_kernels:
        fast = element("code", FAST)
        parts.append(element("p", "This was NumPy alone. Compiled kernels come with ", fast, "."))
    return Section("next", "Now with your own model", joined(parts))
